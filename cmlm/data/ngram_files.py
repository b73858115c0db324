"""Files of n-grams and names, and text with marked n-grams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import tensorflow as tf

from cmlm.common import atomic, files
from cmlm.errors import UserError

# Separates a sentence from its marked n-grams.
MARK = "\t"
_NGRAMS = "lines of n-gram, tab, number, as python -m cmlm.ngrams writes them"


def write(
    ngrams: Iterable[tuple[str, float]],
    path: str,
    before_naming: Callable[[], None] | None = None,
) -> int:
    """Writes n-grams and their scores atomically; returns their number.

    Args:
        ngrams: n-grams and scores.
        path: the file to write.
        before_naming: called when all is written, before the file gets its name.

    Raises:
        UserError: `ngrams` is empty.
    """
    number = 0
    with atomic.text(path) as file:
        for ngram, value in ngrams:
            file.write(f"{ngram}\t{value:.6g}\n")
            number += 1
        if not number:
            raise UserError(
                f"no n-gram is left for {path}: lower --min_count or --threshold, or "
                "give more text"
            )
        if before_naming:
            before_naming()
    return number


def read(path: str) -> list[str]:
    """Reads the n-grams of a file; the scores are checked and dropped.

    Raises:
        UserError: the file is missing, empty, or a line is not `n-gram TAB number`.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"n-gram file {path} does not exist; allowed: {_NGRAMS}")
    found = []
    with files.open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            ngram, tab, value = line.rstrip("\r\n").rpartition("\t")
            try:
                good = bool(tab and ngram.strip()) and math.isfinite(float(value))
            except ValueError:
                good = False
            if not good:
                raise UserError(
                    f"n-gram file {path} line {number} is {line.strip()[:60]!r}; "
                    f"allowed: {_NGRAMS}"
                )
            found.append(ngram)
    if not found:
        raise UserError(f"n-gram file {path} is empty; allowed: {_NGRAMS}")
    return found


def read_entities(path: str) -> list[str]:
    """Reads names, one a line, such as a gazetteer's; blank lines are skipped.

    Raises:
        UserError: the file is missing or empty.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"entity file {path} does not exist; allowed: one name a line")
    with files.open_text(path) as lines:
        found = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not found:
        raise UserError(f"entity file {path} is empty; allowed: one name a line")
    return found
