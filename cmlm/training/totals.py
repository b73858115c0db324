"""Metrics as sums and counts, which add up over batches, loops and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def add_totals(
    totals: dict[str, list[float]], more: Mapping[str, Iterable[float]]
) -> None:
    """Adds the (sum, count) of each metric to `totals`, in place."""
    for key, (total, count) in more.items():
        entry = totals.setdefault(key, [0.0, 0.0])
        entry[0] += float(total)
        entry[1] += float(count)


def means(totals: Mapping[str, list[float]]) -> dict[str, float]:
    """Returns the mean of each metric from its (sum, count).

    A metric without a count is left out: `scored/order` of one pair compares nothing.
    """
    return {key: total / count for key, (total, count) in totals.items() if count}
