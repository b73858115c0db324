"""Reads dumps as documents: one reader for each layout of files.

Files are streamed in bounded memory. A damaged file is read up to the damage, which is
reported. Records and lines that are too large to be text are skipped, and so is the
rest of a file that unpacks to hundreds of times its size.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import json
import os
import struct
import tempfile
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO

from cmlm.common import beam_files, beam_runner, packing, utf8
from cmlm.data import sentences
from cmlm.errors import UserError, one_line
from cmlm.preparation import raw_lines

# XML has more markup than text; the longest articles have 2 MB.
_MAX_PAGE = 4 * raw_lines.MAX_BYTES
# The header of a web page's record has under 1 KB.
_MAX_HEADER = 1 << 20
_DOCTYPE = b"<!DOCTYPE"
# Begins the count of a file that is read up to its damage.
DAMAGED = "damaged file: "
# Begins the count of a file that is not read.
LEFT_OUT = "file left out: "
# A bitext is not divided into documents, so this many pairs form one.
_PAIRS_A_DOCUMENT = 1000
# Between the cells of a CSV.
_DELIMITERS = ",;\t"

# A document is a function that counts problems and returns its lines. If several
# workers read one file, each worker builds only its own documents.
_Document = Callable[[Counter], list[str]]
Reader = Callable[[raw_lines.Lines, str, Counter], Iterator[_Document]]


class OtherLayoutError(UserError):
    """The beginning of a file has another layout than the user named."""


class _WrongFormat(Exception):
    """A file does not have the layout that the user named."""


def read(
    path: str,
    layout: str,
    counts: Counter,
    text_field: str = "text",
    progress: beam_runner.Progress | None = None,
    part: int = 0,
    parts: int = 1,
) -> Iterator[tuple[int, list[str]]]:
    """Reads the documents of one file.

    Args:
        path: a file on any of Beam's filesystems; `.gz` and `.bz2` are unpacked.
        layout: one of LAYOUTS.
        counts: receives the numbers of skipped records by reason, and `damaged file:
            ...`.
        text_field: the field of layout `json`, or the column of `csv`.
        progress: the progress bar, in bytes read.
        part, parts: yield only documents whose position modulo `parts` is `part`. Part
            0 counts the problems of the file as a whole.

    Yields:
        (position in the file, lines without line ends) of each document.

    Raises:
        OtherLayoutError: the beginning of the file has another layout.
        UserError: the file is UTF-16, or packed in another way than its name says; or,
            at the end, it is text of which more than a tenth of the lines, and more
            than ten, are not UTF-8.
    """
    position = -1
    of_file: Counter = Counter()
    with _opened(path) as raw:
        unpacked = raw_lines.Unpacked(raw, path, None if part else progress)
        lines = _lines(unpacked, path, layout, of_file)
        try:
            documents = LAYOUTS[layout](lines, text_field, of_file)
            for position, document in enumerate(documents):
                if position % parts == part:
                    yield position, _without_nul(document(counts), counts)
            damage = unpacked.damage
        except raw_lines.Damaged as error:
            damage = unpacked.damage or str(error)
        except _WrongFormat as error:
            if position < 0 and not unpacked.damage:
                raise OtherLayoutError(
                    f"{path} is not of layout {layout}: {error}"
                ) from error
            damage = unpacked.damage or str(error)
    if damage:
        of_file[f"{DAMAGED}{path}: {damage}"] += 1
    if not part:
        counts.update(of_file)


def _lines(
    unpacked: raw_lines.Unpacked, path: str, layout: str, counts: Counter
) -> raw_lines.Lines:
    """The lines of a file; raises UserError for UTF-16 and another packing."""
    # The reader of web archives unpacks gzip under any name.
    if layout != "wet" or packing.kind(unpacked.begin) != "gzip":
        packing.refuse_other(path, unpacked.begin)
    lines = raw_lines.Lines(unpacked, path, counts)
    utf8.refuse_utf16(path, lines.stream.peek(2))
    return lines


def _without_nul(lines: list[str], counts: Counter) -> list[str]:
    """Replaces NUL by U+FFFD and counts the document: training refuses NUL."""
    if not any("\0" in line for line in lines):
        return lines
    counts["NUL replaced"] += 1
    return [line.replace("\0", "\ufffd") for line in lines]


def check_beginning(path: str, layout: str, text_field: str = "text") -> None:
    """Reads the first document of a file.

    Args:
        path, layout, text_field: as for `read`.

    Raises:
        UserError: the beginning of the file is of another layout or UTF-16, or the file
            is packed in another way than its name says.
    """
    next(read(path, layout, Counter(), text_field), None)


def check_encoding(path: str, layout: str) -> None:
    """Reads the first bytes of a file.

    Args:
        path, layout: as for `read`.

    Raises:
        UserError: the file is UTF-16, or packed in another way than its name says.
    """
    with _opened(path) as raw:
        unpacked = raw_lines.Unpacked(raw, path, None)
        _lines(unpacked, path, layout, Counter())


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with beam_files.open_bytes(path) as raw:
            yield raw
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error


# ------------------------------------------------------------------- plain text
def _plain(
    layout: str, lines: raw_lines.Lines, _: str, counts: Counter
) -> Iterator[_Document]:
    document: list[str] = []
    size = 0
    for paragraph in sentences.paragraphs(lines, layout):
        if paragraph is not None:
            document.append(paragraph)
            size += len(paragraph)
        if document and (paragraph is None or size > raw_lines.MAX_BYTES):
            if paragraph is not None:
                counts["documents cut"] += 1
            yield _as_it_is(document)
            document, size = [], 0
    if document:
        yield _as_it_is(document)


def _as_it_is(lines: list[str]) -> _Document:
    return lambda _: lines


def _json(lines: raw_lines.Lines, field: str, counts: Counter) -> Iterator[_Document]:
    begun = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not begun:
                raise _WrongFormat(f"line {number} is not JSON ({error})") from error
            counts["no JSON"] += 1
            continue
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            if not begun:
                names = ", ".join(record) if isinstance(record, dict) else "none"
                raise _WrongFormat(
                    f"line {number} has no text {field!r}; its fields: {names}"
                )
            counts[f"no text {field!r}"] += 1
            continue
        begun = True
        # JSON can hold halves of surrogate pairs, which UTF-8 cannot encode.
        text = record[field].encode("utf-8", "replace").decode("utf-8")
        yield _as_it_is(_nonempty(text))


def _csv(lines: raw_lines.Lines, field: str, counts: Counter) -> Iterator[_Document]:
    """Reads rows of cells behind a first line of names; each row is a document."""
    text = iter(lines)
    delimiter, names = _columns(next(text, ""), field)
    column = names.index(field)
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(rows, None)
        except csv.Error:
            counts["row that is no CSV"] += 1
            continue
        if cells is None:
            return
        if len(cells) == len(names):
            yield _as_it_is(_nonempty(cells[column]))
        elif cells:
            counts[f"row without {len(names)} cells"] += 1


def _columns(head: str, field: str) -> tuple[str, list[str]]:
    """The delimiter of a CSV and the names of its columns, from its first line.

    Spreadsheets separate cells by semicolons where a comma is the decimal point.

    Raises:
        _WrongFormat: no column has the name `field`.
    """
    found = []
    for delimiter in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            names = next(csv.reader([head], delimiter=delimiter, strict=True), [])
            if field in names:
                return delimiter, names
            found.append(names)
    names = max(found, key=len, default=[])
    raise _WrongFormat(
        f"line 1 has no column {field!r}; its columns: {', '.join(names)}"
    )


def _nonempty(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


# ------------------------------------------------------------------- web archives
def _wet(lines: raw_lines.Lines, _: str, counts: Counter) -> Iterator[_Document]:
    """Reads Common Crawl's WET files: a record of type `conversion` holds a page."""
    from warcio import archiveiterator, exceptions

    kinds: Counter = Counter()
    # HTTP headers stay unparsed: a page has none.
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
        raise _WrongFormat(f"not a WARC record ({one_line(error, 100)})") from error
    if kinds and "conversion" not in kinds:
        raise _WrongFormat(
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
    return _nonempty(raw_lines.decode(data, counts))


# ------------------------------------------------------------------- Wikipedia
def _wikipedia(lines: raw_lines.Lines, _: str, counts: Counter) -> Iterator[_Document]:
    """Reads a MediaWiki XML dump: the prose of articles, without redirects."""
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
        raise _WrongFormat(f"not a complete MediaWiki dump ({reason})") from error


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


# ------------------------------------------------------------------- bitext
def _pairs(rows: Iterator[tuple[str, str]]) -> Iterator[_Document]:
    pairs = (f"{' '.join(a.split())}\t{' '.join(b.split())}" for a, b in rows)
    while block := list(itertools.islice(pairs, _PAIRS_A_DOCUMENT)):
        yield _as_it_is(block)


def _tsv(lines: raw_lines.Lines, _: str, counts: Counter) -> Iterator[_Document]:
    """Reads lines of source, tab, target; further columns are dropped and counted."""

    def rows() -> Iterator[tuple[str, str]]:
        begun = False
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) > 1:
                begun = True
                if len(cells) > 2:
                    counts["line with further columns, dropped"] += 1
                yield cells[0], cells[1]
            elif line.strip():
                if not begun:
                    raise _WrongFormat(f"line {number} has no tab")
                counts["line without a tab"] += 1

    yield from _pairs(rows())


