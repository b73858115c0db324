"""Parts of a sentence that MiSAD takes out: n-grams or names of a list, random spans.

A span is a range of token positions [start, end) of `[CLS] ... [SEP]`, special tokens
never in it, and at least one other token of the sentence outside of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from cmlm.data import masking, ngrams
from cmlm.data.masking import MaskingConfig
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError

# Tokens of the longest span: six words of two pieces each.
MAX_TOKENS = 12
# Random spans as in SpanBERT: lengths 1 to 6 with p(n) in proportion to 0.8^(n-1) 0.2.
_GEOMETRIC, _LONGEST_RANDOM = 0.2, 6
# Odd, so that no step of the hash loses a bit.
_BASE = 0x9E3779B97F4A7C15 - (1 << 64)

logger = logging.getLogger(__name__)


class NgramTable:
    """The n-grams or names of a file as token ids, found in sentences inside tf.data.

    An n-gram is tokenised as the text is, and found where its tokens stand: whole
    words only. One with a unit in `##`, as `cmlm.ngrams --unit=pieces` writes them, is
    read as pieces of the vocabulary and found anywhere.

    Args:
        path: of the file.
        tokenizer: of the run.
        read: of a path to what the file lists: `ngrams.read` or `ngrams.read_entities`.

    Raises:
        UserError: the file cannot be read, or no n-gram is left in this vocabulary.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Tokenizer,
        read: Callable[[str], list[str]] = ngrams.read,
    ):
        self._tokenizer = tokenizer
        found = read(path)
        in_pieces = ["##" in ngram for ngram in found]
        words = [n for n, pieces in zip(found, in_pieces, strict=True) if not pieces]
        rows = tokenizer.tokenize(tf.constant(words, tf.string)).to_list()
        index = {piece: i for i, piece in enumerate(tokenizer.vocab)}
        pieces = [
            [index.get(piece, tokenizer.unk_id) for piece in ngram.split()]
            for ngram, is_pieces in zip(found, in_pieces, strict=True)
            if is_pieces
        ]
        table, self.longest = {}, 0
        for is_whole, of_kind in ((1, rows), (0, pieces)):
            for row in of_kind:
                if 0 < len(row) <= MAX_TOKENS and tokenizer.unk_id not in row:
                    table[_hash(row)] = is_whole
                    self.longest = max(self.longest, len(row))
        if not table:
            raise UserError(
                f"{path}: none of its {len(found):,} n-grams has known words and at "
                f"most {MAX_TOKENS} tokens in this run's vocabulary"
            )
        logger.info("n-grams: %s: %d of %d are usable", path, len(table), len(found))
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                np.array(list(table), np.int64),
                np.array(list(table.values()), np.int64),
            ),
            default_value=-1,
        )

    def __call__(self, ids: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """All n-grams of every row that are not inside a longer one.

        Args:
            ids: int32 [batch, length], `[CLS] ... [SEP]`, padded.
            seed: not used: nothing is drawn.

        Returns:
            int32 [batch, length], where a span that starts there ends, 0 for none.
        """
        del seed
        length = tf.shape(ids)[1]
        ordinary = ~tf.gather(tf.constant(self._tokenizer.is_special), ids)
        continues = tf.gather(tf.constant(self._tokenizer.is_continuation), ids)
        padded = tf.cast(tf.pad(ids, [[0, 0], [0, self.longest]]), tf.int64)
        goes_on = tf.pad(continues, [[0, 0], [0, self.longest]])
        inside = tf.pad(ordinary, [[0, 0], [0, self.longest]])
        n_tokens = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1, keepdims=True)
        hashed = tf.zeros_like(padded[:, :length])
        allowed = tf.ones_like(ordinary)
        ends = tf.zeros_like(ids)
        for n in range(1, self.longest + 1):
            hashed = hashed * _BASE + padded[:, n - 1 : n - 1 + length] + 1
            allowed &= inside[:, n - 1 : n - 1 + length]
            kind = self._table.lookup(hashed)
            whole_word = ~continues & ~goes_on[:, n : n + length]
            found = allowed & ((kind == 0) | ((kind == 1) & whole_word))
            found &= n < n_tokens
            ends = tf.where(found, tf.range(length) + n, ends)
        # One that begins later and ends no later is inside.
        earlier = tf.range(length)[:, tf.newaxis] < tf.range(length)
        covers = ends[:, :, tf.newaxis] >= ends[:, tf.newaxis]
        return tf.where(tf.reduce_any(earlier & covers, axis=1), 0, ends)

    def possible(self, ids: tf.Tensor) -> tf.Tensor:
        """Whether a row has any span at all: bool [batch]."""
        return tf.reduce_any(self(ids, None) > 0, axis=1)


def _hash(ids: list[int]) -> int:
    """The hash that `NgramTable` computes, as a signed number of 64 bits."""
    value = 0
    for token in ids:
        value = (value * _BASE + token + 1) % (1 << 64)
    return value - (1 << 64) if value >= 1 << 63 else value


