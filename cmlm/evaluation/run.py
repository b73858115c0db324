"""A run: reads the data sets once, then scores one model after another."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.common import atomic
from cmlm.common.protocols import SentenceEncoder
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir, reason
from cmlm.evaluation.resuming import Kept
from cmlm.evaluation.store import (
    Change,
    LanguageStores,
    Store,
    VectorsOnDisk,
)
from cmlm.evaluation.tasks.base import Predictions, Task, Vectors

logger = logging.getLogger(__name__)

# `NAME=MODEL`; a name is not a path.
_NAMED = re.compile(r"([^=:/\\]+)=(.+)")
# UTF-8 cannot encode half of a surrogate pair, which JSON may hold. Readers of lines
# refuse a NUL, and leave out a byte order mark.
_NOT_A_LINE = re.compile(r"[\n\r\0\ud800-\udfff]|^\ufeff")


@dataclasses.dataclass
class TaskData:
    """A task and its data set.

    Attributes:
        task: a task of the catalogue.
        data: the data set, as `task.read` returns it.
        checksums: the SHA-256 of the files that were read, by path.
    """

    task: Task
    data: Any
    checksums: dict[str, str]


@dataclasses.dataclass
class ModelScores:
    """The scores of a model.

    Attributes:
        scores: metrics and their values, by task.
        figures: the data of a report's figures, by task; plain values. Empty unless
            `score` was asked for them.
        languages: the languages of the vectors that each task asked for, sorted.
        sentences: the number of distinct sentences.
        encoded: the number of sentences that the model encoded, in this run or in the
            killed run that it continues.
        encoding_seconds, scoring_seconds: wall time; the encoding of a run that was
            killed while it encoded is left out.
        failed: a message for each task that the model cannot be scored on.
        predictions: those of each task and part. Empty unless `score` was asked for
            them; tasks without predictions are missing.
    """

    scores: dict[str, dict[str, float]]
    figures: dict[str, dict[str, Any]]
    languages: dict[str, list[str]]
    sentences: int
    encoded: int
    encoding_seconds: float
    scoring_seconds: float
    failed: dict[str, str]
    predictions: dict[str, dict[str, Predictions]]

    def as_dict(self) -> dict[str, Any]:
        """The part of a model's entry in results.json that comes from the scores."""
        return {
            "scores": self.scores,
            "figures": self.figures,
            "sentences": self.sentences,
            "encoded": self.encoded,
            "encoding_seconds": round(self.encoding_seconds, 1),
            "scoring_seconds": round(self.scoring_seconds, 1),
        }


def named(values: list[str]) -> dict[str, str]:
    """The models of --model by name; a model without a name has its path for one.

    Raises:
        UserError: two models have one name.
    """
    models: dict[str, str] = {}
    for value in values:
        name = model = value
        found = _NAMED.fullmatch(value)
        if found and not os.path.exists(value):
            name, model = found.groups()
        if models.setdefault(name, model) != model:
            raise UserError(
                f"--model has two models named {name!r}; allowed: different names"
            )
    return models


def read(
    tasks: Sequence[Task], data_dir: str, flag: str = "--data_dir"
) -> tuple[list[TaskData], dict[str, str]]:
    """Reads the data sets of tasks.

    Args:
        tasks: the tasks.
        data_dir: the folder of test sets.
        flag: the flag or setting that has it, for the message.

    Returns:
        The tasks with their data; and for each other task, and each language that a
        task leaves out (`TASK-LANGUAGE`), a message about the missing or damaged file.

    Raises:
        UserError: the folder does not exist.
    """
    if not os.path.isdir(data_dir):
        raise UserError(
            f"{flag} is {data_dir}, which does not exist or is a file; allowed: a "
            "folder of test sets"
        )
    found, failed = [], {}
    for task in tasks:
        source = DataDir(data_dir)
        try:
            data = task.read(source)
        except UserError as error:
            failed[task.name] = reason(task.name, error)
        else:
            found.append(TaskData(task, data, source.checksums))
            for said in task.other_sizes(data):
                logger.warning("%s: %s", task.name, said)
            for part, error in source.left_out.items():
                failed[f"{task.name}-{part}"] = reason(task.name, error)
    return found, failed


def sentences(tasks: Sequence[TaskData]) -> list[str]:
    """The distinct sentences of the tasks."""
    return list(
        dict.fromkeys(text for item in tasks for text in item.task.sentences(item.data))
    )


def by_role(tasks: Sequence[TaskData]) -> dict[str, list[str]]:
    """The distinct sentences of the tasks in each role, see `base.Vectors`."""
    texts: dict[str, dict[str, None]] = {}
    for item in tasks:
        for role, found in item.task.by_role(item.data).items():
            texts.setdefault(role, {}).update(dict.fromkeys(found))
    return {role: list(found) for role, found in texts.items()}


def write_sentences(path: str, tasks: Sequence[TaskData]) -> int:
    """Writes the distinct sentences of tasks, one a line; returns their number.

    Raises:
        UserError: a sentence contains a line break or half of a surrogate pair.
    """
    for item in tasks:
        for text in item.task.sentences(item.data):
            if _NOT_A_LINE.search(text):
                raise UserError(
                    f"{item.task.name}: --sentences={path} cannot hold {text[:60]!r}: "
                    "it has a line break, a NUL, half of a surrogate pair or a byte "
                    "order mark"
                )
    texts = sentences(tasks)
    with atomic.text(path) as file:
        file.writelines(text + "\n" for text in texts)
    return len(texts)


