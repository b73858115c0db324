"""The vectors of a file of sentences: written down, or searched, in flat memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from cmlm.common import files

# Lines held at a time, and their characters in all: enough for batches of like
# length, little enough to forget.
_WINDOW_LINES = 16_384
_WINDOW_CHARACTERS = 1 << 24


def windows(paths: Sequence[str]) -> Iterator[list[str]]:
    """Reads files line by line, a window of lines at a time.

    Args:
        paths: UTF-8 text, `.gz` or not.

    Yields:
        Lists of lines in order, without their ends; an empty line is a line.

    Raises:
        UserError: a file cannot be read, or has a line of over a million characters.
    """
    lines, characters = [], 0
    for path in paths:
        with files.open_text(path) as file:
            for line in file:
                lines.append(line.rstrip("\r\n"))
                characters += len(line)
                if len(lines) == _WINDOW_LINES or characters >= _WINDOW_CHARACTERS:
                    yield lines
                    lines, characters = [], 0
    if lines:
        yield lines


def count_lines(paths: Sequence[str]) -> int:
    """The number of lines that `windows` yields."""
    return sum(len(window) for window in windows(paths))


@contextlib.contextmanager
def npy_writer(path: str, shape: tuple[int, int]):
    """Opens an .npy file for float32 rows; it exists when it is complete.

    Args:
        path: of the file.
        shape: [n, dim], which an .npy file says at its beginning.

    Yields:
        A function that appends float32 [k, dim].
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    with files.atomic_file(path) as temporary:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(header.getvalue())
            yield lambda rows: file.write(rows.astype("<f4").tobytes())


class NearestLines:
    """The lines nearest to some queries, among all that are shown.

    Args:
        queries: float32 [n, dim].
        count: lines to keep for each query.

    Attributes:
        found: for each query its nearest lines as (cosine, line), the best first, each
            text once.
    """

    def __init__(self, queries: np.ndarray, count: int):
        self._queries = unit_length(queries)
        self._count = count
        self.found: list[list[tuple[float, str]]] = [[] for _ in queries]

    def add(self, lines: Sequence[str], vectors: np.ndarray) -> None:
        """Shows it lines.

        Args:
            lines: empty ones are passed over.
            vectors: float32 [len(lines), dim].
        """
        first = {line: row for row, line in reversed(list(enumerate(lines)))}
        rows = [row for line, row in first.items() if line.strip()]
        cosines = self._queries @ unit_length(vectors[rows]).T
        for query, scores in enumerate(cosines):
            best = np.argsort(-scores, kind="stable")[: self._count]
            candidates = {lines[rows[row]]: float(scores[row]) for row in best}
            candidates.update({line: score for score, line in self.found[query]})
            ranked = sorted(candidates.items(), key=lambda item: (-item[1], item[0]))
            self.found[query] = [(score, line) for line, score in ranked[: self._count]]


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Scales rows to length 1; a row of zeros stays one."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)
