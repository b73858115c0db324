"""Evaluation on one's own labels: classes of texts, and pairs that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from cmlm.common import language_names
from cmlm.errors import UserError
from cmlm.evaluation import classifier, labelled_files, metrics, parsing
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base
from cmlm.evaluation.tasks.base import Pairs
from cmlm.evaluation.tasks.senteval import ClassificationTask
from cmlm.evaluation.tasks.senteval_files import Examples, Parts

_PARTS = {1: ("train",), 2: ("train", "test"), 3: ("train", "dev", "test")}


class ClassificationFiles(ClassificationTask):
    """Classes of texts or of pairs of texts, see `labelled_files`.

    Args:
        paths: one file (ten folds of it); training and test file; or training,
            development and test file; see `DataDir.find_own`.
    """

    def __init__(self, paths: Sequence[str]):
        name = "classification:" + ":".join(paths)
        if len(paths) not in _PARTS:
            raise UserError(
                f"the task is {name!r}; allowed: classification:FILE, "
                "classification:TRAIN:TEST or classification:TRAIN:DEV:TEST"
            )
        super().__init__(name, self._read_parts)
        self._paths = dict(zip(_PARTS[len(paths)], paths, strict=True))

    def read(self, source: DataDir) -> Parts:
        """See `Task.read`; unlike SentEval's sets, in the order and words of the file.

        So the numbers of predictions are those of the file's examples.
        """
        return self._read(source)

    def _read_parts(self, source: DataDir) -> Parts:
        parts, classes = {}, {}
        found = source.find_own([*self._paths.values()])
        for part, (path, language) in zip(self._paths, found, strict=True):
            source.text(path)  # For its checksum.
            columns, label_column = labelled_files.columns_of(path, ("label",))
            rows = list(labelled_files.read(path, columns, label_column))
            if part == "train":
                classes = self._classes(path, [label for _, _, label in rows])
            labels = [
                parsing.parse_label(label, classes, where) for where, _, label in rows
            ]
            texts = [texts for _, texts, _ in rows]
            parts[part] = Examples(
                texts, np.array(labels), classes=list(classes), language=language
            )
        return parts

    def _language_of(self, examples: Examples) -> str:
        return examples.language

    def _classes(self, path: str, labels: Sequence[str]) -> dict[str, int]:
        """The number of each label of the training file.

        Labels that a classifier cannot learn are refused before texts are encoded.
        """
        found = sorted(set(labels))
        if len(found) < 2:
            raise UserError(
                f"{path} has the labels {found}; allowed: at least two labels"
            )
        if "dev" not in self._paths:
            try:
                classifier.check_folds(labels, is_nested="test" not in self._paths)
            except UserError as error:
                raise UserError(f"{path}: {error}; or TRAIN:DEV:TEST") from None
        return {label: number for number, label in enumerate(found)}


class PairFiles(base.PredictingTask[Pairs]):
    """Do two texts belong together? Lines of `text<TAB>text<TAB>0 or 1`, or `.csv`.

    Args:
        paths: one file, see `DataDir.find_own`; it may have a pair of languages.
    """

    main_metric = "ap"
    shown_metrics = ("auc", "f1", "accuracy")
    protocol = (
        "average precision of the cosine, x 100; auc; f1 and accuracy at "
        "thresholds that are tuned on these pairs, which flatters the result"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "pairs:" + ":".join(paths)
        if len(paths) != 1:
            raise UserError(f"the task is {self.name!r}; allowed: pairs:FILE")
        (self._path,) = paths

    def read(self, source: DataDir) -> Pairs:
        ((path, language),) = source.find_own([self._path])
        rows = source.rows(path, 3)
        labels = [
            parsing.parse_label(
                row[2].strip(), {"0": 0, "1": 1}, parsing.pair_place(path, n)
            )
            for n, row in enumerate(rows, 1)
        ]
        if len(set(labels)) < 2:
            raise UserError(f"{path} has one label only; allowed: both 0 and 1")
        return Pairs(
            [row[0].strip() for row in rows],
            [row[1].strip() for row in rows],
            np.array(labels),
            language_names.of_two_texts(language),
        )

    def sentences(self, data: Pairs) -> Iterable[str]:
        return data.sentences()

    def outcome(self, data: Pairs, vectors: base.Vectors) -> base.Outcome:
        # Pairs of equal texts tie, whatever the rounding of their vectors.
        cosines = np.round(data.cosines(vectors, *data.languages), 6)
        scores = {
            "ap": 100 * float(average_precision_score(data.gold, cosines)),
            "auc": 100 * float(roc_auc_score(data.gold, cosines)),
            **_at_best_thresholds(cosines, data.gold),
        }
        texts = [data.first, data.second]
        predictions = base.Predictions(texts, data.gold, cosines, "ap")
        return base.Outcome(scores, {"": predictions})


def _at_best_thresholds(cosines: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """F1 and accuracy at the thresholds that make them largest, times 100."""
    _, taken, hits = metrics.at_thresholds(cosines, labels)
    positive = labels.sum()
    negative = len(labels) - positive
    right = hits + negative - (taken - hits)
    return {
        "f1": 100 * float((2 * hits / (taken + positive)).max()),
        # A threshold above all cosines finds the negative pairs.
        "accuracy": 100 * float(max(right.max(), negative) / len(labels)),
    }
