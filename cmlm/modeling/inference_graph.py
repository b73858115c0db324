"""The encoder as a graph for inference: no dropout, no training.

On a CPU, TensorFlow's speed depends on oneDNN's fused operations. Model Garden's
encoder does not trigger them, because its einsum layers keep bias, activation and norm
separate. This module writes the same function in the patterns that grappler's remapper
knows:

    MatMul + BiasAdd + GELU              feed-forward, first half
    MatMul + BiasAdd + Add               projection and residual
    BatchMatMul + Mul + Add              attention scores, scale and mask
    FusedBatchNormV3 + Mul + Add         layer norm

Products, norms and GELU see the real tokens of a batch and no padding, and the last
layer sees [CLS] alone if the pooling does.
`tests/test_inference_graph.py` inspects the optimised graph, so a change that loses a
fusion fails in a test, not in a benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf

from cmlm.modeling import layers, pooling, weights
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.layers import ViewProjection, Whitening, WordWeights
from cmlm.modeling.padding import RealTokens

# Added to the score of a padded token: its softmax is 0, and bfloat16 can hold it.
_MASKED = -1e9
_TABLES = (weights.WORDS, weights.POSITIONS, weights.TYPES, weights.RELATIVE)
_QUERY_KEY_VALUE = "self_attention/query_key_value"


class InferenceEncoder(tf.Module):
    """Token ids to sentence vectors, for inference only.

    Biases and norms become constants of the traced graph, because some fusions need
    constants. Matrices stay variables: constants would not be faster, and every
    function that calls the graph, and every copy that TensorFlow makes while it loads
    and optimises, would hold them again (13 GB for BERT-base).

    Args:
        config: the encoder's configuration.
        arrays: the encoder's weights by the names of `weights`.
        projection: P(v); needed only for `sentence_vector="projected"`.
        sif, whitening: layers of the encoder, if it has them.
        precision: the precision of the layers, one of `choices.PRECISIONS`.
            Embeddings, pooling and vectors are always float32: they cost little, and
            later layers cannot recover the digits they lose.
    """

    def __init__(
        self,
        config: EncoderConfig,
        arrays: Mapping[str, np.ndarray],
        projection: Optional[ViewProjection] = None,
        sif: Optional[WordWeights] = None,
        whitening: Optional[Whitening] = None,
        precision: str = "float32",
    ):
        super().__init__(name="inference")
        self._config = config
        self._projection = projection
        self._sif = sif
        self._whitening = whitening
        self._dtype = tf.as_dtype(precision)
        arrays = _merged(arrays, config.num_layers)
        # tf.Module would track a dict, and constants are not state.
        one_axis = {name: array for name, array in arrays.items() if array.ndim < 2}
        self._array = one_axis.__getitem__
        # A bfloat16 product reads pairs of neighbours along the inner dimension. A
        # kernel [out, in] stores them side by side, which is a tenth faster for one
        # string. In float32 this layout is a third slower from about ten tokens on.
        self._transposed = self._dtype == tf.bfloat16
        self._matrices = {
            name: self._variable(name, array)
            for name, array in arrays.items()
            if array.ndim > 1
        }

    def __call__(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes sentences.

        Args:
            inputs: int32 `input_word_ids`, `input_mask` and optionally
                `input_type_ids` (default: zeros), each [batch, seq].

        Returns:
            `default`, float32 [batch, dimensions].
        """
        ids, mask = inputs["input_word_ids"], inputs["input_mask"]
        real = RealTokens(mask, self._config.num_attention_heads)
        x = self._embed(ids, inputs.get("input_type_ids"), real)
        x = tf.cast(x, self._dtype)
        if self._config.embedding_size:
            x = self._dense(weights.PROJECTION, x)
        # [batch, 1, 1, seq], added to the scores of every head and query.
        bias = (1 - tf.cast(mask, self._dtype)) * tf.constant(_MASKED, self._dtype)
        bias = bias[:, tf.newaxis, tf.newaxis, :]
        if self._config.relative_positions:
            table = self._matrices[weights.RELATIVE]
            bias += tf.cast(
                layers.relative_scores(table, tf.shape(mask)[1]), self._dtype
            )
        last = self._config.num_layers - 1
        for number in range(last):
            x = self._block(number, x, bias, real)
        if pooling.POOLINGS[self._config.pooling].first_only:
            # [batch, 1, dim] are all tokens that the pooling reads.
            tokens = self._block(last, x, bias, real, first_only=True)[:, tf.newaxis]
            mask = mask[:, :1]
        else:
            x = self._block(last, x, bias, real)
            tokens = tf.gather(x, real.place)
        if self._sif is not None:
            mask = self._sif(ids, mask)
        vectors = tf.cast(self._pool(tokens, mask), tf.float32)
        if self._projection is not None:
            vectors = tf.reduce_mean(self._projection(vectors), axis=1)
        vectors = pooling.shorten(vectors, self._config.dimensions)
        if self._whitening is not None:
            vectors = self._whitening(vectors)
        return {"default": vectors}

    # ---------------------------------------------------------------- weights

    def _variable(self, name: str, array: np.ndarray) -> tf.Variable:
        dtype = self._dtype
        if name in _TABLES:
            dtype = tf.float32
        elif self._transposed:
            array = array.T
        return tf.Variable(tf.cast(array, dtype), trainable=False, name=name)

    def _vector(self, name: str, dtype: tf.DType) -> tf.Tensor:
        """A bias, or a gamma or beta of layer norm, [width]."""
        array = self._array(name).astype(dtype.as_numpy_dtype)
        if array.any() and (array != 1).any():
            return tf.constant(array)
        # TensorFlow removes a product with a constant 1 and a sum with a constant 0,
        # which untrained weights have. Without them it would not know the pattern of
        # layer norm, and the kernel in its place, oneDNN's FusedBatchNorm, writes over
        # foreign memory if two threads run it. Nothing looks behind a placeholder.
        return tf.raw_ops.PlaceholderWithDefault(input=array, shape=array.shape)

    # ----------------------------------------------------------------- layers

    def _embed(self, ids, types, real) -> tf.Tensor:
        """float32 [tokens, embedding width]."""
        x = tf.gather(self._matrices[weights.WORDS], real.take(ids))
        x += tf.gather(self._matrices[weights.POSITIONS], real.positions)
        table = self._matrices[weights.TYPES]
        x += table[0] if types is None else tf.gather(table, real.take(types))
        # In a SavedModel, the remapper does not know the width of a table.
        x = tf.reshape(x, [-1, self._config.embedding_width])
        return self._norm(weights.EMBEDDING_NORM, x)

    def _block(self, number, x, bias, real, first_only=False) -> tf.Tensor:
        """One block; with `first_only`, its output at the first token of each row."""
        size = self._config.hidden_size // self._config.num_attention_heads

        def name(part):
            return weights.layer(number, part)

        query, key, value = real.split_heads(
            self._dense(name(_QUERY_KEY_VALUE), x), size
        )
        if first_only:
            query, bias = query[:, :, :1], bias[:, :, :1]
            x = tf.gather(x, real.place[:, 0])
        scale = tf.constant(1 / math.sqrt(size), self._dtype)
        scores = tf.matmul(query, key, transpose_b=True) * scale + bias
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        if not first_only:
            mixed = real.join_heads(mixed)
        # Reshapes to the shape of x, not to [-1, width]: the remapper fuses an Add only
        # if it knows that both shapes are equal.
        mixed = tf.reshape(mixed, tf.shape(x))
        y = self._dense(name("self_attention/attention_output"), mixed, x)
        x = self._norm(name("self_attention_layer_norm"), y)
        inner = self._activation(self._dense(name("intermediate"), x))
        y = self._dense(name("output"), inner, x)
        return self._norm(name("output_layer_norm"), y)

    def _dense(self, name, x, residual=None) -> tf.Tensor:
        y = tf.nn.bias_add(
            tf.matmul(
                x, self._matrices[f"{name}/kernel"], transpose_b=self._transposed
            ),
            self._vector(f"{name}/bias", x.dtype),
        )
        return y if residual is None else y + residual

    def _activation(self, x) -> tf.Tensor:
        if self._config.hidden_activation == "relu":
            return tf.nn.relu(x)
        return tf.nn.gelu(x, approximate=self._config.hidden_activation == "gelu_tanh")

    def _norm(self, name, x) -> tf.Tensor:
        """Layer norm as a batch norm whose channels are the tokens."""
        width = len(self._array(f"{name}/gamma"))
        tokens = tf.shape(x)[0]
        y, *_ = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, tokens, width, 1]),
            scale=tf.fill([tokens], tf.constant(1.0)),
            offset=tf.fill([tokens], tf.constant(0.0)),
            mean=tf.constant([], tf.float32),
            variance=tf.constant([], tf.float32),
            epsilon=self._config.layer_norm_epsilon,
            data_format="NCHW",
            is_training=True,
        )
        y = tf.reshape(y, tf.shape(x))
        gamma = self._vector(f"{name}/gamma", x.dtype)
        return y * gamma + self._vector(f"{name}/beta", x.dtype)

    def _pool(self, tokens, mask) -> tf.Tensor:
        """float32 [batch, dim]."""
        tokens = tf.cast(tokens, tf.float32)
        return pooling.pool(self._config.pooling, tokens, mask, self._pooler)

    def _pooler(self, vectors) -> tf.Tensor:
        return tf.tanh(self._dense(weights.POOLER, tf.cast(vectors, self._dtype)))


