"""The encoder as a graph for training: the same layers, in fewer passes over memory.

Model Garden's block multiplies with einsum, and has separate operations for biases,
casts and dropout. This module computes the same function from the weights of the same
Keras layers, with products of two dimensions and the pieces of `fused`. The weights
keep their names and gradients. Dropout keeps the states of the Keras layers, but draws
other numbers. Where `padding` says so, the products leave out padding. The graph leaves
out outputs that nobody reads.
`tests/test_training_graph.py` compares the two forms.
"""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from cmlm.common.keras import keras
from cmlm.modeling import fused, layers
from cmlm.modeling.padding import Padding, padding_of

# Added to the score of a padded token: its softmax is 0.
_MASKED = -1e9


@dataclasses.dataclass(frozen=True)
class _Batch:
    """The arguments that all blocks share.

    Attributes:
        padding: the treatment of padding.
        mask: float32 [batch, 1, 1, columns], added to the scores of attention.
        exact_gelu: whether the blocks' activation is the exact GELU.
        training: whether dropout is on.
    """

    padding: Padding
    mask: tf.Tensor
    exact_gelu: bool
    training: bool

    def kept(self, dropout, shape) -> tf.Tensor | None:
        """Draws the elements that a Keras layer of dropout keeps; None: all."""
        if not self.training:
            return None
        return fused.kept(dropout._random_generator._generator, shape, dropout.rate)


def encode(
    bert: keras.layers.Layer,
    embeddings: tf.Tensor,
    mask: tf.Tensor,
    exact_gelu: bool,
    training: bool,
    read: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Norms the embeddings and runs the Transformer blocks.

    Args:
        bert: Model Garden's encoder.
        embeddings: float [batch, seq, width], the sums of the embeddings of words,
            positions and types.
        mask: int32 [batch, seq], 1 for a real token.
        exact_gelu: whether the blocks' activation is the exact GELU.
        training: whether dropout is on.
        read: int32 [tokens, 2], text and position of the outputs that are read; None:
            all are.

    Returns:
        The output of every block, float32 [batch, seq, dim]. The outputs at padding
        are arbitrary. With `read`, the last block's output is [tokens, dim].
    """
    shape = tf.shape(embeddings)
    heads = bert.transformer_layers[0]._attention_layer._query_dense.kernel.shape[1]
    padding = padding_of(mask, heads)
    mask = tf.cast(padding.mask, tf.float32)
    mask = (1.0 - mask)[:, tf.newaxis, tf.newaxis] * _MASKED
    batch = _Batch(padding, mask, exact_gelu, training)
    x = tf.reshape(tf.cast(embeddings, tf.float32), [-1, embeddings.shape[-1]])
    x = _normed_embeddings(bert, padding.remove(x), batch)
    if bert._embedding_projection is not None:
        x = tf.cast(fused.dense(bert._embedding_projection, x), tf.float32)
    for_product = tf.cast(x, _type(bert.transformer_layers[0]))

    def padded(x):
        return tf.reshape(padding.restore(x), [*tf.unstack(shape[:2]), x.shape[-1]])

    outputs = []
    *blocks, last = bert.transformer_layers
    for block in blocks:
        x, for_product = _block(block, x, for_product, batch)
        outputs.append(padded(x))
    if read is None:
        x, _ = _block(last, x, for_product, batch)
        return [*outputs, padded(x)]
    x, _ = _block(last, x, for_product, batch, padding.numbers(read))
    return [*outputs, x]


def _normed_embeddings(bert, x, batch: _Batch) -> tf.Tensor:
    """Layer norm and dropout of embeddings, float32 [tokens, width]."""
    norm, dropout = bert._embedding_norm_layer, bert._embedding_dropout
    return fused.norm_dropout(
        x,
        fused.read(norm.gamma),
        fused.read(norm.beta),
        norm.epsilon,
        batch.kept(dropout, tf.shape(x)),
        dropout.rate,
    )


def _type(block) -> tf.DType:
    """The type of the products."""
    return tf.as_dtype(block._intermediate_dense.compute_dtype)


def _block(
    block, x, for_product, batch: _Batch, read: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """One block: [tokens, dim] in float32 and in the products' type, to the same.

    With `read`, int32 [some], only the outputs of these tokens are computed.
    """
    dtype = _type(block)
    found = _attention(block._attention_layer, for_product, batch, read)
    if read is not None:
        x = tf.gather(x, read)
    output = block._attention_layer._output_dense
    kernel = tf.reshape(fused.read(output.kernel), [-1, x.shape[-1]])
    x, for_product = _norm(
        block._attention_layer_norm,
        block._attention_dropout,
        x,
        tf.matmul(found, tf.cast(kernel, dtype)),
        output.bias,
        batch,
    )
    dense, last = block._intermediate_dense, block._output_dense
    inner = tf.matmul(for_product, tf.cast(fused.read(dense.kernel), dtype))
    kernel = tf.cast(fused.read(last.kernel), dtype)
    if batch.exact_gelu:
        inner = fused.gelu_product(inner, fused.read(dense.bias), kernel)
    else:
        inner = fused.add_bias(inner, fused.read(dense.bias))
        inner = tf.cast(block._intermediate_activation_layer(inner), dtype)
        inner = tf.matmul(inner, kernel)
    return _norm(
        block._output_layer_norm,
        block._output_dropout,
        x,
        inner,
        last.bias,
        batch,
    )


def _norm(norm, dropout, x, y, bias, batch: _Batch) -> tuple[tf.Tensor, tf.Tensor]:
    kept = batch.kept(dropout, tf.shape(y))
    return fused.residual_norm(
        x,
        y,
        fused.read(bias),
        fused.read(norm.gamma),
        fused.read(norm.beta),
        norm.epsilon,
        kept,
        dropout.rate,
    )


def _attention(layer, x, batch: _Batch, read) -> tf.Tensor:
    """[tokens, heads * size], the heads' outputs side by side."""
    dtype, width = x.dtype, x.shape[-1]
    parts = (layer._query_dense, layer._key_dense, layer._value_dense)
    heads, size = parts[0].kernel.shape[1:]
    # One product instead of three.
    kernel = tf.concat(
        [tf.reshape(fused.read(part.kernel), [width, heads * size]) for part in parts],
        axis=1,
    )
    bias = tf.concat(
        [tf.reshape(fused.read(part.bias), [heads * size]) for part in parts], axis=0
    )
    every = fused.add_bias(tf.matmul(x, tf.cast(kernel, dtype)), bias)
    query, key, value = batch.padding.split_heads(every)
    scores = tf.matmul(query, key, transpose_b=True)
    scale = 1.0 / math.sqrt(size)
    if isinstance(layer._softmax, layers.RelativeSoftmax):
        scores, scale = layer._softmax.positions(scores * scale), 1.0
    dropout = layer._dropout_layer
    is_drophead = isinstance(dropout, layers.AttentionDropout)
    found = fused.attention_probabilities(
        scores,
        batch.mask,
        scale,
        None if is_drophead else batch.kept(dropout, tf.shape(scores)),
        dropout.rate,
    )
    if is_drophead:
        found = tf.cast(dropout(found, training=batch.training), dtype)
    return batch.padding.join_heads(tf.matmul(found, value), read)
