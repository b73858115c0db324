"""The certainty of the difference of two models: a paired bootstrap of examples.

Efron and Tibshirani, 1993; for systems on one test set: Koehn, 2004,
https://aclanthology.org/W04-3250. Each resample draws the examples of each part with
replacement, the same ones for both models, and computes the difference of the main
metric. The interval holds the middle 95 % of these differences. It covers the choice of
the test examples, and not the seed of a training: for that, score several runs
(--mean).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

from cmlm.evaluation.tasks.base import Predictions

RESAMPLES = 1000
NOTE = (
    f"In brackets: the middle 95 % of the differences in {RESAMPLES:,} resamples of "
    "the test examples (paired bootstrap). If this interval leaves out 0, chance in "
    "the choice of examples hardly explains the difference. It does not cover the "
    "seeds of training."
)
_TAIL = 2.5
# The predictions of a model, by task and part.
ByTask = Mapping[str, Mapping[str, Predictions]]


def between(
    first: Mapping[str, Predictions], second: Mapping[str, Predictions]
) -> dict[str, float]:
    """The difference of the main metric of a task, second minus first.

    Args:
        first, second: the predictions of two models for the same examples, by part.

    Returns:
        `difference`, and `low` and `high`, the ends of its 95 % interval.
    """
    one, other = _metric(first), _metric(second)
    found = [
        _metric(second, rows) - _metric(first, rows)
        for rows in _resamples([len(part.values) for part in first.values()])
    ]
    low, high = np.nanpercentile(found, [_TAIL, 100 - _TAIL])
    return {"difference": other - one, "low": float(low), "high": float(high)}


def from_first(predictions: Mapping[str, ByTask]) -> dict[str, Any]:
    """The entry `differences` of results.json.

    Args:
        predictions: the predictions of each model.

    Returns:
        `from`, the name of the first model; `resamples`; and `models`, the differences
        of each other model from it, by task.
    """
    (first, expected), *others = predictions.items()
    models = {
        name: {
            task: between(expected[task], parts)
            for task, parts in by_task.items()
            if task in expected
        }
        for name, by_task in others
    }
    return {"from": first, "resamples": RESAMPLES, "models": models}


def lines(found: Mapping[str, Any]) -> list[list[str]]:
    """The cells of a table of `from_first`: a line of titles, and one for each task."""
    models = found["models"]
    tasks = dict.fromkeys(task for by_task in models.values() for task in by_task)
    title = f"minus {found['from']}"
    return [
        [title, *models],
        *(
            [task, *(_text(by_task.get(task)) for by_task in models.values())]
            for task in tasks
        ),
    ]


def _text(difference: Mapping[str, float] | None) -> str:
    if not difference:
        return ""
    value, low, high = (difference[key] for key in ("difference", "low", "high"))
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _resamples(sizes: Sequence[int]) -> Iterator[list[np.ndarray]]:
    """Yields the drawn rows of each part; the same ones for equal sizes."""
    random = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        yield [random.integers(size, size=size) for size in sizes]


def _metric(
    parts: Mapping[str, Predictions], rows: Sequence[np.ndarray] | None = None
) -> float:
    """The mean over the parts, times 100; `rows` has the examples of each part."""
    chosen = rows or [slice(None)] * len(parts)
    found = map(_statistic, parts.values(), chosen)
    return 100 * float(np.mean(list(found)))


def _statistic(part: Predictions, rows: np.ndarray | slice) -> float:
    values = part.values[rows]
    if part.statistic == "mean":
        return float(values.mean())
    gold = np.asarray(part.gold)[rows]
    if part.statistic == "ap":
        # A resample may lack positive pairs; the percentiles leave it out.
        return average_precision_score(gold, values) if gold.any() else np.nan
    if np.ptp(values) == 0 or np.ptp(gold) == 0:
        return 0.0
    ranks = stats.rankdata([values, gold], axis=1)
    return float(np.corrcoef(ranks)[0, 1])
