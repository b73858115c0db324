"""Packed text: refuses a file whose name states another packing; writes .gz.

Also the limit for the text of a packed file, which could otherwise fill any memory.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from cmlm.errors import UserError

# The first bytes of packed files. Plain text may begin with BZh, so the marks of bzip2
# include the magic number of its first block, or of its end.
_MARKS = {
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b\x08": "gzip",
    **{
        b"BZh%d%b" % (level, block): "bzip2"
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    },
}
# The commands that unpack them.
_COMMANDS = {
    "xz": "xz -dc OLD",
    "zstd": "zstd -dc OLD",
    "zip": "unzip -p OLD",
    "gzip": "gzip -dc OLD",
    "bzip2": "bzip2 -dc OLD",
}
_ENDINGS = {"gzip": ".gz", "bzip2": ".bz2"}
# The files that commands read, for messages.
READ = "plain text, .gz, .bz2"
READ_BY_TENSORFLOW = "plain text, .gz"
# The most bytes that `kind` needs.
MARK_BYTES = max(map(len, _MARKS))
# Deflate packs text by a factor of 3 to 20, and any data by at most 1,032.
MAX_EXPANSION = 200
_FREE_EXPANSION = 64 << 20


def most_unpacked(packed: int) -> int:
    """Returns the most bytes that packed bytes may unpack to."""
    return _FREE_EXPANSION + MAX_EXPANSION * packed


def kind(begin: bytes) -> str:
    """Returns how a file is packed by its first bytes: `xz`, `gzip`, ...; or ""."""
    for mark, name in _MARKS.items():
        if begin.startswith(mark):
            return name
    return ""


def refuse_other(path: str, begin: bytes, allowed: str = READ) -> None:
    """Refuses a packed file that would be read as if it were text.

    Args:
        path: the file's name; its ending decides how the file is unpacked.
        begin: its first bytes, at least MARK_BYTES if it has so many.
        allowed: the files that the caller reads.

    Raises:
        UserError: the file is xz, zstd or zip, or gzip or bzip2 under another name.
    """
    found = kind(begin)
    ending = _ENDINGS.get(found)
    if not found or (ending and path.endswith(ending)):
        return
    advice = f"`{_COMMANDS[found]} | gzip > NEW.gz`"
    if ending:
        found += " under another name"
        if ending in allowed:
            advice = f"a name in {ending}"
    raise UserError(f"{path} is {found}; allowed: {allowed} ({advice})")


@contextlib.contextmanager
def text_writer(raw: BinaryIO, path: str) -> Iterator[TextIO]:
    """Yields a UTF-8 text stream that writes to a byte stream.

    Args:
        raw: an open byte stream; it stays open.
        path: the file's name. If it ends in `.gz`, the text is packed with gzip and
            without a time stamp, so equal text gives equal bytes.
    """
    with contextlib.ExitStack() as stack:
        stream = raw
        if path.endswith(".gz"):
            stream = stack.enter_context(
                gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
            )
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()
