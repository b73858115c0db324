"""Counts the words of a text, split by the tokenizer's rules.

A vocabulary is learnt from these counts. This module counts in one process;
`words_on_beam` counts on any number of machines.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
from collections.abc import Iterator, Mapping
from typing import AnyStr

import numpy as np
import tensorflow as tf

from cmlm.common import language_names, path_names
from cmlm.data import line_files, streams
from cmlm.tokenization import word_pieces
from cmlm.tokenization.rules import Rules

# Most distinct words in memory. When there are more, the rarest half is dropped, so a
# language of any size needs about 0.7 GB.
MAX_DISTINCT_WORDS = 3_000_000
# Lines that are split into words together.
LINES_PER_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class WordCounts:
    """The words of one language.

    Attributes:
        counts: words and their counts; rare words may be missing.
        total: number of occurrences of all words of the text, missing words included;
            an estimate if only a part of the text was read.
        share: the share of these occurrences that was read.
    """

    counts: collections.Counter
    total: int
    share: float = 1.0

    def top(self, number: int) -> WordCounts:
        """Returns the `number` most frequent words, with the same total and share."""
        if len(self.counts) <= number:
            return self
        counts = collections.Counter(dict(most_frequent(self.counts, number)))
        return dataclasses.replace(self, counts=counts)


@dataclasses.dataclass(frozen=True)
class SmoothedCounts:
    """The words of all languages.

    Attributes:
        counts: words and their smoothed counts.
        once: the words that the text has only once, but that count more than once.
    """

    counts: collections.Counter
    once: frozenset[str]


def columns(language: str, path: str) -> tuple[str, ...]:
    """Returns the languages of a file.

    Bitext (`en-de=FILES.tsv`) has two: the first column is in the first language, the
    others are in the second. Any other file has one.
    """
    first, second = language_names.of_two_texts(language)
    is_bitext = first != language and path_names.unpacked(path).endswith(".tsv")
    return (first, second) if is_bitext else (language,)


def split_columns(
    language: str, path: str, lines: list[AnyStr], tab: AnyStr
) -> Iterator[tuple[str, list[AnyStr]]]:
    """Yields (language, texts) of some lines of a file; see `columns`."""
    languages = columns(language, path)
    if len(languages) == 1:
        yield language, lines
        return
    first, second = languages
    rows = [line.partition(tab) for line in lines]
    yield first, [row[0] for row in rows]
    yield second, [row[2] for row in rows]


def by_column(files: Mapping[str, list[str]]) -> dict[str, dict[int | None, list[str]]]:
    """Sorts files by language and column; the column is None except in bitext."""
    found: dict[str, dict[int | None, list[str]]] = {}
    for name, paths in files.items():
        for path in paths:
            languages = columns(name, path)
            for number, language in enumerate(languages):
                column = number if len(languages) > 1 else None
                found.setdefault(language, {}).setdefault(column, []).append(path)
    return found


def count_languages(
    files: Mapping[str, list[str]], rules: Rules, max_text_bytes: int, number: int
) -> Iterator[tuple[str, WordCounts]]:
    """Counts the words of each language, which bitext shares with other files.

    Args:
        files: text in the training format or bitext, by language or pair of languages.
        rules, max_text_bytes: see `count`.
        number: number of most frequent words to return of each language.

    Yields:
        A language and its words, one language at a time to save memory.
    """
    for language, texts in by_column(files).items():
        yield language, count(texts, rules, max_text_bytes).top(number)


# AutoGraph's search for Python control flow takes longer than counting a small text.
@tf.autograph.experimental.do_not_convert
def count(
    texts: Mapping[int | None, list[str]],
    rules: Rules,
    max_text_bytes: int,
    max_words: int = MAX_DISTINCT_WORDS,
) -> WordCounts:
    """Counts the words of one language in this process.

    Args:
        texts: files in the training format, by the column of bitext to read: 0 for the
            first, 1 for the others; None for whole lines.
        rules: the case of words, and their accents.
        max_text_bytes: bytes of text after which counting stops, for each column.
        max_words: most distinct words in memory. If a text has more, its counts are
            slightly low, and words that are rare everywhere are missing.
    """
    splitter = word_pieces.WordSplitter(rules)

    def locate(lines, column):
        if column is not None:
            cells = tf.strings.split(lines, "\t", maxsplit=1)
            cells = cells.to_tensor("", shape=[None, 2])[:, column]
        else:
            cells = lines
        # Of the text to count, and of the lines with their ends.
        n_bytes = [tf.reduce_sum(tf.strings.length(texts)) for texts in (cells, lines)]
        n_bytes[1] += tf.size(lines)
        return tf.stack(n_bytes), *splitter.locate(cells)

    counts: collections.Counter = collections.Counter()
    total, n_read = 0.0, 0
    for column, files in texts.items():
        seen = read = words_read = 0
        is_cut = False
        chunks = (
            streams.sentences(streams.Portion(files))
            .batch(LINES_PER_CHUNK)
            .map(functools.partial(locate, column=column))
            .prefetch(1)
        )
        for n_bytes, lines, splits, begins, ends in chunks.as_numpy_iterator():
            if is_cut := seen >= max_text_bytes:
                break
            for words in word_pieces.cut(lines, splits, begins, ends):
                counts.update(words)
            if len(counts) > max_words:
                counts = _without_rare(counts, max_words // 2)
            words_read += len(begins)
            seen += int(n_bytes[0])
            read += int(n_bytes[1])
        n_read += words_read
        whole = sum(line_files.estimated_sizes(files)) if is_cut else read
        total += words_read * (max(whole, read) / read if read else 1)
    decoded: collections.Counter = collections.Counter()
    while counts:
        word, number = counts.popitem()
        decoded[word.decode()] = number
    return WordCounts(decoded, round(total), n_read / total if total else 1.0)


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


def factors(
    totals: Mapping[str, int], exponent: float, read: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Returns factors that give language l a share in proportion to n_l^exponent.

    The least factor is 1, so no count is rounded to 0. If all words were read, this is
    the factor of the largest language.

    Args:
        totals: n_l, the number of words of each language.
        exponent: exponent of n_l; 1 leaves the counts of a text unchanged that was read
            to its end.
        read: the share of the words of each language that were read; None: all.
    """
    largest = max(totals.values(), default=0)
    found = {
        language: (largest / total) ** (1 - exponent) / (read or {}).get(language, 1.0)
        for language, total in totals.items()
        if total
    }
    least = min(found.values(), default=1.0)
    return {language: found.get(language, 0.0) / least for language in totals}


