"""Bitext: translation pairs as lines of tab-separated text, `source<TAB>target`.

Further columns are hard negatives: texts that resemble the target but do not translate
the source (LaBSE, appendix B). Every line of a language pair has the same number of
columns as the pair's first good line; language pairs may differ.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from typing import ClassVar

import tensorflow as tf

from cmlm.common import fields
from cmlm.common import files as files_lib
from cmlm.common.counts import counted
from cmlm.data import line_files, streams
from cmlm.data.corpus import DataConfig, Inspected
from cmlm.data.inspection import share_read
from cmlm.errors import UserError

logger = logging.getLogger(__name__)

# The names of a header's first two columns.
_HEADERS = (
    ("query", "passage"),
    ("anchor", "positive"),
    ("source", "target"),
    ("sentence1", "sentence2"),
)
# A larger share of bad lines means that the file has another format.
MAX_BAD_SHARE = 0.01
_LINES_TO_INSPECT = 2_000_000


@dataclasses.dataclass
class BitextDataConfig(DataConfig):
    """Bitext to train on, `.tsv` or `.tsv.gz`.

    `input_path` may name pairs of languages: `en-de=FILES,en-fr=FILES`.

    The default shuffle buffer is larger than for text, since bitext files are often
    sorted by length or score. With 700,000 pairs it takes 0.45 GB and 4 s more than a
    buffer of 100,000.
    """

    shuffle_buffer_size: int = fields.ranged(1_000_000, at_least=1)

    flag = "bitext_data"
    accepted = "files of lines source<TAB>target"
    # The name of such data, and its columns, for messages.
    kind: ClassVar[str] = "bitext"
    columns: ClassVar[str] = "source<TAB>target"

    def _resolve(self, language, patterns, work_dir):
        return files_lib.expand(patterns)

    def _inspect(self, files):
        report = inspect(files, kind=self.kind, columns=self.columns)
        return Inspected(report.estimated_pairs(), str(report))


@dataclasses.dataclass
class PairDataConfig(BitextDataConfig):
    """Queries and passages to train on, `.tsv` or `.tsv.gz`, in the form of bitext."""

    flag, validation_flag = "pair_data", "pair_validation_data"
    accepted = "files of lines query<TAB>passage"
    kind, columns = "pair data", "query<TAB>passage"


@dataclasses.dataclass
class BitextReport:
    """The size of a bitext and its faults.

    Attributes:
        files: number of files read.
        columns: number of columns in a good line.
        pairs: number of good lines.
        wrong_columns: number of lines with another number of columns.
        empty_sides: number of lines with an empty column.
        share: bytes read as a share of all bytes on disk.
    """

    files: int = 0
    columns: int = 0
    pairs: int = 0
    wrong_columns: int = 0
    empty_sides: int = 0
    share: float = 1.0

    def estimated_pairs(self) -> int:
        """Estimates the pairs of the whole corpus from the part that was read."""
        return round(self.pairs / self.share)

    @property
    def bad(self) -> int:
        return self.wrong_columns + self.empty_sides

    def __str__(self) -> str:
        text = f"{counted(self.files, 'file')}, {counted(self.pairs, 'pair')}"
        if self.columns > 2:
            text += f" with {self.columns - 2} hard negatives each"
        if self.bad:
            text += (
                f"; left out: {counted(self.wrong_columns, 'line')} without "
                f"{self.columns} columns, {counted(self.empty_sides, 'line')} with an "
                "empty column"
            )
        if self.share < 1:
            text += f"; counted in the first {self.pairs + self.bad:,} lines only"
        return text


def count_columns(files: list[str]) -> int:
    """Returns the number of columns of the first good line.

    A good line has at least two columns, and all of them have text. The result is 0 if
    the first 1,000 lines of each file contain no good line.
    """
    for path in files:
        with files_lib.open_text(path, for_tensorflow=True) as lines:
            for line in itertools.islice(lines, 1000):
                cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
                if len(cells) >= 2 and all(cells):
                    return len(cells)
    return 0


def inspect(
    files: list[str],
    max_lines: int = _LINES_TO_INSPECT,
    kind: str = BitextDataConfig.kind,
    columns: str = BitextDataConfig.columns,
) -> BitextReport:
    """Counts pairs and bad lines.

    Args:
        files: paths of TSV files.
        max_lines: lines to read at most.
        kind, columns: the name of such data and its first two columns, for messages.

    Raises:
        UserError: no line is good, more than MAX_BAD_SHARE of the lines are bad, or
            most cells of a column have no letter, as a column of scores.
    """
    report = BitextReport(columns=count_columns(files))
    first_bad, seen, size = "", 0, 0
    # By column: the cells without a letter, and the place of the first one.
    without_letter = [0] * report.columns
    first_without = [""] * report.columns
    headers: list[str] = []
    for path in files:
        if seen >= max_lines:
            break
        report.files += 1
        size = 0
        with files_lib.open_text(path, for_tensorflow=True) as lines:
            for number, line in enumerate(lines, 1):
                size += len(line.encode())
                cells = line.rstrip("\r\n").split("\t")
                if cells == [""]:
                    continue
                if number == 1 and _is_header(cells):
                    headers.append(path)
                seen += 1
                good = len(cells) == report.columns and all(map(str.strip, cells))
                if good:
                    report.pairs += 1
                    for column, cell in enumerate(cells):
                        if not any(map(str.isalpha, cell)):
                            without_letter[column] += 1
                            first_without[column] = (
                                first_without[column] or f"{path} line {number}"
                            )
                elif len(cells) != report.columns:
                    report.wrong_columns += 1
                    first_bad = first_bad or f"{path} line {number}"
                else:
                    report.empty_sides += 1
                    first_bad = first_bad or f"{path} line {number}"
                if seen >= max_lines:
                    break
    if seen >= max_lines:
        report.share = share_read(files, report.files, size)
    if headers:
        logger.warning(
            "%s line 1 names columns, and counts as a pair (files with such a line:"
            " %d); remove it",
            headers[0],
            len(headers),
        )
    if not report.pairs:
        raise UserError(
            f"{kind} {files[0]} has no line of the form {columns}; allowed: two"
            " or more columns, none empty"
        )
    if report.bad > MAX_BAD_SHARE * seen:
        raise UserError(
            f"{report.bad:,} of {seen:,} lines of {kind} do not have"
            f" {report.columns} columns with text, {first_bad} first; allowed: at most"
            f" {MAX_BAD_SHARE:.0%}, as every line needs as many columns as the first:"
            f" {report.columns}"
        )
    text = [str(1 + i) for i, n in enumerate(without_letter) if 2 * n <= report.pairs]
    for column, place in enumerate(first_without, 1):
        if str(column) not in text:
            cut = f" (`cut -f{','.join(text)} OLD > NEW`)" if len(text) > 1 else ""
            raise UserError(
                f"column {column} of {kind} holds numbers, not text, {place} first;"
                f" allowed: {columns} and hard negatives{cut}"
            )
    return report


def _is_header(cells: list[str]) -> bool:
    return tuple(cell.strip().lower() for cell in cells[:2]) in _HEADERS


def rows(portion: streams.Portion, *, columns: int | None = None) -> tf.data.Dataset:
    """Returns the good lines of a bitext, in one streamed pass.

    A fingerprint of the source decides whether a line is held out, so all translations
    of a text belong to the same part.

    Args:
        portion: the TSV files to read, all with the same number of columns.
        columns: number of columns to return, at least 2; surplus columns are left out,
            and missing columns are "". None returns the columns of the files.

    Returns:
        Dataset of tuples of string [], one for each column.
    """
    own = count_columns(portion.files)
    return streams.read_files(portion, _row_reader(own, columns or own))


@functools.cache
def _row_reader(own: int, columns: int) -> streams.Reader:
    """Returns a reader of files with `own` columns as tuples of `columns` strings."""

    def split(lines, buckets):
        cells = tf.strings.split(lines, "\t")
        values = tf.strings.substr(cells.values, 0, streams.MAX_SENTENCE_BYTES)
        cells = cells.with_values(tf.strings.strip(values))
        shortest = tf.reduce_min(tf.strings.length(cells), axis=1)
        good = (cells.row_lengths() == own) & (shortest > 0)
        # Cuts surplus columns and fills missing ones with "".
        table = tf.ragged.boolean_mask(cells, good).to_tensor(shape=[None, columns])
        document = tf.strings.to_hash_bucket_fast(table[:, 0], 1 << 62)
        line_in_document = tf.zeros_like(document, tf.int32)
        chosen = streams.in_buckets(document, line_in_document, buckets)
        return tuple(tf.unstack(tf.boolean_mask(table, chosen), num=columns, axis=1))

    def read(path, unpacked_length, buckets):
        lines = line_files.read(path, unpacked_length)
        return lines.map(lambda lines: split(lines, buckets)).unbatch()

    return streams.traced_once(read)
