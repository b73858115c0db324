"""The lines of a long text that are nearest to some queries, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmlm.common import arrays, utf8


class NearestLines:
    """Keeps the lines nearest to each query, by cosine.

    Args:
        queries: float32 [n, dim].
        count: lines to keep for each query.

    Attributes:
        found: for each query, the nearest lines as (cosine, line), the nearest first;
            each text appears once.
    """

    def __init__(self, queries: np.ndarray, count: int):
        self._queries = arrays.unit_length(queries)
        self._count = count
        self.found: list[list[tuple[float, str]]] = [[] for _ in queries]

    def add(self, lines: Sequence[str], vectors: np.ndarray) -> None:
        """Compares lines with the queries.

        Args:
            lines: texts; empty ones are skipped.
            vectors: float32 [len(lines), dim].
        """
        first = {line: row for row, line in reversed(list(enumerate(lines)))}
        rows = [row for line, row in first.items() if line.strip(utf8.BLANK)]
        cosines = self._queries @ arrays.unit_length(vectors[rows]).T
        for query, scores in enumerate(cosines):
            best = np.argsort(-scores, kind="stable")[: self._count]
            candidates = {lines[rows[row]]: float(scores[row]) for row in best}
            candidates.update({line: score for score, line in self.found[query]})
            ranked = sorted(candidates.items(), key=lambda item: (-item[1], item[0]))
            self.found[query] = [(score, line) for line, score in ranked[: self._count]]
