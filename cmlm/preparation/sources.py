"""Reads files of any layout as documents.

Files are streamed in bounded memory. A damaged file is read up to the damage, which is
reported. Records and lines that are too large to be text are skipped, and so is the
rest of a file that unpacks to hundreds of times its size.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from cmlm.common import beam_files, beam_progress, packing, utf8
from cmlm.errors import UserError
from cmlm.preparation import raw_lines
from cmlm.preparation.layouts import bitext, text, web_archives, wikipedia
from cmlm.preparation.layouts.base import Reader, WrongFormat

# Begins the count of a file that is read up to its damage.
DAMAGED = "damaged file: "
# Begins the count of a file that is not read.
LEFT_OUT = "file left out: "

LAYOUTS: dict[str, Reader] = {
    "lines": functools.partial(text.read_plain, "lines"),
    "wrapped": functools.partial(text.read_plain, "wrapped"),
    "wikitext": functools.partial(text.read_plain, "wikitext"),
    "json": text.read_json,
    "csv": text.read_csv,
    "wet": web_archives.read,
    "wikipedia": wikipedia.read,
    "tsv": bitext.read_tsv,
    "gettext": bitext.read_gettext,
}


class OtherLayoutError(UserError):
    """The beginning of a file has another layout than the user named."""


def read(
    path: str,
    layout: str,
    counts: Counter,
    text_field: str = "text",
    progress: beam_progress.Progress | None = None,
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
            than ten, are not UTF-8 or have a NUL byte.
    """
    reader = LAYOUTS[layout]
    if layout in ("json", "csv"):
        reader = functools.partial(reader, field=text_field)
    position = -1
    of_file: Counter = Counter()
    with _opened(path) as raw:
        unpacked = raw_lines.Unpacked(raw, path, None if part else progress)
        lines = _lines(unpacked, path, layout, of_file)
        try:
            for position, document in enumerate(reader(lines, of_file)):
                if position % parts == part:
                    yield position, _without_nul(document(counts), counts)
            damage = unpacked.damage
        except raw_lines.Damaged as error:
            damage = unpacked.damage or str(error)
        except WrongFormat as error:
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
