"""The interface of a task, and of the vectors that a task asks for.

To add a task, subclass `Task` in the module of its family, or add a row to an existing
table there, and list it in the module's `TASKS`. A new family is a new module with a
line in `catalogue`.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cmlm.evaluation import metrics
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.store import VectorsOnDisk

# SentEval's own seed, so that the folds are the same as in the toolkit.
SEED = 1111
# A remark names so many parts at most.
_NAMED_PARTS = 16

Data = TypeVar("Data")


class Vectors(Protocol):
    """Gives the vectors of sentences; `store.Store` implements it."""

    def __call__(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> np.ndarray:
        """The vectors of sentences.

        Args:
            sentences: any number of sentences.
            language: the language of the sentences, such as `de`; empty if the task
                does not know it. Principal component removal needs the language.
            role: a key of `prompts.ROLES`, such as `query`: the sentences get the
                model's prompt for it, if it has one.

        Returns:
            float32 [len(sentences), dim].
        """

    def on_disk(
        self, sentences: Sequence[str], language: str = "", role: str = ""
    ) -> VectorsOnDisk:
        """The unit vectors of sentences, for sets that do not fit into memory."""

    def prompt(self, role: str) -> str:
        """NAME=TEXT of the model's prompt for a role; "" for the default prompt."""


@dataclasses.dataclass
class Predictions:
    """The predictions of a model for the examples of a task, or of one part of it.

    Attributes:
        texts: the columns of texts, [n] each: one, or two for pairs.
        gold: the right answer of each example, [n]: a number, a label or ids.
        values: float [n], the numbers that the main metric is computed from.
        statistic: how: `mean` of the values, their `spearman` correlation with the gold
            scores, or their average precision, `ap`, for the gold labels 0 and 1.
        answers: the answer of the model, [n], where the value does not tell it.
    """

    texts: Sequence[Sequence[str]]
    gold: Sequence[Any]
    values: np.ndarray
    statistic: str = "mean"
    answers: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a task says about a model.

    Attributes:
        scores: values by metric name.
        predictions: the predictions behind the main metric, by part; "" without parts.
            The main metric is the mean of their statistic over the parts. Empty for
            tasks whose score is not such a mean.
    """

    scores: dict[str, float]
    predictions: dict[str, Predictions] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Pairs:
    """Pairs of texts.

    Attributes:
        first, second: the texts of each pair, [n].
        gold: the human scores, float [n], or the labels, int [n].
        languages: the languages of `first` and `second` in files of the user's own;
            empty if unknown.
    """

    first: list[str]
    second: list[str]
    gold: np.ndarray
    languages: tuple[str, str] = ("", "")

    def __len__(self) -> int:
        return len(self.gold)

    def sentences(self) -> list[str]:
        """The texts of all pairs."""
        return [*self.first, *self.second]

    def cosines(
        self, vectors: Vectors, first: str = "", second: str = ""
    ) -> np.ndarray:
        """The cosine of each pair, float64 [n]; `first` and `second` are languages."""
        return metrics.cosine(vectors(self.first, first), vectors(self.second, second))

    def predictions(
        self, vectors: Vectors, first: str = "", second: str = ""
    ) -> Predictions:
        """The cosines as predictions of the human scores, see `cosines`."""
        cosines = self.cosines(vectors, first, second)
        return Predictions([self.first, self.second], self.gold, cosines, "spearman")


class Task(abc.ABC, Generic[Data]):
    """A data set and the protocol that scores a model on it.

    Attributes:
        name: the name in tables and in --tasks.
        main_metric: the metric of `score` that represents the task. Higher is better.
        shown_metrics: further metrics that tables show.
        smaller_is_better, not_ranked: the first letters of the metrics whose best
            number is the smallest, and of those without a best number, such as counts.
            Deviations (`METRIC_std`) and `parts` need no entry. Of all other metrics,
            the largest number is the best.
        protocol: one line for reports that names the metric and the protocol.
        part_of: the name of the task of which this is one part, or "".
        languages: the languages that the public set has, or () if the user names them.
        seeds: random seeds. A task that trains a model runs once for each seed and
            reports mean and standard deviation.
        classifier: which classifier of SentEval its tasks train, see `classifier`.
        jobs: the number of classifiers that train in parallel; 0 for one on each core.
    """

    name: str
    main_metric: str
    shown_metrics: Sequence[str] = ()
    smaller_is_better: Sequence[str] = ()
    not_ranked: Sequence[str] = ()
    protocol: str
    part_of: str = ""
    languages: Sequence[str] = ("en",)
    seeds: Sequence[int] = (SEED,)
    classifier: str = "logistic"
    jobs: int = 0

    @abc.abstractmethod
    def read(self, source: DataDir) -> Data:
        """Reads the data set.

        Raises:
            MissingData: a file of the data set is missing.
            UserError: a file is damaged.
        """

    def check(self) -> None:
        """Checks, before sentences are encoded, that the task can be scored here.

        Raises:
            UserError: a library is not installed.
        """

    @abc.abstractmethod
    def sentences(self, data: Data) -> Iterable[str]:
        """Yields every sentence that `score` asks vectors for."""

    def by_role(self, data: Data) -> Mapping[str, Iterable[str]]:
        """The sentences by their role, see `Vectors`; "" for those without one."""
        return {"": self.sentences(data)}

    @abc.abstractmethod
    def score(self, data: Data, vectors: Vectors) -> dict[str, float]:
        """Scores a model; equal vectors give equal scores.

        Returns:
            Values by metric name.
        """

    def outcome(self, data: Data, vectors: Vectors) -> Outcome:
        """The scores, and the predictions that they follow from; by default none."""
        return Outcome(self.score(data, vectors))

    def remarks(self, data: Data) -> list[str]:
        """What a reader of the scores must know about this data, one line each.

        Examples are a threshold that is tuned on the scored pairs, or the size of the
        training set.
        """
        return self.other_sizes(data)

    def other_sizes(self, data: Data) -> list[str]:
        """See `public_sizes.differences`; empty by default."""
        return []

    def figures(self, data: Data, vectors: Vectors) -> dict[str, Any]:
        """The data of a report's figures: plain values for JSON, empty by default."""
        return {}


