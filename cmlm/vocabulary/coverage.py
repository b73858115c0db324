"""Measures how well a vocabulary fits a text."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from cmlm.common import files as files_lib
from cmlm.tokenization.base import Tokenizer
from cmlm.vocabulary import words

# The part of a language's text that `shares` reads.
_FILES = 16
_LINES = 20_000


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The fit of a vocabulary to a text; every occurrence of a word counts.

    Attributes:
        words_in_one_piece: share of words that are one piece.
        tokens_per_word: mean number of tokens; an unknown word is one token.
        unknown_tokens: share of tokens that are [UNK].
        known_words: share of words that are not [UNK].
        known_characters: share of all characters that are in known words.
    """

    words_in_one_piece: float
    tokens_per_word: float
    unknown_tokens: float
    known_words: float
    known_characters: float


def measure(tokenizer, counts: collections.Counter) -> Coverage:
    """Measures how a tokenizer splits counted words.

    Args:
        tokenizer: a `tokenization.base.Tokenizer`.
        counts: words and their counts, from `words.count`.
    """
    pieces = tokenizer.tokenize(tf.constant(list(counts)))
    occurrences = np.array(list(counts.values()), np.float64)
    unknown = tf.reduce_any(pieces == tokenizer.unk_id, axis=1).numpy()
    lengths = pieces.row_lengths().numpy()
    whole = (lengths == 1) & ~unknown
    n_words, n_tokens = occurrences.sum(), (occurrences * lengths).sum()
    characters = occurrences * [len(word) for word in counts]
    return Coverage(
        words_in_one_piece=float(occurrences[whole].sum() / n_words),
        tokens_per_word=float(n_tokens / n_words),
        unknown_tokens=float(occurrences[unknown].sum() / n_tokens),
        known_words=float(occurrences[~unknown].sum() / n_words),
        known_characters=float(characters[~unknown].sum() / characters.sum()),
    )


@dataclasses.dataclass(frozen=True)
class Shares:
    """Shares of the text of one language.

    Attributes:
        unknown: share of tokens that are [UNK].
        cut: share of lines that hold a text above the limit; blank lines do not count.
            None without a line in a file with a limit.
    """

    unknown: float
    cut: float | None


def shares(
    tokenizer: Tokenizer, files: Mapping[str, list[str]], limits: Mapping[str, int]
) -> dict[str, Shares]:
    """Returns the shares of [UNK] and of cut texts, by language.

    A part of the text is read: the first lines of some files, evenly spaced. In bitext
    (`en-de=FILES.tsv`), the first column is in the first language, the others in the
    second.

    Args:
        tokenizer: the tokenizer to judge.
        files: text, bitext or NLI data, by language.
        limits: the longest sequence of a file's texts by path, in tokens, [CLS] and
            [SEP] included. A file without one is not cut, and its lines do not count.
    """
    # Tokens that are [UNK], tokens, lines that are cut, lines.
    counts: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(4, int))
    for language, paths in files.items():
        some = paths[:: -(-len(paths) // _FILES)]
        for path in some:
            with files_lib.open_text(path) as stream:
                lines = list(itertools.islice(stream, -(-_LINES // len(some))))
            for name, column in words.split_columns(language, path, lines, "\t"):
                # An empty file has no line to tell the type.
                texts = tf.strings.split(tf.constant(column, tf.string), "\t")
                tokens = tokenizer.tokenize(texts.flat_values)
                lengths = texts.with_values(tokens.row_lengths())
                longest = tf.reduce_max(lengths, axis=1).numpy()
                ids = tokens.flat_values.numpy()
                limit = limits.get(path, 0)
                counts[name] += (
                    np.sum(ids == tokenizer.unk_id),
                    len(ids),
                    limit and np.sum(longest > limit - 2),
                    limit and np.sum(longest > 0),
                )
    return {
        language: Shares(unknown / max(total, 1), cut / lines if lines else None)
        for language, (unknown, total, cut, lines) in counts.items()
    }
