"""Common Crawl's WET files."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator

from cmlm.errors import one_line
from cmlm.preparation import raw_lines
from cmlm.preparation.layouts.base import Document, WrongFormat, nonempty

# The header of a web page's record has under 1 KB.
_MAX_HEADER = 1 << 20


def read(lines: raw_lines.Lines, counts: Counter) -> Iterator[Document]:
    """Reads the pages: a record of type `conversion` holds a page."""
    from warcio import archiveiterator, exceptions

    kinds: Counter = Counter()
    # Records of extracted text hold no HTTP headers to parse.
    archive = archiveiterator.ArchiveIterator(lines.stream, no_record_parse=True)
    archive.reader.readline = header = _HeaderLines(archive.reader.readline)
    try:
        for record in archive:
            header.bytes = 0
            kinds[record.rec_type or "none"] += 1
            if record.rec_type != "conversion":
                continue
            length = record.rec_headers.get_header("Content-Length")
            if length is None:
                raise raw_lines.Damaged("a record has no Content-Length")
            length = int(length)
            if length > raw_lines.MAX_BYTES:
                counts[f"record over {raw_lines.MAX_BYTES >> 20} MB"] += 1
                continue  # warcio skips it in blocks
            data = record.content_stream().read()
            if len(data) < length:
                raise raw_lines.Damaged(
                    f"the last record has {len(data):,} of {length:,} bytes"
                )
            yield functools.partial(_page, data)
    except (exceptions.ArchiveLoadFailed, ValueError) as error:
        raise WrongFormat(f"not a WARC record ({one_line(error, 100)})") from error
    if kinds and "conversion" not in kinds:
        raise WrongFormat(
            f"its records are of type {', '.join(sorted(kinds))}; text is in records of"
            " type conversion, in Common Crawl's files named .wet.gz"
        )


class _HeaderLines:
    """Reads the lines between two records, of which warcio limits none.

    Attributes:
        bytes: their size; the caller resets it at each record.
    """

    def __init__(self, readline: Callable[[int], bytes]):
        self._readline, self.bytes = readline, 0

    def __call__(self) -> bytes:
        line = self._readline(_MAX_HEADER)
        self.bytes += len(line)
        if self.bytes >= _MAX_HEADER:
            raise raw_lines.Damaged(
                f"the header of a record is larger than {_MAX_HEADER >> 20} MB"
            )
        return line


def _page(data: bytes, counts: Counter) -> list[str]:
    return nonempty(raw_lines.decode(data, counts))
