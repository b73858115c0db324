"""Reads dumps as documents: a reader for each layout of files.

Files are streamed. What is damaged is read as far as it goes and told; what is too
large to be text (a record of a gigabyte, a line without an end, a file that unpacks to
hundreds of times its size) is passed over or given up in bounded memory.
"""

from __future__ import annotations

import bz2
import collections
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import re
import tempfile
import xml.etree.ElementTree
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from cmlm.common import beam_runner
from cmlm.data import sentences
from cmlm.errors import UserError

# A record or line of more bytes is passed over; a longer document is cut.
MAX_BYTES = 10 << 20
# Deflate packs text 3 to 20 times, and nothing more than 1,032 times.
MAX_EXPANSION = 200
_FREE_EXPANSION = 64 << 20
# XML has more markup than text; the longest articles have 2 MB.
_MAX_PAGE = 4 * MAX_BYTES
# Translations have no documents; so many of them travel together.
_PAIRS_A_DOCUMENT = 1000

Counts = collections.Counter
# A document is a function that gives its lines and tells what it met: where several
# workers read one file, each builds only its own documents.
_Document = Callable[[Counts], list[str]]
Reader = Callable[["_Lines", str, Counts], Iterator[_Document]]


class _Damaged(Exception):
    """A file ends in the middle of something."""


class _WrongFormat(Exception):
    """This is not what the layout says."""


def read(
    path: str,
    layout: str,
    counts: Counts,
    text_field: str = "text",
    progress: beam_runner.Progress | None = None,
    part: int = 0,
    parts: int = 1,
) -> Iterator[tuple[int, list[str]]]:
    """Reads the documents of one file.

    Args:
        path: a file of any of Beam's filesystems; `.gz` and `.bz2` are unpacked.
        layout: one of LAYOUTS.
        counts: takes `records` by what became of them and `damaged file: ...`.
        text_field: the field that layout `json` reads.
        progress: is moved by the bytes read.
        part, parts: yield only documents whose position modulo `parts` is `part`. What
            concerns the file as a whole is told by part 0.

    Yields:
        Documents: (position in the file, lines without their ends).

    Raises:
        UserError: the file is of another format from the beginning.
    """
    position = -1
    of_file: Counts = collections.Counter()
    with _opened(path) as raw:
        unpacked = _Unpacked(raw, path, None if part else progress)
        lines = _Lines(unpacked, of_file)
        try:
            documents = LAYOUTS[layout](lines, text_field, of_file)
            for position, document in enumerate(documents):
                if position % parts == part:
                    yield position, document(counts)
            damage = unpacked.damage
        except _Damaged as error:
            damage = unpacked.damage or str(error)
        except _WrongFormat as error:
            damage = unpacked.damage or (position >= 0 and str(error))
            if not damage:
                raise UserError(f"{path} is not of layout {layout}: {error}") from error
    if damage:
        of_file[f"damaged file: {path}: {damage}"] += 1
    if not part:
        counts.update(of_file)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with beam_runner.open_bytes(path) as raw:
            yield raw
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error


class _Meter(io.RawIOBase):
    """A raw stream that counts what is read from it."""

    def __init__(self, raw, progress: beam_runner.Progress | None):
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


class _Unpacked(io.RawIOBase):
    """A file unpacked, by its name; where it cannot be read on, it ends.

    Attributes:
        damage: why it ended before its time, or "". An exception instead would lose
            what the layers above have read and not yet given on.
    """

    def __init__(self, raw, path: str, progress: beam_runner.Progress | None):
        super().__init__()
        self._meter = _Meter(raw, progress)
        self._stream = io.BufferedReader(self._meter, 1 << 20)
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
            self.damage = str(error)  # bz2 has no number for what it cannot read
            return 0
        self._bytes += len(data)
        limit = _FREE_EXPANSION + MAX_EXPANSION * self._meter.bytes
        if self._packed and self._bytes > limit:
            self.damage = f"it unpacks to more than {MAX_EXPANSION} times its size"
            return 0
        buffer[: len(data)] = data
        return len(data)


