"""Question answering without training: QNLI by cosine.

QNLI (Wang et al., 2019, https://arxiv.org/abs/1804.07461) pairs a question of SQuAD
with a sentence that may answer it. Liu et al., 2021 (Mirror-BERT, section 3,
https://arxiv.org/abs/2104.08027) rank the pairs by the cosine of question and sentence
and report the area under the ROC curve on the development set. (The test set has no
labels.)
"""

from __future__ import annotations

from collections.abc import Iterable

from sklearn.metrics import roc_auc_score

from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base, senteval_files
from cmlm.evaluation.tasks.base import Pairs

_LABELS = {"not_entailment": 0, "entailment": 1}


class Qnli(base.Task[Pairs]):
    """`QNLI/dev.tsv`: rows of `index, question, sentence, label` under a header."""

    name = "qnli"
    main_metric = "auc"
    protocol = "area under the ROC curve of the cosine, development set, x 100"

    def read(self, source: DataDir) -> Pairs:
        path = source.find("QNLI/dev.tsv", within="glue")
        rows = [((row[1], row[2]), row[3]) for row in source.table(path, 4)[1:]]
        return senteval_files.examples_of(path, rows, _LABELS, first=2).as_pairs()

    def sentences(self, data: Pairs) -> Iterable[str]:
        return data.sentences()

    def score(self, data: Pairs, vectors: base.Vectors) -> dict[str, float]:
        cosines = data.cosines(vectors, "en", "en")
        return {"auc": 100 * float(roc_auc_score(data.gold, cosines))}


TASKS = [Qnli()]
