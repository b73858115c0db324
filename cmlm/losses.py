"""The losses, as functions of tensors: no layers, no configuration.

Each returns sums, not means. The mean belongs to the global batch: the engine
divides by the count over all replicas and micro-batches, so that how a batch is
split never changes a gradient.
"""

from __future__ import annotations

import tensorflow as tf


def masked_lm(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy of masked words, -sum_t w_t log p(y_t), in nats.

    Args:
        logits: float [batch, predictions, vocab_size].
        labels: int32 [batch, predictions], the words that were there.
        weights: float [batch, predictions], 1 for a prediction and 0 for padding.

    Returns:
        The summed loss and the summed number of right predictions, float32 scalars.
    """
    logits = tf.cast(logits, tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
    return (
        tf.reduce_sum(loss * weights),
        tf.reduce_sum(tf.cast(right, tf.float32) * weights),
    )