class _Lines:
    """The lines of a byte stream as text; huge ones are passed over, and counted."""

    def __init__(self, unpacked: _Unpacked, counts: Counts):
        self.stream = io.BufferedReader(unpacked, 1 << 18)
        self._unpacked, self._counts = unpacked, counts

    def __iter__(self) -> Iterator[str]:
        for index in itertools.count():
            line = self.stream.readline(MAX_BYTES)
            if not line or (self._unpacked.damage and line[-1:] != b"\n"):
                return  # half a line is no text
            if len(line) == MAX_BYTES and line[-1:] != b"\n":
                while line and line[-1:] != b"\n":
                    line = self.stream.readline(MAX_BYTES)
                self._counts[f"line over {MAX_BYTES >> 20} MB"] += 1
                continue
            if index == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield decode(line, self._counts)


def decode(data: bytes, counts: Counts) -> str:
    """UTF-8 with U+FFFD for what is none; counts texts that needed it."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        counts["invalid UTF-8 replaced"] += 1
        return data.decode("utf-8", "replace")


# ------------------------------------------------------------------- plain text
def _plain(layout: str) -> Reader:
    def read_plain(lines: _Lines, _: str, counts: Counts) -> Iterator[_Document]:
        document: list[str] = []
        size = 0
        for paragraph in sentences.paragraphs(lines, layout):
            if paragraph is not None:
                document.append(paragraph)
                size += len(paragraph)
            if document and (paragraph is None or size > MAX_BYTES):
                counts["documents cut"] += paragraph is not None
                yield _as_it_is(document)
                document, size = [], 0
        if document:
            yield _as_it_is(document)

    return read_plain


def _as_it_is(lines: list[str]) -> _Document:
    return lambda _: lines


def _json(lines: _Lines, field: str, counts: Counts) -> Iterator[_Document]:
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not index:
                raise _WrongFormat(f"line 1 is no JSON ({error})") from error
            counts["no JSON"] += 1
            continue
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            if not index:
                names = ", ".join(record) if isinstance(record, dict) else "no object"
                raise _WrongFormat(f"line 1 has no text {field!r}, but: {names}")
            counts[f"no text {field!r}"] += 1
            continue
        # JSON can spell halves of surrogate pairs, which no UTF-8 file can hold.
        text = record[field].encode("utf-8", "replace").decode("utf-8")
        yield _as_it_is(_nonempty(text))


def _nonempty(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


# ------------------------------------------------------------------- web archives
def _wet(lines: _Lines, _: str, counts: Counts) -> Iterator[_Document]:
    """Common Crawl's WET: records of type `conversion` with the text of a page."""
    from warcio import archiveiterator, exceptions

    kinds: collections.Counter = collections.Counter()
    try:
        for record in archiveiterator.ArchiveIterator(lines.stream):
            kinds[record.rec_type] += 1
            if record.rec_type != "conversion":
                continue
            length = record.rec_headers.get_header("Content-Length")
            if length is None:
                raise _Damaged("a record does not say its length")
            length = int(length)
            if length > MAX_BYTES:
                counts[f"record over {MAX_BYTES >> 20} MB"] += 1
                continue  # warcio passes over it in blocks
            data = record.content_stream().read()
            if len(data) < length:
                raise _Damaged(f"the last record has {len(data):,} of {length:,} bytes")
            yield functools.partial(_page, data)
    except (exceptions.ArchiveLoadFailed, ValueError) as error:
        first = " ".join(str(error).split())[:100]
        raise _WrongFormat(f"no WARC record ({first})") from error
    if kinds and "conversion" not in kinds:
        raise _WrongFormat(
            f"it has records of type {', '.join(sorted(kinds))}, none of type"
            " conversion: Common Crawl's text is in files named .wet.gz"
        )


def _page(data: bytes, counts: Counts) -> list[str]:
    return _nonempty(decode(data, counts))


# ------------------------------------------------------------------- Wikipedia
_LIST_ITEM = re.compile(r"^[*#:;].*$", re.MULTILINE)
# `strip_code` would leave what stands inside of them.
_NO_PROSE = {"ref", "table", "gallery", "references", "timeline", "imagemap", "code"}
_FILE_OR_CATEGORY = re.compile(r"^\s*:?\s*[^\W\d_][\w ]*:", re.UNICODE)


def _wikipedia(lines: _Lines, _: str, counts: Counts) -> Iterator[_Document]:
    """A MediaWiki XML dump: the articles' prose, no redirects, no other namespaces."""
    import mwxml

    text = io.TextIOWrapper(_Pages(lines.stream), "utf-8", "replace", newline="\n")
    try:
        for page in mwxml.Dump.from_file(text).pages:
            if page.namespace or page.redirect:
                counts["redirect or no article"] += 1
                continue
            for revision in page:
                if len(revision.text or "") > MAX_BYTES:
                    counts[f"record over {MAX_BYTES >> 20} MB"] += 1
                else:
                    yield functools.partial(_article, revision.text or "")
    except (mwxml.errors.MalformedXML, xml.etree.ElementTree.ParseError) as error:
        first = " ".join(str(error).split())[:100]
        raise _WrongFormat(f"no whole MediaWiki dump ({first})") from error


