"""SentEval's classification tasks: what a linear classifier finds in the vectors.

Conneau and Kiela, 2018, https://arxiv.org/abs/1803.05449. Files, order of examples,
folds and features are the toolkit's; the classifier is described in `classifier`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, classifier, metrics, reading

_BINARY = {"0": 0, "1": 1}
_QUESTION_TYPES = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}


@dataclasses.dataclass
class Examples:
    """Labelled sentences, or pairs of them.

    Attributes:
        texts: for each example its one or two sentences.
        labels: int [n].
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray


# A data set by the name of its part: `train`, and `dev` or `test` where it has them.
Parts = dict[str, Examples]


class ClassificationTask(base.Task):
    """One data set; which parts it has decides how C is chosen.

    Only `train`: nested cross-validation. `train` and `test`: cross-validation on
    `train`. With `dev`: C is chosen on `dev`.
    """

    main_metric = "accuracy"
    protocol = "accuracy of a logistic regression, SentEval's protocol, x 100"

    def __init__(self, name: str, read: Callable[[reading.DataDir], Parts]):
        self.name = name
        self._read = read

    def read(self, source: reading.DataDir) -> Parts:
        return {
            part: _by_length(examples) for part, examples in self._read(source).items()
        }

    def sentences(self, data: Parts) -> Iterable[str]:
        return itertools.chain.from_iterable(
            text for examples in data.values() for text in examples.texts
        )

    def score(self, data: Parts, vectors: base.Vectors) -> dict[str, float]:
        x = {part: _features(examples, vectors) for part, examples in data.items()}
        y = {part: examples.labels for part, examples in data.items()}
        if "test" not in data:
            return classifier.nested_cross_validation(x["train"], y["train"], base.SEED)
        if "dev" in data:
            predicted, dev = classifier.validation_then_test(
                x["train"], y["train"], x["dev"], y["dev"], x["test"], base.SEED
            )
        else:
            predicted, dev = classifier.cross_validation_then_test(
                x["train"], y["train"], x["test"], base.SEED
            )
        scores = {
            "accuracy": metrics.accuracy(predicted, y["test"]),
            "dev_accuracy": dev,
        }
        if set(y["train"]) == {0, 1}:
            scores["f1"] = metrics.f1(predicted, y["test"])
        return scores


def _by_length(examples: Examples) -> Examples:
    """The toolkit's order, which decides what is in a fold."""
    words = [tuple(text.split() for text in texts) for texts in examples.texts]
    order = sorted(
        range(len(words)),
        key=lambda row: (*map(len, words[row]), int(examples.labels[row])),
    )
    return Examples(
        [tuple(" ".join(text) for text in words[row]) for row in order],
        examples.labels[order],
    )


def _features(examples: Examples, vectors: base.Vectors) -> np.ndarray:
    """A sentence's vector; for a pair [|u - v|, u * v]."""
    columns = [vectors(list(column)) for column in zip(*examples.texts, strict=True)]
    if len(columns) == 1:
        return columns[0]
    u, v = columns
    return np.concatenate([np.abs(u - v), u * v], axis=1)


# -------------------------------------------------------------------- reading


def _examples(path: str, rows: list[tuple[tuple[str, ...], int]]) -> Examples:
    if len({label for _, label in rows}) < 2:
        raise UserError(f"{path} has examples of fewer than two classes")
    texts, labels = zip(*rows, strict=True)
    return Examples(list(texts), np.array(labels))


def _polarity(positive: str, negative: str) -> Callable[[reading.DataDir], Parts]:
    """One file of positive examples, one of negative ones."""

    def read(source: reading.DataDir) -> Parts:
        rows = []
        for name, label in ((positive, 1), (negative, 0)):
            path = source.find(name, within="senteval")
            rows += [((text,), label) for text in source.lines(path, reading.EITHER)]
        return {"train": _examples(path, rows)}

    return read


def _sst2(source: reading.DataDir) -> Parts:
    parts = {}
    for part in ("train", "dev", "test"):
        path = source.find(f"SST/binary/sentiment-{part}", within="senteval")
        rows = [
            ((text,), reading.parse_label(label, _BINARY, f"{path}, line {number}"))
            for number, (text, label, *_) in enumerate(source.table(path, 2), 1)
        ]
        parts[part] = _examples(path, rows)
    return parts


def _trec(source: reading.DataDir) -> Parts:
    parts = {}
    for part, name in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        path = source.find(f"TREC/{name}", within="senteval")
        rows = []
        for number, line in enumerate(source.lines(path, reading.EITHER), 1):
            label, _, rest = line.partition(":")
            where = f"{path}, line {number}"
            question = rest.partition(" ")[2]
            rows.append(
                ((question,), reading.parse_label(label, _QUESTION_TYPES, where))
            )
        parts[part] = _examples(path, rows)
    return parts


def _mrpc(source: reading.DataDir) -> Parts:
    parts = {}
    for part in ("train", "test"):
        path = source.find(f"MRPC/msr_paraphrase_{part}.txt", within="senteval")
        rows = [
            (
                (row[3], row[4]),
                reading.parse_label(row[0], _BINARY, f"{path}, pair {n}"),
            )
            for n, row in enumerate(source.table(path, 5)[1:], 1)
        ]
        parts[part] = _examples(path, rows)
    return parts


TASKS = [
    ClassificationTask("mr", _polarity("MR/rt-polarity.pos", "MR/rt-polarity.neg")),
    ClassificationTask("mpqa", _polarity("MPQA/mpqa.pos", "MPQA/mpqa.neg")),
    ClassificationTask("sst2", _sst2),
    ClassificationTask("trec", _trec),
    ClassificationTask("mrpc", _mrpc),
]
