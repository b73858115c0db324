"""The encoder's configuration, and the Keras network that is trained and exported."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any, Optional

import tensorflow as tf
from official.modeling import hyperparams
from official.nlp.modeling import networks

from cmlm.common import fields
from cmlm.common.keras import keras
from cmlm.errors import UserError
from cmlm.modeling import fused, layers, pooling, predictions, training_graph

# num_layers, hidden_size, num_attention_heads, intermediate_size: BERT's shapes
# (Devlin et al., 2018) and its published miniatures (Turc et al., 2019).
PRESETS = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
SHAPE_FIELDS = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
SENTENCE_VECTORS = ("pooled", "projected")
# What `ConditionalBertEncoder` reads beside the three tensors of tokens.
_MORE_INPUTS = ("dense_inputs", "dense_mask", "dense_type_ids", "read_tokens")
# The pooling of the weights that a run starts from.
SOURCE_POOLING = "source"
# Above any published encoder; Keras takes a second to build some tens of layers.
MOST_LAYERS = 1000


@dataclasses.dataclass
class EncoderConfig(hyperparams.Config):
    """The shape of the encoder, and the pooling of its sentence vectors.

    Attributes:
        preset: the size of a published encoder; fills every shape below that is not
            set.
        num_layers: number of Transformer layers.
        hidden_size: width of token and sentence vectors.
        embedding_size: width of the embeddings and their layer norm; 0: `hidden_size`.
            A dense layer brings another width to `hidden_size`, as in ALBERT and
            ELECTRA-small. CMLM's conditions are as wide as sentence vectors, so the
            objective `cmlm` cannot train such an encoder.
        num_attention_heads: must divide `hidden_size`.
        intermediate_size: width of the feed-forward layers.
        hidden_activation: `gelu` is the exact GELU.
        layer_norm_epsilon: added to the variance; BERT's 1e-12.
        dropout_rate: dropout of embeddings and of the output of each sub-layer.
        attention_dropout_rate: dropout of attention probabilities.
        drophead_rate: share of the attention heads that each layer drops for a sentence
            in training, drawn anew at every step.
        max_position_embeddings: rows of the position table. The last `num_views` rows
            belong to CMLM's conditions.
        num_views: N of CMLM's P(v), the number of conditions.
        type_vocab_size: rows of the segment table.
        relative_positions: add a learnt score for the distance of two tokens to every
            attention score, as MPNet does. CMLM's conditions have no distance, so the
            objective `cmlm` cannot train such an encoder.
        initializer_range: standard deviation of the truncated normal distribution that
            weights are drawn from.
        vocab_size: rows of the embedding table; 0 takes the size of the vocabulary.
        pooling: how token vectors become a sentence vector; `source` takes the pooling
            of the weights that the run starts from, and mean if they state none.
        normalized: whether the Hugging Face folder that the weights come from scales
            vectors to length 1. `default` is not scaled; a folder that is written for
            Hugging Face keeps the module.
        prompts: the prompts of the Hugging Face folder that the weights come from, each
            as NAME=TEXT. This project does not apply them; a folder that is written for
            Hugging Face keeps them.
        seq_length: the encoder cuts sentences to this number of tokens. A run that
            starts from other weights sets it: to the limit of their folder, or to the
            longest sequence of their run or of its own objectives. 0: the longest
            sequence of the objectives.
        sentence_vector: `pooled`, or `projected` for CMLM's ablation `proj` (section
            5.1): the mean of the N projected vectors.
    """

    preset: str = fields.one_of("base", PRESETS)
    num_layers: Optional[int] = fields.ranged(None, at_least=1, at_most=MOST_LAYERS)
    hidden_size: Optional[int] = fields.ranged(None, at_least=1)
    embedding_size: int = fields.ranged(0, at_least=0)
    num_attention_heads: Optional[int] = fields.ranged(None, at_least=1)
    intermediate_size: Optional[int] = fields.ranged(None, at_least=1)
    hidden_activation: str = fields.one_of("gelu", ACTIVATIONS)
    layer_norm_epsilon: float = fields.ranged(1e-12, above=0, below=1)
    dropout_rate: float = fields.ranged(0.1, at_least=0, below=1)
    attention_dropout_rate: float = fields.ranged(0.1, at_least=0, below=1)
    drophead_rate: float = fields.ranged(0.0, at_least=0, below=1)
    max_position_embeddings: int = fields.ranged(512, at_least=2)
    num_views: int = fields.ranged(15, at_least=1)
    type_vocab_size: int = fields.ranged(2, at_least=1)
    relative_positions: bool = False
    initializer_range: float = fields.ranged(0.02, above=0)
    vocab_size: int = fields.ranged(0, at_least=0)
    pooling: str = fields.one_of("mean", (*pooling.POOLINGS, SOURCE_POOLING))
    normalized: bool = False
    prompts: tuple[str, ...] = ()
    seq_length: int = fields.ranged(0, at_least=0)
    sentence_vector: str = fields.one_of("pooled", SENTENCE_VECTORS)

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings, whether or not it is `hidden_size`."""
        return self.embedding_size or self.hidden_size

    @property
    def token_positions(self) -> int:
        """The longest sequence of tokens: the positions but those of conditions."""
        return self.max_position_embeddings - self.num_views

    def resolve(self) -> None:
        """Checks every value and fills the shape from the preset, in place."""
        fields.check(self, "model.")

    def refuse_other_preset(
        self, given: Collection[str], shape: Mapping[str, Any], path: str
    ) -> None:
        """Raises UserError if a preset that the user has set contradicts the weights.

        Args:
            given: names of the settings that the user has set, such as `model.preset`.
                They win over the preset.
            shape: the weights' values of `SHAPE_FIELDS`.
            path: the weights, for the message.
        """
        if "model.preset" not in given or self.preset not in PRESETS:
            return
        for name, value in zip(SHAPE_FIELDS, PRESETS[self.preset], strict=True):
            if f"model.{name}" not in given and value != shape[name]:
                raise UserError(
                    f"model.preset is {self.preset!r}, which has {name}={value}; "
                    f"allowed: a preset with {name}={shape[name]} or none, as {path} "
                    "says"
                )

    def check_together(self, prefix: str) -> None:
        """Fills the shape from the preset; raises UserError if it does not fit."""
        if self.pooling == SOURCE_POOLING:
            self.pooling = "mean"
        for name, value in zip(SHAPE_FIELDS, PRESETS[self.preset], strict=True):
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.embedding_size == self.hidden_size:
            self.embedding_size = 0
        for prompt in self.prompts:
            if "=" not in str(prompt):
                raise fields.refused(f"{prefix}prompts", self.prompts, "NAME=TEXT")
        if self.hidden_size % self.num_attention_heads:
            raise fields.refused(
                f"{prefix}num_attention_heads",
                self.num_attention_heads,
                f"a divisor of {prefix}hidden_size, {self.hidden_size}",
            )
        if self.num_views >= self.max_position_embeddings:
            raise fields.refused(
                f"{prefix}num_views",
                self.num_views,
                f"below {prefix}max_position_embeddings, "
                f"{self.max_position_embeddings}",
            )
        _check_memory(self, prefix)


