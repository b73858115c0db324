"""Cuts sentences into the units of n-grams: words or pieces."""

from __future__ import annotations

import functools
import itertools
import unicodedata

import tensorflow as tf

from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import JOINER, Rules
from cmlm.tokenization.word_pieces import WordSplitter


class Units:
    """Cuts lines into runs of units; n-grams do not cross the borders of a run.

    Punctuation ends a run. Words are split at white space and punctuation, as in BERT;
    each Chinese character is a word. Other scripts without spaces (Thai, kana, Khmer)
    need pieces.

    Args:
        rules: the case of words, and their accents.
        tokenizer: if given, the units are the pieces of its vocabulary, not words.
    """

    def __init__(self, rules: Rules, tokenizer: Tokenizer | None = None):
        self._tokenizer = tokenizer
        self._splitter = WordSplitter(rules)

    def split(self, lines: list[str]) -> list[list[list[str]]]:
        """Returns the runs of units of each line."""
        if self._tokenizer is not None:
            vocab = self._tokenizer.vocab
            tokens = self._tokenizer.tokenize(tf.constant(lines)).to_list()
            return [_runs([vocab[token] for token in row]) for row in tokens]
        return [
            _runs([word.decode() for word in words])
            for words in self._splitter.split_lines(tf.constant(lines))
        ]


def _runs(units: list[str]) -> list[list[str]]:
    """Splits units into runs at [UNK] and at units without a letter or digit."""
    return [list(run) for is_word, run in itertools.groupby(units, _is_word) if is_word]


@functools.lru_cache(maxsize=1 << 18)
def _is_word(unit: str) -> bool:
    if unit == "[UNK]":
        return False
    text = unit.removeprefix(JOINER) if len(unit) > 2 else unit
    return any(unicodedata.category(character)[0] in "LMN" for character in text)
