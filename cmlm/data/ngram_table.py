"""Finds n-grams and names in tokenised sentences, inside tf.data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cmlm.data.ngram_files import MARK
from cmlm.data.removable_spans import MAX_TOKENS
from cmlm.errors import UserError, shown
from cmlm.tokenization.base import Tokenizer

# The factor of the hash. It is odd, so no multiplication loses a bit.
_BASE = 0x9E3779B97F4A7C15 - (1 << 64)
# Kinds of n-grams: unusable; pieces, which match anywhere; words, which match whole
# words only.
_NONE, _PIECES, _WORDS = -1, 0, 1

logger = logging.getLogger(__name__)


def split_marks(lines: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Separates sentences from their marked n-grams.

    Args:
        lines: string [batch]; each line is a sentence and, after tabs, its n-grams.

    Returns:
        The sentences, string [batch], and the n-grams, ragged string [batch, (n)].
    """
    return without_marks(lines), tf.strings.split(lines, MARK)[:, 1:]


def without_marks(lines: tf.Tensor) -> tf.Tensor:
    """The sentences of `split_marks`, of the shape of the lines."""
    return tf.strings.regex_replace(lines, f"{MARK}.*", "")


class NgramFinder:
    """A `SpanFinder` of n-grams of given lists, and of each sentence's marks.

    An n-gram is tokenised like the text and matches whole words. An n-gram that
    contains `##` (from `cmlm.ngrams --unit=pieces`) consists of pieces of the
    vocabulary and matches anywhere.

    Args:
        tokenizer: the run's tokenizer.
        lists: path of a file to its n-grams or names, which are searched in every
            sentence.
        marks: whether to find the marked n-grams of each sentence, too.

    Raises:
        UserError: every n-gram of a list has an unknown word or more than MAX_TOKENS
            tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        lists: Mapping[str, Sequence[str]] | None = None,
        marks: bool = False,
    ):
        self._tokenizer = tokenizer
        self._marks = marks
        self._pieces = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(tokenizer.vocab), tf.range(len(tokenizer.vocab))
            ),
            default_value=tokenizer.unk_id,
        )
        table: dict[int, int] = {}
        self._longest = MAX_TOKENS if marks else 0
        for path, found in (lists or {}).items():
            hashes, kinds, lengths = (
                value.numpy() for value in self._hashed(tf.constant(found, tf.string))
            )
            usable = kinds != _NONE
            if not usable.any():
                raise UserError(
                    f"{path}: none of its {len(found):,} n-grams, such as "
                    f"{shown(found[0])}, has known words and at most {MAX_TOKENS} "
                    "tokens in this run's vocabulary"
                )
            logger.info(
                "n-grams: %s: %d of %d are usable", path, usable.sum(), len(found)
            )
            self._longest = max(self._longest, int(lengths[usable].max()))
            # The looser rule of two n-grams with the same tokens: _PIECES < _WORDS.
            for key, kind in zip(
                hashes[usable].tolist(), kinds[usable].tolist(), strict=True
            ):
                table[key] = min(kind, table.get(key, kind))
        self._table = None
        if table:
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    np.array(list(table), np.int64),
                    np.array(list(table.values()), np.int64),
                ),
                default_value=_NONE,
            )

    def _hashed(self, ngrams: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns hashes int64, kinds int64 and token counts int32 of n-grams, [n]."""
        unknown = self._tokenizer.unk_id

        def read_as(kind, rows):
            length = tf.cast(rows.row_lengths(), tf.int32)
            ids = tf.cast(rows.to_tensor(unknown, shape=[None, MAX_TOKENS]), tf.int64)
            used = tf.range(MAX_TOKENS) < length[:, tf.newaxis]
            known = tf.reduce_all((ids != unknown) | ~used, axis=1)
            good = known & (length > 0) & (length <= MAX_TOKENS)
            hashes = tf.zeros_like(ids[:, 0])
            for i in range(MAX_TOKENS):
                hashes = tf.where(used[:, i], hashes * _BASE + ids[:, i] + 1, hashes)
            return hashes, tf.where(good, tf.constant(kind, tf.int64), _NONE), length

        words = read_as(_WORDS, self._tokenizer.tokenize(ngrams))
        split = tf.strings.split(ngrams)
        pieces = read_as(_PIECES, tf.ragged.map_flat_values(self._pieces.lookup, split))
        is_pieces = tf.strings.regex_full_match(ngrams, ".*##.*")
        return tuple(
            tf.where(is_pieces, of_pieces, of_words)
            for of_pieces, of_words in zip(pieces, words, strict=True)
        )

    def __call__(self, ids, marks, seed=None):
        """Finds the n-grams of every row, except n-grams inside a longer one."""
        del seed
        length = tf.shape(ids)[1]
        ordinary = self._tokenizer.ordinary(ids)
        continues = tf.gather(tf.constant(self._tokenizer.is_continuation), ids)
        padding = [[0, 0], [0, self._longest]]
        padded = tf.cast(tf.pad(ids, padding), tf.int64)
        goes_on = tf.pad(continues, padding)
        inside = tf.pad(ordinary, padding)
        n_tokens = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1, keepdims=True)
        kinds_of = self._lookups(marks)
        hashed = tf.zeros_like(padded[:, :length])
        allowed = tf.ones_like(ordinary)
        ends = tf.zeros_like(ids)
        for n in range(1, self._longest + 1):
            hashed = hashed * _BASE + padded[:, n - 1 : n - 1 + length] + 1
            allowed &= inside[:, n - 1 : n - 1 + length]
            whole_word = ~continues & ~goes_on[:, n : n + length]
            found = tf.zeros_like(allowed)
            for lookup in kinds_of:
                kind = lookup(hashed)
                found |= (kind == _PIECES) | ((kind == _WORDS) & whole_word)
            found &= allowed & (n < n_tokens)
            ends = tf.where(found, tf.range(length) + n, ends)
        # A span lies inside another span that begins earlier and does not end earlier.
        earlier = tf.range(length)[:, tf.newaxis] < tf.range(length)
        covers = ends[:, :, tf.newaxis] >= ends[:, tf.newaxis]
        ends = tf.where(tf.reduce_any(earlier & covers, axis=1), 0, ends)
        # Ragged marks lose the shape inside tf.data.
        return tf.ensure_shape(ends, ids.shape)

    def _lookups(self, marks: tf.RaggedTensor) -> list:
        """Returns functions that map hashes, int64 [batch, length], to kinds."""
        lookups = [] if self._table is None else [self._table.lookup]
        if self._marks:
            hashes, kinds, _ = self._hashed(marks.flat_values)
            hashes = marks.with_flat_values(hashes).to_tensor()[:, tf.newaxis]
            kinds = marks.with_flat_values(kinds).to_tensor(_NONE)[:, tf.newaxis]

            def of_marks(hashed):
                same = hashed[:, :, tf.newaxis] == hashes
                # Of a row without marks, the largest number: no n-gram either.
                matched = same & (kinds != _NONE)
                return tf.reduce_min(tf.where(matched, kinds, tf.int64.max), axis=2)

            lookups.append(of_marks)
        return lookups

    def possible(self, ids, marks):
        return tf.reduce_any(self(ids, marks) > 0, axis=1)
