"""A published row, and the parser of the tables in the modules of the papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cmlm.evaluation import averages
from cmlm.evaluation.averages import Key


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a published table.

    Attributes:
        model: the authors' name of the model.
        source: the paper or page that prints the numbers, with the table.
        scores: the numbers on this package's scale, by (task, metric).
        averages: the averages that the row prints, by group name.
        note: a remark on the protocol, such as a difference from this package's.
        is_ablation: whether the row is an ablation of its paper; short tables and
            figures leave it out.
    """

    model: str
    source: str
    scores: dict[Key, float]
    averages: dict[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""
    is_ablation: bool = False

    @property
    def numbers(self) -> dict[Key, float]:
        """The scores, those of a part of a task also under `TASK-PART`."""
        alone = {}
        for (task, metric), number in self.scores.items():
            name, _, part = metric.partition("/")
            if part:
                alone[f"{task}-{part}", name] = number
        return {**alone, **self.scores}


def table(
    source: str,
    columns: Sequence[Key],
    text: str,
    average: str = "",
    note: str = "",
    factor: float = 1.0,
    is_ablation: bool = False,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Parses a table.

    Args:
        source: the source of all rows.
        columns: (task, metric) of each number in a line.
        text: lines of `model | number number ...`; `-` stands for an empty cell.
        average: the group whose average is the last number of every line; empty if the
            table prints no average. If it is not the mean of the line's numbers, the
            note of the row says so.
        note: the note of all rows.
        factor: scales the numbers to this package's scale, such as 100 for shares of 1.
        is_ablation: whether all rows are ablations.
        notes: the notes of single rows, by model, in the place of `note`.
    """
    rows = []
    for line in text.strip().splitlines():
        model, _, numbers = line.rpartition("|")
        values = [
            None if cell == "-" else round(factor * float(cell), 4)
            for cell in numbers.split()
        ]
        mean = values.pop() if average else None
        cells = zip(columns, values, strict=True)
        scores = {key: value for key, value in cells if value is not None}
        model = model.strip()
        own = (notes or {}).get(model, note)
        remarks = [own, *_remark_on_mean(mean, list(scores.values()))]
        rows.append(
            Row(
                model,
                source,
                scores,
                {average: mean} if mean is not None else {},
                "; ".join(filter(None, remarks)),
                is_ablation,
            )
        )
    return rows


def _remark_on_mean(printed: float | None, numbers: Sequence[float]) -> list[str]:
    """A remark if a printed average is not the mean of the numbers beside it."""
    # Rounding explains 0.05 and little more.
    if printed is None or not numbers or abs(np.mean(numbers) - printed) <= 0.06:
        return []
    return [f"the mean of the printed numbers is {np.mean(numbers):.2f}, not {printed}"]


def averages_table(
    source: str,
    groups: Sequence[str],
    text: str,
    average: str = "",
    note: str = "",
    factor: float = 1.0,
    is_ablation: bool = False,
) -> list[Row]:
    """Parses a table whose numbers are averages of groups; see `table`."""
    columns = [("", group) for group in groups]
    rows = table(source, columns, text, average, note, factor, is_ablation)
    return [
        dataclasses.replace(
            row,
            scores={},
            averages={group: mean for (_, group), mean in row.scores.items()}
            | row.averages,
        )
        for row in rows
    ]


def per_part(task: str, metric: str, parts: str) -> list[Key]:
    """Columns of a task that is scored by language or pair: `METRIC/PART`."""
    return [(task, f"{metric}/{part}") for part in parts.split()]


# The groups of `averages` are in the papers' order of columns.
SENTEVAL = [key for (key,) in averages.SENTEVAL.values()]
STS = [key for (key,) in averages.STS.values()]
