"""The values and the errors of a reader of a layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from cmlm.preparation import raw_lines

# A document is a function that counts problems and returns its lines. If several
# workers read one file, each worker builds only its own documents.
Document = Callable[[Counter], list[str]]
# From the lines of a file, the field of the text and the counts of the file.
Reader = Callable[[raw_lines.Lines, str, Counter], Iterator[Document]]


class WrongFormat(Exception):
    """A file does not have the layout that the user named."""


def as_it_is(lines: list[str]) -> Document:
    """A document without problems."""
    return lambda _: lines


def nonempty(text: str) -> list[str]:
    """The lines of a text that are not blank, stripped."""
    return [line for line in map(str.strip, text.split("\n")) if line]