def _gettext(lines: raw_lines.Lines, _: str, counts: Counter) -> Iterator[_Document]:
    """Reads a .po or .mo catalogue: messages and translations, without fuzzy ones."""
    import polib

    data = lines.stream.read(raw_lines.MAX_BYTES + 1)
    if len(data) > raw_lines.MAX_BYTES:
        raise _WrongFormat(f"it is larger than {raw_lines.MAX_BYTES >> 20} MB")
    binary = data[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
    with tempfile.NamedTemporaryFile(suffix=".mo" if binary else ".po") as file:
        file.write(data)
        file.flush()
        try:
            if binary:
                _refuse_shared_texts(data)
            catalogue = (polib.mofile if binary else polib.pofile)(file.name)
        except (OSError, ValueError, LookupError, struct.error) as error:
            reason = str(error).replace(file.name, "the catalogue")
            raise _WrongFormat(f"not a gettext catalogue ({reason})") from error
    # A compiled catalogue holds translated messages only.
    entries = catalogue if binary else catalogue.translated_entries()
    if not binary:
        left = len(catalogue.untranslated_entries()) + len(catalogue.fuzzy_entries())
        counts["untranslated or fuzzy"] += left

    def rows() -> Iterator[tuple[str, str]]:
        for entry in entries:
            if entry.msgid_plural:
                counts["plural message, dropped"] += 1
            else:
                yield entry.msgid, entry.msgstr

    yield from _pairs(rows())


def _refuse_shared_texts(data: bytes) -> None:
    """Refuses a .mo file whose texts lie over each other.

    They would fill the memory with many times the file.

    Raises:
        ValueError: they do.
        struct.error: the file ends in its tables.
    """
    order = "<" if data[0] == 0xDE else ">"
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)
    sizes = sum(
        size
        for start in tables
        for size, _ in struct.iter_unpack(f"{order}2I", data[start : start + 8 * count])
    )
    if sizes > len(data):
        raise ValueError("its texts overlap")


LAYOUTS: dict[str, Reader] = {
    "lines": functools.partial(_plain, "lines"),
    "wrapped": functools.partial(_plain, "wrapped"),
    "wikitext": functools.partial(_plain, "wikitext"),
    "json": _json,
    "csv": _csv,
    "wet": _wet,
    "wikipedia": _wikipedia,
    "tsv": _tsv,
    "gettext": _gettext,
}


def size(path: str) -> int:
    """The size of a file in bytes, on any of Beam's filesystems.

    Raises:
        UserError: the file does not exist.
    """
    if os.path.exists(path):
        return os.path.getsize(path)
    found = beam_files.match(path)
    if not found:
        raise UserError(f"{path} does not exist")
    return found[0].size_in_bytes
