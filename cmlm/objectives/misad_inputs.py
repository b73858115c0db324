"""The three inputs of MiSAD: the sentence S, the n-gram w, and the rest R."""

from __future__ import annotations

import tensorflow as tf

from cmlm.data.removable_spans import MAX_TOKENS
from cmlm.tokenization.base import Tokenizer


def split(
    batch: dict[str, tf.Tensor],
    start: tf.Tensor,
    end: tf.Tensor,
    tokenizer: Tokenizer,
    mask_rest: bool,
) -> dict[str, dict[str, tf.Tensor]]:
    """Splits sentences into S, w and R (Li & Zhao, 2021, section 3.2).

    Args:
        batch: a batch of `masked_pipelines.sentences_with_spans`.
        start, end: int32 [batch, 1], the span of w.
        tokenizer: knows the special ids.
        mask_rest: whether to mask words of R too, with the second draw of the batch.

    Returns:
        `sentence`, `ngram` and `rest`, each with `input_word_ids` and `input_mask`;
        `sentence` (and `rest` with `mask_rest`) also with `masked_lm_positions` and
        `masked_lm_ids` [batch, predictions].
    """
    sentence = _masked(batch, 0, start, end)
    rest = {"input_word_ids": batch["input_word_ids"]}
    if mask_rest:
        rest = _masked(batch, 1, start, end)
        # Positions behind w move to the left when w is removed.
        removed = tf.where(rest["masked_lm_positions"] >= end, end - start, 0)
        rest["masked_lm_positions"] -= removed
    column = tf.range(tf.shape(batch["input_word_ids"])[1])[tf.newaxis]
    source = tf.where(column < start, column, column + end - start)
    rest |= _take(batch, rest["input_word_ids"], source, tokenizer)

    column = tf.range(MAX_TOKENS + 2)[tf.newaxis]
    length = end - start
    place = tf.minimum(start + column - 1, tf.shape(batch["input_word_ids"])[1] - 1)
    words = tf.gather(batch["input_word_ids"], tf.maximum(place, 0), batch_dims=1)
    words = tf.where(column <= length, words, tokenizer.pad_id)
    words = tf.where(column == 0, tokenizer.cls_id, words)
    words = tf.where(column == length + 1, tokenizer.sep_id, words)
    ngram = {
        "input_word_ids": words,
        "input_mask": tf.cast(column <= length + 1, tf.int32),
    }
    return {"sentence": sentence, "ngram": ngram, "rest": rest}


def _take(batch, ids, source, tokenizer):
    """Takes each token from column `source` of its row; missing columns are padding."""
    length = tf.shape(ids)[1]
    place = tf.minimum(source, length - 1)
    mask = tf.gather(batch["input_mask"], place, batch_dims=1)
    mask *= tf.cast(source < length, tf.int32)
    ids = tf.gather(ids, place, batch_dims=1)
    return {
        "input_word_ids": tf.where(mask > 0, ids, tokenizer.pad_id),
        "input_mask": mask,
    }


def _masked(batch, draw, start, end):
    """Masks the first tokens outside w, in the drawn order."""
    ids = batch["input_word_ids"]
    order = batch["input_order"][:, draw]
    n_predictions = tf.shape(batch["masked_lm_weights"])[1]
    # A stable sort moves the tokens of w to the end and keeps the order of the others.
    in_ngram = (order >= start) & (order < end)
    outside = tf.argsort(tf.cast(in_ngram, tf.int32), axis=1, stable=True)
    order = tf.gather(order, outside, batch_dims=1)
    short = tf.maximum(n_predictions - tf.shape(order)[1], 0)
    positions = tf.pad(order, [[0, 0], [0, short]])[:, :n_predictions]
    used = batch["masked_lm_weights"] > 0
    positions = tf.where(used, positions, 0)
    chosen = tf.reduce_any(
        (positions[:, :, tf.newaxis] == tf.range(tf.shape(ids)[1]))
        & used[:, :, tf.newaxis],
        axis=1,
    )
    return {
        "input_word_ids": tf.where(chosen, batch["input_replacements"][:, draw], ids),
        "input_mask": batch["input_mask"],
        "masked_lm_positions": positions,
        "masked_lm_ids": tf.gather(ids, positions, batch_dims=1),
    }