def _check_memory(config: EncoderConfig, prefix: str) -> None:
    """Raises UserError if the weights alone exceed the memory of this machine."""
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    # Kernels of attention and of the feed-forward layers; the rest is small.
    numbers = rows * config.embedding_width + config.num_layers * hidden * (
        4 * hidden + 2 * inner
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > memory:
        shape = ", ".join(
            f"{prefix}{name} {getattr(config, name)}"
            for name in (*SHAPE_FIELDS, "max_position_embeddings", "vocab_size")
        )
        raise UserError(
            f"the encoder has {4 * numbers / 2**30:,.0f} GB of weights ({shape}); "
            f"allowed: the memory of this machine, {memory / 2**30:,.0f} GB"
        )


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    return keras.activations.gelu(x, approximate=True)


def activation(name: str):
    """The function of one of `ACTIVATIONS`."""
    return _gelu_tanh if name == "gelu_tanh" else keras.activations.get(name)


class ConditionalBertEncoder(networks.BertEncoderV2):
    """Model Garden's BERT encoder, with fixed positions for dense inputs.

    The base class appends dense inputs to the word embeddings and numbers all positions
    from 0. The position of a condition, and so every vector, would then depend on the
    padding of the batch. Here dense inputs take the last rows of the position table.

    The input `read_tokens`, int32 [tokens, 2], names text and position of the outputs
    that are read. The only output is then `read_output`, float [tokens, dim], and a
    training step spares the last layer all other tokens.
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
        if not fused.active():
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
        return {
            "sequence_output": outputs[-1],
            "pooled_output": fused.dense(self.pooler_layer, outputs[-1][:, 0]),
            "encoder_outputs": outputs,
        }


class EncoderNetwork(keras.Model):
    """The Keras network: token ids in, one vector per sentence out.

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
        self.hidden_size = config.hidden_size
        self.relative_positions = None
        if config.relative_positions:
            self.relative_positions = layers.RelativePositions(
                config.num_attention_heads, name="relative_positions"
            )
        self.read_by(config.pooling, projection)
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
        self, mode: str, projection: Optional[layers.ViewProjection] = None
    ) -> None:
        """Sets how sentence vectors are read from the token vectors.

        Args:
            mode: a key of `pooling.POOLINGS`.
            projection: P(v), whose mean over the views is the sentence vector; None
                takes the pooled vector itself.
        """
        self.pooling = mode
        self.projection = projection
        # If the pooling does not use BERT's pooler, no objective trains it, and weight
        # decay would shrink a trainable pooler to zero.
        uses_pooler = pooling.POOLINGS[mode].through_pooler
        self.bert.pooler_layer.trainable = uses_pooler

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
            `default` and `pooled_output`, the sentence vectors [batch, dim], not
            normalised; `sequence_output` [batch, seq, dim]; `encoder_outputs`, a list
            with the output [batch, seq, dim] of every layer.
        """
        outputs = self._token_outputs(inputs, training)
        vectors = self._pool(outputs["sequence_output"], inputs["input_mask"])
        vectors = self._projected(vectors)
        return {
            "default": vectors,
            "pooled_output": vectors,
            "sequence_output": outputs["sequence_output"],
            "encoder_outputs": outputs["encoder_outputs"],
        }

    def sentence_vector(self, inputs: dict[str, tf.Tensor], training=None) -> tf.Tensor:
        """`default` of `call` alone, float [batch, dim]."""
        return self._projected(self.pooled_vector(inputs, training))

    def pooled_vector(self, inputs: dict[str, tf.Tensor], training=None) -> tf.Tensor:
        """The sentence vector before any projection, float [batch, dim]."""
        mask = inputs["input_mask"]
        if not pooling.POOLINGS[self.pooling].first_only:
            outputs = self._token_outputs(inputs, training)
            return self._pool(outputs["sequence_output"], mask)
        first = predictions.all_tokens(tf.zeros_like(mask[:, :1]))
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
