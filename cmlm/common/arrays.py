"""Writes or searches the sentence vectors of large files, in constant memory."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from cmlm.common import files
from cmlm.errors import UserError

# Limits of a window. It has enough lines for batches of similar length.
_WINDOW_LINES = 16_384
_WINDOW_CHARACTERS = 1 << 24


def windows(paths: Sequence[str]) -> Iterator[list[str]]:
    """Reads files line by line, a window of lines at a time.

    Args:
        paths: UTF-8 text, plain or packed.

    Yields:
        Lists of lines in order, without line ends; empty lines are included.

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
    """Counts the lines that `windows` yields."""
    return sum(len(window) for window in windows(paths))


@contextlib.contextmanager
def npy_writer(path: str, shape: tuple[int, int]):
    """Opens an .npy file for float32 rows; it appears at `path` when it is complete.

    Args:
        path: the file to write.
        shape: [n, dim], for the header of the file.

    Yields:
        A function that appends rows, float32 [k, dim].
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
    """Keeps the lines nearest to each query, by cosine.

    Args:
        queries: float32 [n, dim].
        count: lines to keep for each query.

    Attributes:
        found: for each query, the nearest lines as (cosine, line), the nearest first;
            each text appears once.
    """

    def __init__(self, queries: np.ndarray, count: int):
        self._queries = unit_length(queries)
        self._count = count
        self.found: list[list[tuple[float, str]]] = [[] for _ in queries]

    def add(self, lines: Sequence[str], vectors: np.ndarray) -> None:
        """Compares lines with the queries.

        Args:
            lines: texts; empty ones are skipped.
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
    """Scales rows to length 1; a row of zeros stays zero.

    Args:
        vectors: float [n, dim].

    Returns:
        float32 [n, dim].
    """
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)


def checked(
    vectors: np.ndarray, sentences: Sequence[str], model: str, dim: int = 0
) -> np.ndarray:
    """Makes sure that a model returned a vector, with a length, for each sentence.

    Args:
        vectors: what the model returned, float [n, dim].
        sentences: n texts.
        model: the name of the model, for the message.
        dim: the width of a vector; 0 allows any.

    Returns:
        The vectors, float32 [n, dim].

    Raises:
        UserError: the shape is another one; or a vector has NaN or infinity, or its
            length exceeds float32. The message names the model and the first such text.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = np.asarray(vectors, np.float32)
        shape = vectors.shape
        if len(shape) != 2 or shape != (len(sentences), dim or shape[1]):
            raise UserError(
                f"{model}: vectors of shape {list(shape)}; allowed: "
                f"[{len(sentences)}, {dim or 'dim'}]"
            )
        lengths = np.einsum("ij,ij->i", vectors, vectors)
    if not np.isfinite(lengths).all():
        text = sentences[int(np.argmin(np.isfinite(lengths)))]
        raise UserError(f"{model}: the vector of {text[:60]!r} is not finite")
    return vectors


def map_npy(path: str) -> np.ndarray:
    """Maps an .npy file of vectors, float [n, dim], into memory.

    Raises:
        UserError: the file is missing, damaged or not an array, or has another shape or
            type.
    """
    array = map_any_npy(path)
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind != "f":
        raise UserError(
            f"{path} holds {array.dtype} {list(array.shape)}; allowed: float [n, dim]"
        )
    return array


def map_any_npy(path: str) -> np.ndarray:
    """Maps an .npy file of numbers into memory.

    Raises:
        UserError: the file is missing, damaged or not an array.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot read {path} as .npy: {reason}") from error
    # numpy parses the header as Python and has no list of the errors.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"cannot read {path} as .npy: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"cannot read {path} as .npy: it is an archive of arrays")
    return array


def check_archive(stream: BinaryIO, path: str, most_bytes: int) -> None:
    """Refuses an .npz archive that unpacks to more than a number of bytes.

    A damaged archive passes; numpy refuses it.

    Raises:
        UserError: the archive would fill the memory.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    # zipfile raises errors of several kinds for damaged archives.
    except Exception:
        unpacked = 0
    if unpacked > most_bytes:
        raise UserError(
            f"{path} unpacks to {unpacked:,} bytes; allowed: {most_bytes:,}"
        )
    stream.seek(0)
