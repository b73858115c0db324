"""Plain text, JSON lines and CSV."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Iterator

from cmlm.data import sentences
from cmlm.preparation import raw_lines
from cmlm.preparation.layouts.base import (
    Document,
    Trial,
    WrongFormat,
    as_it_is,
    nonempty,
)

# Between the cells of a CSV.
_DELIMITERS = ",;\t"


def read_plain(
    layout: str, lines: raw_lines.Lines, counts: Counter
) -> Iterator[Document]:
    """Reads plain text of a layout of `sentences.paragraphs`."""
    document: list[str] = []
    size = 0
    for paragraph in sentences.paragraphs(lines, layout):
        if paragraph is not None:
            document.append(paragraph)
            size += len(paragraph)
        if document and (paragraph is None or size > raw_lines.MAX_BYTES):
            if paragraph is not None:
                counts["documents cut"] += 1
            yield as_it_is(document)
            document, size = [], 0
    if document:
        yield as_it_is(document)


def read_json(
    lines: raw_lines.Lines, counts: Counter, field: str
) -> Iterator[Document]:
    """Reads lines of JSON; the text of each is a document."""
    trial = Trial()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            trial.failed(f"line {number} is not JSON ({error})")
            counts["no JSON"] += 1
            continue
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            trial.failed(f"line {number} {_without_text(record, field)}")
            counts[f"no text {field!r}"] += 1
            continue
        trial.passed = True
        # JSON can hold halves of surrogate pairs, which UTF-8 cannot encode.
        text = record[field].encode("utf-8", "replace").decode("utf-8")
        yield as_it_is(nonempty(text))
    trial.end()


def _without_text(record: object, field: str) -> str:
    """Says what a record of JSON has in the place of a text."""
    if isinstance(record, dict) and field in record:
        return f"has {field!r}: {json.dumps(record[field])[:40]}, which is not text"
    names = ", ".join(record) if isinstance(record, dict) else "none"
    return f"has no text {field!r}; its fields: {names}"


def read_csv(lines: raw_lines.Lines, counts: Counter, field: str) -> Iterator[Document]:
    """Reads rows of cells behind a first line of names; each row is a document."""
    text = iter(lines)
    delimiter, names = _columns(next(text, ""), field)
    column = names.index(field)
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        # Python's own limit, 131,072 characters, is shorter than many articles. It is
        # the whole process's.
        usual = csv.field_size_limit(raw_lines.MAX_BYTES)
        try:
            cells = next(rows, None)
        except csv.Error as error:
            if "field larger" in str(error):
                # The reader would go on in the middle of the cell.
                raise raw_lines.Damaged(
                    f"a cell is larger than {raw_lines.MAX_BYTES >> 20} MB"
                ) from error
            counts["row that is not CSV"] += 1
            continue
        finally:
            csv.field_size_limit(usual)
        if cells is None:
            return
        if len(cells) == len(names):
            yield as_it_is(nonempty(cells[column]))
        elif cells:
            counts[f"row without {len(names)} cells"] += 1


def _columns(head: str, field: str) -> tuple[str, list[str]]:
    """The delimiter of a CSV and the names of its columns, from its first line.

    Spreadsheets separate cells by semicolons where a comma is the decimal point.

    Raises:
        WrongFormat: no column has the name `field`.
    """
    found = []
    for delimiter in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            names = next(csv.reader([head], delimiter=delimiter, strict=True), [])
            if field in names:
                return delimiter, names
            found.append(names)
    names = max(found, key=len, default=[])
    raise WrongFormat(
        f"line 1 has no column {field!r}; its columns: {', '.join(names)}"
    )
