"""A document on its way through the steps, and the numbers it is known by."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

# Positions in a file take the lower bits of a document's number, the file the upper.
_POSITION_BITS = 36

# The language of a document before anything has told it.
UNKNOWN = "-"


class Document(NamedTuple):
    """Lines of text in the order in which they stood.

    Attributes:
        number: identifies the document; smaller numbers stood before.
        language: ISO 639 code, `en-de` for translations, UNKNOWN where nobody knows.
        lines: before splitting a paragraph each, afterwards its sentences with tabs
            between them. For translations source and target with a tab between.
    """

    number: int
    language: str
    lines: list[str]


def number(file: int, position: int) -> int:
    """The number of the document at a position in the file of that index."""
    return file << _POSITION_BITS | position


def fingerprint(text: str) -> int:
    """64 bits of a text; white space only separates.

    Among 10^9 different lines two are expected to collide with probability 0.03.
    """
    text = " ".join(text.split())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def loose_fingerprint(text: str) -> int:
    """64 bits of the letters and digits of a text, case folded.

    A copy with other punctuation, quotes or spaces has the same.
    """
    return fingerprint("".join(filter(str.isalnum, text.casefold())))


def scatter(numbers: np.ndarray, seed: int) -> np.ndarray:
    """64-bit numbers that look random, equal for equal numbers and seed.

    The finalizer of SplitMix64 (Steele et al., 2014), uint64 [n] to uint64 [n].
    """
    start = (seed + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    values = np.asarray(numbers, np.uint64) + np.uint64(start)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
