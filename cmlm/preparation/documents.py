"""A document of the pipeline, its number and its fingerprints."""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# A document's number holds the index of its file above these bits, its position below.
_POSITION_BITS = 36

# The language of a document that is not yet identified.
UNKNOWN = "-"


class Document(NamedTuple):
    """A document: lines of text in order.

    Attributes:
        number: identifies the document and follows the order of the input.
        language: ISO 639 code, `en-de` for bitext, or UNKNOWN.
        lines: one paragraph each; after the step `split`, its sentences separated by
            tabs. For bitext, source TAB target.
    """

    number: int
    language: str
    lines: list[str]


def number(file: int, position: int) -> int:
    """Returns the number of the document at a position of the file with this index."""
    return file << _POSITION_BITS | position


def fingerprint(text: str) -> int:
    """A 64-bit hash of the words of a text, and of the tabs between its parts.

    Among 10^9 distinct lines two collide with a probability of 0.03.
    """
    text = "\t".join(" ".join(part.split()) for part in text.split("\t"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def loose_fingerprint(text: str) -> int:
    """A 64-bit hash of the case-folded letters and digits of a text.

    Copies with other punctuation, quotes or spaces, with or without the points of
    Arabic and Hebrew, or in another Unicode form (é as one character or two), have the
    same hash. The vowel signs and tone marks of Indic scripts and Thai count as
    letters.
    """
    return fingerprint("".join(compared(text)))


def compared(text: str) -> Iterator[str]:
    """Yields the characters that `loose_fingerprint` compares."""
    text = unicodedata.normalize("NFC", text).casefold()
    return filter(_is_compared, text)


# The combining grapheme joiner and the inherent vowels of Khmer.
_INVISIBLE = "\u034f\u17b4\u17b5"


@functools.cache
def _is_compared(character: str) -> bool:
    """Whether a character is a letter, a digit, or a sign that no text leaves out."""
    if character.isalnum():
        return True
    # By their combining class: 0 to 9 are the signs of Indic scripts and the voicing of
    # kana, 84 to 132 those of Telugu, Thai, Lao and Tibetan. The points of Hebrew and
    # Arabic are between, accents above.
    combining = unicodedata.combining(character)
    return (
        unicodedata.category(character) in ("Mn", "Mc")
        and (combining < 10 or 84 <= combining <= 132)
        and "VARIATION SELECTOR" not in unicodedata.name(character, "")
        and character not in _INVISIBLE
    )


def scatter(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Maps numbers to pseudo-random 64-bit numbers, uint64 [n] to uint64 [n].

    It is the finalizer of SplitMix64 (Steele et al., 2014), shifted by the seed.
    """
    start = (seed + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    values = np.asarray(numbers, np.uint64) + np.uint64(start)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
