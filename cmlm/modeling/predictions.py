"""The masked tokens of a batch, whose words an objective predicts."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.modeling import fused, padding


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of all texts, one after the other.

    Attributes:
        tokens: int32 [predictions, 2], the text and the position of each masked token.
        labels: int32 [predictions], the original words.
        weights: float32 [predictions], 1 for a prediction and 0 for padding.
    """

    tokens: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def of_batch(
    positions: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> Predictions:
    """Lists the predictions of a batch.

    A text has fewer masked tokens than the fullest one of its batch. Steps that leave
    out padding leave out most of these columns too, before the product with the
    vocabulary.

    Args:
        positions: int32 [batch, columns], the positions of the masked tokens.
        labels: int32 [batch, columns], the original words.
        weights: float32 [batch, columns], 1 for a prediction and 0 for padding.
    """
    tokens, labels = all_tokens(positions), tf.reshape(labels, [-1])
    weights = tf.reshape(weights, [-1])
    if fused.unpads():
        real, _ = padding.real_first(weights > 0)
        tokens, labels, weights = (
            tf.gather(values, real) for values in (tokens, labels, weights)
        )
    return Predictions(tokens, labels, weights)


def all_tokens(positions: tf.Tensor) -> tf.Tensor:
    """From int32 [batch, columns] to [batch * columns, 2], text and position."""
    texts = tf.range(tf.shape(positions)[0])[:, tf.newaxis] + tf.zeros_like(positions)
    return tf.reshape(tf.stack([texts, positions], axis=-1), [-1, 2])
