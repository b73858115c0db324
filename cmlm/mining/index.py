"""Nearest neighbours with FAISS: the base class of the indexes, and the exact index.

    flat    compares every query with every row: exact
    ivf     groups rows in cells and searches the cells nearest to each query, see
            `cells.Ivf`
    pq      as ivf, with compressed rows in memory (half a byte for four numbers); the
            best candidates are compared again by their vectors on disk, see
            `compressed.Pq`

Every index searches a block of queries at a time and reads the pool from disk. All
cosines are exact, but `ivf` and `pq` may miss neighbours. `ivf` compares a cell with
all its queries in one matrix product. On a CPU this is several times faster than FAISS'
own index, which searches query by query.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import faiss
import numpy as np

from cmlm.mining.vectors import ShardedVectors

# With more cosines than this, `flat` takes minutes on a few cores.
_FLAT_COSINES = 10**10
# The probed cells hold at least about so many rows of the shorter side: many times the
# k neighbours of a query.
PROBED_ROWS = 2048
ROWS_AT_ONCE = 16_384


@dataclasses.dataclass
class SearchSettings:
    """How to search.

    Attributes:
        kind: one of `choices.INDEXES`, or `auto`.
        cells: the number of cells of `ivf` and `pq`; 0: see `cells.Cells`.
        probes: the number of cells to search for each query.
        memory: the memory limit in bytes.
    """

    kind: str = "auto"
    cells: int = 0
    probes: int = 32
    memory: int = 2 << 30


def choose(rows: Sequence[int], dim: int, memory: int) -> str:
    """Chooses the kind of index for a search in both directions.

    Args:
        rows: the numbers of vectors on the two sides.
        dim: the width of a vector.
        memory: the memory limit in bytes.
    """
    # `ivf` would search all cells of a side below PROBED_ROWS.
    if rows[0] * rows[1] <= _FLAT_COSINES or min(rows) <= PROBED_ROWS:
        return "flat"
    # `ivf` reads each cell once per block of queries, so `pq` suits many blocks better.
    return "ivf" if 4 * dim * max(rows) <= 2 * memory else "pq"


class Index(abc.ABC):
    """A searchable pool of vectors.

    Args:
        pool: unit vectors.
        memory: the memory limit in bytes.
    """

    def __init__(self, pool: ShardedVectors, memory: int):
        self._pool = pool
        self._memory = memory

    @abc.abstractmethod
    def query_bytes(self, k: int) -> int:
        """Returns the memory that a search needs for each query, in bytes."""

    @abc.abstractmethod
    def search(
        self, queries: ShardedVectors, start: int, stop: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k nearest rows of the pool for the queries [start, stop).

        Returns:
            Cosines float32 [stop - start, k], the largest first (ties by row), and rows
            int64 of the same shape. Missing neighbours have the cosine -inf and the row
            -1.
        """


class Flat(Index):
    """The exact index; it reads the pool in parts."""

    def query_bytes(self, k: int) -> int:
        return 4 * self._pool.dim + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        found = faiss.ResultHeap(len(block), k, keep_max=True)
        size = max(self._memory // 4 // (4 * self._pool.dim), ROWS_AT_ONCE)
        for first in range(0, len(self._pool), size):
            part = self._pool.read(first, first + size)
            cosines, rows = knn(block, part, min(k, len(part)))
            found.add_result(cosines, rows + first)
        found.finalize()
        return in_order(found.D, found.I)


def knn(queries: np.ndarray, pool: np.ndarray, k: int):
    """Finds each query's k largest inner products, float32, and rows, int64: [n, k]."""
    return faiss.knn(queries, pool, int(k), metric=faiss.METRIC_INNER_PRODUCT)


def spread(side: ShardedVectors, count: int) -> np.ndarray:
    """Returns `count` rows at equal distances."""
    return side.take(np.arange(count) * len(side) // max(count, 1))


def in_order(cosines: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts neighbours by cosine, ties by row; missing neighbours get cosine -inf."""
    cosines = np.where(rows < 0, np.float32(-np.inf), cosines)
    order = np.lexsort((rows, -cosines), axis=1)
    return np.take_along_axis(cosines, order, 1), np.take_along_axis(rows, order, 1)
