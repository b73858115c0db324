"""Pairs of translations: TSV and catalogues of gettext."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator

from cmlm.preparation import raw_lines
from cmlm.preparation.layouts.base import Document, Trial, WrongFormat, as_it_is

# A bitext is not divided into documents, so this many pairs form one.
_PAIRS_A_DOCUMENT = 1000
# ParaCrawl's columns are two addresses, source and target.
_ADDRESSES = ("http://", "https://")


def _pairs(rows: Iterator[tuple[str, str]]) -> Iterator[Document]:
    pairs = (f"{' '.join(a.split())}\t{' '.join(b.split())}" for a, b in rows)
    while block := list(itertools.islice(pairs, _PAIRS_A_DOCUMENT)):
        yield as_it_is(block)


def read_tsv(lines: raw_lines.Lines, counts: Counter) -> Iterator[Document]:
    """Reads lines of source, tab, target; further columns are dropped and counted.

    So are lines of four columns or more that begin with two addresses.
    """

    def rows() -> Iterator[tuple[str, str]]:
        trial = Trial()
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) > 3 and all(c.startswith(_ADDRESSES) for c in cells[:2]):
                trial.failed(
                    f"line {number} begins with two web addresses; `cut -f3,4 OLD >"
                    " NEW` takes the texts of columns 3 and 4"
                )
                counts["line that begins with two addresses"] += 1
            elif len(cells) > 1:
                trial.passed = True
                if len(cells) > 2:
                    counts["further columns dropped, in lines"] += 1
                yield cells[0], cells[1]
            elif line.strip():
                trial.failed(f"line {number} has no tab")
                counts["line without a tab"] += 1
        trial.end()

    yield from _pairs(rows())


def read_gettext(lines: raw_lines.Lines, counts: Counter) -> Iterator[Document]:
    """Reads a .po or .mo catalogue: messages and translations, without fuzzy ones."""
    import polib

    data = lines.stream.read(raw_lines.MAX_BYTES + 1)
    if len(data) > raw_lines.MAX_BYTES:
        raise WrongFormat(f"it is larger than {raw_lines.MAX_BYTES >> 20} MB")
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
            raise WrongFormat(f"not a gettext catalogue ({reason})") from error
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
