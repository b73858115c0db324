"""The masked tokens of a batch, whose words an objective predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from cmlm.modeling import padding, step_mode


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
    """The masked tokens of all texts, one after the other.

    Attributes:
        tokens: int32 [masked, 2], the text and the position of each masked token.
        labels: int32 [masked], the original words.
        weights: float32 [masked], 1 for a masked token and 0 for padding.
    """

    tokens: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def of_batch(batch: Mapping[str, tf.Tensor]) -> MaskedTokens:
    """Lists the masked tokens of a batch of `data.masking.mask_tokens`.

    A text has fewer masked tokens than the fullest one of its batch. Steps that leave
    out padding leave out most of these columns too, before the product with the
    vocabulary.

    Args:
        batch: `masked_lm_positions` and `masked_lm_ids`, int32 [batch, columns], and
            `masked_lm_weights`, float32 [batch, columns].
    """
    tokens = indices(batch["masked_lm_positions"])
    labels = tf.reshape(batch["masked_lm_ids"], [-1])
    weights = tf.reshape(batch["masked_lm_weights"], [-1])
    if step_mode.unpads():
        real, _ = padding.real_first(weights > 0)
        tokens, labels, weights = (
            tf.gather(values, real) for values in (tokens, labels, weights)
        )
    return MaskedTokens(tokens, labels, weights)


def indices(positions: tf.Tensor) -> tf.Tensor:
    """From int32 [batch, columns] to [batch * columns, 2], text and position."""
    texts = tf.range(tf.shape(positions)[0])[:, tf.newaxis] + tf.zeros_like(positions)
    return tf.reshape(tf.stack([texts, positions], axis=-1), [-1, 2])
