"""The spans of a sentence that MiSAD may remove, and masks that avoid them.

A span is a range [start, end) of token positions in `[CLS] ... [SEP]`. It contains no
special token, and at least one ordinary token of the sentence lies outside it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import tensorflow as tf

from cmlm.data import masking
from cmlm.data.masking import MaskingConfig
from cmlm.tokenization.base import Tokenizer

# Tokens of the longest span: six words of two pieces each.
MAX_TOKENS = 12
# Random spans as in SpanBERT: lengths 1 to 6, p(n) proportional to 0.8^(n-1) 0.2.
_GEOMETRIC, _LONGEST_RANDOM = 0.2, 6


class SpanFinder(Protocol):
    """Finds the spans of sentences: by their n-grams and names, or at random."""

    def __call__(
        self, ids: tf.Tensor, marks: tf.RaggedTensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Finds the spans of every row.

        Args:
            ids: int32 [batch, length], `[CLS] ... [SEP]`, padded.
            marks: ragged string [batch, (n)], from `ngram_table.split_marks`.
            seed: int [2].

        Returns:
            int32 [batch, length], for each position the end of the span that starts
            there, or 0.
        """

    def possible(self, ids: tf.Tensor, marks: tf.RaggedTensor) -> tf.Tensor:
        """Tells which rows have a span: bool [batch]."""


class RandomSpans:
    """A `SpanFinder` of random positions and lengths (section 7.2 of the ULR paper).

    Args:
        tokenizer: the run's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        lengths = np.arange(_LONGEST_RANDOM)
        self._logits = np.log((1 - _GEOMETRIC) ** lengths * _GEOMETRIC)

    def __call__(self, ids, marks, seed):
        """Draws a span at every token that leaves room for it, of ordinary tokens."""
        del marks
        ordinary = self._tokenizer.ordinary(ids)
        n_tokens = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1, keepdims=True)
        shape = tf.shape(ids)
        drawn = tf.random.stateless_categorical(
            tf.constant(self._logits[np.newaxis], tf.float32),
            shape[0] * shape[1],
            seed,
            dtype=tf.int32,
        )
        start = tf.range(shape[1])
        ends = start + tf.reshape(drawn, shape) + 1
        # Special tokens before each position: [SEP] ends the tokens, and [UNK] may
        # stand among them. A span lacks both, and is shorter than its sentence.
        special = tf.cast(~ordinary, tf.int32)
        before = tf.cumsum(tf.pad(special, [[0, 0], [1, 0]]), axis=1)
        within = tf.gather(before, tf.minimum(ends, shape[1]), batch_dims=1)
        fits = (within == before[:, :-1]) & (ends - start < n_tokens)
        return tf.where(fits & (ends <= shape[1]), ends, 0)

    def possible(self, ids, marks):
        """Tells which rows have a span, because they have at least two tokens."""
        del marks
        ordinary = tf.cast(self._tokenizer.ordinary(ids), tf.int32)
        return tf.reduce_sum(ordinary, axis=1) >= 2


def draw(ends: tf.Tensor, n_spans: int, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Draws at most `n_spans` of the spans of every row.

    Args:
        ends: int32 [batch, length], from `NgramFinder` or `RandomSpans`.
        n_spans: the number of columns of the result.
        seed: int [2].

    Returns:
        `span_start`, `span_end` and `span_mask` int32 [batch, n_spans]. The mask is 1
        for a span; columns without a span come last.
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
    """Draws BERT's masks before the model has chosen the span.

    The tokens of the chosen span must stay. Therefore this function draws an order of
    all tokens and a replacement for each token; the model masks the first tokens
    outside the span. A row gets `masking.budget` masks, but at most the number of
    tokens outside its longest span. The number of masks does not depend on the choice,
    so the loss can be divided by it beforehand.

    Args:
        ids: int32 [batch, length].
        spans: from `draw`.
        tokenizer: knows the special ids.
        config: rates; `whole_word` is ignored.
        draws: the number of independent masks of each row.
        seed: int [2].
        static_predictions: give `masked_lm_weights` one column for each mask of a row
            without padding.

    Returns:
        `input_order` int32 [batch, draws, length], positions in the order of masking,
        with special tokens last; `input_replacements` int32 [batch, draws, length], the
        id at each position if the position is masked; and `masked_lm_weights` float32
        [batch, predictions], 1 for each mask.
    """
    n_rows, length = tf.unstack(tf.shape(ids))
    shape = [n_rows, draws, length]
    order_seed, action_seed, token_seed = tf.unstack(
        tf.random.experimental.stateless_split(seed, 3)
    )
    maskable = tokenizer.ordinary(ids)
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
