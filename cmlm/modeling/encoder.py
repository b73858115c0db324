"""The Keras network that is trained and exported."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf
from official.nlp.modeling import networks

from cmlm.common.keras import keras
from cmlm.modeling import (
    fused,
    layers,
    pooling,
    step_mode,
    training_graph,
)
from cmlm.modeling.encoder_config import EncoderConfig

# What `ConditionalBertEncoder` reads beside the three tensors of tokens.
_MORE_INPUTS = ("dense_inputs", "dense_mask", "dense_type_ids", "read_tokens")


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    return keras.activations.gelu(x, approximate=True)


def activation(name: str):
    """The function of one of `encoder_config.ACTIVATIONS`."""
    return _gelu_tanh if name == "gelu_tanh" else keras.activations.get(name)


class ConditionalBertEncoder(networks.BertEncoderV2):
    """Model Garden's BERT encoder, with fixed positions for dense inputs.

    The base class appends dense inputs to the word embeddings and numbers all positions
    from 0. The position of a condition, and so every vector, would then depend on the
    padding of the batch. Here dense inputs take the last rows of the position table.

    The input `read_tokens`, int32 [tokens, 2], names text and position of the outputs
    to return. The only output is then `read_output`, float [tokens, dim], and in a
    training step the last layer computes no other tokens.
    """

    def _get_embeddings(
        self, word_ids, type_ids, word_embeddings, dense_inputs, dense_type_ids
    ):
        tokens = super()._get_embeddings(
            word_ids, type_ids, word_embeddings, None, None
        )
        if dense_inputs is None:
            return tokens
        table = self._position_embedding_layer.trainable_weights[0]
        positions = tf.cast(table, dense_inputs.dtype)[-tf.shape(dense_inputs)[1] :]
        types = self._type_embedding_layer(dense_type_ids)
        dense = dense_inputs + positions[tf.newaxis] + tf.cast(types, positions.dtype)
        return tf.concat([tokens, tf.cast(dense, tokens.dtype)], axis=1)

    def call(self, inputs, training=None):
        read = inputs.get("read_tokens")
        if not step_mode.fuses():
            outputs = super().call(inputs)
            if read is None:
                return outputs
            return {"read_output": tf.gather_nd(outputs["sequence_output"], read)}
        ids, mask = inputs["input_word_ids"], inputs["input_mask"]
        dense = inputs.get("dense_inputs")
        if dense is not None:
            mask = tf.concat([mask, inputs["dense_mask"]], axis=1)
        embeddings = self._get_embeddings(
            ids,
            inputs["input_type_ids"],
            self._embedding_layer(ids),
            dense,
            inputs.get("dense_type_ids"),
        )
        outputs = training_graph.encode(
            self, embeddings, mask, self.exact_gelu, bool(training), read
        )
        if read is not None:
            return {"read_output": outputs[-1]}
        return {"sequence_output": outputs[-1], "encoder_outputs": outputs}


class EncoderNetwork(keras.Model):
    """The Keras network: token ids in, one vector per sentence out.

    `default` of `call` is the vector that users read, with `model.dimensions`
    components. Objectives train on `sentence_vector`, which has all of them.

    Attributes:
        positions: the rows of the position table.
        token_positions: the most tokens of a sentence; later rows belong to conditions.
        sif: weights the tokens of the mean of `default`; None by default. An export may
            add it.
        whitening: the last layer of `default`; None by default. An export may add it.

    Args:
        config: the resolved configuration, with `vocab_size` set.
        projection: P(v); needed only for `sentence_vector="projected"`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        projection: Optional[layers.ViewProjection] = None,
        name: str = "encoder",
    ):
        super().__init__(name=name)
        self.bert = ConditionalBertEncoder(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            embedding_width=config.embedding_width,
            num_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            max_sequence_length=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            inner_dim=config.intermediate_size,
            inner_activation=activation(config.hidden_activation),
            output_dropout=config.dropout_rate,
            attention_dropout=config.attention_dropout_rate,
            initializer=keras.initializers.TruncatedNormal(
                stddev=config.initializer_range
            ),
            name="bert",
        )
        self.bert.exact_gelu = config.hidden_activation == "gelu"
        self.relative_positions = None
        if config.relative_positions:
            self.relative_positions = layers.RelativePositions(
                config.num_attention_heads, name="relative_positions"
            )
        self.positions = config.max_position_embeddings
        self.token_positions = config.token_positions
        self.sif: Optional[layers.WordWeights] = None
        self.whitening: Optional[layers.Whitening] = None
        self.read_by(config.pooling, projection, config.dimensions)
        # This call creates the variables: heads tie to the embedding table, and
        # checkpoints are restored before the first batch.
        self(self.dummy_inputs())
        # Model Garden's encoder has no argument for the epsilon.
        for layer in self.bert._flatten_layers():
            if isinstance(layer, keras.layers.LayerNormalization):
                layer.epsilon = config.layer_norm_epsilon
        for block in self.bert.transformer_layers:
            # Model Garden drops the output of attention at the rate of its
            # probabilities; BERT drops it as any output of a sub-layer.
            block._attention_dropout.rate = config.dropout_rate
            # Keras computes the softmax of attention and its dropout in these
            # attributes; Model Garden's block has no arguments for other layers.
            attention = block._attention_layer
            if self.relative_positions is not None:
                attention._softmax = layers.RelativeSoftmax(self.relative_positions)
            if config.drophead_rate:
                attention._dropout_layer = layers.AttentionDropout(
                    config.attention_dropout_rate, config.drophead_rate
                )

    def read_by(
        self,
        mode: str,
        projection: Optional[layers.ViewProjection] = None,
        dimensions: int = 0,
    ) -> None:
        """Sets how sentence vectors are read from the token vectors.

        Args:
            mode: a key of `pooling.POOLINGS`.
            projection: P(v), whose mean over the views is the sentence vector; None
                takes the pooled vector itself.
            dimensions: the components of `default`, see `pooling.shorten`.
        """
        self.pooling = mode
        self.projection = projection
        self.dimensions = dimensions
        # If the pooling does not use BERT's pooler, no objective trains it, and weight
        # decay would shrink a trainable pooler to zero.
        uses_pooler = pooling.POOLINGS[mode].through_pooler
        self.bert.pooler_layer.trainable = uses_pooler

    @property
    def fitted(self) -> dict[str, keras.layers.Layer]:
        """The layers that text determined, by their names in `layers.FITTED`."""
        found = {name: getattr(self, name) for name in layers.FITTED}
        return {name: layer for name, layer in found.items() if layer is not None}

    @property
    def reading_variables(self) -> list[tf.Variable]:
        """The trainable weights that only sentence vectors depend on."""
        found = list(self.bert.pooler_layer.trainable_variables)
        if self.projection is not None:
            found += self.projection.trainable_variables
        return found

    @staticmethod
    def dummy_inputs() -> dict[str, tf.Tensor]:
        """A batch with one sentence of two tokens, to build the network with."""
        ids = tf.zeros([1, 2], tf.int32)
        return {
            "input_word_ids": ids,
            "input_mask": ids + 1,
            "input_type_ids": ids,
        }

    @property
    def embedding_table(self) -> tf.Variable:
        """[vocab_size, embedding_width]; the masked-LM head is tied to it."""
        return self.bert.get_embedding_table()

    def call(self, inputs: dict[str, tf.Tensor], training=None) -> dict:
        """Encodes sentences.

        Args:
            inputs: int32 `input_word_ids` and `input_mask` (1 for a real token), each
                [batch, seq]; `input_type_ids` [batch, seq], zeros if absent.
            training: whether dropout is on.

        Returns:
            `default` and `pooled_output`, the sentence vectors as they are read,
            [batch, dimensions], not normalised; `sequence_output` [batch, seq, dim];
            `encoder_outputs`, a list with the output [batch, seq, dim] of every layer.
        """
        outputs = self._token_outputs(inputs, training)
        mask = inputs["input_mask"]
        if self.sif is not None:
            mask = self.sif(inputs["input_word_ids"], mask)
        vectors = self.vectors_of(outputs["sequence_output"], mask)
        vectors = pooling.shorten(vectors, self.dimensions)
        if self.whitening is not None:
            vectors = self.whitening(vectors)
        return {
            "default": vectors,
            "pooled_output": vectors,
            "sequence_output": outputs["sequence_output"],
            "encoder_outputs": outputs["encoder_outputs"],
        }

    def sentence_vector(self, inputs: dict[str, tf.Tensor], training=None) -> tf.Tensor:
        """The sentence vector with all its components, float [batch, dim]."""
        return self._projected(self.pooled_vector(inputs, training))

    def vectors_of(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """`sentence_vector` of the outputs of the last layer, float [batch, dim].

        Args:
            tokens: float [batch, seq, dim], `sequence_output` of `call`.
            mask: [batch, seq], 1 for a real token and 0 for padding; with the pooling
                mean, any weights of the tokens.
        """
        return self._projected(self._pool(tokens, mask))

    def pooled_vector(self, inputs: dict[str, tf.Tensor], training=None) -> tf.Tensor:
        """The sentence vector before any projection, float [batch, dim]."""
        mask = inputs["input_mask"]
        if not pooling.POOLINGS[self.pooling].first_only:
            outputs = self._token_outputs(inputs, training)
            return self._pool(outputs["sequence_output"], mask)
        texts = tf.range(tf.shape(mask)[0])
        first = tf.stack([texts, tf.zeros_like(texts)], axis=1)
        return self._pool(
            self.read(inputs, first, training)[:, tf.newaxis], mask[:, :1]
        )

    def read(
        self, inputs: dict[str, tf.Tensor], tokens: tf.Tensor, training=None
    ) -> tf.Tensor:
        """Returns some outputs of the last layer, float [tokens, dim].

        Args:
            inputs: as in `call`.
            tokens: int32 [tokens, 2], text and position of each output.
            training: whether dropout is on.
        """
        inputs = {**inputs, "read_tokens": tokens}
        return self._token_outputs(inputs, training)["read_output"]

    def _projected(self, vectors: tf.Tensor) -> tf.Tensor:
        if self.projection is None:
            return vectors
        return tf.reduce_mean(self.projection(vectors), axis=1)

    def _pool(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        def pooler(vectors):
            return fused.dense(self.bert.pooler_layer, vectors)

        return pooling.pool(self.pooling, tokens, mask, pooler)

    def _token_outputs(self, inputs, training) -> dict:
        ids = inputs["input_word_ids"]
        types = inputs.get("input_type_ids")
        return self.bert(
            {
                "input_word_ids": ids,
                "input_mask": inputs["input_mask"],
                "input_type_ids": tf.zeros_like(ids) if types is None else types,
                **{name: inputs[name] for name in _MORE_INPUTS if name in inputs},
            },
            training=training,
        )

    def read_conditional(
        self,
        inputs: dict[str, tf.Tensor],
        conditions: tf.Tensor,
        tokens: tf.Tensor,
        training=None,
    ) -> tf.Tensor:
        """Encodes tokens together with dense conditions (CMLM, section 2).

        Args:
            inputs: as in `call`.
            conditions: float [batch, num_views, dim].
            tokens: int32 [tokens, 2], text and position of each output to return.
            training: whether dropout is on.

        Returns:
            float [tokens, dim].
        """
        shape = tf.shape(conditions)[:2]
        dense = {
            "dense_inputs": conditions,
            "dense_mask": tf.ones(shape, tf.int32),
            "dense_type_ids": tf.zeros(shape, tf.int32),
        }
        return self.read({**inputs, **dense}, tokens, training)
