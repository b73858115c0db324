"""Labelled texts of one's own, as `cmlm.finetune` and `cmlm.evaluate` read them.

A file is `.tsv` (tab-separated, without quoting) or `.csv`, also packed (`.gz`). Its
first line names the columns:

| columns          | content                                           |
|------------------|---------------------------------------------------|
| `text`           | a text                                            |
| `text1`, `text2` | a pair of texts, instead of `text`                |
| `label`          | its class                                         |
| `labels`         | its classes, separated by `|`, instead of `label` |
| `score`          | a number, instead of `label`                      |

Other columns are left alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cmlm.common import files, once
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import parsing

TEXTS = (("text",), ("text1", "text2"))
LABELS = ("label", "labels", "score")
SEPARATOR = "|"
# Training computes in float32.
_MOST_SCORE = float(np.finfo(np.float32).max)


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each line that is not blank.

    A blank line between others gives a warning: in a file of one column, it may stand
    for an empty text, and the predictions then have fewer lines than the file.
    """
    blank = 0
    with files.open_text(path) as lines:
        is_csv = parsing.is_csv(path)
        for number, cells in parsing.csv_rows(path, lines) if is_csv else _split(lines):
            if not cells:
                blank = blank or number
                continue
            if blank:
                once.warn(f"{path} has blank lines, line {blank} first: left out")
            yield number, cells


def _split(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each line of a `.tsv`; [] for a blank one."""
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        yield number, line.split("\t") if line else []


def _header(path: str) -> list[str]:
    _, names = next(_rows(path), (1, []))
    return [name.strip() for name in names]


def columns_of(
    path: str, allowed: Sequence[str] = LABELS
) -> tuple[tuple[str, ...], str]:
    """Finds the columns of the texts and of the label.

    Args:
        path: the file.
        allowed: the columns that a label may have.

    Raises:
        UserError: the first line does not name them.
    """
    names = _header(path)
    if not names:
        raise UserError(f"{path} is empty; allowed: a line of names, then examples")
    texts = [columns for columns in TEXTS if set(columns) <= set(names)]
    labels = [column for column in allowed if column in names]
    if len(texts) != 1 or len(labels) != 1:
        between = ""
        if len(names) == 1 and any(each in names[0] for each in ",;\t"):
            kind = "commas" if parsing.is_csv(path) else "tabs"
            between = f", with {kind} between the columns"
        wanted = ", ".join(allowed)
        if len(allowed) > 1:
            wanted = f"one of {wanted}"
        wanted = wanted.replace("labels", f"labels (separated by {SEPARATOR})")
        raise UserError(
            f"{parsing.in_words(names, path)}; allowed: text, or text1 and text2; and "
            f"{wanted}{between}"
        )
    return texts[0], labels[0]


def read(
    path: str, texts: Sequence[str], column: str, with_labels: bool = True
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yields where an example stands, its texts and its label ("" without one).

    The first quoted cell of a `.tsv` gives a warning.

    Raises:
        UserError: a column is missing, a row is not CSV, or a text or label is empty.
    """
    names = _header(path)
    wanted = [*texts, column] if with_labels else list(texts)
    places = parsing.columns(names, wanted, path)
    is_empty, may_be_quoted = True, not parsing.is_csv(path)
    for number, cells in itertools.islice(_rows(path), 1, None):
        is_empty = False
        where = f"{path}, line {number}"
        if len(cells) != len(names):
            raise UserError(
                f"{where}: {counted(len(cells), 'column')}; allowed: {len(names)}, as "
                "in line 1"
            )
        values = [cells[place].strip() for place in places]
        if may_be_quoted and any(map(_is_quoted, values)):
            once.warn(
                f"{where} is quoted as in CSV: in a .tsv, quotes are text; save the "
                "table as .csv, which may have quotes"
            )
            may_be_quoted = False
        for name, value in zip(wanted, values, strict=True):
            if not value and name != "labels":
                raise UserError(f"{where}: no {name}; allowed: one in each line")
        yield where, tuple(values[: len(texts)]), values[-1] if with_labels else ""
    if is_empty:
        raise UserError(f"{path} has no examples; allowed: at least 1")


def _is_quoted(cell: str) -> bool:
    """Whether a cell is in quotes with its own quotes doubled, as programs write it."""
    inside = cell[1:-1]
    return (
        f'"{inside}"' == cell and '""' in inside and '"' not in inside.replace('""', "")
    )


def names_of(labels: str) -> list[str]:
    """Splits the cell of several labels."""
    return [name for name in map(str.strip, labels.split(SEPARATOR)) if name]


def number_of(text: str, where: str) -> float:
    """Reads a score; raises UserError if it is not a number of float32."""
    score = parsing.parse_score(text, -math.inf, math.inf, where)
    if abs(score) > _MOST_SCORE:
        raise UserError(
            f"{where}: score {text!r}; allowed: -{_MOST_SCORE:.2g} to {_MOST_SCORE:.2g}"
        )
    return score