class PredictingTask(Task[Data]):
    """A task with predictions: it defines `outcome` in the place of `score`."""

    @abc.abstractmethod
    def outcome(self, data: Data, vectors: Vectors) -> Outcome:
        """Scores a model; equal vectors give an equal outcome."""

    def score(self, data: Data, vectors: Vectors) -> dict[str, float]:
        return self.outcome(data, vectors).scores


class DivisibleTask(Task[Data]):
    """A task in several languages or language pairs.

    `NAME-PART` in --tasks selects one part (`tatoeba-de`).
    """

    # The name of the one part; "" for all.
    _only: str = ""

    def part(self, name: str) -> DivisibleTask[Data]:
        """The same task with one part only."""
        one = copy.copy(self)
        one.name, one.part_of = f"{self.name}-{name}", self.name
        one._only = name
        return one


class PartedTask(PredictingTask[dict[str, Data]], DivisibleTask[dict[str, Data]]):
    """A task that scores each language or language pair alone, then averages.

    The result holds the mean over the parts as `METRIC` and the value of each part as
    `METRIC/PART`. A part whose files are damaged is left out.

    Args:
        name: the name of the task.
    """

    def __init__(self, name: str):
        self.name = name

    def remarks(self, data: dict[str, Data]) -> list[str]:
        """What the mean is over; it depends on the files of --data_dir."""
        sizes = super().remarks(data)
        # The name of a task on the user's files, which has a colon, names its one part.
        if self._only or (len(data) == 1 and ":" in self.name):
            return sizes
        few = len(data) <= _NAMED_PARTS
        parts = ", ".join(data) if few else f"{len(data)} parts"
        return [f"the mean is over {parts}", *sizes]

    @abc.abstractmethod
    def find_parts(self, source: DataDir) -> Mapping[str, Any]:
        """Finds the parts whose files exist.

        Returns:
            The value that `read_part` takes as `where`, by part name.

        Raises:
            MissingData: no part has files.
        """

    @abc.abstractmethod
    def read_part(self, source: DataDir, part: str, where: Any) -> Data:
        """Reads one part."""

    @abc.abstractmethod
    def part_sentences(self, data: Data) -> Iterable[str]:
        """Yields every sentence of a part."""

    @abc.abstractmethod
    def part_outcome(self, part: str, data: Data, vectors: Vectors) -> Outcome:
        """Scores one part; `part` is its name, a language or a pair of languages.

        The predictions, if there are any, have the key "".
        """

    def read(self, source: DataDir) -> dict[str, Data]:
        parts = self.find_parts(source)
        only = self._only
        if only and only not in parts:
            raise MissingData(f"no {only!r}; there are {', '.join(parts)}")
        if only:
            return {only: self.read_part(source, only, parts[only])}
        data = {}
        for part, where in parts.items():
            with source.part(part):
                data[part] = self.read_part(source, part, where)
        source.check_found(data)
        return data

    def sentences(self, data: dict[str, Data]) -> Iterable[str]:
        for part in data.values():
            yield from self.part_sentences(part)

    def outcome(self, data: dict[str, Data], vectors: Vectors) -> Outcome:
        outcomes = {
            part: self.part_outcome(part, content, vectors)
            for part, content in data.items()
        }
        predictions = {
            part: predicted
            for part, outcome in outcomes.items()
            for predicted in outcome.predictions.values()
        }
        scores = {part: outcome.scores for part, outcome in outcomes.items()}
        return Outcome(self._averaged(scores), predictions)

    def _averaged(self, scores: dict[str, dict[str, float]]) -> dict[str, float]:
        """The scores of the task, from those of its parts."""
        first = next(iter(scores.values()))
        if self._only:
            return first
        means = {
            metric: float(np.mean([score[metric] for score in scores.values()]))
            for metric in first
        }
        single = {
            f"{metric}/{part}": score[metric]
            for metric in first
            for part, score in scores.items()
        }
        return {**means, "parts": float(len(scores)), **single}
