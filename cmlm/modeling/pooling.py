"""The poolings: how the token vectors of a sentence become one vector.

`POOLINGS` is the only table. The training encoder, the inference graph, model cards,
readers and writers of other formats, and the checks of flags all read it: a new pooling
is a new row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Optional

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Pooling:
    """One way to pool.

    Attributes:
        description: the text for model cards.
        reduce: maps token vectors, float32 [batch, seq, dim], and mask, float32 [batch,
            seq], to float32 [batch, dim].
        first_only: whether `reduce` reads the first token alone.
        through_pooler: whether BERT's pooler, a dense layer with tanh, follows.
        sentence_transformers: the name of `reduce` in sentence-transformers' pooling
            configuration, `pooling_mode_NAME`; "" if it has no such mode.
        last_ops: TensorFlow ops that end this pooling in the graph of a SavedModel.
        takes_weights: whether the mask of `reduce` may hold a weight for each token.
    """

    description: str
    reduce: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    first_only: bool = False
    through_pooler: bool = False
    sentence_transformers: str = ""
    last_ops: tuple[str, ...] = ()
    takes_weights: bool = False


def _mean(tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(tokens * mask[:, :, tf.newaxis], axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(mask, axis=1, keepdims=True))


def _max(tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    is_real = mask[:, :, tf.newaxis] > 0
    pooled = tf.reduce_max(tf.where(is_real, tokens, tokens.dtype.min), axis=1)
    return tf.where(tf.reduce_any(is_real, axis=1), pooled, 0.0)


def _first(tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    del mask
    return tokens[:, 0]


# Help texts and messages keep this order.
POOLINGS: dict[str, Pooling] = {
    "mean": Pooling(
        "mean of the token vectors, [CLS] and [SEP] included",
        _mean,
        sentence_transformers="mean_tokens",
        last_ops=("DivNoNan", "RealDiv", "Mean"),
        takes_weights=True,
    ),
    "max": Pooling(
        "maximum over the token vectors, [CLS] and [SEP] included",
        _max,
        sentence_transformers="max_tokens",
        last_ops=("Max",),
    ),
    "cls": Pooling(
        "vector of [CLS]",
        _first,
        first_only=True,
        sentence_transformers="cls_token",
        last_ops=("StridedSlice",),
    ),
    "pooler": Pooling(
        "[CLS] through BERT's pooler, a dense layer with tanh",
        _first,
        first_only=True,
        through_pooler=True,
        sentence_transformers="cls_token",
        last_ops=("Tanh",),
    ),
}


def pool(
    mode: str,
    tokens: tf.Tensor,
    mask: tf.Tensor,
    pooler: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
) -> tf.Tensor:
    """Pools the token vectors of each sentence; padding never counts.

    `mean` and `max` run over every real token, [CLS] and [SEP] included; a row without
    any real token pools to zeros. Sums are taken in float32: hundreds of bfloat16
    numbers would lose digits.

    Args:
        mode: a key of `POOLINGS`.
        tokens: float [batch, seq, dim].
        mask: [batch, seq], 1 for a real token and 0 for padding; or weights of the
            tokens, if `takes_weights` is set.
        pooler: BERT's pooler, float [batch, dim] to float [batch, dim]; needed if
            `through_pooler` is set.

    Returns:
        float [batch, dim], in the dtype of `tokens`.

    Reference: Yang et al., 2020, https://arxiv.org/abs/2012.14388, footnote 1 and
    appendix A (mean, max, [CLS]); Devlin et al., 2018 (the pooler).
    """
    pooling = POOLINGS[mode]
    vectors = pooling.reduce(tf.cast(tokens, tf.float32), tf.cast(mask, tf.float32))
    vectors = tf.cast(vectors, tokens.dtype)
    return pooler(vectors) if pooling.through_pooler else vectors


def shorten(vectors: tf.Tensor, dimensions: int) -> tf.Tensor:
    """Keeps the first components of each vector.

    Args:
        vectors: float [batch, dim].
        dimensions: the number of components, at most dim; 0 keeps all.

    Returns:
        float [batch, dimensions].
    """
    return vectors[:, :dimensions] if dimensions else vectors
