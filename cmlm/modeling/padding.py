"""Padding, which an encoder leaves out where it pays."""

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


class RealTokens:
    """The real tokens of a batch side by side, for an inference graph.

    Attention and pooling alone need the tokens of a sentence in a row of their own. The
    gathers around attention move the heads too, so they cost no more than the
    transposes that they replace.

    Args:
        mask: int32 [batch, seq], 1 for a real token. A row without any keeps all its
            tokens, because a pooling may read [CLS] from it.
        heads: number of attention heads.

    Attributes:
        positions: int32 [tokens], the position of each token in its row.
        place: int32 [batch, seq], the number of each position's token. Padding has the
            number of the first token of its row: attention and pooling give it no
            weight, and no sentence reads a token of another one.
    """

    def __init__(self, mask: tf.Tensor, heads: int):
        batch, seq = tf.shape(mask)[0], tf.shape(mask)[1]
        real = mask > 0
        real |= ~tf.reduce_any(real, axis=1, keepdims=True)
        flat = tf.reshape(real, [-1])
        self._tokens = tf.cast(tf.where(flat)[:, 0], tf.int32)
        number = tf.reshape(tf.cumsum(tf.cast(flat, tf.int32)) - 1, [batch, seq])
        first = tf.where(real, number, number.dtype.max)
        self.place = tf.where(real, number, tf.reduce_min(first, axis=1, keepdims=True))
        self.positions = self._tokens % seq
        head = tf.range(heads)
        # Of the three parts, each token has all heads of one part, then of the next.
        part = tf.range(0, 3 * heads, heads)[:, tf.newaxis, tf.newaxis, tf.newaxis]
        self._split = (
            self.place[:, tf.newaxis] * (3 * heads) + part + head[:, tf.newaxis]
        )
        start = self._tokens // seq * (heads * seq) + self.positions
        self._join = tf.reshape(start[:, tf.newaxis] + head * seq, [-1])

    def take(self, values: tf.Tensor) -> tf.Tensor:
        """From all positions, [batch, seq], to the real tokens, [tokens]."""
        return tf.gather(tf.reshape(values, [-1]), self._tokens)

    def split_heads(self, merged: tf.Tensor, size: int) -> list[tf.Tensor]:
        """Query, key and value, [batch, heads, seq, size] each.

        Args:
            merged: [tokens, 3 * heads * size], the three side by side.
            size: the width of a head.
        """
        return tf.unstack(tf.gather(tf.reshape(merged, [-1, size]), self._split))

    def join_heads(self, mixed: tf.Tensor) -> tf.Tensor:
        """From [batch, heads, seq, size] to [tokens * heads, size]."""
        return tf.gather(tf.reshape(mixed, [-1, mixed.shape[-1]]), self._join)


def _unit(size: tf.Tensor) -> tf.Tensor:
    """The largest power of two up to a 32nd of `size`, and at least 16."""
    exponent = tf.math.log(tf.cast(tf.maximum(size // 32, 16), tf.float32))
    # Logarithms of powers of two may fall short of the integer.
    exponent = tf.floor(exponent / math.log(2.0) + 1e-4)
    return tf.bitwise.left_shift(1, tf.cast(exponent, tf.int32))
