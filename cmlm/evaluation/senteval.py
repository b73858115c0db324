"""SentEval's supervised tasks: what a linear model finds in the vectors.

Conneau and Kiela, 2018, https://arxiv.org/abs/1803.05449. Files, order of examples,
folds and features are the toolkit's; the models that are trained on the vectors are
described in `classifier` and `relatedness`. With several seeds a metric is the mean
over them, and `METRIC_std` their standard deviation (n - 1).

XEVAL (Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 4.2) is the same
sets machine-translated: `xeval/LANGUAGE/` for each language, inside it SentEval's own
layout.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from cmlm.evaluation import (
    base,
    classifier,
    metrics,
    reading,
    relatedness,
    senteval_files,
)
from cmlm.evaluation.senteval_files import Examples, Parts, Reader


class ClassificationTask(base.Task[Parts]):
    """One data set; which parts it has decides how C is chosen.

    Only `train`: nested cross-validation. `train` and `test`: cross-validation on
    `train`. With `dev`: C is chosen on `dev`.
    """

    main_metric = "accuracy"
    protocol = "accuracy of a logistic regression, SentEval's protocol, x 100"

    def __init__(self, name: str, read: Reader):
        self.name = name
        self._read = read

    def read(self, source: reading.DataDir) -> Parts:
        parts = self._read(source)
        return {part: examples.by_length() for part, examples in parts.items()}

    def sentences(self, data: Parts) -> Iterable[str]:
        return itertools.chain.from_iterable(
            text for examples in data.values() for text in examples.texts
        )

    def score(self, data: Parts, vectors: base.Vectors) -> dict[str, float]:
        x = {part: features(examples, vectors) for part, examples in data.items()}
        y = {part: examples.labels for part, examples in data.items()}
        return over_seeds([self._score_seed(x, y, seed) for seed in self.seeds])

    def _score_seed(
        self, x: dict[str, np.ndarray], y: dict[str, np.ndarray], seed: int
    ) -> dict[str, float]:
        if "test" not in x:
            return classifier.nested_cross_validation(x["train"], y["train"], seed)
        if "dev" in x:
            predicted, dev = classifier.validation_then_test(
                x["train"], y["train"], x["dev"], y["dev"], x["test"], seed
            )
        else:
            predicted, dev = classifier.cross_validation_then_test(
                x["train"], y["train"], x["test"], seed
            )
        scores = {
            "accuracy": metrics.accuracy(predicted, y["test"]),
            "dev_accuracy": dev,
        }
        if set(y["train"]) == {0, 1}:
            scores["f1"] = metrics.f1(predicted, y["test"])
        return scores


class RelatednessTask(ClassificationTask):
    """Scores of pairs, learnt from pairs with scores."""

    main_metric = "pearson"
    protocol = "Pearson of a trained softmax regression, SentEval's protocol, x 100"

    def _score_seed(
        self, x: dict[str, np.ndarray], y: dict[str, np.ndarray], seed: int
    ) -> dict[str, float]:
        predicted, dev = relatedness.train_and_predict(
            x["train"], y["train"], x["dev"], y["dev"], x["test"], seed
        )
        scores = metrics.correlations(predicted, y["test"])
        return {**scores, "dev_pearson": dev}


class XevalTask(base.PartedTask[Parts]):
    """One of the tasks above, in a folder per language."""

    def __init__(self, task: ClassificationTask, folder: str):
        super().__init__(f"xeval-{task.name}")
        self._task = task
        self._folder = folder
        self.main_metric = task.main_metric
        self.protocol = f"{task.protocol}; mean over languages"

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        paths = source.matching(os.path.join("xeval", "*", self._folder))
        folders = [path.removesuffix(self._folder).rstrip(os.sep) for path in paths]
        return {os.path.basename(folder): folder for folder in folders}

    def read_part(self, source: reading.DataDir, part: str, where: str) -> Parts:
        return self._task.read(source.inside(where))

    def part_sentences(self, data: Parts) -> Iterable[str]:
        return self._task.sentences(data)

    def score_part(self, data: Parts, vectors: base.Vectors) -> dict[str, float]:
        # A copy: the task itself stands in the catalogue.
        task = copy.copy(self._task)
        task.seeds = self.seeds
        return task.score(data, vectors)


def over_seeds(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means, and with several seeds standard deviations."""
    result = {}
    for metric in scores[0]:
        values = [score[metric] for score in scores]
        result[metric] = float(np.mean(values))
        if len(values) > 1:
            result[f"{metric}_std"] = float(np.std(values, ddof=1))
    return result


def features(examples: Examples, vectors: base.Vectors) -> np.ndarray:
    """A sentence's vector; for a pair [|u - v|, u * v]."""
    columns = [vectors(list(column)) for column in zip(*examples.texts, strict=True)]
    if len(columns) == 1:
        return columns[0]
    u, v = columns
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def _polarity(name: str, positive: str, negative: str) -> ClassificationTask:
    return ClassificationTask(name, senteval_files.polarity(positive, negative))


_ROWS = [
    ("MR", _polarity("mr", "MR/rt-polarity.pos", "MR/rt-polarity.neg")),
    ("CR", _polarity("cr", "CR/custrev.pos", "CR/custrev.neg")),
    ("SUBJ", _polarity("subj", "SUBJ/subj.objective", "SUBJ/subj.subjective")),
    ("MPQA", _polarity("mpqa", "MPQA/mpqa.pos", "MPQA/mpqa.neg")),
    ("SST/binary", ClassificationTask("sst2", senteval_files.sst2)),
    ("SST/fine", ClassificationTask("sst5", senteval_files.sst5)),
    ("TREC", ClassificationTask("trec", senteval_files.trec)),
    ("MRPC", ClassificationTask("mrpc", senteval_files.mrpc)),
    ("SICK", ClassificationTask("sick-e", senteval_files.sick_entailment)),
    ("SICK", RelatednessTask("sick-r-trained", senteval_files.sick_relatedness)),
    (
        "STS/STSBenchmark",
        RelatednessTask("stsb-trained", senteval_files.sts_benchmark),
    ),
]
TASKS = [task for _, task in _ROWS]
XEVAL_TASKS = [XevalTask(task, folder) for folder, task in _ROWS]
