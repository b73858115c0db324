"""Files as commands need them: globs, plain or gzip, whole or not there at all.

Everything goes through `tf.io.gfile`, so that `gs://` paths work wherever local ones
do. What is written appears under its name only when it is complete.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import logging
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO, TextIO

import tensorflow as tf

from cmlm.errors import UserError

# Beyond this, a line is no sentence, and reading it costs its size in memory.
MAX_LINE_CHARACTERS = 1_000_000

logger = logging.getLogger(__name__)


def expand(patterns: str) -> list[str]:
    """Returns the files that a comma-separated list of paths and globs names.

    Args:
        patterns: for example `a.txt,corpus/*.txt.gz`.

    Returns:
        The paths, those of one glob sorted, each path once.

    Raises:
        UserError: a pattern matches no file.
    """
    paths: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        if tf.io.gfile.exists(pattern):
            matches = [pattern]
        else:
            matches = sorted(tf.io.gfile.glob(pattern))
        matches = [path for path in matches if not tf.io.gfile.isdir(path)]
        if not matches:
            hint = (
                " (it is a directory: name the files in it, as in DIR/*.txt)"
                if tf.io.gfile.isdir(pattern)
                else ""
            )
            raise UserError(f"no file matches {pattern!r}{hint}")
        paths.update(dict.fromkeys(matches))
    if not paths:
        raise UserError(f"no file matches {patterns!r}: name a file, a glob or a list")
    return list(paths)


class _GFileStream(io.RawIOBase):
    """A GFile as a standard raw stream, which gzip and text wrappers can stand on."""

    def __init__(self, path: str, mode: str):
        super().__init__()
        self._file = tf.io.gfile.GFile(path, mode)
        self._writes = "w" in mode
        if self._writes:
            # A GFile comes into being with its first write: an empty one has to, too.
            self._file.write(b"")

    def readable(self) -> bool:
        return not self._writes

    def writable(self) -> bool:
        return self._writes

    def readinto(self, buffer) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data) -> int:
        self._file.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """Opens a file for streaming; `.gz` and `.bz2` are unpacked on the way.

    Raises:
        UserError: the file cannot be read, or is not a whole gzip or bzip2 file.
    """
    try:
        with _GFileStream(path, "rb") as raw:
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield unpacked
            elif path.endswith(".bz2"):
                with bz2.BZ2File(raw) as unpacked:
                    yield unpacked
            else:
                with io.BufferedReader(raw, buffer_size=1 << 20) as buffered:
                    yield buffered
    except (gzip.BadGzipFile, EOFError, gzip.zlib.error) as error:
        kind = "bzip2" if path.endswith(".bz2") else "gzip"
        raise UserError(f"{path} is not a whole {kind} file: {error}") from error
    except OSError as error:
        if error.errno is not None or not path.endswith(".bz2"):
            raise
        raise UserError(f"{path} is not a whole bzip2 file: {error}") from error
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {path}: {error.message}") from error


class _BoundedLines(io.TextIOWrapper):
    """Text whose lines end: what unpacks to gigabytes in one line fills no memory."""

    def __init__(self, stream: BinaryIO, path: str, limit: int):
        super().__init__(stream, encoding="utf-8-sig", errors="replace", newline="\n")
        self._path, self._limit, self._number = path, limit, 0

    def __next__(self) -> str:
        line = self.readline(self._limit + 1)
        self._number += 1
        if len(line) > self._limit and not line.endswith("\n"):
            raise UserError(
                f"{self._path} line {self._number} has more than the {self._limit:,} "
                "characters that are allowed"
            )
        if not line:
            raise StopIteration
        return line


@contextlib.contextmanager
def open_text(
    path: str, max_line_characters: int = MAX_LINE_CHARACTERS
) -> Iterator[TextIO]:
    """Opens UTF-8 text, plain or packed, for streaming; bad bytes become U+FFFD.

    Lines end with a line feed only, as they do for tf.data: U+2028 and a lone
    carriage return stay inside their line.

    Raises:
        UserError: as `open_bytes`, or, while they are read, a line is too long.
    """
    with open_bytes(path) as stream:
        yield _BoundedLines(stream, path, max_line_characters)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[str]:
    """Yields a name to write to; it becomes `path` when the block succeeds.

    The name lies in the same directory (which is made if it is missing), so that the
    last step is a rename. When the block fails, nothing is left behind and an older
    file at `path` stays as it was.
    """
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    temporary = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        raise


@contextlib.contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """Yields a UTF-8 text stream whose content is at `path` when the block succeeds.

    A name that ends in `.gz` is packed, without a time stamp: equal text gives equal
    bytes.
    """
    with atomic_file(path) as temporary, _GFileStream(temporary, "wb") as raw:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(io.BufferedWriter(raw, buffer_size=1 << 20))
            if path.endswith(".gz"):
                stream = stack.enter_context(
                    gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
                )
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
            yield text
            text.flush()
            text.detach()


def refuse_existing(path: str, overwrite: bool) -> None:
    """Raises UserError where a file, or a directory with files, would be lost.

    Args:
        path: what is to be written.
        overwrite: whether the user has said that it may be replaced.
    """
    exists = tf.io.gfile.exists(path)
    if exists and tf.io.gfile.isdir(path):
        exists = bool(tf.io.gfile.listdir(path))
    if exists and not overwrite:
        raise UserError(f"{path} exists: name another or pass --overwrite")


@contextlib.contextmanager
def atomic_directory(path: str, overwrite: bool = False) -> Iterator[str]:
    """Yields a new directory to fill; it becomes `path` when the block succeeds.

    What a killed process has left beside it is named in the log, and stays: it may be
    the work of one that still runs.

    Args:
        path: the directory to make. An empty one that exists is as good as none.
        overwrite: replace what is there. The old directory stays in place until the
            new one is whole.

    Raises:
        UserError: `path` exists and `overwrite` is not set, or cannot be made.
    """
    path = path.rstrip("/")
    suffix = uuid.uuid4().hex[:8]
    temporary, replaced = f"{path}.tmp-{suffix}", f"{path}.old-{suffix}"
    if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
        raise UserError(f"{path} is a file: name a directory to write")
    refuse_existing(path, overwrite)
    for unfinished in sorted(tf.io.gfile.glob(f"{path}.tmp-*")):
        logger.warning("%s is unfinished: remove it if nothing writes it", unfinished)
    try:
        tf.io.gfile.makedirs(temporary)
    except tf.errors.OpError as error:
        raise UserError(f"cannot write {path}: {error.message}") from error
    try:
        yield temporary
        if tf.io.gfile.exists(path):
            tf.io.gfile.rename(path, replaced)
        tf.io.gfile.rename(temporary, path)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
        if tf.io.gfile.exists(replaced) and not tf.io.gfile.exists(path):
            tf.io.gfile.rename(replaced, path)
        raise
    if tf.io.gfile.exists(replaced):
        tf.io.gfile.rmtree(replaced)
