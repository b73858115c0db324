"""Bitext: translation pairs as lines of tab-separated text, `source<TAB>target`.

Further columns are hard negatives: texts that resemble the target but do not translate
the source (LaBSE, appendix B). Every line of a language pair has the same number of
columns as the pair's first good line; language pairs may differ.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import ClassVar

import tensorflow as tf

from cmlm.common import fields, language_names
from cmlm.common import files as files_lib
from cmlm.common.counts import counted
from cmlm.common.utf8 import BLANK
from cmlm.data import languages, line_files, streams
from cmlm.data.inspection import share_read, warn_of_carriage_return
from cmlm.data.settings import DataConfig, Inspected
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
# Lines that tell the columns of a file.
_FIRST_LINES = 1_000
# Remote files take long to open.
_OPEN_AT_ONCE = 16
_LINES_OF_LATER_FILES = 100
# So many pairs have different sources and targets.
_MANY_PAIRS = 100
# A larger share of pairs with equal sides gets a warning.
_NEARLY_ALL = 0.9


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
    # The name of such data, and the form of its lines, for messages.
    kind: ClassVar[str] = "bitext"
    form: ClassVar[str] = "source<TAB>target"
    # Whether a name stands for the languages of two columns.
    names_pairs: ClassVar[bool] = True

    @property
    def accepted(self) -> str:
        return f"files of lines {self.form}"

    def load(self, work_dir, reads_documents=True):
        for name in languages.split(self.input_path) if self.names_pairs else ():
            # A single name would pass for the language of both columns.
            if name and not language_names.sides(name)[1]:
                raise UserError(
                    f"the language of {self.kind} is {name!r}; allowed: a pair, as in "
                    "en-de=FILES, or none"
                )
        return super().load(work_dir, reads_documents)

    def _inspect(self, files, reads_documents):
        report = inspect(files, kind=self.kind, form=self.form)
        return Inspected(report.estimated_pairs(), str(report))


@dataclasses.dataclass
class PairDataConfig(BitextDataConfig):
    """Queries and passages to train on, `.tsv` or `.tsv.gz`, in the form of bitext."""

    flag, validation_flag = "pair_data", "pair_validation_data"
    kind, form = "pair data", "query<TAB>passage"
    names_pairs = False


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
        first_bad: path and number of the first bad line.
        without_letter: by column, the number of cells without a letter, as a score.
        first_without: by column, path and number of the first such cell's line.
        headers: files whose first line names columns.
        constant: by column, the cell that all good lines have in common.
        equal_sides: number of good lines whose first two columns are equal.
        carriage_return: path and number of the first line with one inside.
    """

    files: int = 0
    columns: int = 0
    pairs: int = 0
    wrong_columns: int = 0
    empty_sides: int = 0
    share: float = 1.0
    first_bad: tuple[str, int] | None = None
    without_letter: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    first_without: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    headers: list[str] = dataclasses.field(default_factory=list)
    constant: dict[int, str] = dataclasses.field(default_factory=dict)
    equal_sides: int = 0
    carriage_return: tuple[str, int] | None = None

    def estimated_pairs(self) -> int:
        """Estimates the pairs of the whole corpus from the part that was read."""
        return round(self.pairs / self.share)

    @property
    def bad(self) -> int:
        return self.wrong_columns + self.empty_sides

    @property
    def lines(self) -> int:
        return self.pairs + self.bad

    def __str__(self) -> str:
        text = f"{counted(self.files, 'file')}, {counted(self.pairs, 'pair')}"
        if self.columns > 2:
            text += f" with {counted(self.columns - 2, 'hard negative')} each"
        if self.bad:
            text += (
                f"; left out: {counted(self.wrong_columns, 'line')} without "
                f"{self.columns} columns, {counted(self.empty_sides, 'line')} with an "
                "empty column"
            )
        if self.share < 1:
            text += f"; counted in the first {self.lines:,} lines only"
        return text


def count_columns(files: list[str]) -> int:
    """Returns the number of columns of the first good line.

    A good line has at least two columns, and all of them have text. The result is 0 if
    the first 1,000 lines of each file contain no good line.
    """
    return next((len(row) for path in files for row in first_rows(path)), 0)


def first_rows(path: str) -> Iterator[list[str]]:
    """Yields the cells of the good lines among the first 1,000 of a file."""
    with files_lib.open_text(path, for_tensorflow=True) as lines:
        for line in itertools.islice(lines, _FIRST_LINES):
            cells = [cell.strip(BLANK) for cell in line.rstrip("\r\n").split("\t")]
            if len(cells) >= 2 and all(cells):
                yield cells


def inspect(
    files: list[str],
    max_lines: int = _LINES_TO_INSPECT,
    kind: str = BitextDataConfig.kind,
    form: str = BitextDataConfig.form,
) -> BitextReport:
    """Counts pairs and bad lines.

    Args:
        files: paths of TSV files.
        max_lines: lines to read at most.
        kind, form: the name of such data and the form of its lines, for messages.

    Raises:
        UserError: no line is good, more than MAX_BAD_SHARE of the lines are bad, most
            cells of a column have no letter, as a column of scores, all cells of the
            first or second column are equal, as a column of language codes, or most of
            the first lines of a file behind `max_lines` are bad.
    """
    report, size = BitextReport(columns=count_columns(files)), 0
    for path in files:
        if report.lines >= max_lines:
            break
        report.files += 1
        size = _read(path, report, max_lines)
    if report.lines >= max_lines:
        report.share = share_read(files, report.files, size)
    warn_of_carriage_return(report.carriage_return)
    if report.headers:
        logger.warning(
            "%s line 1 names columns, and counts as a pair (files with such a line:"
            " %d); remove it",
            report.headers[0],
            len(report.headers),
        )
    if not report.pairs:
        raise UserError(
            f"{kind} {files[0]} has no line of the form {form}; allowed: two"
            " or more columns, none empty"
        )
    _refuse_bad_lines(report, kind)
    _refuse_numbers(report, kind, form)
    _refuse_constant(report, kind, form)
    _refuse_other_columns(files[report.files :], report.columns, kind)
    if report.equal_sides > _NEARLY_ALL * report.pairs:
        logger.warning(
            "%s %s: the first two columns are equal in %s of %s lines; %s should be two"
            " texts",
            kind,
            files[0],
            f"{report.equal_sides:,}",
            f"{report.pairs:,}",
            form,
        )
    return report


