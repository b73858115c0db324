"""Exact search in memory, by FAISS where it is installed, by numpy elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Cosines in memory at a time, without FAISS: 64 MB.
_COSINES_AT_ONCE = 1 << 24


class Nearest(NamedTuple):
    """The nearest texts of each query, the nearest first; equal cosines by row.

    Attributes:
        cosines: float32 [n, k].
        rows: int64 [n, k], the places in the corpus.
    """

    cosines: np.ndarray
    rows: np.ndarray


def nearest(queries: np.ndarray, corpus: np.ndarray, k: int) -> Nearest:
    """Finds the rows of a corpus with the k largest dot products.

    Args:
        queries: float [n, dim]; the search computes in float32.
        corpus: float [m, dim].
        k: the number of rows; at most m are returned.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    corpus = np.ascontiguousarray(corpus, np.float32)
    k = min(k, len(corpus))
    if not (k and len(queries)):
        return nothing(len(queries), k)
    try:
        from cmlm.mining import index
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        return _by_numpy(queries, corpus, k)
    # One more shows whether the last cosine occurs outside of the k rows, too. There
    # FAISS keeps any of its rows, except for k = 1.
    more = min(k + 1, len(corpus)) if k > 1 else k
    cosines, rows = index.in_order(*index.knn(queries, corpus, more))
    tied = np.flatnonzero(cosines[:, k - 1] == cosines[:, k]) if more > k else []
    found = Nearest(cosines[:, :k].copy(), rows[:, :k].copy())
    if len(tied):
        found.cosines[tied], found.rows[tied] = _by_numpy(queries[tied], corpus, k)
    return found


def nothing(queries: int, k: int) -> Nearest:
    """The result of a search without queries or without a corpus."""
    return Nearest(np.zeros([queries, k], np.float32), np.zeros([queries, k], np.int64))


def _by_numpy(queries: np.ndarray, corpus: np.ndarray, k: int) -> Nearest:
    """See `nearest`."""
    at_once = max(1, _COSINES_AT_ONCE // len(corpus))
    parts = []
    for start in range(0, len(queries), at_once):
        cosines = queries[start : start + at_once] @ corpus.T
        # The next one after the k nearest is at place k, where there is one.
        last = min(k, len(corpus) - 1)
        rows = np.argpartition(-cosines, last, axis=1)[:, : last + 1]
        best = np.take_along_axis(cosines, rows, 1)
        if last == k:
            rows, best, after = rows[:, :k], best[:, :k], best[:, k]
            for query in np.flatnonzero(best.min(axis=1) == after):
                # Only here does another row share the last cosine.
                above = np.flatnonzero(cosines[query] > after[query])
                equal = np.flatnonzero(cosines[query] == after[query])
                rows[query] = [*above, *equal[: k - len(above)]]
                best[query] = cosines[query][rows[query]]
        order = np.lexsort((rows, -best), axis=1)
        parts.append([np.take_along_axis(each, order, 1) for each in (best, rows)])
    return Nearest(*(np.concatenate(column) for column in zip(*parts, strict=True)))
