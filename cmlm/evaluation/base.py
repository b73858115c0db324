"""What a task is, and what it sees of a model.

A new task is a subclass of `Task` in a file of its own, or a row in a table of an
existing one, listed in `catalogue`.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cmlm.evaluation.reading import DataDir, MissingData

# SentEval's own, so that its folds come out the same.
SEED = 1111

Data = TypeVar("Data")


class Vectors(Protocol):
    """The vectors of sentences that were encoded before; see `store.Store`."""

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """float32 [len(sentences), dim]."""


class Task(abc.ABC, Generic[Data]):
    """One data set and how a model is scored on it.

    Attributes:
        name: as it stands in tables and in --tasks.
        main_metric: the key of `score`'s result that stands for the task; higher is
            better.
        protocol: one line for reports: what is measured, and how.
        seeds: one of each for tasks that train something; they give mean and
            deviation.
    """

    name: str
    main_metric: str
    protocol: str
    seeds: Sequence[int] = (SEED,)

    @abc.abstractmethod
    def read(self, source: DataDir) -> Data:
        """Reads the data set.

        Raises:
            MissingData: it is not there.
            UserError: it is there and damaged.
        """

    @abc.abstractmethod
    def sentences(self, data: Data) -> Iterable[str]:
        """Every sentence that `score` is going to ask for."""

    @abc.abstractmethod
    def score(self, data: Data, vectors: Vectors) -> dict[str, float]:
        """Scores a model; deterministic. Names of metrics to numbers."""

    def figures(self, data: Data, vectors: Vectors) -> dict[str, Any]:
        """What a report draws beside the scores: plain values for JSON, or nothing."""
        return {}


class PartedTask(Task[dict[str, Data]]):
    """A task in several languages, or language pairs: scored apart, then averaged.

    `NAME-PART` in --tasks is one of them (`tatoeba-de`). The result has each metric's
    mean over the parts under its name, and the part's own as `METRIC/PART`.

    Args:
        name: of the task.
        only: the parts to score; by default all whose files are there.
    """

    def __init__(self, name: str, only: Sequence[str] = ()):
        self.name = name
        self._only = tuple(only)

    def part(self, name: str) -> PartedTask:
        """The same task with one part only."""
        one = copy.copy(self)
        one.name, one._only = f"{self.name}-{name}", (name,)
        return one

    @abc.abstractmethod
    def find_parts(self, source: DataDir) -> Mapping[str, Any]:
        """What is there: names of parts to whatever `read_part` takes.

        Raises:
            MissingData: nothing.
        """

    @abc.abstractmethod
    def read_part(self, source: DataDir, part: str, where: Any) -> Data:
        """Reads one part."""

    @abc.abstractmethod
    def part_sentences(self, data: Data) -> Iterable[str]:
        """Every sentence of a part."""

    @abc.abstractmethod
    def score_part(self, data: Data, vectors: Vectors) -> dict[str, float]:
        """Scores one part."""

    def read(self, source: DataDir) -> dict[str, Data]:
        parts = self.find_parts(source)
        for name in self._only:
            if name not in parts:
                raise MissingData(f"no {name!r}: there are {', '.join(parts)}")
        wanted = self._only or parts
        return {part: self.read_part(source, part, parts[part]) for part in wanted}

    def sentences(self, data: dict[str, Data]) -> Iterable[str]:
        for part in data.values():
            yield from self.part_sentences(part)

    def score(self, data: dict[str, Data], vectors: Vectors) -> dict[str, float]:
        scores = {
            part: self.score_part(content, vectors) for part, content in data.items()
        }
        if len(scores) == 1:
            return next(iter(scores.values()))
        metrics = next(iter(scores.values()))
        means = {
            metric: float(np.mean([score[metric] for score in scores.values()]))
            for metric in metrics
        }
        single = {
            f"{metric}/{part}": score[metric]
            for metric in metrics
            for part, score in scores.items()
        }
        return {**means, "parts": float(len(scores)), **single}
