"""SentEval's supervised tasks: a linear model is trained on the vectors.

Conneau and Kiela, 2018, https://arxiv.org/abs/1803.05449. Files, order of examples,
folds and features are the toolkit's; `classifier` and `relatedness` describe the
models. With several seeds, a metric is the mean over the seeds, and `METRIC_std` is the
standard deviation (n - 1). With further seeds, the folds change too. The toolkit keeps
the folds of seed 1111 in nested cross-validation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from cmlm.evaluation import classifier, metrics, public_sizes, relatedness
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base, senteval_files
from cmlm.evaluation.tasks.senteval_files import Examples, Parts, Reader


class ClassificationTask(base.PredictingTask[Parts]):
    """A data set with labels.

    The choice of C, or of another classifier's strength, depends on the parts of the
    data set. With `train` alone, it comes from nested cross-validation; with `train`
    and `test`, from cross-validation on `train`; with `dev`, from the accuracy on
    `dev`.

    Args:
        name: the name of the task.
        read: a function that reads the files of the task.

    Attributes:
        language: the language of the sentences.
    """

    language = "en"
    main_metric = "accuracy"

    def __init__(self, name: str, read: Reader):
        self.name = name
        self._read = read

    @property
    def protocol(self) -> str:
        about = classifier.ABOUT[self.classifier]
        return f"accuracy of {about}, SentEval's protocol, x 100"

    def read(self, source: DataDir) -> Parts:
        parts = self._read(source)
        return {part: examples.by_length() for part, examples in parts.items()}

    def sentences(self, data: Parts) -> Iterable[str]:
        return itertools.chain.from_iterable(
            text for examples in data.values() for text in examples.texts
        )

    def other_sizes(self, data: Parts) -> list[str]:
        return public_sizes.differences(self.name, data)

    def outcome(self, data: Parts, vectors: base.Vectors) -> base.Outcome:
        """Predicts labels of the test part; without one, of all folds of `train`."""
        rows = {
            part: classifier.Rows(
                features(examples, vectors, self._language_of(examples)),
                examples.labels,
            )
            for part, examples in data.items()
        }
        return over_seeds([self._of_seed(data, rows, seed) for seed in self.seeds])

    def _language_of(self, examples: Examples) -> str:
        return self.language

    def _of_seed(
        self, data: Parts, rows: dict[str, classifier.Rows], seed: int
    ) -> base.Outcome:
        predicted, scores = self._predict(rows, seed)
        if "test" in rows and set(rows["train"].y) == {0, 1}:
            scores["f1"] = metrics.f1(predicted, rows["test"].y)
        tested = data.get("test", data["train"])
        return base.Outcome(scores, {"": predictions_of(tested, predicted)})

    def _predict(
        self, rows: dict[str, classifier.Rows], seed: int
    ) -> tuple[np.ndarray, dict[str, float]]:
        """The predicted labels, int [n], and `accuracy` and `dev_accuracy`."""
        model = classifier.Classifier(self.classifier, seed, self.jobs)
        if "test" not in rows:
            return model.cross_validated(rows["train"])
        if "dev" in rows:
            predicted, dev = model.tested_by(rows["train"], rows["dev"], rows["test"])
        else:
            predicted, dev = model.tested(rows["train"], rows["test"])
        accuracy = metrics.accuracy(predicted, rows["test"].y)
        return predicted, {"accuracy": accuracy, "dev_accuracy": dev}


class RelatednessTask(ClassificationTask):
    """Scores of sentence pairs, predicted by a trained regression."""

    main_metric = "pearson"
    protocol = "Pearson of a trained softmax regression, SentEval's protocol, x 100"

    def _of_seed(
        self, data: Parts, rows: dict[str, classifier.Rows], seed: int
    ) -> base.Outcome:
        test = rows["test"]
        predicted, dev = relatedness.train_and_predict(
            *rows["train"].read(), *rows["dev"].read(), test.x, seed
        )
        scores = metrics.correlations(predicted, test.y)
        return base.Outcome({**scores, "dev_pearson": dev})


def over_seeds(outcomes: Sequence[base.Outcome]) -> base.Outcome:
    """The mean of each metric; with several seeds also `METRIC_std`.

    The deviation of `METRIC/PART` is `METRIC_std/PART`. The number of parts
    gets no deviation. The value of a prediction is its mean, too; its answer is that of
    the first seed.
    """
    scores = [outcome.scores for outcome in outcomes]
    predictions = {}
    for part, first in outcomes[0].predictions.items():
        values = [outcome.predictions[part].values for outcome in outcomes]
        predictions[part] = dataclasses.replace(first, values=np.mean(values, axis=0))
    result = {}
    for metric in scores[0]:
        values = [score[metric] for score in scores]
        result[metric] = float(np.mean(values))
        if len(values) > 1 and metric != "parts":
            deviation = float(np.std(values, ddof=1))
            result[metrics.statistic(metric, "std")] = deviation
    return base.Outcome(result, predictions)


def predictions_of(examples: Examples, labels: np.ndarray) -> base.Predictions:
    """Predicted labels, int [n], as predictions: the value of a right one is 1."""
    return base.Predictions(
        list(zip(*examples.texts, strict=True)),
        examples.shown(examples.labels),
        (labels == examples.labels).astype(float),
        answers=examples.shown(labels),
    )


def features(
    examples: Examples, vectors: base.Vectors, language: str = "en"
) -> np.ndarray:
    """The classifier's inputs, float [n, features].

    The inputs are u for a sentence, and [|u - v|, u * v] for a pair of sentences.
    """
    columns = [
        vectors(list(column), language) for column in zip(*examples.texts, strict=True)
    ]
    if len(columns) == 1:
        return columns[0]
    u, v = columns
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def _polarity(name: str, positive: str, negative: str) -> ClassificationTask:
    return ClassificationTask(name, senteval_files.polarity(positive, negative))


# The tasks, each with its folder inside a language folder of XEVAL.
ROWS = [
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
TASKS = [task for _, task in ROWS]
