"""The files of a task: reads them, tokenises them, and scores predictions for them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from cmlm.common import checksums
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.evaluation import metrics
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.finetuning import examples
from cmlm.finetuning.examples import Examples
from cmlm.finetuning.tasks import Task


@dataclasses.dataclass
class TaskData:
    """The files of a task, tokenised.

    Attributes:
        task: the task.
        parts: the examples of each file, by name.
        paths: the paths of each file, by name.
        tests: the file to submit, by the name of its test file.
    """

    task: Task
    parts: dict[str, Examples]
    paths: dict[str, list[str]]
    tests: dict[str, str]

    @property
    def train(self) -> Examples:
        """The examples to train on."""
        return self.parts[self.task.train]

    def score(self, predicted: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The metrics of predictions, see `Task.score`."""
        gold = {name: part.labels for name, part in self.parts.items()}
        return self.task.score(predicted, gold)

    def score_constant(self) -> dict[str, float]:
        """The metrics of the best constant prediction, see `Task.constant`."""
        guess = np.asarray(self.task.constant(self.train.labels))
        return self.score(
            {
                name: np.broadcast_to(guess, [len(part), *guess.shape])
                for name, part in self.parts.items()
            }
        )

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describes each file for results.json."""
        return {name: self._describe(name) for name in self.parts}

    def _describe(self, name: str) -> dict[str, Any]:
        paths = self.paths[name]
        sums = [checksums.sha256(path) for path in paths]
        return {
            "path": paths[0] if len(paths) == 1 else paths,
            "sha256": sums[0] if len(paths) == 1 else sums,
            "examples": len(self.parts[name]),
            "truncated": self.parts[name].truncated,
        }


def check(task: Task, source: DataDir) -> None:
    """Reads the files of a task without tokenising them.

    With several tasks, a missing or damaged file then shows before the first of them
    trains.

    Raises:
        MissingData: a file of `task.train` or `task.dev` is missing.
        UserError: a file is damaged.
    """
    for name in (*task.needed, *(name for _, name in (*task.heldout, *task.tests))):
        try:
            paths = task.find(source, name)
        except MissingData:
            if name in task.needed:
                raise
            continue
        with_labels = name not in [test for _, test in task.tests]
        for _ in task.examples(name, paths, with_labels):
            pass


def read(
    task: Task,
    source: DataDir,
    opened: OpenedWeights,
    seq_length: int,
) -> TaskData:
    """Reads and tokenises the files of a task.

    Raises:
        MissingData: a file of `task.train` or `task.dev` is missing. A missing test or
            held-out file gives a line on stderr instead.
        UserError: a file is damaged, or has too few scores for a correlation.
    """
    paths = {name: task.find(source, name) for name in task.needed}
    tests = {}
    for _, name in task.heldout:
        try:
            paths[name] = task.find(source, name)
        except MissingData as error:
            print(f"no score for {name}: {error}", file=sys.stderr)
    for answer, name in task.tests:
        try:
            paths[name] = task.find(source, name)
            tests[name] = answer
        except MissingData as error:
            print(f"no predictions in {answer}: {error}", file=sys.stderr)
    parts = {
        name: examples.encode(
            task.examples(name, found, with_labels=name not in tests),
            opened.tokenizer,
            seq_length,
            apart=task.head == "vectors",
        )
        for name, found in paths.items()
    }
    if task.is_regression:
        for _, name in (*task.dev, *task.heldout):
            if name in parts:
                metrics.check_gold(parts[name].labels, f"{paths[name][0]} ({name})")
    return TaskData(task, parts, paths, tests)