class _Pages(io.BufferedIOBase):
    """Ends a dump in a page too large to be one: XML is read page by page."""

    def __init__(self, stream: io.BufferedReader):
        super().__init__()
        self._stream, self._bytes = stream, 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        data = self._stream.read1(size)
        end = data.rfind(b"</page>")
        self._bytes = len(data) - end if end >= 0 else self._bytes + len(data)
        if self._bytes > _MAX_PAGE:
            raise _Damaged(f"a page has more than {_MAX_PAGE >> 20} MB")
        return data


def _article(markup: str, _: Counts) -> list[str]:
    return wikitext_paragraphs(markup)


def wikitext_paragraphs(markup: str) -> list[str]:
    """The paragraphs of an article: no templates, tables, lists, notes or headings."""
    import mwparserfromhell

    code = mwparserfromhell.parse(_LIST_ITEM.sub("", markup))
    for node in code.ifilter(recursive=True, matches=_is_no_prose):
        try:
            code.remove(node)
        except ValueError:  # inside of one that is gone already
            continue
    return [" ".join(line.split()) for line in _nonempty(code.strip_code())]


def _is_no_prose(node) -> bool:
    from mwparserfromhell import nodes

    if isinstance(node, nodes.Heading):
        return True
    if isinstance(node, nodes.Tag):
        return str(node.tag).strip().lower() in _NO_PROSE
    return isinstance(node, nodes.Wikilink) and bool(
        _FILE_OR_CATEGORY.match(str(node.title))
    )


# ------------------------------------------------------------------- translations
def _pairs(rows: Iterator[tuple[str, str]]) -> Iterator[_Document]:
    pairs = (f"{' '.join(a.split())}\t{' '.join(b.split())}" for a, b in rows)
    while block := list(itertools.islice(pairs, _PAIRS_A_DOCUMENT)):
        yield _as_it_is(block)


def _tsv(lines: _Lines, _: str, counts: Counts) -> Iterator[_Document]:
    """Source, tab, target; further columns are left out."""

    def rows() -> Iterator[tuple[str, str]]:
        for index, line in enumerate(lines):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) < 2:
                if not index:
                    raise _WrongFormat("line 1 has no tab")
                counts["line without a tab"] += bool(line.strip())
                continue
            yield cells[0], cells[1]

    yield from _pairs(rows())


def _gettext(lines: _Lines, _: str, counts: Counts) -> Iterator[_Document]:
    """A catalogue, .po or .mo: messages and their translations, no fuzzy ones."""
    import polib

    data = lines.stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _WrongFormat(f"a catalogue has no {MAX_BYTES >> 20} MB")
    binary = data[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
    with tempfile.NamedTemporaryFile(suffix=".mo" if binary else ".po") as file:
        file.write(data)
        file.flush()
        try:
            catalogue = (polib.mofile if binary else polib.pofile)(file.name)
        except (OSError, UnicodeError, ValueError, LookupError) as error:
            reason = str(error).replace(file.name, "the catalogue")
            raise _WrongFormat(f"no gettext catalogue ({reason})") from error
    # A compiled catalogue has only what is translated.
    entries = catalogue if binary else catalogue.translated_entries()
    if not binary:
        left = len(catalogue.untranslated_entries()) + len(catalogue.fuzzy_entries())
        counts["untranslated or fuzzy"] += left
    yield from _pairs((e.msgid, e.msgstr) for e in entries if not e.msgid_plural)


LAYOUTS: dict[str, Reader] = {
    "lines": _plain("lines"),
    "wrapped": _plain("wrapped"),
    "wikitext": _plain("wikitext"),
    "json": _json,
    "wet": _wet,
    "wikipedia": _wikipedia,
    "tsv": _tsv,
    "gettext": _gettext,
}
BITEXT_LAYOUTS = ("tsv", "gettext")


def size(path: str) -> int:
    """Bytes of a file, by Beam's filesystems."""
    from apache_beam.io import filesystems

    if os.path.exists(path):
        return os.path.getsize(path)
    return filesystems.FileSystems.match([path])[0].metadata_list[0].size_in_bytes
