"""Leaves padding out of an encoder's operations where this saves time."""

from __future__ import annotations

import math
from typing import Optional

import tensorflow as tf

from cmlm.modeling import step_mode


def padding_of(mask: tf.Tensor, heads: int) -> Padding:
    """Returns the treatment of padding in the step that is built now.

    Args:
        mask: int32 [batch, seq], 1 for a real token.
        heads: number of attention heads.
    """
    return Unpadding(mask, heads) if step_mode.unpads() else Padding(mask, heads)


class Padding:
    """Computes padding like any other token.

    Args:
        mask: int32 [batch, seq], 1 for a real token.
        heads: number of attention heads.

    Attributes:
        mask: int32 [batch, columns], the mask of the columns of attention.
    """

    def __init__(self, mask: tf.Tensor, heads: int):
        self._heads, self.mask = heads, mask
        self._seq = tf.shape(mask)[1]

    def remove(self, x: tf.Tensor) -> tf.Tensor:
        """From all tokens, [batch * seq, dim], to the computed ones, [tokens, dim]."""
        return x

    def restore(self, x: tf.Tensor) -> tf.Tensor:
        """From the computed tokens to all tokens, [batch * seq, dim]."""
        return x

    def split_heads(self, merged: tf.Tensor) -> list[tf.Tensor]:
        """Query, key and value, [batch, heads, columns, size] each.

        Args:
            merged: [tokens, 3 * heads * size], the three side by side.
        """
        batch, columns = tf.shape(self.mask)[0], tf.shape(self.mask)[1]
        shape = [batch, columns, 3, self._heads, self._size(merged)]
        return tf.unstack(tf.transpose(tf.reshape(merged, shape), [2, 0, 3, 1, 4]))

    def join_heads(
        self, mixed: tf.Tensor, read: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """From [batch, heads, columns, size] to [tokens, heads * size].

        Args:
            mixed: the heads' outputs.
            read: int32 [tokens], the numbers of the tokens to return; None: of all.
        """
        width = self._heads * mixed.shape[-1]
        joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, width])
        return joined if read is None else tf.gather(joined, read)

    def numbers(self, tokens: tf.Tensor) -> tf.Tensor:
        """The numbers of real tokens among the computed ones, int32 [tokens].

        Args:
            tokens: int32 [tokens, 2], text and position of each.
        """
        return tokens[:, 0] * self._seq + tokens[:, 1]

    def _size(self, merged: tf.Tensor) -> int:
        """The width of a head."""
        return merged.shape[-1] // (3 * self._heads)


class Unpadding(Padding):
    """Takes the real tokens of a batch together, so that products skip the padding.

    Attention and pooling alone need the tokens of a sentence in a row of their own;
    everything else treats each token by itself. The gathers around attention move the
    heads too, so they cost no more than the transposes that they replace.

    XLA compiles the pieces of a step for each number of tokens and of columns. So both
    are rounded up, and some padding stays. The last computed token stands for all
    padding that is left out. Nothing reads the output of padding: its probability in
    attention is 0, and so is its weight in a pooling or a loss. So its gradient is 0,
    and that of the tokens that it stands for, too.
    """

    def __init__(self, mask: tf.Tensor, heads: int):
        batch, seq = tf.shape(mask)[0], tf.shape(mask)[1]
        real = mask > 0
        # A pooling may read the first output of a row without tokens.
        real |= (tf.range(seq) == 0) & ~tf.reduce_any(real, axis=1, keepdims=True)
        self._tokens, place = real_first(tf.reshape(real, [-1]))
        count = tf.size(self._tokens)
        self._place = tf.minimum(place, count - 1)
        # More columns need a token of padding that stands for them.
        columns = tf.where(tf.reduce_all(real), seq, _rounded_up(seq, 8, 4))
        more = [[0, 0], [0, columns - seq]]
        super().__init__(tf.pad(mask, more), heads)
        self._seq = seq
        place = tf.reshape(self._place, [batch, seq])
        place = tf.pad(place, more, constant_values=count - 1)
        # From the computed tokens to the heads, and back.
        row, column = self._tokens // seq, self._tokens % seq
        joined = _join_index(row, column, columns, heads)
        part = tf.range(3)[:, tf.newaxis] * (batch * heads * columns)
        self._split = _split_index(place, 3, heads)
        self._unsplit = joined[:, tf.newaxis] + part
        self._join, self._unjoin = joined, _split_index(place, 1, heads)[0]

    def remove(self, x):
        return _gather(x, self._tokens, self._place)

    def restore(self, x):
        return _gather(x, self._place, self._tokens)

    def split_heads(self, merged):
        size = self._size(merged)
        return tf.unstack(
            _gather(tf.reshape(merged, [-1, size]), self._split, self._unsplit)
        )

    def join_heads(self, mixed, read=None):
        size = mixed.shape[-1]
        heads = tf.reshape(mixed, [-1, size])
        if read is None:
            joined = _gather(heads, self._join, self._unjoin)
        else:
            joined = tf.gather(heads, tf.gather(self._join, read))
        return tf.reshape(joined, [-1, self._heads * size])

    def numbers(self, tokens):
        return tf.gather(self._place, super().numbers(tokens))


