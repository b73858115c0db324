"""Parses and checks the content of test sets: rows, columns, labels and scores."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cmlm.common import path_names
from cmlm.common.counts import counted
from cmlm.errors import UserError, listed, shown

# A cell of CSV with quotes.
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')


def short_names(paths: Sequence[str]) -> list[str]:
    """The names of files without folders, or the paths if these names repeat."""
    names = [os.path.basename(path) for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def names_of_files(files: Sequence[tuple[str, str]]) -> list[str]:
    """Different names of files: their languages, or else their `short_names`.

    Args:
        files: the path and the language of each file; "" for an unknown language.

    Raises:
        UserError: two files have one language.
    """
    languages = [language for _, language in files]
    if not all(languages):
        return short_names([path for path, _ in files])
    if len(set(languages)) < len(languages):
        raise UserError(
            f"the languages of the files are {', '.join(languages)}; allowed: one "
            "file a language"
        )
    return languages


def is_csv(path: str) -> bool:
    """Whether a file's name says that commas, and not tabs, separate its columns."""
    return path_names.unpacked(path).lower().endswith(".csv")


def csv_rows(
    path: str, lines: Iterable[str], delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line's number and the cells of each row, quoted with `"`.

    Args:
        path: the file, for messages.
        lines: its lines, with their line ends.
        delimiter: the character between cells.

    Raises:
        UserError: a row is not CSV. A quote that nothing closes is one such damage:
            the row would swallow all later rows.
    """
    table = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = table.line_num + 1
        try:
            cells = next(table, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {number}: {error}; allowed: CSV with each quote closed, "
                "line breaks in quotes only, and cells of at most "
                f"{csv.field_size_limit():,} characters"
            ) from error
        if cells is None:
            return
        yield number, cells


def unquoted(rows: list[list[str]]) -> list[list[str]]:
    """Removes the quotes of CSV from a file in which every quote belongs to them.

    Some copies of a tab-separated set write `"a ""word"" here"`, others leave the cells
    plain.
    """
    if not all(_QUOTED.fullmatch(cell) for row in rows for cell in row if '"' in cell):
        return rows
    return [
        [cell[1:-1].replace('""', '"') if '"' in cell else cell for cell in row]
        for row in rows
    ]


def check_columns(
    path: str,
    numbered: Iterable[tuple[int, list[str]]],
    columns: int,
    or_more: bool = False,
) -> None:
    """Checks the number of columns of rows.

    Args:
        path: the file, for the message.
        numbered: the number of each row's line, and its cells.
        columns: the number of columns.
        or_more: whether further columns are allowed.

    Raises:
        UserError: a row has another number of columns.
    """
    for number, row in numbered:
        if len(row) < columns or (len(row) > columns and not or_more):
            wanted = f"at least {columns}" if or_more else f"{columns}"
            raise UserError(
                f"{path}, line {number}: {counted(len(row), 'column')}; allowed: "
                f"{wanted}"
            )


def columns(head: Sequence[str], names: Sequence[str], path: str) -> list[int]:
    """Finds named columns in a file's first line.

    Args:
        head: the cells of the line.
        names: the wanted names.
        path: the file, for the message.

    Returns:
        The place of each name in `head`.

    Raises:
        UserError: a name is missing or occurs twice.
    """
    if not set(names) <= set(head):
        raise UserError(f"{in_words(head, path)}; allowed: {', '.join(names)}")
    for name in names:
        if head.count(name) > 1:
            raise UserError(
                f"{path}, line 1 has {counted(head.count(name), 'column')} {name!r}; "
                "allowed: one"
            )
    return [head.index(name) for name in names]


def in_words(head: Sequence[str], path: str) -> str:
    """Begins a message with the columns of a file's first line, which may be long."""
    found = listed([shown(name) for name in head]) or "none"
    return f"{path}, line 1 has the columns {found}"


def check_line_counts(columns: Mapping[str, Sequence[str]]) -> None:
    """Checks that files have the same number of lines.

    Args:
        columns: the lines of each file, by path.

    Raises:
        UserError: a file has fewer lines than another.
    """
    counts = {path: len(lines) for path, lines in columns.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(
            f"{path} {counted(count, 'line')}" for path, count in counts.items()
        )
        raise UserError(f"not line by line: {said}; allowed: equal numbers of lines")


def check_parallel(columns: Mapping[str, Sequence[str]]) -> None:
    """Checks that files correspond line by line.

    Args:
        columns: the lines of each file, by path.

    Raises:
        UserError: a file has fewer lines than another, or a blank line.
    """
    check_line_counts(columns)
    for path, lines in columns.items():
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise UserError(f"{path}, line {number} is blank; allowed: text")


def pair_place(path: str, number: int) -> str:
    """The place of a pair in a file without a header line, for messages."""
    header = " (a header line is not allowed)" if number == 1 else ""
    return f"{path}, pair {number}{header}"


def parse_label(text: str, allowed: Mapping[str, int], where: str) -> int:
    """Parses a label into its class.

    Raises:
        UserError: the label is unknown.
    """
    if text not in allowed:
        raise UserError(f"{where}: label {shown(text)}; allowed: {listed([*allowed])}")
    return allowed[text]


def parse_score(text: str, lowest: float, highest: float, where: str) -> float:
    """Parses a gold score; without limits, `lowest` and `highest` are infinite.

    Raises:
        UserError: the text is not a finite number from `lowest` to `highest`.
    """
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not (lowest <= score <= highest and math.isfinite(score)):
        limited = math.isfinite(highest - lowest)
        allowed = f"{lowest:g} to {highest:g}" if limited else "a number"
        raise UserError(f"{where}: score {text!r}; allowed: {allowed}")
    return score
