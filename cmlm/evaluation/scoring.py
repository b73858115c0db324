"""Scores models on tasks; stores scores and vectors for a command that continues."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

import threadpoolctl

from cmlm.common import atomic, identity, versions
from cmlm.errors import printable
from cmlm.evaluation import differences, report, results, resuming, run, store, tables
from cmlm.evaluation.tasks.base import Task

# In the work directory; a report has a file of this name, too.
_SCORES = "scores.csv"
# The entries of a work directory, as patterns.
NAMES = (*resuming.NAMES, _SCORES)


@dataclasses.dataclass
class Scoring:
    """Scores one model after another; a task that fails leaves the others.

    Args:
        tasks: the tasks with their data.
        work_dir: the directory for the scores of a killed run, locked by the caller; or
            None.
        cache_dir: the folder that keeps the vectors of all models for other runs, or
            None.
        jobs: CPU cores for searches and classifiers; 0: all.
        with_predictions: whether to keep the predictions for single examples, too.

    Attributes:
        models: the entry of results.json for each model with scores, without averages.
        predictions: the predictions of these models, if they are asked for.
        failed: a message for each task that a model cannot be scored on.
    """

    tasks: Sequence[run.TaskData]
    work_dir: str | None
    cache_dir: str | None
    jobs: int
    with_predictions: bool

    def __post_init__(self):
        self._sentences = run.by_role(self.tasks)
        self._scored: dict[str, dict] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.predictions: dict[str, differences.ByTask] = {}
        self.failed: dict[str, str] = {}

    def add(self, name: str, encoder, pcr=None) -> None:
        """Scores a model, and names its scores and failures on stderr.

        Args:
            name: the name of the model.
            encoder: the model, or a model for each language; with `info`.
            pcr: the `components_removal.Removal` of its principal components, or None.
        """
        found = self._score(name, encoder, pcr)
        for task, reason in found.failed.items():
            self.failed[f"{task} of {name}"] = reason
            print(printable(f"{name}: {task}: {reason}"), file=sys.stderr)
        if not found.scores:
            return
        entry = results.entry_of(encoder, found, self._sentences)
        if pcr:
            entry["pcr"] = _entry_of_pcr(pcr, found.languages)
            if entry["pcr"]["removed"]:
                name += tables.WITH_PCR
        self.models[name] = entry
        if found.predictions:
            self.predictions[name] = found.predictions

    def _score(self, name: str, encoder, pcr) -> run.ModelScores:
        kept = None
        if self.work_dir:
            about = {
                "model": identity.of(encoder),
                "pcr": pcr and pcr.about,
                "versions": versions.installed(),
            }
            kept = resuming.Kept(self.work_dir, about)
        with threadpoolctl.threadpool_limits(self.jobs or None):
            return run.score(
                encoder,
                self.tasks,
                self._cache_of(name, encoder),
                progress=True,
                report=functools.partial(self._tell, name),
                change=pcr,
                kept=kept,
                goes_on=True,
                with_figures=True,
                with_predictions=self.with_predictions,
            )

    def _tell(self, name: str, task: Task, scores: dict[str, float]) -> None:
        print(f"{name}: {task.name} {scores[task.main_metric]:.2f}", file=sys.stderr)
        if self.work_dir:
            self._scored.setdefault(name, {"scores": {}})["scores"][task.name] = scores
            with atomic.text(os.path.join(self.work_dir, _SCORES)) as file:
                report.write_csv(file, {"models": self._scored})

    def _cache_of(self, name: str, encoder) -> str | None:
        """The model's own folder in the cache; None without a usable cache."""
        if not self.cache_dir:
            return None
        folder = store.folder_in(self.cache_dir, encoder)
        if not folder:
            print(
                f"note: --cache_dir keeps no vectors of {name}; allowed: an export, a "
                "model_dir or weights, not a server, stored vectors or languages:",
                file=sys.stderr,
            )
        return folder


def _entry_of_pcr(pcr, languages: dict[str, list[str]]) -> dict[str, Any]:
    """The entry `pcr` of a model; names the languages that --pcr left unchanged."""
    unchanged = pcr.unchanged(name for names in languages.values() for name in names)
    every = ((task, pcr.changed(names)) for task, names in languages.items())
    removed = {task: names for task, names in every if names}
    if unchanged:
        # A task may name no language.
        names = (name or "texts without a language" for name in unchanged)
        print(
            f"note: --pcr has no components for {', '.join(names)}: their vectors are "
            "unchanged",
            file=sys.stderr,
        )
    return {**pcr.about, "unchanged": unchanged, "removed": removed}
