"""Keras layers around a BERT encoder: P(v), heads, DropHead, positions, and the layers
that text determines: word weights and whitening."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from official.nlp.modeling import layers as nlp_layers

from cmlm.common import choices
from cmlm.common.keras import keras
from cmlm.modeling import fused, step_mode


class AttentionDropout(keras.layers.Layer):
    """Dropout of attention probabilities, and of whole heads (DropHead).

    Each sentence draws the heads to drop. The remaining heads are scaled up by the
    number of heads over the number of remaining heads. A head with zero probabilities
    outputs zeros, so this equals masking the head's output. If all heads of a sentence
    are drawn, none is dropped (the published code divides by zero in this case).

    Reference: Zhou et al., 2020, https://arxiv.org/abs/2004.13342; Mirror-BERT uses it
    instead of dropout (https://arxiv.org/abs/2104.08027, section 4.4).

    Args:
        rate: dropout rate of single probabilities.
        head_rate: dropout rate of heads.
    """

    def __init__(self, rate: float, head_rate: float, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self._dropout = keras.layers.Dropout(rate, dtype=self.dtype_policy)
        self._drop_heads = keras.layers.Dropout(head_rate, dtype=self.dtype_policy)

    def call(self, probabilities: tf.Tensor, training=None) -> tf.Tensor:
        """Drops probabilities and heads.

        Args:
            probabilities: float [batch, heads, queries, keys].
            training: whether dropout is on.

        Returns:
            float, of the same shape.
        """
        kept = self._dropout(probabilities, training=training)
        heads = tf.ones_like(probabilities[:, :, :1, :1])
        heads = tf.sign(self._drop_heads(heads, training=training))
        any_left = tf.reduce_any(heads > 0, axis=1, keepdims=True)
        heads = tf.where(any_left, heads, tf.ones_like(heads))
        return kept * heads / tf.reduce_mean(heads, axis=1, keepdims=True)


# The distances at which MPNet's 16 buckets of one direction begin, after distance 0:
# every distance up to 8, then 8 * 16^(k/8) rounded up.
_DISTANCES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)
RELATIVE_BUCKETS = 2 * (len(_DISTANCES) + 1)


def relative_scores(table: tf.Tensor, seq: int | tf.Tensor) -> tf.Tensor:
    """MPNet's relative attention bias: a score for each distance of two tokens.

    Reference: Song et al., 2020, https://arxiv.org/abs/2004.09297; the buckets are
    T5's, https://arxiv.org/abs/1910.10683, section 2.1.

    Args:
        table: float [RELATIVE_BUCKETS, heads], the score of each bucket.
        seq: number of tokens.

    Returns:
        float [1, heads, seq, seq]: heads, queries, keys.
    """
    position = tf.range(seq)
    # The second half of the buckets is for keys after the query.
    distance = position[tf.newaxis, :] - position[:, tf.newaxis]
    bucket = tf.searchsorted(
        tf.constant(_DISTANCES), tf.reshape(tf.abs(distance), [-1]), side="right"
    )
    after = tf.cast(tf.reshape(distance, [-1]) > 0, tf.int32)
    scores = tf.gather(table, bucket + after * (RELATIVE_BUCKETS // 2))
    scores = tf.reshape(scores, [seq, seq, table.shape[1]])
    return tf.transpose(scores, [2, 0, 1])[tf.newaxis]


class RelativePositions(keras.layers.Layer):
    """The table of MPNet's relative positions; all layers of an encoder share it.

    Args:
        heads: number of attention heads.
    """

    def __init__(self, heads: int, **kwargs):
        super().__init__(**kwargs)
        # MPNet's scores begin at 0.
        self.table = self.add_weight(
            "table", [RELATIVE_BUCKETS, heads], initializer="zeros"
        )

    def call(self, scores: tf.Tensor) -> tf.Tensor:
        """Adds the scores of distances to attention scores [batch, heads, seq, seq]."""
        added = relative_scores(self.table, tf.shape(scores)[-1])
        return scores + tf.cast(added, scores.dtype)


class RelativeSoftmax(keras.layers.Layer):
    """Masked softmax of attention scores after relative positions were added.

    Attributes:
        positions: the layer that adds them.
    """

    def __init__(self, positions: RelativePositions, **kwargs):
        super().__init__(**kwargs)
        self.positions = positions
        self._softmax = keras.layers.Softmax(dtype=self.dtype_policy)

    def call(self, scores: tf.Tensor, mask=None) -> tf.Tensor:
        """Returns probabilities, float [batch, heads, seq, seq]."""
        return self._softmax(self.positions(scores), mask)


class ViewProjection(keras.layers.Layer):
    """P(v): N views of a sentence vector, the conditions that CMLM adds to s2.

    The first view is the vector itself. Each of the other N - 1 views has its own
    network: FC(h, 2h, ReLU), FC(2h, 2h, ReLU), FC(2h, h).

    Reference: Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 2 and
    appendix C.

    Args:
        num_views: N, at least 1 (the paper: 15).
    """

    def __init__(self, num_views: int, **kwargs):
        super().__init__(**kwargs)
        if num_views < 1:
            raise ValueError(f"num_views is {num_views}; allowed: 1 or more")
        self.num_views = num_views

    def build(self, input_shape):
        width = input_shape[-1]
        dense = functools.partial(keras.layers.Dense, dtype=self.dtype_policy)
        # Separate layers, not one batched kernel: LAMB scales each variable by its own
        # norm, so the grouping of weights is part of the recipe.
        self._networks = [
            keras.Sequential(
                [
                    dense(2 * width, "relu", name="hidden_1"),
                    dense(2 * width, "relu", name="hidden_2"),
                    dense(width, name="output"),
                ],
                name=f"view_{view}",
            )
            for view in range(1, self.num_views)
        ]
        for network in self._networks:
            network.build((None, width))
        super().build(input_shape)

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Projects sentence vectors.

        Args:
            vectors: float [batch, dim].

        Returns:
            float [batch, num_views, dim]; view 0 is `vectors`.
        """
        views = [vectors]
        for network in self._networks:
            view = vectors
            for layer in network.layers:
                view = fused.dense(layer, view)
            views.append(view)
        return tf.stack(views, axis=1)


class WordWeights(keras.layers.Layer):
    """Weights the tokens of a mean, for instance by SIF; no objective trains it.

    Args:
        table: the weights, float32 [vocab_size], above 0.
        sentences: number of sentences that the weights come from.

    Attributes:
        table, sentences: as above.
    """

    def __init__(self, table: np.ndarray, sentences: int):
        super().__init__(name="sif", trainable=False, dtype="float32")
        self.table, self.sentences = table, sentences
        self._variable = tf.Variable(table, trainable=False, name="table")

    def call(self, ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each token, and 0 for padding.

        Args:
            ids: int32 [batch, seq].
            mask: [batch, seq], 1 for a real token and 0 for padding.

        Returns:
            float32 [batch, seq].
        """
        return tf.gather(self._variable, ids) * tf.cast(mask, tf.float32)


class Whitening(keras.layers.Layer):
    """Whitens sentence vectors; no objective trains it.

    Args:
        kernel, bias: the map, see `common/whitening.py`.
        sentences: number of sentences that the map was fitted on.

    Attributes:
        kernel, bias, sentences: as above.
    """

    def __init__(self, kernel: np.ndarray, bias: np.ndarray, sentences: int):
        super().__init__(name="whitening", trainable=False, dtype="float32")
        self.kernel, self.bias, self.sentences = kernel, bias, sentences
        self._kernel = tf.Variable(kernel, trainable=False, name="kernel")
        self._bias = tf.Variable(bias, trainable=False, name="bias")

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Whitens vectors, float32 [batch, dim]."""
        return tf.matmul(vectors, self._kernel) + self._bias


# The layers that text determines. Each takes its arrays, which are its variables, and
# the number of sentences.
FITTED = dict(zip(choices.FITTED, (WordWeights, Whitening), strict=True))


class MaskedLM(nlp_layers.MaskedLM):
    """Model Garden's masked-LM head, which takes the outputs at the masked tokens."""

    def call(self, outputs: tf.Tensor) -> tf.Tensor:
        """Predicts words: float [predictions, dim] to logits [predictions, words]."""
        x = self.layer_norm(fused.dense(self.dense, outputs))
        logits = tf.matmul(x, self.embedding_table, transpose_b=True)
        if step_mode.sums_biases(logits.dtype):
            return fused.add_bias(logits, fused.read(self.bias))
        return tf.nn.bias_add(logits, self.bias)


def pair_features(u: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Returns the features of a pair of sentence vectors: [u, v, |u - v|, u * v].

    Args:
        u: [..., dim].
        v: of the same shape.

    Returns:
        [..., 4 dim].
    """
    return tf.concat([u, v, tf.abs(u - v), u * v], axis=-1)


class Classifier(nlp_layers.ClassificationHead):
    """Model Garden's head of a sequence; a training step adds its biases exactly."""

    def call(self, sequence: tf.Tensor) -> tf.Tensor:
        """Classifies: float [batch, seq, dim], of which [CLS] counts, to logits."""
        x = fused.dense(self.dense, sequence[:, self.cls_token_idx])
        return fused.dense(self.out_proj, self.dropout(x))
