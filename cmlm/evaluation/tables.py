"""Results as tables: a table a family, models and published rows below each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.evaluation import published

Results = Mapping[str, Any]


@dataclasses.dataclass
class Table:
    """One family.

    Attributes:
        family: its name.
        columns: task and metric of each column.
        rows: name, source (empty for models that were scored here), and a number or
            None for each column.
    """

    family: str
    columns: list[tuple[str, str]]
    rows: list[tuple[str, str, list[float | None]]]

    @property
    def is_by_part(self) -> bool:
        """Whether its columns are the languages or pairs of one task."""
        return all("/" in metric for _, metric in self.columns)


def tables(results: Results, ablations: bool = False) -> list[Table]:
    """The tables of a run, in the order of the catalogue.

    Args:
        results: what `cmlm.evaluate` writes to results.json.
        ablations: include the published rows of variants that a paper tries out.
    """
    families: dict[str, list[tuple[str, str]]] = {}
    for task, about in results["tasks"].items():
        columns = families.setdefault(about["family"], [])
        columns.append((task, about["main_metric"]))
        for row in published.ROWS:
            for key in row.scores:
                wanted = key[0] == task and key not in columns and "/" not in key[1]
                if wanted and _has(results, key):
                    columns.append(key)
    return [
        _table(results, name, columns, ablations)
        for name, columns in [*families.items(), *_by_part(results)]
    ]


def _by_part(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """Name and columns of each metric that is published by language or pair."""
    metrics = dict.fromkeys(
        (task, metric.partition("/")[0])
        for row in published.ROWS
        for task, metric in row.scores
        if "/" in metric
    )
    found = []
    for task, metric in metrics:
        columns = dict.fromkeys(
            (task, name)
            for model in results["models"].values()
            for name in model["scores"].get(task, {})
            if name.startswith(f"{metric}/")
        )
        if len(columns) > 1:
            found.append((task, list(columns)))
    return found


def _has(results: Results, key: tuple[str, str]) -> bool:
    return any(
        key[1] in model["scores"].get(key[0], {})
        for model in results["models"].values()
    )


def _table(
    results: Results, family: str, columns: list[tuple[str, str]], ablations: bool
) -> Table:
    rows = [
        (name, "", [model["scores"][task].get(metric) for task, metric in columns])
        for name, model in results["models"].items()
    ]
    for row in published.ROWS:
        if row.is_ablation and not ablations:
            continue
        numbers = [published.score(row, *column) for column in columns]
        if any(number is not None for number in numbers):
            rows.append((row.model, row.source, numbers))
    return Table(family, columns, rows)


def head(column: tuple[str, str], columns: Sequence[tuple[str, str]]) -> str:
    """A column's title: the task, with its metric where the table has several."""
    task, metric = column
    if all(name.partition("/")[0] == metric.partition("/")[0] for _, name in columns):
        # One metric: of several tasks, or of the parts of one task.
        return metric.partition("/")[2] or task
    return f"{task} {metric}"


def plain(table: Table) -> str:
    """For a terminal: numbers under each other, sources left out."""
    heads = [head(column, table.columns) for column in table.columns]
    metrics = sorted({metric.partition("/")[0] for _, metric in table.columns})
    title = f"{table.family}: {metrics[0]}" if len(metrics) == 1 else table.family
    names = [f"({name})" if source else short(name) for name, source, _ in table.rows]
    width = max(map(len, [title, *names]))
    lines = ["  ".join([title.ljust(width), *heads])]
    for name, (_, _, numbers) in zip(names, table.rows, strict=True):
        cells = [
            _number(number).rjust(len(title))
            for number, title in zip(numbers, heads, strict=True)
        ]
        lines.append("  ".join([name.ljust(width), *cells]))
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """For Markdown: sources as footnotes in the first column."""
    heads = [head(column, table.columns) for column in table.columns]
    lines = [
        " | ".join(["| ", *heads]) + " |",
        "|---" + "|---:" * len(heads) + "|",
    ]
    for name, source, numbers in table.rows:
        label = f"*{name}* ({source})" if source else f"**{name}**"
        lines.append(" | ".join([f"| {label}", *map(_number, numbers)]) + " |")
    return "\n".join(lines)


def short(name: str, width: int = 34) -> str:
    """A model's name, shortened where models differ least: `bow:…runs/en_small`."""
    if len(name) <= width:
        return name
    prefix = re.match(r"[a-z]+:(?!//)", name)
    start = (prefix.group() if prefix else "") + "…"
    return start + name[len(start) - width :]


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"
