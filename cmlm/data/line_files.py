"""Files of lines, plain or gzip, as datasets that notice a truncated file.

TensorFlow takes a truncated gzip file for a whole one. So this module counts the bytes
and compares them with the length that the file states at its end.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

from cmlm.common import files, utf8

T = TypeVar("T")

LINES_PER_CHUNK = 4096
# The tensors of a file, see `named`.
SIGNATURE = (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64))
# Files that are asked for their size or trailer at the same time: remote ones are slow.
_FILES_AT_ONCE = 16
# Typical compression ratios of text.
_RATIOS = {".gz": 3.0, ".bz2": 4.0}
# A gzip file states its length modulo 2^32 in its last four bytes.
_LENGTHS = 1 << 32
_TRAILER = 4


def named(paths: Sequence[str]) -> tf.data.Dataset:
    """Returns the tensors by which `read` reads files.

    Returns:
        Dataset of (string [], the path; int64 [], the bytes of the unpacked text modulo
        2^32 that a gzip file states, or -1 for a plain file).

    Raises:
        UserError: a file is bzip2. An inspection opens only the first files of a large
            corpus.
    """
    for path in paths:
        files.refuse_bzip2(path)
    lengths = _of_each(_stated_length, paths)
    return tf.data.Dataset.from_tensor_slices(
        (list(paths), tf.constant(lengths, tf.int64))
    )


def read(path: tf.Tensor, unpacked_length: tf.Tensor) -> tf.data.Dataset:
    """Streams one file, plain or gzip, in chunks: string [lines].

    A byte order mark is left out, also inside a file that joins several.

    A gzip file that states another length is unpacked once more outside TensorFlow: it
    is truncated, or it is whole and has carriage returns, which TensorFlow drops, or
    several members, of which the trailer counts the last one.

    Args:
        path, unpacked_length: from `named`.
    """
    packed = unpacked_length >= 0
    lines = tf.data.TextLineDataset(path, tf.where(packed, "GZIP", ""))
    # No chunk of lines is empty, so an empty one marks the end.
    end = tf.data.Dataset.from_tensors(tf.constant([], tf.string))

    def count(n_bytes, chunk):
        n_bytes += tf.reduce_sum(tf.cast(tf.strings.length(chunk) + 1, tf.int64))
        # The last line may be without its line feed.
        differs = (n_bytes - unpacked_length) % _LENGTHS > 1
        read_again = packed & differs & tf.equal(tf.size(chunk), 0)
        n_bytes += tf.cond(
            read_again,
            lambda: tf.numpy_function(_refuse_truncated, [path], tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
        return n_bytes, chunk

    chunks = lines.batch(LINES_PER_CHUNK).concatenate(end)
    counted = chunks.scan(tf.constant(0, tf.int64), count)
    # The stated length counts the marks, so they go last.
    return counted.filter(lambda chunk: tf.size(chunk) > 0).map(
        lambda chunk: tf.strings.regex_replace(chunk, f"^{utf8.MARK}", "")
    )


def estimated_sizes(paths: Sequence[str]) -> list[float]:
    """Estimates the bytes of the unpacked text of each file by its size on disk."""
    return _of_each(_estimated_size, paths)


def _of_each(function: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        return list(threads.map(function, paths))


# Several datasets read one file: each asks for these numbers. A file that changes later
# is read with another length, and inspected therefore.
@functools.cache
def _estimated_size(path: str) -> float:
    on_disk = tf.io.gfile.stat(path).length
    return on_disk * _RATIOS.get(os.path.splitext(path)[1], 1.0)


@functools.cache
def _stated_length(path: str) -> int:
    """The length that a gzip file states, any number if it is truncated; else -1."""
    if not path.endswith(".gz"):
        return -1
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(0, file.size() - _TRAILER))
        return int.from_bytes(file.read(), "little")


@functools.cache
def _refuse_truncated(path: bytes) -> int:
    """Reads a gzip file; UserError if it is not whole. A whole file is read once."""
    with files.open_bytes(path.decode(), for_tensorflow=True) as stream:
        while stream.read(1 << 20):
            pass
    return 0
