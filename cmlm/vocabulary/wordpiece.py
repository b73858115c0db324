"""Learns WordPiece vocabularies: the tokens of tf-text's learner, in far less time.

The papers' vocabularies were made with tensorflow_text.tools.wordpiece_vocab. That tool
counts every substring that begins where a piece may begin. From the longest substring
to the shortest, it then subtracts each substring's count from the counts of its
prefixes, and keeps substrings whose remaining count reaches a threshold. The
subtraction removes all occurrences that continue, so the remaining count says how often
a substring *ends* a word. It is therefore enough to count suffixes: a word of ten
letters has ten suffixes but 55 substrings.

A test checks that the tokens equal those from tf-text's learner.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

_JOINER = "##"
_ITERATIONS = 4


class Learner:
    """Learns vocabularies from counted words, for any threshold.

    A learner needs about 200 bytes for each distinct suffix of the words.

    Args:
        words: words and their counts.
        reserved: tokens that always come first.
        max_length: most characters of a word; longer words are ignored.
        max_characters: number of most frequent characters to use; words with other
            characters are ignored.
    """

    def __init__(
        self,
        words: list[tuple[str, int]],
        reserved: list[str],
        max_length: int,
        max_characters: int,
    ):
        self._reserved = reserved
        taken = set(reserved)
        words = [
            (word, count)
            for word, count in words
            if len(word) <= max_length and word not in taken
        ]
        frequency = count_characters(words)
        ranked = sorted(frequency.items(), key=lambda item: (-item[1], item[0]))
        allowed = {character for character, _ in ranked[:max_characters]}
        self._words = [(word, n) for word, n in words if allowed.issuperset(word)]
        self._characters = sorted({c for word, _ in self._words for c in word})
        # In the first iteration a piece may begin anywhere.
        self._anywhere = _suffixes(
            (word, n, range(len(word))) for word, n in self._words
        )

    @property
    def most_frequent(self) -> int:
        """The largest count of a suffix: above it, every threshold gives the same."""
        return max(self._anywhere.values(), default=1)

    def learn(self, threshold: int) -> list[str]:
        """Learns the vocabulary of suffixes that occur at least `threshold` times.

        Returns:
            The reserved tokens, the characters, and pieces in order of falling count.
        """
        pieces = self._kept(self._anywhere, threshold)
        for _ in range(_ITERATIONS - 1):
            counts = _suffixes(
                (word, number, _beginnings(word, pieces))
                for word, number in self._words
            )
            pieces = self._kept(counts, threshold)
        ranked = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
        tokens = [*self._reserved, *self._characters, *(piece for piece, _ in ranked)]
        return list(dict.fromkeys(tokens))

    def _kept(self, counts: collections.Counter, threshold: int) -> dict[str, int]:
        """Returns frequent suffixes and all characters, alone and inside a word."""
        pieces = {piece: n for piece, n in counts.items() if n >= threshold}
        for character in self._characters:
            pieces.setdefault(character, 1)
            pieces.setdefault(_JOINER + character, 1)
        return pieces


def count_characters(words: Iterable[tuple[str, int]]) -> collections.Counter:
    """Counts the characters of words and their counts."""
    counts: collections.Counter = collections.Counter()
    for word, count in words:
        for character in word:
            counts[character] += count
    return counts


def _suffixes(
    words: Iterable[tuple[str, int, Iterable[int]]],
) -> collections.Counter:
    """Counts suffixes.

    Args:
        words: tuples of a word, its count, and the start positions of its suffixes.
    """
    counts: collections.Counter = collections.Counter()
    for word, number, beginnings in words:
        for begin in beginnings:
            counts[_JOINER + word[begin:] if begin else word] += number
    return counts


def _beginnings(word: str, pieces: dict[str, int]) -> list[int]:
    """Returns the start positions of a word's pieces, the longest piece each time.

    Every character of the word is a piece, so some piece always matches.
    """
    found = []
    begin, length = 0, len(word)
    while begin < length:
        found.append(begin)
        prefix = _JOINER if begin else ""
        end = length
        while prefix + word[begin:end] not in pieces:
            end -= 1
        begin = end
    return found
