"""Scored pairs: lines `sentence<TAB>sentence<TAB>score`, such as human similarity."""

from __future__ import annotations

import dataclasses
import math
import re
import string
from collections.abc import Iterator

import numpy as np

from cmlm.common import files as files_lib
from cmlm.common.counts import counted
from cmlm.data.bitext import BitextDataConfig
from cmlm.data.settings import Inspected
from cmlm.errors import UserError, shown

# What tf.strings.to_number reads: Python's float reads more.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_CHARACTERS = 31
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass
class ScoredDataConfig(BitextDataConfig):
    """Two sentences and a score, `.tsv` or `.tsv.gz`; a higher score is more alike."""

    flag, validation_flag = "scored_data", "scored_validation_data"
    kind, form = "scored data", "sentence<TAB>sentence<TAB>score"
    names_pairs = False

    def _inspect(self, files, reads_documents):
        found = summarize(files)
        if not found.count:
            raise UserError(
                f"{self.kind} {files[0]} is empty; allowed: lines of {self.form}"
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
            f"{counted(self.count, 'pair')} with scores from {self.lowest:g} to "
            f"{self.highest:g}"
        )


def summarize(files: list[str]) -> Scores:
    """Counts the scores of files and finds their range, see `scores`."""
    found = Scores()
    for score in scores(files):
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
                        f"{path} line {number} has {counted(len(cells), 'column')}, "
                        f"{sum(map(bool, cells))} with text; allowed: 3 with text "
                        f"({ScoredDataConfig.form})"
                    )
                yield _score(line.split("\t")[2], f"{path} line {number}")


def _score(cell: str, where: str) -> float:
    text = cell.strip(string.whitespace)
    if len(text) <= _MAX_CHARACTERS and _NUMBER.fullmatch(text):
        score = float(text)
        if abs(score) <= _LARGEST:
            return score
    raise UserError(
        f"{where} has the score {shown(text)}; allowed: a number such as -1.5e3, "
        f"within float32 and {_MAX_CHARACTERS} characters"
    )
