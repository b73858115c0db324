"""A run: reads the data sets once, then scores one model after another."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import averages
from cmlm.evaluation.base import Task
from cmlm.evaluation.reading import DataDir, MissingData
from cmlm.evaluation.store import Change, LanguageStores, SentenceEncoder, Store


@dataclasses.dataclass
class TaskData:
    """A task and its data set.

    Attributes:
        task: a task of the catalogue.
        data: the data set, as `task.read` returns it.
        checksums: the SHA-256 of the files that were read, by path.
    """

    task: Task
    data: Any
    checksums: dict[str, str]


@dataclasses.dataclass
class ModelScores:
    """The scores of a model.

    Attributes:
        scores: metrics and their values, by task.
        averages: the averages that papers print, by group; see `averages`.
        figures: the data of a report's figures, by task; plain values.
        sentences: the number of distinct sentences.
        encoded: the number of sentences that the model encoded in this run.
        encoding_seconds, scoring_seconds: wall time.
    """

    scores: dict[str, dict[str, float]]
    averages: dict[str, float]
    figures: dict[str, dict[str, Any]]
    sentences: int
    encoded: int
    encoding_seconds: float
    scoring_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The entry of results.json."""
        seconds = ("encoding_seconds", "scoring_seconds")
        rounded = {name: round(getattr(self, name), 1) for name in seconds}
        return {**dataclasses.asdict(self), **rounded}


def read(tasks: Sequence[Task], data_dir: str) -> tuple[list[TaskData], dict[str, str]]:
    """Reads the data sets of tasks.

    Args:
        tasks: the tasks.
        data_dir: the folder of test sets.

    Returns:
        The tasks with their data; and for each other task, by name, a message about
        its missing or damaged file.
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
    """The distinct sentences of the tasks."""
    return list(
        dict.fromkeys(text for item in tasks for text in item.task.sentences(item.data))
    )


def score(
    encoder: SentenceEncoder | Mapping[str, SentenceEncoder],
    tasks: Sequence[TaskData],
    cache_dir: str | None = None,
    progress: bool = False,
    report: Callable[[Task, dict[str, float]], None] | None = None,
    change: Change | None = None,
) -> ModelScores:
    """Scores a model.

    Args:
        encoder: the model, or a model for each language.
        tasks: the tasks with their data.
        cache_dir: the directory that keeps this model's vectors for other runs.
        progress: show a bar while encoding.
        report: called with each task and its scores.
        change: applied to the vectors of a language, such as principal component
            removal.

    Raises:
        UserError: the model does not return a finite vector for each sentence.
    """
    texts = sentences(tasks)
    with (
        LanguageStores(encoder, progress)
        if isinstance(encoder, Mapping)
        else Store(encoder, cache_dir, progress, change) as vectors
    ):
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
            averages=averages.of(scores),
            figures=figures,
            sentences=len(texts),
            encoded=vectors.encoded,
            encoding_seconds=encoding_seconds,
            scoring_seconds=time.monotonic() - start - encoding_seconds,
        )


def mean_of(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over runs of one recipe, with deviations.

    CMLM's table 1 averages five runs, and table 11 prints their deviations. SST and
    SICK have fixed splits, so only the encoder's training seed changes their scores.

    Args:
        models: the results of each run, as `ModelScores.as_dict` returns them.

    Returns:
        An entry of results.json. Each metric is the mean over the runs, and
        `METRIC_std` the standard deviation (n - 1).
    """
    scores: dict[str, dict[str, float]] = {}
    for task, first in models[0]["scores"].items():
        scores[task] = {}
        for metric in first:
            values = [model["scores"][task][metric] for model in models]
            name, slash, part = metric.partition("/")
            scores[task][metric] = float(np.mean(values))
            scores[task][f"{name}_std{slash}{part}"] = float(np.std(values, ddof=1))
    averaged = {
        name: float(np.mean([model["averages"][name] for model in models]))
        for name in models[0]["averages"]
    }
    return {"runs": len(models), "scores": scores, "averages": averaged, "figures": {}}
