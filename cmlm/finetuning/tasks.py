"""A task to fine-tune for: its files, its rows, its figures."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from sklearn.metrics import matthews_corrcoef

from cmlm.evaluation import metrics, reading


def _matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Matthews correlation, times 100; 0 where one side is constant."""
    return 100 * float(matthews_corrcoef(gold, predicted))


_FIGURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews": _matthews,
    "pearson": lambda a, b: metrics.correlations(a, b)["pearson"],
    "spearman": lambda a, b: metrics.correlations(a, b)["spearman"],
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One example.

    Attributes:
        texts: one sentence or two.
        label: the class, or the score; None in a test file.
        index: what a prediction is handed in under.
    """

    texts: tuple[str, ...]
    label: float | None
    index: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task, without the form of its files.

    Attributes:
        name: as `--task` has it.
        folder: of its files in what is given away.
        within: the folder that may have `folder` in it.
        labels: class 0 first; none where a score is asked for.
        figures: of the task; its score is their mean.
        train: the file to train on.
        dev: part ("" for the only one) and file.
        tests: file to hand in, and file to predict for.
    """

    name: str
    folder: str
    within: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    train: str = "train.tsv"
    dev: tuple[tuple[str, str], ...] = (("", "dev.tsv"),)
    tests: tuple[tuple[str, str], ...] = ()

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_outputs(self) -> int:
        """Columns of the head: one a class, or one score."""
        return len(self.labels) or 1

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """Reads a file row by row.

        Args:
            path: of the file, plain or gzip.
            with_labels: whether labels are wanted; False for test files.

        Raises:
            UserError: the file is not of the form of the task's.
        """
        raise NotImplementedError


def find_file(source: reading.DataDir, task: Task, name: str) -> str:
    """The path of a task's file.

    It lies in the task's folder, there or within GLUE's, or `source` is the task's
    folder itself.

    Raises:
        reading.MissingData: it is not there.
    """
    return source.find(f"{task.folder}/{name}", name, within=task.within)


def checksum(path: str) -> str:
    """SHA-256 of a file as it lies."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def score(
    task: Task,
    predicted: Mapping[str, np.ndarray],
    gold: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """GLUE's figures of a task, each times 100.

    Args:
        task: says which.
        predicted, gold: [n] of every dev file, classes or scores.

    Returns:
        The figures, `FIGURE/PART` where there are several dev files, and `score`, their
        mean, by which GLUE ranks.
    """
    found = {}
    for part, name in task.dev:
        suffix = f"/{part}" if part else ""
        for figure in task.figures:
            value = _FIGURES[figure](predicted[name], gold[name])
            found[f"{figure}{suffix}"] = value
    return {**found, "score": float(np.mean(list(found.values())))}


def constant(task: Task, labels: np.ndarray) -> float:
    """What someone says who has seen the training labels and no text.

    Args:
        task: whose labels they are.
        labels: float [n].

    Returns:
        The most frequent class, or the mean score.
    """
    if task.is_regression:
        return float(labels.mean())
    return float(np.bincount(labels.astype(np.int64)).argmax())
