"""Question answering without training: QNLI by cosine.

QNLI (Wang et al., 2019, https://arxiv.org/abs/1804.07461) pairs a question of SQuAD
with a sentence that may answer it. Liu et al., 2021 (Mirror-BERT, section 4.2,
https://arxiv.org/abs/2104.08027) rank the pairs by the cosine of question and sentence
and report the area under the ROC curve on the development set, since the test set has
no labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from sklearn.metrics import roc_auc_score

from cmlm.errors import UserError
from cmlm.evaluation import metrics, reading
from cmlm.evaluation.tasks import base

_LABELS = {"not_entailment": 0, "entailment": 1}


@dataclasses.dataclass
class Answers:
    """Pairs of a question and a sentence.

    Attributes:
        questions, sentences: the two texts of each pair, [n].
        labels: int [n], 1 if the sentence answers the question.
    """

    questions: list[str]
    sentences: list[str]
    labels: np.ndarray


class Qnli(base.Task[Answers]):
    """`QNLI/dev.tsv`: rows of `index, question, sentence, label` under a header."""

    name = "qnli"
    main_metric = "auc"
    protocol = "area under the ROC curve of the cosine, development set, x 100"

    def read(self, source: reading.DataDir) -> Answers:
        path = source.find("QNLI/dev.tsv", within="glue")
        rows = source.table(path, 4)[1:]
        labels = [
            reading.parse_label(row[3], _LABELS, f"{path}, line {number}")
            for number, row in enumerate(rows, 2)
        ]
        if len(set(labels)) < 2:
            raise UserError(f"{path} has one label only; allowed: both labels")
        return Answers(
            [row[1] for row in rows], [row[2] for row in rows], np.array(labels)
        )

    def sentences(self, data: Answers) -> Iterable[str]:
        return [*data.questions, *data.sentences]

    def score(self, data: Answers, vectors: base.Vectors) -> dict[str, float]:
        cosines = metrics.cosine(
            vectors(data.questions, "en"), vectors(data.sentences, "en")
        )
        return {"auc": 100 * float(roc_auc_score(data.labels, cosines))}


TASKS = [Qnli()]
