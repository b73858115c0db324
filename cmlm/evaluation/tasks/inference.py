"""Natural language inference on frozen vectors: SNLI and XNLI.

A classifier on [u, v, |u - v|, u * v] of premise and hypothesis tells entailment,
neutral and contradiction apart (Conneau et al., 2017,
https://aclanthology.org/D17-1070). For XNLI (Conneau et al., 2018,
https://aclanthology.org/D18-1269) it learns from English and is tested on every
language.

Published figures come from training on 390,000 to 550,000 pairs. Here the classifier of
XNLI learns from the 2,490 English pairs of the development set. The classifier of SNLI
learns from the training set if there is one, and the development set chooses its
regularization (SentEval's own task has none); otherwise it learns from the 9,842 pairs
of the development set. The result `train_pairs` is the number of pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from cmlm.common import path_names
from cmlm.errors import UserError
from cmlm.evaluation import averages, parsing
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import transfer
from cmlm.evaluation.tasks.senteval_files import Examples

LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2}
# SNLI's pairs on whose label the annotators did not agree.
_NO_LABEL = "-"


class _Inference(transfer.TransferTask):
    """A classifier of premise and hypothesis, trained on English."""

    def remarks(self, data: dict[str, Examples]) -> list[str]:
        return [
            f"the classifier learnt from {len(data['train'].labels):,} labelled pairs; "
            "that of published figures from 390,000 and more"
        ]


class Xnli(_Inference):
    """XNLI-1.0's `xnli.dev.tsv` and `xnli.test.tsv`, or a file for each language.

    A file for each language is `dev-LANGUAGE.tsv` or `test-LANGUAGE.tsv` (premise,
    hypothesis, label). The labels of all test files may stand in `test-labels.txt`
    instead, a label a line.
    """

    name = "xnli"
    # The paper's languages, which are those of XEVAL.
    languages = averages.XEVAL_LANGUAGES
    setup = (
        "premise and hypothesis, encoder frozen, trained on 90 % of the English "
        "development set, regularization chosen on 10 %; mean over the other languages"
    )

    def read_languages(self, source: DataDir) -> dict[str, Examples]:
        try:
            paths = [
                source.find(f"xnli.{part}.tsv", within="XNLI-1.0")
                for part in ("dev", "test")
            ]
        except MissingData:
            dev = _by_language(source, "dev", "en")
            test = _by_language(source, "test", "*")
        else:
            dev, test = (_published(source, path) for path in paths)
        source.check_found(test, "en")
        if "en" not in dev or "en" not in test:
            raise MissingData("missing: English in XNLI's dev and test files")
        _leave_out_truncated(source, test)
        return {"train": dev["en"], **test}


class Snli(_Inference):
    """SentEval's layout of SNLI: `s1.PART`, `s2.PART` and `labels.PART`."""

    name = "snli"
    setup = (
        "premise and hypothesis, encoder frozen, trained on the training set, "
        "regularization chosen on the development set; without a training set, trained "
        "on 90 % of the development set, regularization chosen on 10 %"
    )

    def read_languages(self, source: DataDir) -> dict[str, Examples]:
        dev, test = self._part(source, "dev"), self._part(source, "test")
        try:
            train = self._part(source, "train")
        except MissingData:
            return {"train": dev, "en": test}
        return {"train": train, "dev": dev, "en": test}

    def _part(self, source: DataDir, part: str) -> Examples:
        columns = {}
        for name in ("s1", "s2", "labels"):
            path = source.find(f"{name}.{part}", within=("SNLI", "snli"))
            columns[path] = source.lines(path)
        parsing.check_line_counts(columns)
        first, second, labels = columns.values()
        return _examples(enumerate(zip(first, second, labels, strict=True), 1), path)


def _leave_out_truncated(source: DataDir, test: dict[str, Examples]) -> None:
    """Leaves out languages without as many pairs as English: all are translations."""
    wanted = len(test["en"].texts)
    for language, examples in list(test.items()):
        with source.part(language):
            if (found := len(examples.texts)) != wanted:
                del test[language]
                raise UserError(
                    f"xnli's test file has {found:,} pairs in {language}, and "
                    f"{wanted:,} in en; allowed: equal numbers of pairs"
                )


def _published(source: DataDir, path: str) -> dict[str, Examples]:
    """Reads XNLI-1.0's file of all languages; its first row names the columns."""
    head, *rows = source.table(path, 8)
    wanted = ("language", "sentence1", "sentence2", "gold_label")
    places = parsing.columns(head, wanted, path)
    found: dict[str, list] = {}
    for number, row in enumerate(rows, 2):
        language, *example = (row[place] for place in places)
        found.setdefault(language, []).append((number, example))
    parts = {}
    for language, examples in found.items():
        with source.part(language):
            parts[language] = _examples(examples, path)
    return parts


def _by_language(source: DataDir, part: str, which: str) -> dict[str, Examples]:
    labels = missing = None
    if part == "test":
        try:
            labels = source.lines(source.find("test-labels.txt", within="xnli"))
        except MissingData as error:
            missing = error
    found = {}
    for path in source.matching(f"{part}-{which}.tsv", within="xnli"):
        language = path_names.unpacked(os.path.basename(path))
        language = language.removeprefix(f"{part}-").removesuffix(".tsv")
        with source.part(language):
            rows = source.table(path, 2)
            if labels:
                parsing.check_line_counts({path: rows, "test-labels.txt": labels})
                both = zip(rows, labels, strict=True)
                rows = [[*row[:2], label] for row, label in both]
            elif missing and max(map(len, rows)) < 3:
                raise missing
            else:
                parsing.check_columns(path, enumerate(rows, 1), 3, or_more=True)
                rows = [row[:3] for row in rows]
            found[language] = _examples(enumerate(rows, 1), path)
    return found


def _examples(rows: Iterable, path: str) -> Examples:
    """Examples of numbers of lines with premise, hypothesis and label."""
    texts, labels = [], []
    for number, (first, second, label) in rows:
        if label != _NO_LABEL:
            texts.append((first.strip(), second.strip()))
            where = f"{path}, line {number}"
            labels.append(parsing.parse_label(label, LABELS, where))
    if not labels:
        raise UserError(f"{path} has no labelled pair; allowed: at least 1")
    return Examples(texts, np.array(labels))


TASKS = [Xnli(), Snli()]
