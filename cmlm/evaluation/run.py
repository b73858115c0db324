"""A run: data sets are read once, then models are scored one after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from cmlm.errors import UserError
from cmlm.evaluation.base import Task
from cmlm.evaluation.reading import DataDir, MissingData
from cmlm.evaluation.store import SentenceEncoder, Store


@dataclasses.dataclass
class TaskData:
    """A task with the data set it was given.

    Attributes:
        task: of the catalogue.
        data: what its `read` returned.
        checksums: SHA-256 of the files that were read, by path.
    """

    task: Task
    data: Any
    checksums: dict[str, str]


@dataclasses.dataclass
class ModelScores:
    """What a model scored.

    Attributes:
        scores: metrics to numbers, by task.
        figures: what a report draws, by task; plain values.
        sentences: how many distinct ones were asked for.
        encoded: how many of them the model encoded in this run.
        encoding_seconds, scoring_seconds: wall time.
    """

    scores: dict[str, dict[str, float]]
    figures: dict[str, dict[str, Any]]
    sentences: int
    encoded: int
    encoding_seconds: float
    scoring_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        seconds = ("encoding_seconds", "scoring_seconds")
        rounded = {name: round(getattr(self, name), 1) for name in seconds}
        return {**dataclasses.asdict(self), **rounded}


def read(tasks: Sequence[Task], data_dir: str) -> tuple[list[TaskData], dict[str, str]]:
    """Reads what is there.

    Args:
        tasks: any.
        data_dir: the folder with test sets.

    Returns:
        The tasks with their data, and for the others, by name, what is wrong: a
        missing file, a damaged one.
    """
    found, failed = [], {}
    for task in tasks:
        source = DataDir(data_dir)
        try:
            found.append(TaskData(task, task.read(source), source.checksums))
        except MissingData as error:
            failed[task.name] = str(error)
        except UserError as error:
            failed[task.name] = f"damaged: {error}"
    return found, failed


def sentences(tasks: Sequence[TaskData]) -> list[str]:
    """The distinct sentences that tasks ask for."""
    return list(
        dict.fromkeys(text for item in tasks for text in item.task.sentences(item.data))
    )


def score(
    encoder: SentenceEncoder,
    tasks: Sequence[TaskData],
    cache_dir: str | None = None,
    progress: bool = False,
    report: Callable[[Task, dict[str, float]], None] | None = None,
) -> ModelScores:
    """Scores a model.

    Args:
        encoder: the model.
        tasks: with their data.
        cache_dir: where this model's vectors are kept for other runs.
        progress: show a bar while encoding.
        report: called with each task's scores as soon as they are known.

    Raises:
        UserError: the model gives what is no vector.
    """
    texts = sentences(tasks)
    with Store(encoder, cache_dir, progress) as vectors:
        start = time.monotonic()
        vectors.add(texts)
        encoding_seconds = time.monotonic() - start
        scores, figures = {}, {}
        for item in tasks:
            scores[item.task.name] = item.task.score(item.data, vectors)
            drawn = item.task.figures(item.data, vectors)
            if drawn:
                figures[item.task.name] = drawn
            if report:
                report(item.task, scores[item.task.name])
        return ModelScores(
            scores=scores,
            figures=figures,
            sentences=len(texts),
            encoded=vectors.encoded,
            encoding_seconds=encoding_seconds,
            scoring_seconds=time.monotonic() - start - encoding_seconds,
        )