def smooth(
    by_language: Mapping[str, WordCounts], exponent: float
) -> collections.Counter:
    """Adds word counts so that language l has a share in proportion to n_l^exponent.

    Args:
        by_language: the counted words.
        exponent: see `factors`.
    """
    totals = {language: counted.total for language, counted in by_language.items()}
    read = {language: counted.share for language, counted in by_language.items()}
    scale = factors(totals, exponent, read)
    summed: collections.Counter = collections.Counter()
    for language, counted in by_language.items():
        factor = scale[language]
        summed.update(
            {word: round(number * factor) for word, number in counted.counts.items()}
        )
    return summed


def smooth_and_cut(
    by_language: Mapping[str, WordCounts], exponent: float, number: int
) -> SmoothedCounts:
    """Smooths the counts of the most frequent words, see `smooth`.

    Args:
        by_language: the counted words.
        exponent: see `factors`.
        number: number of most frequent words to add of each language, and to return.
    """
    most = {language: counted.top(number) for language, counted in by_language.items()}
    counts = collections.Counter(dict(most_frequent(smooth(most, exponent), number)))
    occurrences: collections.Counter = collections.Counter()
    for language in most.values():
        occurrences.update(language.counts)
    once = frozenset(
        word for word, scaled in counts.items() if occurrences[word] == 1 < scaled
    )
    return SmoothedCounts(counts, once)
