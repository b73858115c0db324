"""Lines of UTF-8 text; text in another encoding is refused or named."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO

from cmlm.common import once
from cmlm.errors import UserError

# Every web corpus has some broken bytes. A larger share of lines means another
# encoding, unless the lines are few.
_MAX_INVALID_SHARE = 0.1
_FEW_INVALID = 10
_CURE = (
    "`iconv -f LATIN1 -t UTF-8 OLD > NEW` converts Western European text, LATIN5 "
    "Turkish, CP1251 Russian, GB18030 Chinese"
)
# iconv would turn the good lines into other letters.
_CURE_OF_MIXED = (
    "the lines mix encodings: convert only the invalid ones, "
    "`LC_ALL=C.UTF-8 grep -anxv '.*' FILE` lists them"
)
# Short lines in Chinese encodings may be valid by chance.
_MIN_VALID_SHARE = 0.1
# A file of several that were joined has a byte order mark inside, too.
MARK = "\ufeff"
# The characters that tf.strings.strip removes: every reader treats the same lines and
# cells as blank as the training pipeline. A no-break space is text.
BLANK = " \t\n\v\f\r"
# Stands for invalid bytes until its line is counted: no UTF-8 decodes to it.
_INVALID, _REPLACED = "\udcff", "\ufffd"
codecs.register_error("cmlm.invalid", lambda error: (_INVALID, error.end))


def refuse_utf16(path: str, begin: bytes) -> None:
    """Raises UserError if the first bytes of a file are the mark of UTF-16."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{path} is UTF-16; allowed: UTF-8, as `iconv -f UTF-16 -t UTF-8 OLD > NEW`"
            " writes it"
        )


def nul_byte(path: str, number: int) -> UserError:
    """Returns the error for a line with a NUL byte."""
    return UserError(f"{path} is not text: line {number} has a NUL byte")


def refuse_other_encoding(
    name: str, invalid: int, lines: int, first: int = 0, not_ascii: int = 0
) -> None:
    """Raises UserError if text has so many invalid lines that it is not UTF-8.

    Args:
        name: the file, or the flag of several files.
        invalid: number of its lines with invalid bytes.
        lines: number of all its lines.
        first: number of the first invalid line; 0 for several files.
        not_ascii: number of its lines with other bytes than ASCII; 0 for several files.
    """
    if _too_many(invalid, lines):
        mixed = not_ascii - invalid > _MIN_VALID_SHARE * not_ascii
        where = f", line {first} first" if first else ""
        raise UserError(
            f"{name} is not UTF-8: {invalid:,} of its {lines:,} lines have invalid"
            f" bytes{where}; {_CURE_OF_MIXED if mixed else _CURE}"
        )


def refuse_nul_bytes(name: str, with_nul: int, lines: int) -> None:
    """Raises UserError if text has so many lines with a NUL byte that it is UTF-16.

    UTF-16 needs no mark at its beginning.

    Args:
        name: the file, or the flag of several files.
        with_nul: number of its lines with a NUL byte.
        lines: number of all its lines.
    """
    if _too_many(with_nul, lines):
        raise UserError(
            f"{name} is not UTF-8: {with_nul:,} of its {lines:,} lines have a NUL byte;"
            " `iconv -f UTF-16LE -t UTF-8 OLD > NEW` converts UTF-16 of Windows,"
            " UTF-16BE the other byte order"
        )


def _too_many(faulty: int, lines: int) -> bool:
    return faulty > max(_MAX_INVALID_SHARE * lines, _FEW_INVALID)


class Lines(io.TextIOWrapper):
    """Lines of UTF-8 text, with a limit on their length and on the invalid ones.

    An endless line cannot fill memory, and text in another encoding does not pass. A
    byte order mark before a line is left out.

    Attributes:
        number: number of lines so far.
        invalid: number of those with invalid bytes.
    """

    def __init__(self, stream: BinaryIO, path: str, limit: int):
        super().__init__(stream, "utf-8-sig", "cmlm.invalid", newline="\n")
        self._path, self._limit = path, limit
        self.number = self.invalid = self._first_invalid = self._not_ascii = 0

    def read(self, size: int = -1) -> str:
        return super().read(size).replace(_INVALID, _REPLACED)

    def __next__(self) -> str:
        line = self.readline(self._limit + 1)
        if not line:
            self.check_encoding()
            raise StopIteration
        self.number += 1
        if len(line) > self._limit and not line.endswith("\n"):
            raise UserError(
                f"{self._path} line {self.number} is longer than {self._limit:,} "
                "characters, the limit (python -m cmlm.prepare splits text into "
                "sentences)"
            )
        if "\0" in line:
            raise nul_byte(self._path, self.number)
        if _INVALID in line:
            self.invalid += 1
            self._first_invalid = self._first_invalid or self.number
            line = line.replace(_INVALID, _REPLACED)
        line = line.removeprefix(MARK)
        self._not_ascii += not line.isascii()
        return line

    def check_encoding(self) -> None:
        """Refuses, or warns of, the lines so far with invalid bytes.

        The last line does so. A reader that stops earlier calls this method.
        """
        if not self.invalid:
            return
        refuse_other_encoding(
            self._path,
            self.invalid,
            self.number,
            self._first_invalid,
            self._not_ascii,
        )
        # Many files are read twice.
        once.warn(
            f"{self._path} is UTF-8 in part: {self.invalid:,} of its "
            f"{self.number:,} lines have invalid bytes, line {self._first_invalid} "
            "first"
        )
