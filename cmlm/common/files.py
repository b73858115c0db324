"""Input files: globs, and streams of plain and packed text; `atomic` writes files.

All paths go through `tf.io.gfile`, so `gs://` paths work like local ones.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, TextIO

import tensorflow as tf

from cmlm.common import folders, packing, utf8
from cmlm.errors import UserError

# A longer line is not a sentence, and would have to fit into memory.
MAX_LINE_CHARACTERS = 1_000_000
_BLOCK = 1 << 20
# Limits of a window. It has enough lines for batches of similar length.
_WINDOW_LINES = 16_384
_WINDOW_CHARACTERS = 1 << 24


def expand(patterns: str) -> list[str]:
    """Finds the files that a comma-separated list of paths and globs names.

    Args:
        patterns: for example `a.txt,corpus/*.txt.gz`.

    Returns:
        Each path once; the paths of one glob are sorted.

    Raises:
        UserError: a pattern matches no file, or one whose name is not UTF-8.
    """
    paths: dict[str, None] = {}
    for part in filter(None, (part.strip() for part in patterns.split(","))):
        if tf.io.gfile.exists(part):
            matches = [] if tf.io.gfile.isdir(part) else [part]
        else:
            matches = folders.matching(part)
        if not matches:
            hint = "; allowed: files that exist, and globs of such files"
            if tf.io.gfile.isdir(part):
                hint = " (it is a directory: name the files in it, as in DIR/*.txt)"
            elif "," in patterns and folders.matching(pattern(patterns)):
                hint = f" (a comma separates names: write {pattern(patterns)!r})"
            elif (full := os.path.expanduser(part)) != part:
                # Shells leave the `~` of `--input=~/x` as it is.
                hint = f" (write the path in full: {full!r})"
            raise UserError(f"no file matches {part!r}{hint}")
        paths.update(dict.fromkeys(matches))
    if not paths:
        raise UserError(
            f"no file matches {patterns!r}; allowed: a file, a glob or a list"
        )
    return list(paths)


def pattern(path: str) -> str:
    """Returns a path as a flag with a list of globs reads it; it may contain globs.

    `?` stands for each comma and bracket, which would not stand for themselves.
    """
    return re.sub(r"[,\[\]]", "?", path)


def escaped(path: str) -> str:
    """Returns the glob of `tf.io.gfile` that matches nothing but a path."""
    return re.sub(r"([*?\[\\])", r"\\\1", path)


def states(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    """Returns the path, bytes and time of the last change of files."""
    found = [(path, tf.io.gfile.stat(path)) for path in paths]
    return [(path, about.length, about.mtime_nsec) for path, about in found]


class _GFileStream(io.RawIOBase):
    """A GFile as a standard raw stream, for gzip and text wrappers.

    A path that cannot be read is a UserError. Inside of `open_bytes` other files may be
    written, so the stream itself names its path.
    """

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._file = tf.io.gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            data = self._file.read(len(buffer))
        except tf.errors.OpError as error:
            raise UserError(f"cannot read {self._path}: {error.message}") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _TensorFlowGzip(io.RawIOBase):
    """Unpacks a gzip file that TensorFlow will read too.

    `gzip` skips zeros behind a member, as tapes and block devices leave them.
    TensorFlow fails at two of them, in the middle of a run, and names no file.
    """

    def __init__(self, raw: BinaryIO, path: str):
        super().__init__()
        self._raw, self._path = raw, path
        # The member that is being unpacked, and packed bytes that wait for it.
        self._member, self._packed = None, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = b""
        while not data:
            self._packed = self._packed or self._raw.read(_BLOCK)
            if not self._packed:
                if self._member is not None:
                    raise EOFError("it ends inside its data")
                return 0
            if self._member is None:
                if self._packed.startswith(b"\0"):
                    raise UserError(
                        f"{self._path} has zeros before or after its gzip data, which "
                        "TensorFlow cannot read; allowed: a file without them, which "
                        "`gzip -dc OLD | gzip > NEW` writes"
                    )
                # Its argument stands for gzip's header.
                self._member = zlib.decompressobj(31)
            data = self._member.decompress(self._packed, len(buffer))
            self._packed = self._member.unconsumed_tail or self._member.unused_data
            if self._member.eof:
                self._member = None
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_bytes(path: str, for_tensorflow: bool = False) -> Iterator[BinaryIO]:
    """Opens a file for streaming and unpacks `.gz` and `.bz2` on the way.

    Args:
        path: the file.
        for_tensorflow: whether to refuse what `tf.data` cannot read later: a bzip2
            file, and zeros behind the data of a gzip file.

    Raises:
        UserError: the file cannot be read, is a pipe or a device, is a damaged gzip or
            bzip2 file, or is packed in another way than its name says.
    """
    refuse_streams(path)
    if for_tensorflow:
        refuse_bzip2(path)
    try:
        with (
            _GFileStream(path) as stream,
            io.BufferedReader(stream, buffer_size=_BLOCK) as raw,
        ):
            allowed = packing.READ_BY_TENSORFLOW if for_tensorflow else packing.READ
            packing.refuse_other(path, raw.peek(packing.MARK_BYTES), allowed)
            if path.endswith(".gz"):
                unpacking = (
                    io.BufferedReader(_TensorFlowGzip(raw, path), _BLOCK)
                    if for_tensorflow
                    else gzip.GzipFile(fileobj=raw, mode="rb")
                )
                with unpacking as unpacked:
                    yield unpacked
            elif path.endswith(".bz2"):
                with bz2.BZ2File(raw) as unpacked:
                    yield unpacked
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        kind = "bzip2" if path.endswith(".bz2") else "gzip"
        raise UserError(f"{path} is not a whole {kind} file: {error}") from error
    except OSError as error:
        if error.errno is not None or not path.endswith(".bz2"):
            raise
        raise UserError(f"{path} is not a whole bzip2 file: {error}") from error


def whole(path: str) -> bytes:
    """Reads a file at once, unpacked.

    Raises:
        UserError: see `open_bytes`; or the file unpacks to hundreds of times its size.
    """
    blocks = []
    with open_bytes(path) as file:
        left = packing.most_unpacked(tf.io.gfile.stat(path).length)
        while block := file.read(_BLOCK):
            blocks.append(block)
            left -= len(block)
            if left < 0:
                raise UserError(
                    f"{path} unpacks to more than {packing.MAX_EXPANSION} times its "
                    f"size; allowed: at most {packing.MAX_EXPANSION} times"
                )
    return b"".join(blocks)


def refuse_streams(path: str) -> None:
    """Raises UserError for a pipe, a socket or a terminal: it can be read once only."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        # Not a local path, or none that can be read; the reader says which.
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        raise UserError(
            f"{path} is a pipe or a device; allowed: a file, which can be read several "
            "times (`COMMAND > FILE` writes one)"
        )


