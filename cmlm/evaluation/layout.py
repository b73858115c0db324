"""Lays tables out for a terminal, for Markdown and for HTML.

A table with many columns and few rows, such as 112 languages of two models, is turned:
its columns are shown as lines.
"""

from __future__ import annotations

import collections
import html
import re
from collections.abc import Iterable

from cmlm.evaluation import tables

_MOST_COLUMNS = 10
# The characters of a line in a terminal.
_WIDEST = 140
_URL = re.compile(r"https?://[^\s,;]+")


def _is_turned(table: tables.Table) -> bool:
    return len(table.columns) > max(_MOST_COLUMNS, len(table.rows))


def _turn(lines: list[list[str]]) -> list[list[str]]:
    return [list(line) for line in zip(*lines, strict=True)]


def plain(table: tables.Table, with_sources: bool = False) -> str:
    """Formats a table for a terminal: aligned numbers.

    A table that is too wide is turned. The models then have numbers, and their names
    follow the table.

    Args:
        table: the table.
        with_sources: number the sources of published rows, and list them at the end.
    """
    title, sources = table.title, table.sources if with_sources else []
    cited = {source: f" [{place}]" for place, source in enumerate(sources, 1)}
    own = shortened([row.name for row in table.rows if not row.source])
    names = [
        f"({row.name}){cited.get(row.source, '')}" if row.source else own[row.name]
        for row in table.rows
    ]
    rows = [[number_text(number) for number in row.numbers] for row in table.rows]
    text = _aligned(title, table.heads, names, rows)
    if _is_turned(table) or text.index("\n") > _WIDEST:
        marks = [str(place) for place in range(1, len(names) + 1)]
        text = _aligned(title, marks, table.heads, _turn(rows))
        for mark, name in zip(marks, names, strict=True):
            text += f"\n{mark:>4}  {name}"
    said = (f"{mark:>4} {source}" for source, mark in cited.items())
    return "\n".join([text, *said])


def _aligned(
    title: str, heads: list[str], names: list[str], rows: list[list[str]]
) -> str:
    body = ([name, *row] for name, row in zip(names, rows, strict=True))
    return plain_lines([[title, *heads], *body])


def plain_lines(lines: list[list[str]]) -> str:
    """A table of cells for a terminal; the first line holds the titles of columns."""
    first, *others = (max(map(len, column)) for column in _turn(lines))
    return "\n".join(
        "  ".join([name.ljust(first), *map(str.rjust, cells, others)])
        for name, *cells in lines
    )


def markdown(table: tables.Table) -> str:
    """Formats a table as Markdown, with the sources of published rows below.

    The best number of a column is bold.
    """
    sources = table.sources
    lines = [["", *table.heads]]
    for row in table.rows:
        name = f"**{row.name}**"
        if row.source:
            name = f"*{row.name}* [{sources.index(row.source) + 1}]"
        cells = _cells(table, row)
        lines.append([name, *(f"**{text}**" if best else text for text, best in cells)])
    if _is_turned(table):
        lines = _turn(lines)
    said = [f"- [{place}] {source}" for place, source in enumerate(sources, 1)]
    return "\n\n".join(filter(None, [markdown_lines(lines), "\n".join(said)]))


def markdown_lines(lines: list[list[str]]) -> str:
    """A Markdown table of cells; the first line holds the titles of the columns."""
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    # As it is, `<` in a model's name would begin an HTML tag.
    cells = [
        [html.escape(cell, quote=False).replace("|", "\\|") for cell in line]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:]))


def html_table(table: tables.Table) -> str:
    """A table as HTML, with the sources of published rows below.

    The best number of a column is bold.
    """
    sources = table.sources
    rows = [["<th>", *(f"<th>{html.escape(head)}" for head in table.heads)]]
    for row in table.rows:
        kind, label = "", html.escape(row.name)
        if row.source:
            kind = " class=published"
            label += f" <sup>[{sources.index(row.source) + 1}]</sup>"
        cells = [
            f"<td{kind}>{f'<b>{text}</b>' if is_best else text}"
            for text, is_best in _cells(table, row)
        ]
        rows.append([f"<th{kind}>{label}", *cells])
    if _is_turned(table):
        rows = _turn(rows)
    return html_lines(rows) + _sources_html(sources)


def html_lines(lines: list[list[str]]) -> str:
    """A table of cells in HTML; the first line holds the titles of the columns."""
    head, *body = (f"<tr>{''.join(line)}" for line in lines)
    table = f"<table><thead>{head}<tbody>{''.join(body)}</table>"
    return f"<div class=scroll>{table}</div>"


def _cells(table: tables.Table, row: tables.TableRow) -> list[tuple[str, bool]]:
    """The numbers of a row, and whether each is the best of its column.

    Published numbers are not ranked.
    """
    return [
        (number_text(number), not row.source and table.is_best(place, number))
        for place, number in enumerate(row.numbers)
    ]


def _sources_html(sources: list[str]) -> str:
    said = (
        f"[{place}] " + _URL.sub(r'<a href="\g<0>">\g<0></a>', html.escape(source))
        for place, source in enumerate(sources, 1)
    )
    return f"<p class=note>{'<br>'.join(said)}</p>" if sources else ""


def shortened(names: Iterable[str], width: int = 34) -> dict[str, str]:
    """Cuts the start of long model names, because names differ at their end.

    A name stays whole if another one has the same end.
    """
    cut = {name: _cut(name, width) for name in names}
    count = collections.Counter(cut.values())
    return {name: end if count[end] == 1 else name for name, end in cut.items()}


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    prefix = re.match(r"[a-z]+:(?!//)", name)
    start = (prefix.group() if prefix else "") + "…"
    return start + name[len(start) - width :]


def number_text(number: float | None) -> str:
    """A number with two decimals; empty for None."""
    return "" if number is None else f"{number:.2f}"
