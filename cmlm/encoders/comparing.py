"""Similarity and search, for everything that encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cmlm.common import arrays

# Cosines in memory at a time, without FAISS: 64 MB.
_COSINES_AT_ONCE = 1 << 24


class Found(NamedTuple):
    """The nearest texts of each query, the nearest first.

    Attributes:
        cosines: float32 [n, k].
        rows: int64 [n, k], the places in the corpus.
    """

    cosines: np.ndarray
    rows: np.ndarray


class Comparing:
    """Adds `similarity` and `search` to a class with `encode`."""

    def similarity(
        self, a: Sequence[str] | np.ndarray, b: Sequence[str] | np.ndarray
    ) -> np.ndarray:
        """Compares each text of one list with each text of another by cosine.

        Args:
            a: n texts, or their vectors, float [n, dim].
            b: m texts, or their vectors, float [m, dim].

        Returns:
            float32 [n, m], from -1 to 1.
        """
        return self._unit(a) @ self._unit(b).T

    def search(
        self,
        queries: Sequence[str] | np.ndarray,
        corpus: Sequence[str] | np.ndarray,
        k: int = 10,
    ) -> Found:
        """Finds the texts of a corpus that are nearest to each query, by cosine.

        The search is exact; FAISS does it where it is installed
        (pip install 'cmlm[mine]'), numpy elsewhere. Encode a corpus once, and pass its
        vectors, to search it often.

        Args:
            queries: n texts, or their vectors, float [n, dim].
            corpus: m texts, or their vectors, float [m, dim].
            k: texts for each query; at most m are returned.

        Returns:
            Cosines and rows of the corpus, [n, min(k, m)]. Equal cosines are in the
            order of their rows.

        Raises:
            ValueError: `k` is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; allowed: at least 1")
        if not (len(queries) and len(corpus)):
            return _nothing(len(queries), min(k, len(corpus)))
        return nearest(self._unit(queries), self._unit(corpus), k)

    def _unit(self, texts: Sequence[str] | np.ndarray) -> np.ndarray:
        if isinstance(texts, np.ndarray) and texts.dtype.kind == "f":
            return arrays.unit_length(texts)
        return self.encode(list(texts), normalize=True)


def nearest(queries: np.ndarray, corpus: np.ndarray, k: int) -> Found:
    """Finds the k largest dot products of float32 [n, dim] with float32 [m, dim]."""
    k = min(k, len(corpus))
    if not (k and len(queries)):
        return _nothing(len(queries), k)
    try:
        from cmlm.mining import index
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        return _by_numpy(queries, corpus, k)
    return Found(*index.in_order(*index.knn(queries, corpus, k)))


def _nothing(queries: int, k: int) -> Found:
    """The result of a search without queries or without a corpus."""
    return Found(np.zeros([queries, k], np.float32), np.zeros([queries, k], np.int64))


def _by_numpy(queries: np.ndarray, corpus: np.ndarray, k: int) -> Found:
    """See `nearest`."""
    at_once = max(1, _COSINES_AT_ONCE // len(corpus))
    parts = []
    for start in range(0, len(queries), at_once):
        cosines = queries[start : start + at_once] @ corpus.T
        rows = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(cosines, rows, 1)
        order = np.lexsort((rows, -best), axis=1)
        parts.append([np.take_along_axis(each, order, 1) for each in (best, rows)])
    return Found(*(np.concatenate(column) for column in zip(*parts, strict=True)))
