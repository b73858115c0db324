"""The encoder again, as a graph that is only ever run: no dropout, no training.

On a CPU TensorFlow is as fast as oneDNN lets it be, and oneDNN works on fused
operations. Model Garden's encoder gives it none: its einsum layers leave bias,
activation and norm apart. Here the same function is written in the patterns that
grappler's remapper knows:

    MatMul + BiasAdd + GELU              feed-forward, first half
    MatMul + BiasAdd + Add               projection and residual
    BatchMatMul + Mul + Add              attention scores, scale and mask
    FusedBatchNormV3 + Mul + Add         layer norm

`tests/test_inference_graph.py` looks at the optimised graph: a change that loses a
fusion fails there, not in a benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf

from cmlm.modeling import weights
from cmlm.modeling.encoder import EncoderConfig, SentenceEncoder
from cmlm.modeling.layers import ViewProjection

PRECISIONS = ("float32", "bfloat16")
# Added to the score of a padded token: enough to be nothing after softmax, and a
# number in bfloat16 too.
_MASKED = -1e9
_QUERY_KEY_VALUE = "self_attention/query_key_value"


class InferenceEncoder(tf.Module):
    """Token ids to sentence vectors, for inference only.

    Biases and norms become constants of the graph that traces this: some fusions ask
    for that. Matrices stay variables. As constants they make nothing faster, but every
    function that calls the graph, and every copy that TensorFlow makes while it loads
    and optimises, would hold them once more: 13 GB for BERT-base.

    Args:
        config: of the encoder.
        arrays: its weights, from `weights.read`.
        projection: P(v), needed for `sentence_vector="projected"` only.
        precision: of the layers, one of `PRECISIONS`. Embeddings, pooling and vectors
            are float32: they cost little, and what is lost there is lost for good.
    """

    def __init__(
        self,
        config: EncoderConfig,
        arrays: Mapping[str, np.ndarray],
        projection: Optional[ViewProjection] = None,
        precision: str = "float32",
    ):
        super().__init__(name="inference")
        self._config = config
        self._projection = projection
        self._dtype = tf.as_dtype(precision)
        arrays = _merged(arrays, config.num_layers)
        # Behind a function: tf.Module would track a dict, and these are no state.
        vectors = {name: array for name, array in arrays.items() if array.ndim == 1}
        self._array = vectors.__getitem__
        # A product in bfloat16 takes pairs of neighbours along the inner dimension.
        # In a kernel [out, in] they lie side by side: a tenth faster for one string. In
        # float32 that layout is a third slower from some ten tokens on.
        self._transposed = self._dtype == tf.bfloat16
        self._matrices = {
            name: self._variable(name, array)
            for name, array in arrays.items()
            if array.ndim > 1
        }

    def __call__(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes.

        Args:
            inputs: int32 `input_word_ids`, `input_mask` and, where not all zeros,
                `input_type_ids`, each [batch, seq].

        Returns:
            `default`, float32 [batch, dim].
        """
        ids, mask = inputs["input_word_ids"], inputs["input_mask"]
        types = inputs.get("input_type_ids")
        batch, seq = tf.shape(ids)[0], tf.shape(ids)[1]
        x = tf.cast(self._embed(ids, types, seq), self._dtype)
        # [batch, 1, 1, seq], added to the scores of every head and query.
        bias = (1 - tf.cast(mask, self._dtype)) * tf.constant(_MASKED, self._dtype)
        bias = bias[:, tf.newaxis, tf.newaxis, :]
        for number in range(self._config.num_layers):
            x = self._block(number, x, bias, batch, seq)
        vectors = self._pool(x, mask, batch, seq)
        if self._projection is not None:
            vectors = tf.reduce_mean(self._projection(vectors), axis=1)
        return {"default": vectors}

    # ---------------------------------------------------------------- weights

    def _variable(self, name: str, array: np.ndarray) -> tf.Variable:
        dtype = self._dtype
        if name in (weights.WORDS, weights.POSITIONS, weights.TYPES):
            dtype = tf.float32
        elif self._transposed:
            array = array.T
        return tf.Variable(tf.cast(array, dtype), trainable=False, name=name)

    def _constant(self, name: str, dtype: tf.DType) -> tf.Tensor:
        return tf.constant(self._array(name).astype(dtype.as_numpy_dtype))

    # ----------------------------------------------------------------- layers

    def _embed(self, ids, types, seq) -> tf.Tensor:
        """float32 [batch * seq, dim]."""
        width = self._config.hidden_size
        x = tf.gather(self._matrices[weights.WORDS], ids)
        x += self._matrices[weights.POSITIONS][:seq]
        table = self._matrices[weights.TYPES]
        x += table[0] if types is None else tf.gather(table, types)
        return self._norm("embeddings/layer_norm", tf.reshape(x, [-1, width]))

    def _block(self, number, x, bias, batch, seq) -> tf.Tensor:
        heads = self._config.num_attention_heads
        width = self._config.hidden_size

        def name(part):
            return weights.layer(number, part)

        merged = self._dense(name(_QUERY_KEY_VALUE), x)
        merged = tf.reshape(merged, [batch, seq, 3, heads, width // heads])
        query, key, value = tf.unstack(tf.transpose(merged, [2, 0, 3, 1, 4]))
        scale = tf.constant(1 / math.sqrt(width // heads), self._dtype)
        scores = tf.matmul(query, key, transpose_b=True) * scale + bias
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        # By the shape of x, not as [-1, width]: only an Add of shapes that are known to
        # be equal is fused with what is before it.
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), tf.shape(x))
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
            self._constant(f"{name}/bias", x.dtype),
        )
        return y if residual is None else y + residual

    def _activation(self, x) -> tf.Tensor:
        if self._config.hidden_activation == "relu":
            return tf.nn.relu(x)
        return tf.nn.gelu(x, approximate=self._config.hidden_activation == "gelu_tanh")

    def _norm(self, name, x) -> tf.Tensor:
        """Layer norm as a batch norm whose channels are the tokens."""
        width = self._config.hidden_size
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
        gamma = self._constant(f"{name}/gamma", x.dtype)
        return y * gamma + self._constant(f"{name}/beta", x.dtype)

    def _pool(self, x, mask, batch, seq) -> tf.Tensor:
        """float32 [batch, dim]; as `layers.MaskedPooling`, or BERT's pooler."""
        mode, width = self._config.pooling, self._config.hidden_size
        tokens = tf.reshape(x, [batch, seq, width])
        if mode == "cls":
            return tf.cast(tokens[:, 0], tf.float32)
        if mode == "pooler":
            y = tf.tanh(self._dense(weights.POOLER.rstrip("/"), tokens[:, 0]))
            return tf.cast(y, tf.float32)
        tokens = tf.cast(tokens, tf.float32)
        mask = tf.cast(mask, tf.float32)
        if mode == "mean":
            total = tf.matmul(mask[:, tf.newaxis], tokens)[:, 0]
            count = tf.reduce_sum(mask, axis=1, keepdims=True)
            return tf.math.divide_no_nan(total, count)
        real = mask[:, :, tf.newaxis] > 0
        pooled = tf.reduce_max(tf.where(real, tokens, tokens.dtype.min), axis=1)
        return tf.where(tf.reduce_any(real, axis=1), pooled, 0.0)


def _merged(
    arrays: Mapping[str, np.ndarray], num_layers: int
) -> Mapping[str, np.ndarray]:
    """With one dense layer for query, key and value: one product instead of three."""
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
    encoder: SentenceEncoder, config: EncoderConfig, precision: str = "float32"
) -> InferenceEncoder:
    """The inference graph of an encoder, with its weights of this moment.

    Args:
        encoder: built from `config`.
        config: resolved, with `vocab_size` set.
        precision: one of `PRECISIONS`.
    """
    arrays = weights.read(encoder, config)
    return InferenceEncoder(config, arrays, encoder.projection, precision)
