"""Arrays of sentence vectors: in files, at unit length, and checked."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from cmlm.common import atomic, files, own_files
from cmlm.errors import UserError, one_line


@contextlib.contextmanager
def npy_writer(path: str, shape: tuple[int, int], dtype: str = "float32"):
    """Opens an .npy file for rows; it appears at `path` when it is complete.

    Args:
        path: the file to write.
        shape: [n, dim], for the header of the file.
        dtype: one of `choices.DTYPES`.

    Yields:
        A function that appends rows, float32 [k, dim].
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": little_endian(dtype).str, "fortran_order": False, "shape": shape},
    )
    with atomic.file(path) as temporary:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(header.getvalue())
            left = shape[0]

            def write(rows: np.ndarray) -> None:
                nonlocal left
                file.write(rounded(rows, dtype).tobytes())
                left -= len(rows)
                if not left:
                    # A full disk stops the command here, before any output has its
                    # name. On gs://, each call would upload the whole file.
                    file.flush()

            yield write


def little_endian(dtype: str) -> np.dtype:
    """Returns one of `choices.DTYPES` in the byte order of all files."""
    return np.dtype(dtype).newbyteorder("<")


def rounded(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds finite vectors to another type.

    Args:
        vectors: float32 [n, dim].
        dtype: one of `choices.DTYPES`.

    Raises:
        UserError: a number is too large for float16.
    """
    with np.errstate(over="ignore"):
        found = vectors.astype(little_endian(dtype), copy=False)
    if dtype != "float32" and not np.isfinite(found).all():
        raise UserError(
            f"a vector has the number {np.abs(vectors).max():.6g}; allowed in "
            f"{dtype}: up to {np.finfo(dtype).max:.6g}"
        )
    return found


def cut_incomplete_rows(row_bytes: Mapping[str, int]) -> None:
    """Cuts off the rows that a killed run has not written to all files of a store.

    Args:
        row_bytes: the paths of local files that grow together, each with the bytes of
            a row. A missing file is created.

    Raises:
        UserError: a path is a link.
    """
    with contextlib.ExitStack() as stack:
        opened = [
            (stack.enter_context(open(path, "ab", opener=own_files.opener)), size)
            for path, size in row_bytes.items()
        ]
        rows = min(file.tell() // size for file, size in opened)
        for file, size in opened:
            file.truncate(rows * size)


def append(path: str, content: bytes) -> None:
    """Appends to a local file of a store, or creates it.

    Raises:
        UserError: the path is a link.
        OSError: the file cannot be written; the error names it.
    """
    with atomic.naming(path), open(path, "ab", opener=own_files.opener) as file:
        file.write(content)


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Scales rows to length 1; a row of zeros stays zero.

    Args:
        vectors: float [n, dim].

    Returns:
        float32 [n, dim].
    """
    vectors = np.asarray(vectors, np.float32)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    # Squares of very small and very large numbers leave the range of float32. Both
    # comparisons are false for NaN.
    (extreme,) = np.nonzero((norms[:, 0] < 1e-15) | (norms[:, 0] > 1e18))
    if len(extreme):
        rows = vectors[extreme]
        largest = np.abs(rows).max(axis=1, initial=0, keepdims=True)
        rows = rows / np.where(largest > 0, largest, 1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        units[extreme] = rows / np.where(largest > 0, norms, 1)
    return units


def checked(
    vectors: np.ndarray, sentences: Sequence[str], model: str, dim: int = 0
) -> np.ndarray:
    """Makes sure that a model returned a vector, with a length, for each sentence.

    Args:
        vectors: the model's answer, float [n, dim].
        sentences: n texts.
        model: the name of the model, for the message.
        dim: the width of a vector; 0 allows any.

    Returns:
        The vectors, float32 [n, dim].

    Raises:
        UserError: the shape is another one; or a vector has NaN or infinity, or the
            square of its length exceeds float32. The message names the model and the
            first such text.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = np.asarray(vectors, np.float32)
        shape = vectors.shape
        if len(shape) != 2 or shape != (len(sentences), dim or shape[1]):
            raise UserError(
                f"{model}: the vectors have shape {list(shape)}; allowed: "
                f"[{len(sentences)}, {dim or 'dim'}]"
            )
        squares = np.einsum("ij,ij->i", vectors, vectors)
    if not np.isfinite(squares).all():
        row = int(np.argmin(np.isfinite(squares)))
        fault = "is not finite"
        if np.isfinite(vectors[row]).all():
            fault = "is longer than 1.8e19, so that its square exceeds float32"
        raise UserError(f"{model}: the vector of {sentences[row][:60]!r} {fault}")
    return vectors


def difference(vectors: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays, and the largest expected number.

    Args:
        vectors: floats of any shape.
        expected: floats of the same shape; if all are below 1, the second result is 1.
    """
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(vectors - expected).max()), scale


def check_difference(
    found: tuple[float, float], tolerance: float, message: str, outcome: str = ""
) -> None:
    """Refuses a difference of more than rounding.

    Args:
        found: the result of `difference`.
        tolerance: the largest allowed difference of numbers up to 1.
        message: what differs from what, such as "A differs from B".
        outcome: the end of the message.

    Raises:
        UserError: the difference is larger, or NaN.
    """
    largest, scale = found
    # Not `>`: a NaN must not pass.
    if not largest <= scale * tolerance:
        raise UserError(
            f"{message} by {largest:.1e}; allowed: at most {scale * tolerance:.0e}"
            f"{outcome}"
        )


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
        UserError: the file is missing, a pipe or a device, damaged or not an array.
    """
    files.refuse_streams(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot read {path} as .npy: {reason}") from error
    # numpy parses the header as Python and has no list of the errors.
    except Exception as error:
        raise UserError(f"cannot read {path} as .npy: {one_line(error)}") from error
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
