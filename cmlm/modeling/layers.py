"""Keras layers added to a BERT encoder: pooling, the projection P(v), DropHead."""

from __future__ import annotations

import tensorflow as tf

from cmlm.common.keras import keras

POOLINGS = ("mean", "max", "cls")


@keras.utils.register_keras_serializable(package="cmlm")
class MaskedPooling(keras.layers.Layer):
    """Pools token vectors to one vector per sentence; padding never counts.

    `mean` and `max` run over every real token, [CLS] and [SEP] included; `cls`
    takes the first token. A row without any real token pools to zeros under
    `mean` and `max`.

    Args:
        mode: one of `POOLINGS`.
    """

    def __init__(self, mode: str = "mean", **kwargs):
        super().__init__(**kwargs)
        if mode not in POOLINGS:
            raise ValueError(f"pooling is {mode!r}; allowed: {', '.join(POOLINGS)}")
        self.mode = mode

    def call(self, sequence: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Pools.

        Args:
            sequence: float [batch, seq, dim].
            mask: [batch, seq], 1 for a real token and 0 for padding.

        Returns:
            float [batch, dim], in the dtype of `sequence`.
        """
        if self.mode == "cls":
            return sequence[:, 0]
        # Sums of hundreds of bfloat16 numbers lose digits, so pool in float32.
        tokens = tf.cast(sequence, tf.float32)
        mask = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        if self.mode == "mean":
            pooled = tf.math.divide_no_nan(
                tf.reduce_sum(tokens * mask, axis=1), tf.reduce_sum(mask, axis=1)
            )
        else:
            lowest = tokens.dtype.min
            pooled = tf.reduce_max(tf.where(mask > 0, tokens, lowest), axis=1)
            pooled = tf.where(tf.reduce_any(mask > 0, axis=1), pooled, 0.0)
        return tf.cast(pooled, sequence.dtype)

    def get_config(self) -> dict:
        return {**super().get_config(), "mode": self.mode}


@keras.utils.register_keras_serializable(package="cmlm")
class AttentionDropout(keras.layers.Layer):
    """Dropout of attention probabilities, and of whole heads (DropHead).

    Each sentence draws which heads it goes without; the others are scaled up by the
    number of heads over the number that is left. A head whose probabilities are zero
    gives nothing, so this is the same as masking its output. Where all heads are drawn
    none is dropped (the published code divides by zero there).

    Reference: Zhou et al., 2020, https://arxiv.org/abs/2004.13342; an alternative to
    dropout in Mirror-BERT, https://arxiv.org/abs/2104.08027.

    Args:
        rate: of single probabilities.
        head_rate: of heads.
    """

    def __init__(self, rate: float, head_rate: float, **kwargs):
        super().__init__(**kwargs)
        self.rate, self.head_rate = rate, head_rate
        self._dropout = keras.layers.Dropout(rate)
        self._drop_heads = keras.layers.Dropout(head_rate)

    def call(self, probabilities: tf.Tensor, training=None) -> tf.Tensor:
        """Drops.

        Args:
            probabilities: float [batch, heads, queries, keys].
            training: whether dropout is on.

        Returns:
            Of the same shape.
        """
        kept = self._dropout(probabilities, training=training)
        heads = tf.ones_like(probabilities[:, :, :1, :1])
        heads = tf.sign(self._drop_heads(heads, training=training))
        any_left = tf.reduce_any(heads > 0, axis=1, keepdims=True)
        heads = tf.where(any_left, heads, tf.ones_like(heads))
        return kept * heads / tf.reduce_mean(heads, axis=1, keepdims=True)

    def get_config(self) -> dict:
        return {**super().get_config(), "rate": self.rate, "head_rate": self.head_rate}


@keras.utils.register_keras_serializable(package="cmlm")
class ViewProjection(keras.layers.Layer):
    """P(v): N views of a sentence vector, the conditions that s2 is read with.

    The first view is the identity; each of the other N - 1 is a network of its
    own, FC(h, 2h, ReLU), FC(2h, 2h, ReLU), FC(2h, h).

    Reference: Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 3.

    Args:
        num_views: N, at least 1 (the paper: 15).
        initializer: of the kernels.
    """

    def __init__(self, num_views: int, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        if num_views < 1:
            raise ValueError(f"num_views is {num_views}; allowed: 1 and more")
        self.num_views = num_views
        self._initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        width = input_shape[-1]

        def dense(units, activation, name):
            kernel = self._initializer.__class__.from_config(
                self._initializer.get_config()
            )
            return keras.layers.Dense(
                units, activation, kernel_initializer=kernel, name=name
            )

        # Separate layers, not one batched kernel: LAMB scales each variable by
        # its own norm, so how weights are grouped is part of the recipe.
        self._networks = [
            keras.Sequential(
                [
                    dense(2 * width, "relu", "hidden_1"),
                    dense(2 * width, "relu", "hidden_2"),
                    dense(width, None, "output"),
                ],
                name=f"view_{view}",
            )
            for view in range(1, self.num_views)
        ]
        for network in self._networks:
            network.build((None, width))
        super().build(input_shape)

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Projects.

        Args:
            vectors: float [batch, dim].

        Returns:
            float [batch, num_views, dim]; view 0 is `vectors`.
        """
        views = [vectors] + [network(vectors) for network in self._networks]
        return tf.stack(views, axis=1)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_views": self.num_views,
            "initializer": keras.initializers.serialize(self._initializer),
        }