def _read(path: str, report: BitextReport, max_lines: int) -> int:
    """Adds a file to a report, up to its number of lines; returns the bytes read."""
    size = 0
    with files_lib.open_text(path, for_tensorflow=True) as lines:
        for number, line in enumerate(lines, 1):
            size += len(line.encode())
            text = line.rstrip("\r\n")
            if not report.carriage_return and "\r" in text:
                report.carriage_return = path, number
            cells = text.split("\t")
            if cells == [""]:
                continue
            if number == 1 and _is_header(cells):
                report.headers.append(path)
            _add(cells, (path, number), report)
            if report.lines >= max_lines:
                break
    return size


def _add(cells: list[str], place: tuple[str, int], report: BitextReport) -> None:
    """Adds a line to a report."""
    if len(cells) != report.columns:
        report.wrong_columns += 1
        report.first_bad = report.first_bad or place
    elif not all(cell.strip(BLANK) for cell in cells):
        report.empty_sides += 1
        report.first_bad = report.first_bad or place
    else:
        if not report.pairs:
            report.constant = dict(enumerate(cells, 1))
        for column, cell in [*report.constant.items()]:
            if cells[column - 1] != cell:
                del report.constant[column]
        report.pairs += 1
        report.equal_sides += cells[0].strip(BLANK) == cells[1].strip(BLANK)
        for column, cell in enumerate(cells, 1):
            if not any(map(str.isalpha, cell)):
                report.without_letter[column] += 1
                report.first_without.setdefault(column, place)


def _refuse_bad_lines(report: BitextReport, kind: str) -> None:
    """Raises UserError if more than MAX_BAD_SHARE of the lines are bad."""
    if report.bad > MAX_BAD_SHARE * report.lines:
        raise UserError(
            f"{report.bad:,} of {report.lines:,} lines of {kind} do not have"
            f" {report.columns} columns with text, as the first line has;"
            f" {_named(report.first_bad)} is the first of them; allowed: at most"
            f" {MAX_BAD_SHARE:.0%} of the lines"
        )


def _refuse_other_columns(files: Sequence[str], columns: int, kind: str) -> None:
    """Raises UserError for a file of which training would read hardly a line.

    Args:
        files: the files that the inspection has not opened.
        columns: the number of columns of a good line.
        kind: the name of such data, for messages.
    """

    def begin(path: str) -> BitextReport:
        report = BitextReport(columns=columns)
        _read(path, report, _LINES_OF_LATER_FILES)
        return report

    with concurrent.futures.ThreadPoolExecutor(_OPEN_AT_ONCE) as threads:
        for path, report in zip(files, threads.map(begin, files), strict=True):
            if report.bad > report.pairs:
                threads.shutdown(wait=False, cancel_futures=True)
                raise UserError(
                    f"{report.bad:,} of the first {report.lines:,} lines of {kind} "
                    f"{path} do not have {columns} columns with text; allowed: "
                    f"{columns} columns in every file"
                )


def _refuse_numbers(report: BitextReport, kind: str, form: str) -> None:
    """Raises UserError if most cells of a column have no letter."""
    text = [
        column
        for column in range(1, report.columns + 1)
        if 2 * report.without_letter[column] <= report.pairs
    ]
    for column, place in sorted(report.first_without.items()):
        if column not in text:
            raise UserError(
                f"column {column} of {kind} holds numbers, not text, {_named(place)}"
                f" first; allowed: {form} and hard negatives{_cut(text)}"
            )


def _refuse_constant(report: BitextReport, kind: str, form: str) -> None:
    """Raises UserError if many lines have the same first or second text."""
    column, cell = min(report.constant.items(), default=(0, ""))
    if column in (1, 2) and report.pairs >= _MANY_PAIRS:
        text = [
            column
            for column in range(1, report.columns + 1)
            if column not in report.constant
        ]
        raise UserError(
            f"column {column} of {kind} is {cell[:40]!r} in all {report.pairs:,} lines;"
            f" allowed: {form} and hard negatives, in different texts{_cut(text)}"
        )


def _cut(columns: Sequence[int]) -> str:
    """The command that keeps some columns, for a message; empty for a single column."""
    if len(columns) < 2:
        return ""
    return f" (`cut -f{','.join(map(str, columns))} OLD > NEW`)"


def _named(place: tuple[str, int]) -> str:
    path, number = place
    return f"{path} line {number}"


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
        chosen = streams.rows_in_buckets(table[:, 0], buckets)
        return tuple(tf.unstack(tf.boolean_mask(table, chosen), num=columns, axis=1))

    def read(path, unpacked_length, buckets):
        lines = line_files.read(path, unpacked_length)
        return lines.map(lambda lines: split(lines, buckets)).unbatch()

    return streams.traced_once(read)