class RandomSpans:
    """Spans of random places and lengths: the paper's comparison.

    Args:
        tokenizer: of the run.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        lengths = np.arange(_LONGEST_RANDOM)
        self._logits = np.log((1 - _GEOMETRIC) ** lengths * _GEOMETRIC)

    def __call__(self, ids: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """As `NgramTable`; a span starts at every token that leaves room for it."""
        ordinary = ~tf.gather(tf.constant(self._tokenizer.is_special), ids)
        n_tokens = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1, keepdims=True)
        shape = tf.shape(ids)
        drawn = tf.random.stateless_categorical(
            tf.constant(self._logits[np.newaxis], tf.float32),
            shape[0] * shape[1],
            seed,
            dtype=tf.int32,
        )
        ends = tf.range(shape[1]) + tf.reshape(drawn, shape) + 1
        # Tokens are at 1 to n_tokens, and a span is shorter than the sentence.
        fits = (ends <= n_tokens + 1) & (ends - tf.range(shape[1]) < n_tokens)
        return tf.where(ordinary & fits, ends, 0)

    def possible(self, ids: tf.Tensor) -> tf.Tensor:
        """As in `NgramTable`: whether a row has two tokens, whatever is drawn."""
        ordinary = ~tf.gather(tf.constant(self._tokenizer.is_special), ids)
        return tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1) >= 2


def draw(ends: tf.Tensor, n_spans: int, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Draws at most `n_spans` of the spans of every row.

    Args:
        ends: int32 [batch, length], as `NgramTable` gives them.
        n_spans: columns of the result.
        seed: int [2].

    Returns:
        `span_start`, `span_end` and `span_mask` int32 [batch, n_spans]; the mask is 1
        for a span, and spans come first.
    """
    score = tf.random.stateless_uniform(tf.shape(ends), seed)
    score = tf.where(ends > 0, score, -1.0)
    score = tf.pad(score, [[0, 0], [0, n_spans]], constant_values=-1.0)
    values, start = tf.math.top_k(score, n_spans)
    used = values >= 0
    start = tf.where(used, start, 0)
    return {
        "span_start": start,
        "span_end": tf.gather(ends, start, batch_dims=1) * tf.cast(used, tf.int32),
        "span_mask": tf.cast(used, tf.int32),
    }


def prepare_masks(
    ids: tf.Tensor,
    spans: dict[str, tf.Tensor],
    tokenizer: Tokenizer,
    config: MaskingConfig,
    draws: int,
    seed: tf.Tensor,
    static_predictions: bool = False,
) -> dict[str, tf.Tensor]:
    """Draws BERT's masks before it is known which span is taken out.

    A model chooses the span, and its tokens must stay. So what is drawn is an order of
    the tokens and what replaces each; the mask is then the first of them that are not
    in the span. Their number is that of `masking.mask_tokens`, or as many tokens as
    the longest of the row's spans leaves: it does not depend on the choice, and so the
    loss can be divided by it beforehand.

    Args:
        ids: int32 [batch, length].
        spans: from `draw`.
        tokenizer: says which ids are special.
        config: rates; `whole_word` is not heeded.
        draws: independent masks of each row.
        seed: int [2].
        static_predictions: give `masked_lm_weights` as many columns as a row
            without padding needs.

    Returns:
        `input_order` int32 [batch, draws, length], positions in the order in which
        they are masked, tokens that cannot be masked last; `input_replacements` int32
        [batch, draws, length], what stands at each position if it is masked; and
        `masked_lm_weights` float32 [batch, predictions], 1 for each mask.
    """
    n_rows, length = tf.unstack(tf.shape(ids))
    shape = [n_rows, draws, length]
    order_seed, action_seed, token_seed = tf.unstack(
        tf.random.experimental.stateless_split(seed, 3)
    )
    maskable = ~tf.gather(tf.constant(tokenizer.is_special), ids)
    score = tf.random.stateless_uniform(shape, order_seed)
    order = tf.argsort(tf.where(maskable[:, tf.newaxis], score, 2.0), stable=True)

    replacements = masking.replacements(
        tf.broadcast_to(ids[:, tf.newaxis], shape),
        tokenizer,
        config,
        action_seed,
        token_seed,
    )
    budget = masking.budget(ids, tokenizer, config)
    longest = tf.reduce_max(spans["span_end"] - spans["span_start"], axis=1)
    left = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1) - longest
    budget = tf.minimum(budget, left)
    columns = tf.maximum(tf.reduce_max(budget), 1)
    if static_predictions:
        columns = config.predictions(ids.shape[1])
    weights = tf.range(columns) < budget[:, tf.newaxis]
    return {
        "input_order": order,
        "input_replacements": replacements,
        "masked_lm_weights": tf.cast(weights, tf.float32),
    }
