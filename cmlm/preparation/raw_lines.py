"""Unpacks files and splits them into lines of text, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import collections
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator

from cmlm.common import beam_progress, packing, utf8

# A longer record or line is skipped; a longer document is cut.
MAX_BYTES = 10 << 20
INVALID = "invalid UTF-8 replaced"
# The counts of the lines of text as they stand in the file, and of those with a NUL.
LINES = "lines"
NUL_LINES = "lines with a NUL byte"


class Damaged(Exception):
    """A file ends inside a record."""


class _Meter(io.RawIOBase):
    """A raw stream that counts the bytes read."""

    def __init__(self, raw, progress: beam_progress.Progress | None):
        super().__init__()
        self._raw, self._progress, self.bytes = raw, progress, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        if self._progress:
            self._progress.add(len(data))
        return len(data)


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a file; it ends at damage instead of raising.

    An exception would lose the bytes that the layers above have buffered.

    Attributes:
        begin: the first bytes of the file, still packed.
        damage: why the stream ended early, or "".
    """

    def __init__(self, raw, path: str, progress: beam_progress.Progress | None):
        super().__init__()
        self._meter = _Meter(raw, progress)
        self._stream = io.BufferedReader(self._meter, 1 << 20)
        self.begin = self._stream.peek(packing.MARK_BYTES)[: packing.MARK_BYTES]
        self._packed = path.endswith((".gz", ".bz2"))
        if path.endswith(".gz"):
            self._stream = gzip.GzipFile(fileobj=self._stream)
        elif path.endswith(".bz2"):
            self._stream = bz2.BZ2File(self._stream)
        self._bytes, self.damage = 0, ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self.damage:
            return 0
        try:
            data = self._stream.read1(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = str(error)
            return 0
        except OSError as error:
            if error.errno is not None or not self._packed:
                raise
            self.damage = str(error)  # bz2 raises OSError without a number
            return 0
        self._bytes += len(data)
        limit = packing.most_unpacked(self._meter.bytes)
        if self._packed and self._bytes > limit:
            self.damage = (
                f"it unpacks to more than {packing.MAX_EXPANSION} times its size"
            )
            return 0
        buffer[: len(data)] = data
        return len(data)


class Lines:
    """The lines of a byte stream as text; huge lines are skipped and counted.

    A byte order mark before a line is left out: a file of several that were joined has
    one inside, too.

    Behind the last line, text in another encoding than UTF-8 raises a UserError. The
    counts receive the number of lines so far, under LINES, and those with a NUL byte,
    under NUL_LINES.

    Args:
        unpacked: the stream.
        path: its name in messages.
        counts: the counts of this stream alone.
    """

    def __init__(self, unpacked: Unpacked, path: str, counts: collections.Counter):
        self.stream = io.BufferedReader(unpacked, 1 << 18)
        self._unpacked, self._path, self._counts = unpacked, path, counts

    def __iter__(self) -> Iterator[str]:
        first_invalid = not_ascii = 0
        for index in itertools.count():
            line = self.stream.readline(MAX_BYTES)
            if not line or (self._unpacked.damage and line[-1:] != b"\n"):
                # An incomplete last line is dropped.
                utf8.refuse_nul_bytes(self._path, self._counts[NUL_LINES], index)
                utf8.refuse_other_encoding(
                    self._path, self._counts[INVALID], index, first_invalid, not_ascii
                )
                return
            self._counts[LINES] = index + 1
            if b"\0" in line:
                self._counts[NUL_LINES] += 1
            if len(line) == MAX_BYTES and line[-1:] != b"\n":
                while line and line[-1:] != b"\n":
                    line = self.stream.readline(MAX_BYTES)
                self._counts[f"line over {MAX_BYTES >> 20} MB"] += 1
                continue
            line = line.removeprefix(codecs.BOM_UTF8)
            text = decode(line, self._counts)
            if self._counts[INVALID] and not first_invalid:
                first_invalid = index + 1
            not_ascii += not text.isascii()
            yield text


def decode(data: bytes, counts: collections.Counter) -> str:
    """Decodes UTF-8; invalid bytes become U+FFFD and the text is counted."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        counts[INVALID] += 1
        return data.decode("utf-8", "replace")
