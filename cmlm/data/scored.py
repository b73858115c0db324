"""Scored pairs: lines `sentence<TAB>sentence<TAB>score`, such as human similarity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from cmlm.common import files as files_lib
from cmlm.data.bitext import BitextDataConfig
from cmlm.data.corpus import Inspected
from cmlm.errors import UserError


@dataclasses.dataclass
class ScoredDataConfig(BitextDataConfig):
    """Two sentences and a score, `.tsv` or `.tsv.gz`; a higher score is more alike."""

    flag, validation_flag = "scored_data", "scored_validation_data"
    accepted = "files of lines sentence<TAB>sentence<TAB>score"
    kind, columns = "scored data", "sentence<TAB>sentence<TAB>score"

    def _inspect(self, files):
        found = summarize(scores(files))
        if not found.count:
            raise UserError(
                f"{self.kind} {files[0]} is empty; allowed: lines of {self.columns}"
            )
        return Inspected(found.count, str(found))


@dataclasses.dataclass
class Scores:
    """The number of scored pairs, and the range of their scores."""

    count: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    def __str__(self) -> str:
        return (
            f"{self.count:,} pairs with scores from {self.lowest:g} to {self.highest:g}"
        )


def summarize(values: Iterable[float]) -> Scores:
    """Counts scores and finds their range."""
    found = Scores()
    for score in values:
        found.count += 1
        found.lowest = min(found.lowest, score)
        found.highest = max(found.highest, score)
    return found


def scores(files: list[str]) -> Iterator[float]:
    """Yields the score of every line that is not empty.

    Raises:
        UserError: a line does not have two sentences and a number.
    """
    for path in files:
        with files_lib.open_text(path, for_tensorflow=True) as lines:
            for number, line in enumerate(lines, 1):
                cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
                if cells == [""]:
                    continue
                if len(cells) != 3 or not all(cells):
                    raise UserError(
                        f"{path} line {number} has {len(cells)} columns, "
                        f"{sum(map(bool, cells))} with text; allowed: 3 with text "
                        f"({ScoredDataConfig.columns})"
                    )
                try:
                    score = float(cells[2])
                except ValueError:
                    score = math.nan
                if not math.isfinite(score):
                    raise UserError(
                        f"{path} line {number} has the score {cells[2]!r}; allowed: a "
                        "number"
                    )
                yield score
