"""Learns WordPiece vocabularies by the rule of tf-text's learner, in far less time.

The papers' vocabularies were made with tensorflow_text.tools.wordpiece_vocab. That tool
counts every substring that begins where a piece may begin. From the longest substring
to the shortest, it then subtracts each substring's count from the counts of its
prefixes, and keeps substrings whose remaining count reaches a threshold. The
subtraction removes all occurrences that continue, so the remaining count says how often
a substring *ends* a word. It is therefore enough to count suffixes: a word of ten
letters has ten suffixes but 55 substrings.

A test checks that the tokens of one language with words of up to 50 characters equal
those from tf-text's learner at the same threshold.

Smoothing multiplies the counts of small languages, so a word that the text has once may
reach the threshold. Such words would then be whole pieces, no piece would be learnt
from their parts, and other text would fall into single characters. A learner that knows
these words keeps only pieces that occur twice.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Set

from cmlm.tokenization.rules import JOINER

_ITERATIONS = 4


class Learner:
    """Learns vocabularies from counted words, for any threshold.

    A learner needs about 200 bytes for each distinct suffix of the words.

    Attributes:
        left_out: further characters and their counts, by falling count.

    Args:
        words: words and their counts. A later part of a word begins with `##`.
        reserved: tokens that always come first.
        max_characters: number of most frequent characters to use; words with other
            characters are ignored.
        once: words that occur once, whatever their count. A piece of several characters
            that only one of them has is not kept.
    """

    def __init__(
        self,
        words: list[tuple[str, int]],
        reserved: list[str],
        max_characters: int,
        once: Set[str] = frozenset(),
    ):
        self._reserved = reserved
        taken = set(reserved)
        words = [(word, count) for word, count in words if word not in taken]
        frequency = count_characters(words)
        ranked = sorted(frequency.items(), key=lambda item: (-item[1], item[0]))
        self.left_out = ranked[max_characters:]
        allowed = {character for character, _ in ranked[:max_characters]}
        self._words = [
            (word, n)
            for word, n in words
            if allowed.issuperset(word.removeprefix(JOINER))
        ]
        # Words that occur once come last, for `_suffixes`.
        self._words.sort(key=lambda item: item[0] in once)
        self._once = once
        self._characters = sorted(
            {c for word, _ in self._words for c in word.removeprefix(JOINER)}
        )
        # In the first iteration a piece may begin anywhere.
        self._anywhere = self._suffixes(None)

    @property
    def most_frequent(self) -> int:
        """The largest count of a suffix: above it, every threshold gives the same."""
        counts, _ = self._anywhere
        return max(counts.values(), default=1)

    def learn(self, threshold: int) -> list[str]:
        """Learns the vocabulary of suffixes that occur at least `threshold` times.

        Returns:
            The reserved tokens, the characters, and pieces in order of falling count.
        """
        pieces = self._kept(*self._anywhere, threshold)
        for _ in range(_ITERATIONS - 1):
            pieces = self._kept(*self._suffixes(pieces), threshold)
        ranked = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
        tokens = [*self._reserved, *self._characters, *(piece for piece, _ in ranked)]
        return list(dict.fromkeys(tokens))

    def _suffixes(
        self, pieces: dict[str, int] | None
    ) -> tuple[collections.Counter, set[str]]:
        """Counts suffixes.

        Args:
            pieces: the pieces at whose starts suffixes begin; None: they begin
                anywhere.

        Returns:
            The counts, and the suffixes that occur once.
        """
        counts: collections.Counter = collections.Counter()
        alone: set[str] = set()
        for word, number in self._words:
            is_once = word in self._once
            anywhere = range(_begin(word), len(word))
            for begin in anywhere if pieces is None else _beginnings(word, pieces):
                suffix = JOINER + word[begin:] if begin else word
                if is_once:
                    (alone.discard if suffix in counts else alone.add)(suffix)
                counts[suffix] += number
        return counts, alone

    def _kept(
        self, counts: collections.Counter, alone: set[str], threshold: int
    ) -> dict[str, int]:
        """Returns frequent suffixes and all characters, alone and inside a word.

        Args:
            counts, alone: from `_suffixes`.
            threshold: the least count.
        """
        pieces = {
            piece: n
            for piece, n in counts.items()
            if n >= threshold and piece not in alone
        }
        for character in self._characters:
            pieces.setdefault(character, 1)
            pieces.setdefault(JOINER + character, 1)
        return pieces


def count_characters(words: Iterable[tuple[str, int]]) -> collections.Counter:
    """Counts the characters of words and their counts."""
    counts: collections.Counter = collections.Counter()
    for word, count in words:
        for character in word.removeprefix(JOINER):
            counts[character] += count
    return counts


def _begin(word: str) -> int:
    """Returns the position of the first character behind `##`."""
    return len(JOINER) if word.startswith(JOINER) else 0


def _beginnings(word: str, pieces: dict[str, int]) -> list[int]:
    """Returns the start positions of a word's pieces, the longest piece each time.

    Every character of the word is a piece, so some piece always matches.
    """
    found = []
    begin, length = _begin(word), len(word)
    while begin < length:
        found.append(begin)
        prefix = JOINER if begin else ""
        end = length
        while prefix + word[begin:end] not in pieces:
            end -= 1
        begin = end
    return found
