"""The encoder as a graph for training: the same layers, in fewer passes over memory.

Model Garden's block multiplies with einsum, adds biases, casts and drops in operations
of their own. This module reads the weights of the same Keras layers and writes the same
function with products of two dimensions and the pieces of `fused`. Names and gradients
of the weights are those of the Keras layers, and so are the states of dropout; its
draws differ. Where `padding` says so, the products leave out padding.
`tests/test_training_graph.py` compares the two forms.
"""

from __future__ import annotations

import math

import tensorflow as tf

from cmlm.common.keras import keras
from cmlm.modeling import fused, layers
from cmlm.modeling.padding import padding_of

# Added to the score of a padded token: its softmax is 0.
_MASKED = -1e9


def encode(
    bert: keras.layers.Layer, embeddings: tf.Tensor, mask: tf.Tensor, exact_gelu: bool
) -> list[tf.Tensor]:
    """Norms the embeddings and runs the Transformer blocks, with dropout.

    Args:
        bert: Model Garden's encoder.
        embeddings: float [batch, seq, width], the sums of the embeddings of words,
            positions and types.
        mask: int32 [batch, seq], 1 for a real token.
        exact_gelu: whether the blocks' activation is the exact GELU.

    Returns:
        The output of every block, float32 [batch, seq, dim]. The outputs at padding
        are arbitrary.
    """
    shape = tf.shape(embeddings)
    heads = bert.transformer_layers[0]._attention_layer._query_dense.kernel.shape[1]
    padding = padding_of(mask, heads)
    x = tf.reshape(tf.cast(embeddings, tf.float32), [-1, embeddings.shape[-1]])
    x = _normed_embeddings(bert, padding.remove(x))
    if bert._embedding_projection is not None:
        x = tf.cast(bert._embedding_projection(x), tf.float32)
    for_product = tf.cast(x, _type(bert.transformer_layers[0]))
    mask = tf.cast(padding.mask, tf.float32)
    mask = (1.0 - mask)[:, tf.newaxis, tf.newaxis] * _MASKED
    outputs = []
    for block in bert.transformer_layers:
        x, for_product = _block(block, x, for_product, mask, padding, exact_gelu)
        padded = padding.restore(x)
        outputs.append(tf.reshape(padded, [shape[0], shape[1], x.shape[-1]]))
    return outputs


def _normed_embeddings(bert: keras.layers.Layer, x: tf.Tensor) -> tf.Tensor:
    """Layer norm and dropout of embeddings, float32 [tokens, width]."""
    norm, dropout = bert._embedding_norm_layer, bert._embedding_dropout
    return fused.norm_dropout(
        x,
        *(fused.read(norm.gamma), fused.read(norm.beta), norm.epsilon),
        *(_kept(dropout, tf.shape(x)), fused.exact_rate(dropout.rate)),
    )


def _type(block) -> tf.DType:
    """The type of the products."""
    return tf.as_dtype(block._intermediate_dense.compute_dtype)


def _block(
    block, x, for_product, mask, padding, exact_gelu
) -> tuple[tf.Tensor, tf.Tensor]:
    """One block: [tokens, dim] in float32 and in the products' type, to the same."""
    dtype = _type(block)
    found = _attention(block._attention_layer, for_product, mask, padding)
    output = block._attention_layer._output_dense
    kernel = tf.reshape(fused.read(output.kernel), [-1, x.shape[-1]])
    x, for_product = _norm(
        *(block._attention_layer_norm, block._attention_dropout, x),
        *(tf.matmul(found, tf.cast(kernel, dtype)), output.bias),
    )
    dense, last = block._intermediate_dense, block._output_dense
    inner = tf.matmul(for_product, tf.cast(fused.read(dense.kernel), dtype))
    kernel = tf.cast(fused.read(last.kernel), dtype)
    if exact_gelu:
        inner = fused.gelu_product(inner, fused.read(dense.bias), kernel)
    else:
        inner = fused.add_bias(inner, fused.read(dense.bias))
        inner = tf.cast(block._intermediate_activation_layer(inner), dtype)
        inner = tf.matmul(inner, kernel)
    return _norm(
        *(block._output_layer_norm, block._output_dropout, x),
        *(inner, last.bias),
    )


def _norm(norm, dropout, x, y, bias) -> tuple[tf.Tensor, tf.Tensor]:
    kept = _kept(dropout, tf.shape(y))
    return fused.residual_norm(
        x,
        y,
        fused.read(bias),
        fused.read(norm.gamma),
        fused.read(norm.beta),
        norm.epsilon,
        kept,
        fused.exact_rate(dropout.rate),
    )


def _attention(layer, x, mask, padding) -> tf.Tensor:
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
    query, key, value = padding.split_heads(every)
    scores = tf.matmul(query, key, transpose_b=True)
    scale = 1.0 / math.sqrt(size)
    if isinstance(layer._softmax, layers.RelativeSoftmax):
        scores, scale = layer._softmax.positions(scores * scale), 1.0
    dropout = layer._dropout_layer
    plain = isinstance(dropout, keras.layers.Dropout)
    found = fused.attention_probabilities(
        scores,
        mask,
        scale,
        _kept(dropout, tf.shape(scores)) if plain else None,
        fused.exact_rate(dropout.rate),
    )
    if not plain:
        # DropHead.
        found = tf.cast(dropout(found, training=True), dtype)
    return padding.join_heads(tf.matmul(found, value))


def _kept(dropout, shape):
    if not dropout.rate:
        return None
    return fused.kept(dropout._random_generator._generator, shape, dropout.rate)
