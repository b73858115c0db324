"""Tasks of one's own files: `--task=file:FILE`, see `evaluation.labelled_files`.

Files to predict need no column of labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import numpy as np
import tensorflow as tf

from cmlm.common import path_names
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import labelled_files, metrics, parsing
from cmlm.evaluation.data_dir import DataDir
from cmlm.finetuning.tasks import Row, Task

logger = logging.getLogger(__name__)

PREFIX = "file:"
# The metrics by the column of the label, see `labelled_files`.
_FIGURES = {
    "label": ("accuracy", "f1_macro"),
    "labels": ("f1_micro", "f1_macro"),
    "score": ("pearson", "spearman"),
}
_TRAIN, _DEV = "train", "dev"
# Without a file to score, one example in this number is held out.
_HOLD_OUT = 10
# What would end a cell or a line of a file of predictions, which has no quoting.
_ENDS = str.maketrans("\t\n\r", "   ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTask(Task):
    """A task of one's own files.

    Attributes:
        files: the path of each file, by its name in `train`, `dev` and `tests`.
        holds_out: whether `dev` is a share of the training file.
        column: the column of the label.
    """

    column: str
    least_steps: int = 500
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    holds_out: bool = False

    def find(self, source: DataDir, name: str) -> list[str]:
        """See `Task.find`."""
        return [self.files[name]]

    def examples(
        self, name: str, paths: Sequence[str], with_labels: bool = True
    ) -> Iterator[Row]:
        """See `Task.examples`."""
        rows = super().examples(name, paths, with_labels)
        if not self.holds_out or name not in (_TRAIN, _DEV):
            return rows
        return (row for row in rows if _is_held_out(row) == (name == _DEV))

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """See `Task.read`."""
        for where, texts, label in labelled_files.read(
            path, self.texts, self.column, with_labels
        ):
            value = self._parse(label, where) if with_labels else None
            yield Row(texts, value, "\t".join(text.translate(_ENDS) for text in texts))

    def _parse(self, label: str, where: str) -> float | tuple[float, ...]:
        if self.is_regression:
            return labelled_files.number_of(label, where)
        if not self.is_several:
            return parsing.parse_label(label, self.classes, where)
        chosen = [
            parsing.parse_label(name, self.classes, where)
            for name in labelled_files.names_of(label)
        ]
        return tuple(float(number in chosen) for number in range(len(self.labels)))

    def write_predictions(
        self, file: TextIO, indices: Iterable[str], logits: np.ndarray
    ) -> None:
        """See `Task.write_predictions`.

        A line has the texts, the prediction and the probability of each class. Tabs and
        line breaks in texts and labels become spaces.
        """
        predicted = self.decide(logits)
        shares = self.probabilities(logits)
        names = [name.translate(_ENDS) for name in self.labels]
        header = [*self.texts, self.column, *(f"p({name})" for name in names)]
        file.write("\t".join(header) + "\n")
        for index, value, row in zip(indices, predicted, shares, strict=True):
            if self.is_regression:
                text = f"{value:.6g}"
            elif self.is_several:
                chosen = (names[number] for number in np.flatnonzero(value))
                text = labelled_files.SEPARATOR.join(chosen)
            else:
                text = names[int(value)]
            cells = [index, text, *(f"{share:.4f}" for share in row)]
            file.write("\t".join(cells) + "\n")

    def describe(self) -> dict:
        """The task as plain values, for the exported model."""
        return {
            "texts": list(self.texts),
            "column": self.column,
            "labels": list(self.labels),
            "center": self.center,
            "spread": self.spread,
        }


def find_task(path: str, dev: str | None = None, predict: Sequence[str] = ()) -> Task:
    """Makes the task of a file.

    Args:
        path: the labelled file to train on.
        dev: the labelled file to score on; None holds out a tenth of the examples.
        predict: files to predict.

    Raises:
        UserError: a file is missing or has another form.
    """
    answered = answers(predict)
    given = [("task", path), ("dev", dev), *(("predict", each) for each in predict)]
    for flag, each in given:
        if each and not tf.io.gfile.exists(each):
            raise UserError(
                f"--{flag} has {each}, which does not exist; allowed: a .tsv or .csv "
                "file"
            )
    texts, column = labelled_files.columns_of(path)
    rows = list(labelled_files.read(path, texts, column, True))
    if column == "score":
        names, (center, spread) = (), _center_and_spread(path, rows)
        least = metrics.LEAST_SCORES
        needed = f" of the {least} that a correlation needs"
    else:
        names = _names(path, [label for _, _, label in rows], column)
        center, spread = 0.0, 1.0
        least, needed = 1, ""
    stay = [label for _, texts, label in rows if not _is_held_out(Row(texts, None, ""))]
    held_out = len(rows) - len(stay)
    if not dev and not least <= held_out < len(rows):
        raise UserError(
            f"{path} has {counted(len(rows), 'example')}, and the tenth to score on "
            f"has {held_out}{needed}; allowed: more examples, or --dev=FILE"
        )
    if not dev and len(set(stay)) < 2:
        raise UserError(
            f"{path}: without the tenth to score on, all examples have the {column} "
            f"{stay[0]!r}; allowed: more examples, or --dev=FILE"
        )
    if dev:
        known = {texts for _, texts, _ in rows}
        scored = [each for _, each, _ in labelled_files.read(dev, texts, column)]
        if repeated := sum(each in known for each in scored):
            logger.warning(
                "%s shares %s of its %s with %s: the scores flatter the model",
                *(dev, f"{repeated:,}", counted(len(scored), "example"), path),
            )
    return FileTask(
        name=f"{PREFIX}{path}",
        labels=names,
        figures=_FIGURES[column],
        train=_TRAIN,
        dev=(("", _DEV),),
        # A file may be read twice, with its labels and without them.
        tests=tuple((name, name) for name in answered),
        files={_TRAIN: path, _DEV: dev or path, **answered},
        holds_out=not dev,
        texts=texts,
        column=column,
        is_several=column == "labels",
        center=center,
        spread=spread,
    )


def _center_and_spread(
    path: str, rows: Sequence[tuple[str, tuple[str, ...], str]]
) -> tuple[float, float]:
    """The mean and the deviation of the scores; refuses equal scores."""
    scores = [labelled_files.number_of(label, where) for where, _, label in rows]
    center, spread = statistics.fmean(scores), statistics.pstdev(scores)
    if not spread:
        raise UserError(
            f"{path}: all scores are {center:g}; allowed: at least two different scores"
        )
    return center, spread


def _names(path: str, labels: Sequence[str], column: str) -> tuple[str, ...]:
    """The classes of a file in their order; refuses a single class."""
    found = set(labels)
    if column == "labels":
        found = {name for each in labels for name in labelled_files.names_of(each)}
    if len(found) < 2:
        raise UserError(f"{path} has the labels {sorted(found)}; allowed: at least two")
    return tuple(sorted(found))


def from_description(about: dict) -> FileTask:
    """Makes the task that `FileTask.describe` described, without files."""
    column = about["column"]
    return FileTask(
        name="",
        labels=tuple(about["labels"]),
        figures=_FIGURES[column],
        texts=tuple(about["texts"]),
        column=column,
        is_several=column == "labels",
        center=float(about["center"]),
        spread=float(about["spread"]),
    )


def answers(paths: Sequence[str]) -> dict[str, str]:
    """The files to predict, by the name of the file of predictions.

    Raises:
        UserError: a path is empty, or two files would have predictions of one name.
    """
    found: dict[str, str] = {}
    for path in paths:
        if not path:
            raise UserError(
                f"--predict is {','.join(paths)!r}; allowed: files, comma-separated"
            )
        stem, _ = os.path.splitext(path_names.unpacked(os.path.basename(path)))
        name = f"predictions-{stem}.tsv"
        if name in found:
            raise UserError(
                f"--predict has {found[name]} and {path}, whose predictions would both "
                f"be {name}; allowed: files of different names"
            )
        found[name] = path
    return found


def _is_held_out(row: Row) -> bool:
    """Decides by the first text, so that equal texts stay together."""
    digest = hashlib.blake2b(row.texts[0].encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HOLD_OUT == 0
