"""GLUE's tasks: reads the public files and writes predictions for submission.

Wang et al., 2019, https://arxiv.org/abs/1804.07461; https://gluebenchmark.com. The
files are tab-separated without quoting: a `"` is text. All files except CoLA's labelled
files name their columns in the first line.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import numpy as np

from cmlm.common import files
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import parsing
from cmlm.evaluation.data_dir import DataDir
from cmlm.finetuning.tasks import Row, Task

logger = logging.getLogger(__name__)

# Possible names of the column that numbers the examples of a test file.
_INDEX = ("index", "id")
_LOWEST, _HIGHEST = 0.0, 5.0  # of STS-B's scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask(Task):
    """A task with tab-separated files.

    Attributes:
        folder: the folder of the task's files.
        label: the column of the label or score.
        columns: the names of all columns, for labelled files without a header.
        may_be_damaged: leave out rows that are too short; QQP has such rows.
    """

    folder: str
    label: str
    columns: tuple[str, ...] = ()
    may_be_damaged: bool = False

    def find(self, source: DataDir, name: str) -> list[str]:
        """See `Task.find`.

        The file lies in the task's folder, directly or within GLUE's folder, or
        `source` is the task's folder itself.
        """
        return [source.find(f"{self.folder}/{name}", name, within="glue")]

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """See `Task.read`.

        Raises:
            UserError: a column is missing, a row is too short, or a label is unknown.
        """
        wanted = (*self.texts, self.label) if with_labels else self.texts
        damaged = number = 0
        with files.open_text(path) as lines:
            rows = enumerate((line.rstrip("\r\n").split("\t") for line in lines), 1)
            names: Sequence[str] = self.columns if with_labels else ()
            if not names:
                _, names = next(rows, (1, []))
            places = parsing.columns(names, wanted, path)
            index = next((names.index(name) for name in _INDEX if name in names), None)
            for line, columns in rows:
                if len(columns) <= max(places):
                    if columns == [""] or self.may_be_damaged:
                        damaged += columns != [""]
                        continue
                    raise UserError(
                        f"{path}, line {line}: {counted(len(columns), 'column')}; "
                        f"allowed: at least {max(places) + 1}"
                    )
                values = [columns[place] for place in places]
                label = None
                if with_labels:
                    label = self._parse_label(values.pop(), f"{path}, line {line}")
                yield Row(
                    tuple(values),
                    label,
                    str(number) if index is None else columns[index],
                )
                number += 1
        if damaged:
            logger.info("%s: left out %d rows that are too short", path, damaged)
        if not number:
            raise UserError(f"{path} has no examples; allowed: at least 1")

    def _parse_label(self, text: str, where: str) -> float:
        text = text.strip()
        if self.is_regression:
            return parsing.parse_score(text, _LOWEST, _HIGHEST, where)
        return parsing.parse_label(text, self.classes, where)

    def write_predictions(
        self, file: TextIO, indices: Iterable[str], logits: np.ndarray
    ) -> None:
        """See `Task.write_predictions`; the form is that of https://gluebenchmark.com.

        A score outside 0 to 5 is replaced by the nearest score inside.
        """
        file.write("index\tprediction\n")
        for index, value in zip(indices, self.decide(logits), strict=True):
            if self.is_regression:
                text = f"{np.clip(value, _LOWEST, _HIGHEST):.3f}"
            else:
                text = self.labels[int(value)]
            file.write(f"{index}\t{text}\n")


def _task(
    name: str,
    folder: str,
    texts: tuple[str, ...],
    label: str,
    labels: tuple[str, ...],
    figures: tuple[str, ...],
    **values,
) -> GlueTask:
    values.setdefault("tests", ((f"{folder}.tsv", "test.tsv"),))
    return GlueTask(
        name=name,
        folder=folder,
        texts=texts,
        label=label,
        labels=labels,
        figures=figures,
        **values,
    )


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
                # A submission for MNLI also covers GLUE's diagnostic set.
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
