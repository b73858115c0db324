"""Text streams over byte streams, plain or gzip, for every file system."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from typing import BinaryIO, TextIO


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
