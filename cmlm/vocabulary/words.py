"""Counts the words of a text, split by the tokenizer's rules.

A vocabulary is learnt from these counts. This module counts in one process;
`words_on_beam` counts on any number of machines.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from cmlm.data import streams
from cmlm.tokenization import word_pieces
from cmlm.tokenization.rules import Rules

# Most distinct words in memory. When there are more, the rarest half is dropped, so a
# text of any size needs at most 0.6 GB.
MAX_DISTINCT_WORDS = 3_000_000
# Lines that are split into words together.
LINES_PER_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class WordCounts:
    """The words of one language.

    Attributes:
        counts: words and their counts; rare words may be missing.
        total: number of occurrences of all words, missing words included.
    """

    counts: collections.Counter
    total: int

    def top(self, number: int) -> WordCounts:
        """Returns the `number` most frequent words, with the same total."""
        if len(self.counts) <= number:
            return self
        counts = collections.Counter(dict(most_frequent(self.counts, number)))
        return WordCounts(counts, self.total)


# AutoGraph's search for Python control flow takes longer than counting a small text.
@tf.autograph.experimental.do_not_convert
def count(
    files: list[str],
    rules: Rules,
    max_text_bytes: int,
    max_words: int = MAX_DISTINCT_WORDS,
) -> WordCounts:
    """Counts the words of files in this process.

    Args:
        files: text in the training format.
        rules: the case of words, and their accents.
        max_text_bytes: bytes of text after which counting stops.
        max_words: most distinct words in memory. If a text has more, its counts are
            slightly low, and words that are rare everywhere are missing.
    """
    splitter = word_pieces.WordSplitter(rules)

    def locate(lines):
        return tf.reduce_sum(tf.strings.length(lines)), *splitter.locate(lines)

    counts: collections.Counter = collections.Counter()
    total = seen = 0
    chunks = (
        streams.sentences(streams.Portion(files))
        .batch(LINES_PER_CHUNK)
        .map(locate)
        .prefetch(1)
    )
    for n_bytes, lines, splits, begins, ends in chunks.as_numpy_iterator():
        for words in word_pieces.cut(lines, splits, begins, ends):
            counts.update(words)
        if len(counts) > max_words:
            counts = _without_rare(counts, max_words // 2)
        total += len(begins)
        seen += int(n_bytes)
        if seen >= max_text_bytes:
            break
    decoded = {word.decode(): number for word, number in counts.items()}
    return WordCounts(collections.Counter(decoded), total)


def _without_rare(counts: collections.Counter, number: int) -> collections.Counter:
    """Returns fewer than `number` most frequent words, without ties at the limit."""
    values = np.fromiter(counts.values(), np.int64, len(counts))
    limit = np.partition(values, len(values) - number)[len(values) - number]
    return collections.Counter({w: n for w, n in counts.items() if n > limit})


def most_frequent(counts: Mapping[str, int], number: int) -> list[tuple[str, int]]:
    """Returns the most frequent words with their counts, ties in alphabetical order.

    The result does not depend on the order of `counts`.
    """
    return heapq.nsmallest(number, counts.items(), key=by_frequency)


def by_frequency(item: tuple[str, int]) -> tuple[int, str]:
    """Returns the sort key of (word, count): frequent first, then alphabetically."""
    word, count = item
    return -count, word


def factors(totals: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns factors that give language l a share in proportion to n_l^exponent.

    The largest language has factor 1. The other languages are scaled up, so no count is
    rounded to 0.

    Args:
        totals: n_l, the number of words of each language.
        exponent: exponent of n_l; 1 leaves the counts unchanged.
    """
    largest = max(totals.values(), default=0)
    return {
        language: (largest / total) ** (1 - exponent) if total else 0.0
        for language, total in totals.items()
    }


def smooth(
    by_language: Mapping[str, WordCounts], exponent: float
) -> collections.Counter:
    """Adds word counts so that language l has a share in proportion to n_l^exponent.

    Args:
        by_language: the counted words.
        exponent: see `factors`.
    """
    totals = {language: counted.total for language, counted in by_language.items()}
    scale = factors(totals, exponent)
    summed: collections.Counter = collections.Counter()
    for language, counted in by_language.items():
        factor = scale[language]
        summed.update(
            {word: round(number * factor) for word, number in counted.counts.items()}
        )
    return summed


def smooth_and_cut(
    by_language: Mapping[str, WordCounts], exponent: float, number: int
) -> collections.Counter:
    """Smooths the counts of the most frequent words, see `smooth`.

    Args:
        by_language: the counted words.
        exponent: see `factors`.
        number: number of most frequent words to add of each language, and to return.
    """
    most = {language: counted.top(number) for language, counted in by_language.items()}
    return collections.Counter(dict(most_frequent(smooth(most, exponent), number)))
