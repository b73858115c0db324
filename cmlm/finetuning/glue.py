"""GLUE's tasks: its public files as they are, its figures, the files it takes back.

Wang et al., 2019, https://arxiv.org/abs/1804.07461; https://gluebenchmark.com. The
files are tab-separated without any quoting: a `"` is text. All but CoLA's name their
columns in the first line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import numpy as np
from sklearn.metrics import matthews_corrcoef

from cmlm import files
from cmlm.errors import UserError
from cmlm.evaluation import metrics, reading

logger = logging.getLogger(__name__)

# Names of the column that numbers the examples of a test file.
_INDEX = ("index", "id")
_LOWEST, _HIGHEST = 0.0, 5.0  # of STS-B's scores


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
class Task:
    """One of GLUE's tasks.

    Attributes:
        name: as `--task` has it.
        folder: of its files in what GLUE gives away.
        texts: columns of the one or two sentences.
        label: column of the label or score.
        labels: what stands in that column, class 0 first; none for a score, 0 to 5.
        figures: GLUE's figures of the task; its score is their mean.
        dev: part ("" for the only one) and file.
        tests: file to hand in, and file to predict for.
        columns: of files with labels that do not name them.
        may_be_damaged: leave out rows that are too short, which QQP is known to have.
        train: the file to train on.
        within: the folder that may have `folder` in it.
        read: (path, with_labels) to its rows, where a file is not as GLUE's are.
    """

    name: str
    folder: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    dev: tuple[tuple[str, str], ...] = (("", "dev.tsv"),)
    tests: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    may_be_damaged: bool = False
    train: str = "train.tsv"
    within: str = "glue"
    read: Callable[[str, bool], Iterator[Row]] | None = None

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_outputs(self) -> int:
        """Columns of the head: one a class, or one score."""
        return len(self.labels) or 1


def _task(name: str, folder: str, *args, **kwargs) -> Task:
    kwargs.setdefault("tests", ((f"{folder}.tsv", "test.tsv"),))
    return Task(name, folder, *args, **kwargs)


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")

TASKS = {
    task.name: task
    for task in (
        _task(
            "cola",
            "CoLA",
            ("sentence",),
            "label",
            _BINARY,
            ("matthews",),
            columns=("source", "label", "mark", "sentence"),
        ),
        _task("sst2", "SST-2", ("sentence",), "label", _BINARY, ("accuracy",)),
        _task(
            "mrpc",
            "MRPC",
            ("#1 String", "#2 String"),
            "Quality",
            _BINARY,
            ("accuracy", "f1"),
        ),
        _task(
            "qqp",
            "QQP",
            ("question1", "question2"),
            "is_duplicate",
            _BINARY,
            ("accuracy", "f1"),
            may_be_damaged=True,
        ),
        _task("stsb", "STS-B", _PAIR, "score", (), ("pearson", "spearman")),
        _task(
            "mnli",
            "MNLI",
            _PAIR,
            "gold_label",
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            dev=(
                ("matched", "dev_matched.tsv"),
                ("mismatched", "dev_mismatched.tsv"),
            ),
            tests=(
                ("MNLI-m.tsv", "test_matched.tsv"),
                ("MNLI-mm.tsv", "test_mismatched.tsv"),
                # GLUE's diagnostic set is answered by whoever does MNLI.
                ("AX.tsv", "../diagnostic/diagnostic.tsv"),
            ),
        ),
        _task(
            "qnli",
            "QNLI",
            ("question", "sentence"),
            "label",
            _ENTAILMENT,
            ("accuracy",),
        ),
        _task("rte", "RTE", _PAIR, "label", _ENTAILMENT, ("accuracy",)),
        _task("wnli", "WNLI", _PAIR, "label", _BINARY, ("accuracy",)),
    )
}


# ------------------------------------------------------------------- reading


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


def find_file(source: reading.DataDir, task: Task, name: str) -> str:
    """The path of a task's file.

    It lies in the task's folder, there or within GLUE's, or `source` is the task's
    folder itself.

    Raises:
        reading.MissingData: it is not there.
    """
    return source.find(f"{task.folder}/{name}", name, within=task.within)


def read_rows(task: Task, path: str, with_labels: bool = True) -> Iterator[Row]:
    """Reads a file row by row.

    Args:
        task: whose columns it has.
        path: of the file, plain or gzip.
        with_labels: whether labels are wanted; False for test files.

    Raises:
        UserError: a column is missing, a row is too short, or a label is outside the
            task's set.
    """
    if task.read:
        yield from task.read(path, with_labels)
        return
    wanted = (*task.texts, task.label) if with_labels else task.texts
    damaged = number = 0
    with files.open_text(path) as lines:
        rows = enumerate((line.rstrip("\r\n").split("\t") for line in lines), 1)
        names: Sequence[str] = task.columns if with_labels else ()
        if not names:
            _, names = next(rows, (1, []))
        missing = [column for column in wanted if column not in names]
        if missing:
            raise UserError(
                f"{path}, line 1: no column {', '.join(map(repr, missing))}; "
                f"{task.name} has {', '.join(map(repr, wanted))}"
            )
        places = [names.index(column) for column in wanted]
        index = next((names.index(name) for name in _INDEX if name in names), None)
        for line, columns in rows:
            if len(columns) <= max(places):
                if columns == [""] or task.may_be_damaged:
                    damaged += columns != [""]
                    continue
                raise UserError(
                    f"{path}, line {line}: {len(columns)} columns; "
                    f"allowed: at least {max(places) + 1}"
                )
            values = [columns[place] for place in places]
            label = None
            if with_labels:
                label = _parse_label(task, values.pop(), f"{path}, line {line}")
            yield Row(
                tuple(values), label, str(number) if index is None else columns[index]
            )
            number += 1
    if damaged:
        logger.info("%s: %d rows are too short and left out", path, damaged)
    if not number:
        raise UserError(f"{path} has no examples")


def _parse_label(task: Task, text: str, where: str) -> float:
    text = text.strip()
    if task.is_regression:
        return reading.parse_score(text, _LOWEST, _HIGHEST, where)
    classes = {label: number for number, label in enumerate(task.labels)}
    return reading.parse_label(text, classes, where)


def checksum(path: str) -> str:
    """SHA-256 of a file as it lies."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ------------------------------------------------------- figures, handing in


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


def write_predictions(
    file: TextIO, task: Task, indices: Iterable[str], predicted: np.ndarray
) -> None:
    """Writes predictions as https://gluebenchmark.com takes them.

    A score outside of 0 to 5 is handed in as the nearest that is inside.

    Args:
        file: to write to.
        task: says what a label is called.
        indices: of the examples.
        predicted: [n], classes or scores.
    """
    file.write("index\tprediction\n")
    for index, value in zip(indices, predicted, strict=True):
        if task.is_regression:
            text = f"{np.clip(value, _LOWEST, _HIGHEST):.3f}"
        else:
            text = task.labels[int(value)]
        file.write(f"{index}\t{text}\n")
