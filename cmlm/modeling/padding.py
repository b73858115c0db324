"""Padding, which a training step computes or leaves out."""

from __future__ import annotations

import math

import tensorflow as tf

from cmlm.modeling import fused


def padding_of(mask: tf.Tensor) -> Padding:
    """Returns the treatment of padding in the step that is built now.

    Args:
        mask: int32 [batch, seq], 1 for a real token.
    """
    return Unpadding(mask) if fused.unpads() else Padding()


class Padding:
    """Computes padding like any other token."""

    def remove(self, x: tf.Tensor) -> tf.Tensor:
        """From all tokens, [batch * seq, dim], to the computed ones."""
        return x

    def restore(self, x: tf.Tensor) -> tf.Tensor:
        """From the computed tokens to all tokens, [batch * seq, dim]."""
        return x


class Unpadding(Padding):
    """Takes the real tokens of a batch together, so that products skip the padding.

    Attention alone needs the tokens of a sentence in a row of their own; everything
    else treats each token by itself. XLA compiles the pieces of a step for each number
    of tokens, so this number is rounded up, and some padding stays.

    Args:
        mask: int32 [batch, seq], 1 for a real token.
    """

    def __init__(self, mask: tf.Tensor):
        mask = tf.reshape(mask, [-1])
        real, size = tf.reduce_sum(mask), tf.size(mask)
        # The real tokens first, in their order, and then the padding.
        place = tf.where(mask > 0, tf.cumsum(mask) - 1, real + tf.cumsum(1 - mask) - 1)
        unit = _unit(size)
        count = tf.minimum(-(-tf.maximum(real, 1) // unit) * unit, size)
        self._tokens = tf.math.invert_permutation(place)[:count]
        self._place = tf.minimum(place, count - 1)
        self._computed = (place < count)[:, tf.newaxis]

    def remove(self, x):
        @tf.custom_gradient
        def remove(x):
            def gradient(upstream):
                upstream = tf.gather(upstream, self._place)
                return tf.where(self._computed, upstream, tf.zeros_like(upstream))

            return tf.gather(x, self._tokens), gradient

        return remove(x)

    def restore(self, x):
        # A token that was left out gets the output of another one. Nothing reads it:
        # its probability in attention is 0, and so is its weight in pooling.
        @tf.custom_gradient
        def restore(x):
            return tf.gather(x, self._place), lambda upstream: tf.gather(
                upstream, self._tokens
            )

        return restore(x)


def _unit(size: tf.Tensor) -> tf.Tensor:
    """The largest power of two up to a 32nd of `size`, and at least 16."""
    exponent = tf.math.log(tf.cast(tf.maximum(size // 32, 16), tf.float32))
    # Logarithms of powers of two may fall short of the integer.
    exponent = tf.floor(exponent / math.log(2.0) + 1e-4)
    return tf.bitwise.left_shift(1, tf.cast(exponent, tf.int32))
