"""Metrics and their names; the projection of maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from cmlm.common.counts import counted
from cmlm.errors import UserError

# Two examples correlate by 100 or -100, whatever their scores.
LEAST_SCORES = 3


def statistic(metric: str, end: str) -> str:
    """The name of a statistic over seeds: `METRIC_end`, or `METRIC_end/PART`."""
    name, slash, part = metric.partition("/")
    return f"{name}_{end}{slash}{part}"


def is_deviation(metric: str) -> bool:
    """Whether a metric is a deviation over seeds, `METRIC_std` or `METRIC_std/PART`."""
    return metric.partition("/")[0].endswith("_std")


# The pairs of vectors that are in float64 at a time.
_ROWS_AT_ONCE = 1 << 14


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine of corresponding rows; 0 where a row is all zeros.

    Equal rows have exactly 1, so that rank correlations see their pairs as ties.

    Args:
        a, b: float [n, dim].

    Returns:
        float64 [n].
    """
    found = np.zeros(len(a))
    for start in range(0, len(a), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        x, y = np.asarray(a[part], np.float64), np.asarray(b[part], np.float64)
        lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        products = np.einsum("nd,nd->n", x, y)
        np.divide(products, lengths, out=found[part], where=lengths > 0)
        found[part][(lengths > 0) & (x == y).all(axis=1)] = 1
    return found


def angular_similarity(cosines: np.ndarray) -> np.ndarray:
    """1 - arccos(cosine) / pi, from 0 (opposite) to 1 (equal).

    LaBSE (section 6.4, table 6) scores STS-B by the Pearson correlation of this
    similarity; Cer et al., 2018, define it.

    Args:
        cosines: float [n].

    Returns:
        float64 [n].
    """
    return 1 - np.arccos(np.clip(cosines, -1, 1)) / np.pi


def correlations(predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Spearman and Pearson correlation, times 100.

    Args:
        predicted, gold: float [n].

    Returns:
        `spearman` and `pearson`; 0 if one side is constant.
    """
    if np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        return {"spearman": 0.0, "pearson": 0.0}
    return {
        "spearman": 100 * float(stats.spearmanr(predicted, gold).statistic),
        "pearson": 100 * float(stats.pearsonr(predicted, gold).statistic),
    }


def check_gold(gold: np.ndarray, path: str) -> None:
    """Checks that a correlation with gold scores says something.

    Args:
        gold: float [n].
        path: the file of the scores, for the message.

    Raises:
        UserError: there are fewer than three scores, or all scores are equal.
    """
    scores = len(np.unique(gold))
    if len(gold) < LEAST_SCORES or scores < 2:
        raise UserError(
            f"{path} has {counted(len(gold), 'example')} with "
            f"{counted(scores, 'distinct score')}; allowed for a correlation: at "
            f"least {LEAST_SCORES} examples with 2 distinct scores"
        )


def accuracy(predicted: np.ndarray, gold: np.ndarray) -> float:
    """The share of equal labels, times 100."""
    return 100 * float(np.mean(np.asarray(predicted) == np.asarray(gold)))


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """F1 of label 1 against the other labels, times 100; 0 without a true positive."""
    predicted, gold = np.asarray(predicted) == 1, np.asarray(gold) == 1
    hits = np.sum(predicted & gold)
    return 100 * float(2 * hits / max(np.sum(predicted) + np.sum(gold), 1))


def at_thresholds(
    values: np.ndarray, hits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts the examples at or above each threshold, from the highest threshold down.

    A threshold cannot separate equal values: each distinct value is one threshold.

    Args:
        values: float [n].
        hits: bool or 0 and 1, [n]: whether an example is right.

    Returns:
        The thresholds, the number of examples, and the number of right ones.
    """
    negated, places, taken = np.unique(-values, return_inverse=True, return_counts=True)
    return -negated, np.cumsum(taken), np.cumsum(np.bincount(places, hits))


def plane(parts: Sequence[np.ndarray]) -> list[list[list[float]]]:
    """Coordinates on the two strongest principal axes of all rows, centred.

    Args:
        parts: float [n, dim] each.

    Returns:
        Coordinates [n, 2] for each part.
    """
    rows = np.concatenate(parts).astype(np.float64)
    rows -= rows.mean(axis=0)
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    places = np.round(rows @ axes[:2].T, 4)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return [part.tolist() for part in np.split(places, ends)]