def refuse_bzip2(path: str) -> None:
    """Raises UserError for a bzip2 file, which `tf.data` reads without unpacking it."""
    if path.endswith(".bz2"):
        raise UserError(f"{path} is bzip2; allowed for training: plain text or .gz")


@contextlib.contextmanager
def open_text(
    path: str,
    max_line_characters: int = MAX_LINE_CHARACTERS,
    for_tensorflow: bool = False,
) -> Iterator[TextIO]:
    """Opens UTF-8 text, plain or packed, for streaming; bad bytes become U+FFFD.

    A few lines with bad bytes get a warning. Only a line feed ends a line, as in
    tf.data: U+2028 and a lone carriage return stay inside their line. (tf.data drops
    carriage returns.)

    Args:
        path: the file.
        max_line_characters: the longest line.
        for_tensorflow: see `open_bytes`.

    Raises:
        UserError: the file cannot be read, is damaged or is UTF-16; or, while reading,
            a line is too long or has a NUL byte; or, at the end, more than a tenth of
            the lines, and more than ten, are not UTF-8.
    """
    with open_bytes(path, for_tensorflow) as stream:
        utf8.refuse_utf16(path, stream.peek(2))
        yield utf8.Lines(stream, path, max_line_characters)


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
        with open_text(path) as file:
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
