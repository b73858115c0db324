"""The rows of a report that are means of models: --mean and --mean_of_models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import averages, metrics, tables

_BASELINES = ("untrained:", "bow:")


def check(means: Mapping[str, Sequence[str]], known: Iterable[str]) -> None:
    """Checks the values of --mean.

    Args:
        means: the models of each mean, by the name of its row.
        known: the names of all models.

    Raises:
        UserError: a mean names an unknown model, or its row has a model's name.
    """
    for name, members in means.items():
        if name in known:
            raise UserError(
                f"--mean has {name!r}; allowed: another name than a model's"
            )
        for member in members:
            if member not in known:
                raise UserError(
                    f"--mean={name} has {member!r}; allowed: names of models: "
                    f"{', '.join(known)}"
                )


def rows(
    means: Mapping[str, Sequence[str]],
    named: Mapping[str, str],
    models: Mapping[str, dict],
    failed: dict[str, str],
    of_all: bool,
) -> dict[str, list[str]]:
    """The scored models of each mean, by the name of its row.

    Args:
        means: the models of each --mean, by its name.
        named: the models by name.
        models: the entries of the models with scores.
        failed: gets a message for each --mean of a model without scores.
        of_all: add --mean_of_models, the mean of all runs; of all models, if they are
            all baselines.
    """
    # --pcr adds to the name of a row.
    row_of = {
        name: row
        for name in named
        for row in (name, name + tables.WITH_PCR)
        if row in models
    }
    found = {}
    for mean, members in means.items():
        absent = [name for name in members if name not in row_of]
        if absent:
            failed[f"the mean {mean}"] = f"no scores of {', '.join(absent)}"
        else:
            found[mean] = [row_of[name] for name in members]
    if of_all:
        runs = [
            row
            for name, row in row_of.items()
            if not named[name].startswith(_BASELINES)
        ]
        runs = runs or [*row_of.values()]
        if len(runs) > 1:
            found[f"mean of {len(runs)} models"] = runs
    return found


def mean_of(
    models: Sequence[Mapping[str, Any]], own: Sequence[averages.Group]
) -> dict[str, Any]:
    """The mean over runs of one recipe, with deviations.

    CMLM's table 1 averages five runs. Table 11 prints their "performance variances",
    which we read as standard deviations. SST and SICK have fixed splits, so with the
    classifier `logistic` only the encoder's training seed changes their scores.

    Args:
        models: the entries of the runs in results.json; `scores` is read.
        own: the user's groups, see `averages.of`.

    Returns:
        An entry of results.json. Each metric is the mean over the runs, and
        `METRIC_std` the standard deviation (n - 1), in place of a run's own deviation
        over the seeds of its classifier. `averages_std` has the deviations of the
        averages. A task or a metric that a run lacks is left out, also of the averages.
    """
    shared = [_shared(model["scores"], models) for model in models]
    scores: dict[str, dict[str, float]] = {}
    for task, first in shared[0].items():
        scores[task] = {}
        for metric in first:
            name, slash, part = metric.partition("/")
            scored = f"{name.removesuffix('_std')}{slash}{part}"
            if scored != metric and scored in first:
                # A run's own deviation.
                continue
            values = [run[task][metric] for run in shared]
            scores[task][metric] = float(np.mean(values))
            deviation = float(np.std(values, ddof=1))
            scores[task][metrics.statistic(metric, "std")] = deviation
    averaged = averages.of(scores, own)
    # The deviations of its parts do not give that of an average.
    of_runs = [averages.of(run, own) for run in shared]
    deviations = {
        name: float(np.std([run[name] for run in of_runs], ddof=1)) for name in averaged
    }
    return {
        "runs": len(models),
        "scores": scores,
        "averages": averaged,
        "averages_std": deviations,
        "figures": {},
    }


def _shared(
    scores: averages.Scores, models: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """The scores of a model that all models have."""
    shared = {
        task: {
            metric: value
            for metric, value in found.items()
            if all(metric in model["scores"].get(task, ()) for model in models)
        }
        for task, found in scores.items()
    }
    return {task: found for task, found in shared.items() if found}
