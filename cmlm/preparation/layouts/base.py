"""The values and the errors of a reader of a layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

# As many records tell whether a file has a layout.
_RECORDS_TO_TRY = 100
# A document is a function that counts problems and returns its lines. If several
# workers read one file, each worker builds only its own documents.
Document = Callable[[Counter], list[str]]
# From the lines of a file (`raw_lines.Lines`) and the counts of the file; `json` and
# `csv` also take the `field` of the text.
Reader = Callable[..., Iterator[Document]]


class WrongFormat(Exception):
    """A file does not have the layout that the user named."""


class Trial:
    """Finds a file of another layout by its first records: none of them fits.

    The first record alone may be a comment, or have no text.

    Attributes:
        passed: whether a record fits; the reader sets it.
    """

    def __init__(self):
        self.passed, self._faults, self._first = False, 0, ""

    def failed(self, fault: str) -> None:
        """Counts a record that does not fit.

        Raises:
            WrongFormat: none of the first `_RECORDS_TO_TRY` fits.
        """
        self._first = self._first or fault
        self._faults += 1
        if self._faults >= _RECORDS_TO_TRY:
            self.end()

    def end(self) -> None:
        """Raises WrongFormat if there were records and none of them fits."""
        if self._faults and not self.passed:
            raise WrongFormat(self._first)


def as_it_is(lines: list[str]) -> Document:
    """A document without problems."""
    return lambda _: lines


def nonempty(text: str) -> list[str]:
    """The lines of a text that are not blank, stripped."""
    return [line for line in map(str.strip, text.split("\n")) if line]