def score(
    encoder: SentenceEncoder | Mapping[str, SentenceEncoder],
    tasks: Sequence[TaskData],
    cache_dir: str | None = None,
    progress: bool = False,
    report: Callable[[Task, dict[str, float]], None] | None = None,
    change: Change | None = None,
    kept: Kept | None = None,
    goes_on: bool = False,
    with_figures: bool = False,
    with_predictions: bool = False,
) -> ModelScores:
    """Scores a model.

    Args:
        encoder: the model, or a model for each language.
        tasks: the tasks with their data.
        cache_dir: the directory that keeps this model's vectors for other runs.
        progress: show a bar while encoding.
        report: called with each task and its scores.
        change: applied to the vectors of a language, such as principal component
            removal.
        kept: the scores of a killed run, which this run completes.
        goes_on: if the model cannot be scored on a task, score the other tasks, and
            return the message in `failed`. Otherwise the task raises its error.
        with_figures: compute the data of a report's figures, too.
        with_predictions: return the predictions for single examples, too. They are not
            among the scores of a killed run, so tasks that have some are scored again.

    Raises:
        UserError: the model does not return a finite vector for each sentence, or
            cannot be scored on a task.
    """
    failed: dict[str, str] = {}
    for item in tasks:
        with _failing(failed, item.task.name, goes_on):
            item.task.check()
    tasks = [item for item in tasks if item.task.name not in failed]
    texts = sentences(tasks)
    if kept and not cache_dir:
        cache_dir = kept.vectors
    with (
        LanguageStores(encoder, progress)
        if isinstance(encoder, Mapping)
        else Store(encoder, cache_dir, progress, change) as vectors
    ):
        encoding = kept.read("encoding") if kept else None
        # Of this run and of the killed run that it continues.
        encoding = encoding or {"before": len(vectors), "seconds": 0.0}
        # A text that cannot be encoded fails again, in the tasks that have it.
        with contextlib.suppress(UserError) if goes_on else contextlib.nullcontext():
            _encode(vectors, tasks, kept, encoding)
        outcomes: dict[str, dict[str, Any]] = {}
        predictions: dict[str, dict[str, Predictions]] = {}
        for item in tasks:
            name = item.task.name
            with _failing(failed, name, goes_on):
                outcomes[name], predictions[name] = _outcome(
                    item, vectors, kept, with_figures, with_predictions
                )
            if report and name in outcomes:
                report(item.task, outcomes[name]["scores"])
        encoded = len(vectors) - encoding["before"]
    figures = {name: outcome["figures"] for name, outcome in outcomes.items()}
    return ModelScores(
        scores={name: outcome["scores"] for name, outcome in outcomes.items()},
        figures={name: drawn for name, drawn in figures.items() if drawn},
        languages={name: found["languages"] for name, found in outcomes.items()},
        sentences=len(texts),
        encoded=encoded,
        encoding_seconds=encoding["seconds"],
        scoring_seconds=sum(outcome["seconds"] for outcome in outcomes.values()),
        failed=failed,
        predictions={name: parts for name, parts in predictions.items() if parts},
    )


@contextlib.contextmanager
def _failing(failed: dict[str, str], name: str, goes_on: bool) -> Iterator[None]:
    """Keeps the message of a task that cannot be scored; or raises its error."""
    try:
        yield
    except UserError as error:
        if not goes_on:
            raise
        failed[name] = str(error)


class _Asked:
    """The vectors that one task asks for, and their languages."""

    def __init__(self, vectors: Vectors):
        self._vectors = vectors
        self.languages: set[str] = set()

    def __call__(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> np.ndarray:
        self.languages.add(language)
        return self._vectors(sentences, language, role)

    def on_disk(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> VectorsOnDisk:
        self.languages.add(language)
        return self._vectors.on_disk(sentences, language, role)

    def prompt(self, role: str) -> str:
        return self._vectors.prompt(role)


def _encode(
    vectors: Store | LanguageStores,
    tasks: Sequence[TaskData],
    kept: Kept | None,
    encoding: dict[str, float],
) -> None:
    """Encodes the texts of tasks that the store lacks.

    Args:
        vectors: the store.
        tasks: the tasks with their data.
        kept: the results of a killed run, which this run continues; or None.
        encoding: `before`, the number of vectors before the run, and `seconds` of
            encoding, to which this run adds its own.
    """
    if kept:
        kept.write("encoding", None, encoding)
    start = time.monotonic()
    for role, found in by_role(tasks).items():
        vectors.add(found, role)
    encoding["seconds"] += time.monotonic() - start
    if kept:
        kept.write("encoding", None, encoding)


def _outcome(
    item: TaskData,
    vectors: Vectors,
    kept: Kept | None,
    with_figures: bool,
    with_predictions: bool,
) -> tuple[dict[str, Any], dict[str, Predictions]]:
    """The outcome of a task.

    A task that the killed run has scored is not scored again, unless its predictions
    are asked for.

    Returns:
        `scores`, `figures`, `languages`, `seconds`, and `predicts`, whether the task
        has predictions; and the predictions by part, if they are asked for.
    """
    task = item.task
    about = [task.protocol, task.main_metric, list(task.seeds), item.checksums]
    roles = filter(None, task.by_role(item.data))
    about += [vectors.prompt(role) for role in roles]
    known = kept.read(task.name, about) if kept else None
    if known is not None and not (with_predictions and known.get("predicts", True)):
        return known, {}
    asked = _Asked(vectors)
    start = time.monotonic()
    found = task.outcome(item.data, asked)
    outcome = {
        "scores": found.scores,
        "predicts": bool(found.predictions),
        "figures": task.figures(item.data, asked) if with_figures else {},
        "languages": sorted(asked.languages),
    }
    outcome["seconds"] = time.monotonic() - start
    if kept:
        outcome = kept.write(task.name, about, outcome)
    return outcome, found.predictions if with_predictions else {}
