"""Nearest-neighbour search: exact in memory, or through a mining index on disk.

The search in memory works without FAISS, the indexes on disk need it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from cmlm.common import scratch
from cmlm.common.arrays import unit_length
from cmlm.errors import UserError
from cmlm.mining import exact, margins

if TYPE_CHECKING:
    from cmlm.mining import neighbours

__all__ = ["Neighbours", "nearest", "nearest_on_disk", "unit_length"]


def nearest(
    queries: np.ndarray, pool: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of a pool with the largest dot products.

    Args:
        queries: float32 [n, dim].
        pool: float32 [m, dim].
        k: the number of rows; at most m are returned.

    Returns:
        Products float32 [n, min(k, m)], the largest first, and the rows of the pool,
        int64 of the same shape. Equal products are in the order of their rows.
    """
    pair = (np.ascontiguousarray(side, np.float32) for side in (queries, pool))
    return exact.nearest(*pair, k)


def nearest_on_disk(
    queries, pool, settings: neighbours.Search | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest row for each row of two large sets of vectors, both ways.

    Args:
        queries: unit vectors, `mining.vectors.Vectors` or `store.StoredVectors` [n].
        pool: unit vectors [m].
        settings: the kind of index; None: `auto`, exact up to 10**10 cosines.

    Returns:
        The nearest row of the pool for each query, int64 [n], and the nearest query for
        each row of the pool, int64 [m].
    """
    found = []
    with scratch.directory() as directory:
        searcher = _searcher(queries, pool, directory, settings)
        for side in ("source", "target"):
            blocks = searcher.find(side, 1).blocks()
            found.append(np.concatenate([rows[:, 0] for _, _, rows in blocks]))
    return found[0], found[1]


def nearest_of_pool(
    queries, pool, k: int, settings: neighbours.Search | None = None
) -> np.ndarray:
    """The k nearest rows of a large set of vectors for each query.

    Args:
        queries, pool: unit vectors, as for `nearest_on_disk`, [n] and [m].
        k: the number of rows, at most m.
        settings: the kind of index; None: `flat`, which is exact and reads the pool in
            parts of bounded memory.

    Returns:
        Rows of the pool, int64 [n, k], the nearest first.
    """
    _, neighbours = _indexes()
    settings = settings or neighbours.Search(kind="flat")
    with scratch.directory() as directory:
        searcher = _searcher(queries, pool, directory, settings)
        blocks = searcher.find("source", k).blocks()
        return np.concatenate([rows for _, _, rows in blocks])


def is_exact(queries, pool) -> bool:
    """Whether `nearest_on_disk` compares all rows of these vectors by default."""
    index, neighbours = _indexes()
    rows, memory = [len(queries), len(pool)], neighbours.Search().memory
    return index.choose(rows, queries.dim, memory) == "flat"


def _searcher(queries, pool, directory, settings) -> neighbours.Searcher:
    """Makes the indexes of two sets of vectors below a directory."""
    _, neighbours = _indexes()
    return neighbours.Searcher(
        queries, pool, directory, settings or neighbours.Search()
    )


def _indexes():
    """Returns the modules of the indexes on disk.

    Raises:
        UserError: FAISS is not installed.
    """
    try:
        from cmlm.mining import index, neighbours
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: pip install 'cmlm[mine]'"
        ) from error
    return index, neighbours


@dataclasses.dataclass
class Neighbours:
    """The k nearest rows of y for each row of x by cosine, and the reverse.

    Attributes:
        forward: cosines float32 [n, k] and rows of y, int64 [n, k].
        backward: cosines float32 [m, k] and rows of x, int64 [m, k].
    """

    forward: tuple[np.ndarray, np.ndarray]
    backward: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, k: int = 4) -> Neighbours:
        """Searches both ways between x, [n, dim], and y, [m, dim], of any lengths."""
        x, y = unit_length(x), unit_length(y)
        return cls(nearest(x, y, k), nearest(y, x, k))

    def swapped(self) -> Neighbours:
        """The same neighbours with x and y exchanged."""
        return Neighbours(self.backward, self.forward)

    def margins(self) -> np.ndarray:
        """Ratio margins of x's neighbours, float64 [n, k]; see `mining.margins`."""
        cosines, rows = self.forward
        of_x = cosines.mean(axis=1, dtype=np.float64)
        of_y = self.backward[0].mean(axis=1, dtype=np.float64)
        return margins.score(cosines, of_x, of_y[rows])

    def best_by_margin(self) -> tuple[np.ndarray, np.ndarray]:
        """The neighbour with the largest margin for each row of x.

        Returns:
            Margins float64 [n] and rows of y, int64 [n].
        """
        margins = self.margins()
        best = np.argmax(margins, axis=1)[:, np.newaxis]
        return (
            np.take_along_axis(margins, best, 1)[:, 0],
            np.take_along_axis(self.forward[1], best, 1)[:, 0],
        )
