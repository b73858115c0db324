"""Nearest-neighbour search: exact in memory, or through a mining index on disk.

The search in memory works without FAISS, the indexes on disk need it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cmlm.common import arrays, scratch
from cmlm.errors import needing
from cmlm.mining import exact, margins

if TYPE_CHECKING:
    from cmlm.evaluation.store import VectorsOnDisk
    from cmlm.mining import neighbours


def nearest_on_disk(
    queries: VectorsOnDisk, pool: VectorsOnDisk
) -> tuple[np.ndarray, np.ndarray, bool]:
    """The nearest row for each row of two large sets of vectors, both ways.

    Args:
        queries, pool: unit vectors, [n] and [m].

    Returns:
        The nearest row of the pool for each query, int64 [n]; the nearest query for
        each row of the pool, int64 [m]; and whether the search was exact, as it is up
        to 10**10 cosines.
    """
    with _searcher(queries, pool, "auto") as searcher:
        forward = _rows(searcher.find("source", 1))[:, 0]
        backward = _rows(searcher.find("target", 1))[:, 0]
        return forward, backward, searcher.kind == "flat"


def nearest_of_pool(queries: VectorsOnDisk, pool: VectorsOnDisk, k: int) -> np.ndarray:
    """The k nearest rows of a large set of vectors for each query, exactly.

    The search reads the pool in parts, in bounded memory.

    Args:
        queries, pool: unit vectors, [n] and [m].
        k: the number of rows, at most m.

    Returns:
        Rows of the pool, int64 [n, k], the nearest first.
    """
    with _searcher(queries, pool, "flat") as searcher:
        return _rows(searcher.find("source", k))


def check_faiss() -> None:
    """Raises UserError if FAISS, which the searches on disk need, is not installed."""
    with needing("mine"):
        importlib.import_module("faiss")


@contextlib.contextmanager
def _searcher(
    queries: VectorsOnDisk, pool: VectorsOnDisk, kind: str
) -> Iterator[neighbours.Searcher]:
    """Yields a searcher of two sets of vectors.

    Raises:
        UserError: FAISS is not installed.
    """
    check_faiss()
    from cmlm.mining import index, neighbours

    with scratch.directory() as directory:
        # The searcher replaces its directory; the lock is on the one around it.
        inside = os.path.join(directory, "search")
        settings = index.SearchSettings(kind)
        yield neighbours.Searcher(queries, pool, inside, settings)


def _rows(found: neighbours.NeighbourFiles) -> np.ndarray:
    return np.concatenate([rows for _, _, rows in found.blocks()])


def nearest(x: np.ndarray, y: np.ndarray, k: int) -> exact.Nearest:
    """The k nearest rows of y by cosine for each row of x, of any lengths."""
    return exact.nearest(arrays.unit_length(x), arrays.unit_length(y), k)


@dataclasses.dataclass
class Neighbours:
    """The k nearest rows of y for each row of x by cosine, and the reverse.

    Attributes:
        forward: the rows of y for each row of x.
        backward: the rows of x for each row of y.
    """

    forward: exact.Nearest
    backward: exact.Nearest

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, k: int) -> Neighbours:
        """Searches both ways between x, [n, dim], and y, [m, dim], of any lengths."""
        x, y = arrays.unit_length(x), arrays.unit_length(y)
        return cls(exact.nearest(x, y, k), exact.nearest(y, x, k))

    def swapped(self) -> Neighbours:
        """The same neighbours with x and y exchanged."""
        return Neighbours(self.backward, self.forward)

    def margins(self) -> np.ndarray:
        """Ratio margins of x's neighbours, float64 [n, k]; see `mining.margins`."""
        cosines, rows = self.forward
        of_x = cosines.mean(axis=1, dtype=np.float64, keepdims=True)
        of_y = self.backward.cosines.mean(axis=1, dtype=np.float64)
        return margins.score(cosines, of_x, of_y[rows])

    def best_by_margin(self) -> tuple[np.ndarray, np.ndarray]:
        """The neighbour with the largest margin for each row of x.

        Returns:
            Margins float64 [n] and rows of y, int64 [n].
        """
        scores = self.margins()
        best = np.argmax(scores, axis=1)
        queries = np.arange(len(best))
        return scores[queries, best], self.forward.rows[queries, best]
