"""MediaWiki's XML dumps."""

from __future__ import annotations

import functools
import io
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterator

from cmlm.errors import one_line
from cmlm.preparation import raw_lines
from cmlm.preparation.layouts.base import Document, WrongFormat

# XML has more markup than text; the longest articles have 2 MB.
_MAX_PAGE = 4 * raw_lines.MAX_BYTES
_DOCTYPE = b"<!DOCTYPE"


def read(lines: raw_lines.Lines, counts: Counter) -> Iterator[Document]:
    """Reads the prose of articles, without redirects."""
    import mwxml

    text = io.TextIOWrapper(_Pages(lines.stream), "utf-8", "replace", newline="\n")
    try:
        dump = mwxml.Dump.from_file(text)
        namespaces = [each.name for each in dump.site_info.namespaces or ()]
        for page in dump.pages:
            if page.namespace or page.redirect:
                counts["redirect or no article"] += 1
                continue
            for revision in page:
                if len(revision.text or "") > raw_lines.MAX_BYTES:
                    counts[f"record over {raw_lines.MAX_BYTES >> 20} MB"] += 1
                else:
                    yield functools.partial(_article, revision.text or "", namespaces)
    # mwxml takes tags and values for granted: other XML raises any of these.
    except (
        mwxml.errors.MalformedXML,
        xml.etree.ElementTree.ParseError,
        AssertionError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        reason = one_line(error, 100) or "its root is not <mediawiki>"
        raise WrongFormat(f"not a complete MediaWiki dump ({reason})") from error


class _Pages(io.BufferedIOBase):
    """The stream of a dump; it stops at a page that is too large, and at a DOCTYPE.

    A DOCTYPE can name entities that stand for endless text. Dumps have neither.
    """

    def __init__(self, stream: io.BufferedReader):
        super().__init__()
        self._stream, self._bytes, self._last = stream, 0, b""

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        data = self._stream.read1(size)
        if _DOCTYPE in self._last + data:
            raise raw_lines.Damaged("it has a DOCTYPE")
        self._last = (self._last + data)[1 - len(_DOCTYPE) :]
        end = data.rfind(b"</page>")
        self._bytes = len(data) - end if end >= 0 else self._bytes + len(data)
        if self._bytes > _MAX_PAGE:
            raise raw_lines.Damaged(f"a page is larger than {_MAX_PAGE >> 20} MB")
        return data


def _article(markup: str, namespaces: list[str], _: Counter) -> list[str]:
    from cmlm.preparation import wikitext

    return wikitext.paragraphs(markup, namespaces)