def real_first(real: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers elements so that the real ones come first and padding after them.

    Args:
        real: bool [size], False for padding.

    Returns:
        int32 [count], the elements to compute: the real ones and as much padding as
        rounds up their number, but at least one if there is any. And int32 [size], the
        number of each element.
    """
    real = tf.cast(real, tf.int32)
    count = tf.reduce_sum(real)
    place = tf.where(real > 0, tf.cumsum(real) - 1, count + tf.cumsum(1 - real) - 1)
    count = tf.minimum(_rounded_up(count + 1, 16, 16), tf.size(real))
    return tf.math.invert_permutation(place)[:count], place


def _gather(x: tf.Tensor, there: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """The rows `there` of [rows, width]; those `back` of the gradient are its gradient.

    TensorFlow's own gradient of a gather adds rows up, one after the other.
    """

    @tf.custom_gradient
    def gather(x):
        def gradient(upstream):
            return tf.gather(tf.reshape(upstream, [-1, x.shape[-1]]), back)

        return tf.gather(x, there), gradient

    return gather(x)


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
        self._split = _split_index(self.place, 3, heads)
        joined = _join_index(self._tokens // seq, self.positions, seq, heads)
        self._join = tf.reshape(joined, [-1])

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


def _split_index(place: tf.Tensor, parts: int, heads: int) -> tf.Tensor:
    """Where the heads of each position stand among those of the computed tokens.

    Args:
        place: int32 [batch, seq], the number of each position's token.
        parts: each token has all heads of one part, then of the next.
        heads: number of attention heads.

    Returns:
        int32 [parts, batch, heads, seq].
    """
    part = tf.range(0, parts * heads, heads)[:, tf.newaxis, tf.newaxis, tf.newaxis]
    head = tf.range(heads)[:, tf.newaxis]
    return place[:, tf.newaxis] * (parts * heads) + part + head


def _join_index(
    row: tf.Tensor, column: tf.Tensor, columns: tf.Tensor, heads: int
) -> tf.Tensor:
    """Where the heads of each computed token stand in [batch, heads, columns].

    Args:
        row, column: int32 [tokens], the place of each token.
        columns: int32 [], the number of columns.
        heads: number of attention heads.

    Returns:
        int32 [tokens, heads].
    """
    start = row * (heads * columns) + column
    return start[:, tf.newaxis] + tf.range(heads) * columns


def _rounded_up(number: tf.Tensor, steps: int, least: int) -> tf.Tensor:
    """Rounds up to a multiple of the largest power of two up to number / steps.

    Args:
        number: int32 [].
        steps: between two powers of two, at most so many results.
        least: a power of two; at least this one is taken.
    """
    exponent = tf.cast(tf.maximum(number // steps, least), tf.float32)
    # Logarithms of powers of two may fall short of the integer.
    exponent = tf.floor(tf.math.log(exponent) / math.log(2.0) + 1e-4)
    unit = tf.bitwise.left_shift(1, tf.cast(exponent, tf.int32))
    return -(-number // unit) * unit