def _merged(
    arrays: Mapping[str, np.ndarray], num_layers: int
) -> Mapping[str, np.ndarray]:
    """Joins query, key and value to one dense layer: one product instead of three."""
    merged = dict(arrays)
    for number in range(num_layers):
        for part in ("kernel", "bias"):
            three = [
                merged.pop(weights.layer(number, f"self_attention/{name}/{part}"))
                for name in ("query", "key", "value")
            ]
            name = weights.layer(number, f"{_QUERY_KEY_VALUE}/{part}")
            merged[name] = np.concatenate(three, axis=-1)
    return merged


def build(
    encoder: EncoderNetwork, config: EncoderConfig, precision: str = "float32"
) -> InferenceEncoder:
    """Builds the inference graph of an encoder, with a copy of its current weights.

    P(v), SIF and whitening are not copied: the graph shares these layers of
    `encoder`.

    Args:
        encoder: built from `config`.
        config: the resolved configuration, with `vocab_size` set.
        precision: one of `choices.PRECISIONS`.
    """
    arrays = weights.read(encoder, config, without=_TABLES)
    # A new variable can share the memory of a tensor, but not that of an array.
    variables = weights.encoder_variables(encoder)
    arrays |= {
        name: variables[name].read_value() for name in _TABLES & variables.keys()
    }
    return InferenceEncoder(
        config,
        arrays,
        encoder.projection,
        encoder.sif,
        encoder.whitening,
        precision,
    )
