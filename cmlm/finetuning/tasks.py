"""A task to fine-tune for: its files, its examples, its scores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import numpy as np
from scipy import special
from sklearn.metrics import f1_score, matthews_corrcoef

from cmlm.evaluation import metrics
from cmlm.evaluation.data_dir import DataDir


def _matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """The Matthews correlation, times 100; 0 if one side is constant."""
    return 100 * float(matthews_corrcoef(gold, predicted))


def _averaged_f1(average: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """F1 over classes or over the several labels of an example, times 100."""

    def measure(predicted: np.ndarray, gold: np.ndarray) -> float:
        gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
        return 100 * float(f1_score(gold, predicted, average=average, zero_division=0))

    return measure


_FIGURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "f1_macro": _averaged_f1("macro"),
    "f1_micro": _averaged_f1("micro"),
    "matthews": _matthews,
    "pearson": lambda a, b: metrics.correlations(a, b)["pearson"],
    "spearman": lambda a, b: metrics.correlations(a, b)["spearman"],
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One example.

    Attributes:
        texts: one sentence or two.
        label: the class or the score; with several labels, 0 or 1 for each of them;
            None in a test file.
        index: what names the example in a file of predictions: its number, or its texts
            separated by tabs.
    """

    texts: tuple[str, ...]
    label: float | tuple[float, ...] | None
    index: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task; subclasses read its files.

    Attributes:
        name: the name in `--task`.
        texts: the columns of the one or two texts of an example.
        labels: the classes, class 0 first; empty if the task asks for a score.
        is_several: whether an example has any number of the labels.
        center, spread: of the scores; the head learns (score - center) / spread.
        figures: the metrics of the task; its score is their mean over `dev`.
        train: the file to train on.
        dev: parts ("" for a single part) and their files. The score on them chooses the
            best seed.
        heldout: parts and their labelled files, which are scored but do not affect the
            choice of the seed. A missing file is left out.
        tests: files to submit, and the files to predict for.
        least_steps: the least steps of a training, see `Settings.with_epochs`.
        head: `cls`, a classifier over [CLS] of the text or of both texts together; or
            `vectors`, a classifier on [u, v, |u - v|, u * v] of the sentence vectors of
            two texts, each with the pooling of the encoder's training.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    train: str = "train.tsv"
    dev: tuple[tuple[str, str], ...] = (("", "dev.tsv"),)
    heldout: tuple[tuple[str, str], ...] = ()
    tests: tuple[tuple[str, str], ...] = ()
    least_steps: int = 0
    head: str = "cls"
    is_several: bool = False
    center: float = 0.0
    spread: float = 1.0

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @functools.cached_property
    def classes(self) -> dict[str, int]:
        """The number of each label."""
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def needed(self) -> list[str]:
        """The files without which the task cannot train."""
        return [self.train, *(name for _, name in self.dev)]

    @property
    def segments(self) -> int:
        """Texts of one sequence; each has its own segment."""
        return 1 if self.head == "vectors" else len(self.texts)

    @property
    def num_outputs(self) -> int:
        """The number of the head's outputs: one for each class, or one score."""
        return len(self.labels) or 1

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """Reads a file example by example.

        Args:
            path: the path of the file, plain or gzip.
            with_labels: False for test files, which have no labels.

        Raises:
            UserError: the file does not have the task's form.
        """
        raise NotImplementedError

    def find(self, source: DataDir, name: str) -> list[str]:
        """The paths of a file of the task, by its name in `train`, `dev` and so on.

        Raises:
            MissingData: the file is missing.
        """
        raise NotImplementedError

    def examples(
        self, name: str, paths: Sequence[str], with_labels: bool = True
    ) -> Iterator[Row]:
        """The examples of a file, by its name; `paths` come from `find`."""
        for path in paths:
            yield from self.read(path, with_labels)

    def write_predictions(
        self, file: TextIO, indices: Iterable[str], logits: np.ndarray
    ) -> None:
        """Writes a file of `tests`.

        Args:
            file: the file to write to.
            indices: the index of each example, see `Row`.
            logits: the outputs of the head, float [n, outputs].
        """
        raise NotImplementedError

    def score(
        self, predicted: Mapping[str, np.ndarray], gold: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The metrics of the task, each times 100.

        Args:
            predicted, gold: the classes or scores of every dev and held-out file, [n].

        Returns:
            The metrics, as `METRIC/PART` for a named part, and `score`, their mean over
            `dev`, as in GLUE's ranking.
        """

        def measure(part: str, name: str) -> dict[str, float]:
            suffix = f"/{part}" if part else ""
            return {
                f"{figure}{suffix}": _FIGURES[figure](predicted[name], gold[name])
                for figure in self.figures
            }

        dev, heldout = {}, {}
        for part, name in self.dev:
            dev |= measure(part, name)
        for part, name in self.heldout:
            if name in predicted:
                heldout |= measure(part, name)
        return {**dev, **heldout, "score": float(np.mean(list(dev.values())))}

    def counts(self, labels: np.ndarray) -> np.ndarray:
        """The number of the examples with each label, int64 [labels].

        Args:
            labels: float [n], or [n, labels] for several labels.
        """
        if self.is_several:
            return labels.sum(axis=0).astype(np.int64)
        return np.bincount(labels.astype(np.int64), minlength=len(self.labels))

    def constant(self, labels: np.ndarray) -> np.ndarray:
        """The best constant prediction, from the training labels alone.

        Args:
            labels: the training labels, float [n], or [n, labels] for several labels.

        Returns:
            The most frequent class or the mean score, a scalar; for several labels,
            whether most examples have each, bool [labels].
        """
        if self.is_several:
            return labels.mean(axis=0) > 0.5
        if self.is_regression:
            return labels.mean()
        return self.counts(labels).argmax()

    def decide(self, logits: np.ndarray) -> np.ndarray:
        """Makes predictions of the outputs of a head.

        Args:
            logits: float [n, outputs].

        Returns:
            The most probable classes, int64 [n]; the scores, float32 [n]; or for
            several labels, whether each is more probable than not, bool [n, labels].
        """
        if self.is_several:
            return logits > 0
        if self.is_regression:
            return logits[:, 0] * np.float32(self.spread) + np.float32(self.center)
        return logits.argmax(axis=1)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """The probability of each label: float [n, labels]; no column for a score.

        Args:
            logits: float [n, outputs].
        """
        if self.is_regression:
            return logits[:, :0]
        if self.is_several:
            return special.expit(logits)
        return special.softmax(logits, axis=1)
