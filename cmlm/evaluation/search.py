"""Nearest neighbours by brute force, in blocks: exact, repeatable, flat in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from cmlm.common.arrays import unit_length
from cmlm.mining import margins

# Of the matrix of cosines this many rows and columns exist at a time: 64 MB.
_QUERIES = 1024
_POOL = 16_384


def nearest(
    queries: np.ndarray, pool: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of a pool with the largest dot product.

    Args:
        queries: float32 [n, dim].
        pool: float32 [m, dim].
        k: how many; at most m are there.

    Returns:
        Products float32 [n, min(k, m)], the largest first, and rows of the pool
        int64 of the same shape. Of equal products the first row comes first.
    """
    k = min(k, len(pool))
    products = np.empty([len(queries), k], np.float32)
    rows = np.empty([len(queries), k], np.int64)
    for start in range(0, len(queries), _QUERIES):
        block = queries[start : start + _QUERIES]
        best = np.zeros([len(block), 0], np.float32)
        where = np.zeros([len(block), 0], np.int64)
        for first in range(0, len(pool), _POOL):
            found = block @ pool[first : first + _POOL].T
            top = _top(found, k)
            best = np.concatenate([best, np.take_along_axis(found, top, 1)], axis=1)
            where = np.concatenate([where, top + first], axis=1)
            top = _top(best, k)
            best = np.take_along_axis(best, top, 1)
            where = np.take_along_axis(where, top, 1)
        products[start : start + len(block)] = best
        rows[start : start + len(block)] = where
    return products, rows


def _top(scores: np.ndarray, k: int) -> np.ndarray:
    """Columns of the k largest of each row, the largest first, ties by column."""
    if k == 1:
        return np.argmax(scores, axis=1)[:, np.newaxis]
    if k < scores.shape[1]:
        # argpartition picks any of equal ones; which of them is told by the order of
        # memory alone, so it is repeatable.
        columns = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    else:
        columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, columns, 1), 1, kind="stable")
    return np.take_along_axis(columns, order, 1)[:, :k]


@dataclasses.dataclass
class Neighbours:
    """The k nearest of x in y by cosine, and of y in x.

    Attributes:
        forward: cosines float32 [n, k] and rows of y, int64 [n, k].
        backward: cosines float32 [m, k] and rows of x, int64 [m, k].
    """

    forward: tuple[np.ndarray, np.ndarray]
    backward: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, k: int = 4) -> Neighbours:
        """Searches; `x` [n, dim] and `y` [m, dim] of any length."""
        x, y = unit_length(x), unit_length(y)
        return cls(nearest(x, y, k), nearest(y, x, k))

    def swapped(self) -> Neighbours:
        """The same with x and y in each other's place."""
        return Neighbours(self.backward, self.forward)

    def margins(self) -> np.ndarray:
        """Ratio margins of x's neighbours, float64 [n, k]; see `mining.margins`."""
        cosines, rows = self.forward
        of_x = cosines.mean(axis=1, dtype=np.float64)
        of_y = self.backward[0].mean(axis=1, dtype=np.float64)
        return margins.score(cosines, of_x, of_y[rows])

    def best_by_margin(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each x's neighbours the one with the largest margin.

        Returns:
            Margins float64 [n] and rows of y, int64 [n].
        """
        margins = self.margins()
        best = np.argmax(margins, axis=1)[:, np.newaxis]
        return (
            np.take_along_axis(margins, best, 1)[:, 0],
            np.take_along_axis(self.forward[1], best, 1)[:, 0],
        )
