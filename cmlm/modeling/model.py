"""The trained model: the encoder and the heads that objectives share."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from cmlm.common import distributed
from cmlm.common.keras import keras
from cmlm.modeling.encoder import EncoderNetwork, activation
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.layers import Classifier, MaskedLM, ViewProjection, pair_features

# The name of the part that holds QuickThought's second encoder.
SECOND_ENCODER = "second_encoder"


@dataclasses.dataclass
class _Dropout:
    """The random state and the key of every dropout layer.

    A checkpoint would save a list of variables. It leaves this class out.

    Attributes:
        seed: the seed of the run.
        on_tpu: whether the layers draw on TPUs.
    """

    states: list[tf.Variable]
    keys: list[int]
    seed: int
    on_tpu: bool


class SentenceModel(tf.Module):
    """Named parts, each a Keras layer; a checkpoint stores them under these names.

    The first objective that asks for a head creates it, so two objectives that predict
    masked words train one head.

    Args:
        config: the resolved configuration, with `vocab_size` set.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__(name="model")
        self.config = config
        self.parts = {}
        projection = (
            self.projection() if config.sentence_vector == "projected" else None
        )
        self.parts["encoder"] = EncoderNetwork(config, projection)

    @property
    def encoder(self) -> EncoderNetwork:
        return self.parts["encoder"]

    def second_encoder(self) -> EncoderNetwork:
        """An encoder of the same shape with its own weights (QuickThought's g)."""
        if SECOND_ENCODER not in self.parts:
            network = EncoderNetwork(self.config, name=SECOND_ENCODER)
            self.parts[SECOND_ENCODER] = network
        return self.parts[SECOND_ENCODER]

    def read_by(self, mode: str, sentence_vector: str, dimensions: int = 0) -> None:
        """Sets how sentence vectors are read, in the configuration too.

        Args:
            mode: a key of `pooling.POOLINGS`.
            sentence_vector: one of `encoder_config.SENTENCE_VECTORS`.
            dimensions: the components of a vector, see `pooling.shorten`.
        """
        self.config.pooling, self.config.sentence_vector = mode, sentence_vector
        self.config.dimensions = dimensions
        projection = self.projection() if sentence_vector == "projected" else None
        self.encoder.read_by(mode, projection, dimensions)
        if SECOND_ENCODER in self.parts:
            self.second_encoder().read_by(mode, None, dimensions)

    def _initializer(self) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)

    def projection(self) -> ViewProjection:
        """P(v) of CMLM: float [batch, dim] -> [batch, num_views, dim]."""
        if "projection" not in self.parts:
            layer = ViewProjection(self.config.num_views, name="projection")
            layer.build((None, self.config.hidden_size))
            self.parts["projection"] = layer
        return self.parts["projection"]

    def masked_lm(self, width_factor: int = 1) -> MaskedLM:
        """BERT's masked-LM head, tied to the embedding table.

        Args:
            width_factor: width of its inputs over `hidden_size`. Heads of different
                widths are different parts.
        """
        name = "masked_lm" if width_factor == 1 else f"masked_lm_x{width_factor}"
        if name not in self.parts:
            head = MaskedLM(
                embedding_table=self.encoder.embedding_table,
                activation=activation(self.config.hidden_activation),
                initializer=self._initializer(),
                name=name,
            )
            width = self.config.hidden_size * width_factor
            head(tf.zeros([1, width]))
            head.layer_norm.epsilon = self.config.layer_norm_epsilon
            self.parts[name] = head
        return self.parts[name]

    def classifier(self, name: str, num_classes: int) -> Classifier:
        """BERT's classifier: a dense layer with tanh over [CLS], then the logits.

        Args:
            name: the name of the part.
            num_classes: number of logits.
        """
        if name not in self.parts:
            head = Classifier(
                self.config.hidden_size,
                num_classes,
                dropout_rate=self.config.dropout_rate,
                initializer=self._initializer(),
                name=name,
            )
            head(tf.zeros([1, 1, self.config.hidden_size]))
            self.parts[name] = head
        return self.parts[name]

    def pair_classifier(self, name: str, num_classes: int) -> keras.layers.Dense:
        """A linear layer over the `layers.pair_features` of two sentence vectors.

        Args:
            name: the name of the part.
            num_classes: number of logits.

        Returns:
            The layer, float [..., 4 dim] to logits, float [..., num_classes].
        """
        if name not in self.parts:
            layer = keras.layers.Dense(
                num_classes, kernel_initializer=self._initializer(), name=name
            )
            vectors = tf.zeros([1, self.config.hidden_size])
            layer.build(pair_features(vectors, vectors).shape)
            self.parts[name] = layer
        return self.parts[name]

    def teacher_map(self, width: int) -> keras.layers.Dense:
        """A linear map from sentence vectors to a teacher's vectors.

        Args:
            width: the width of the teacher's vectors.
        """
        if "teacher_map" not in self.parts:
            layer = keras.layers.Dense(
                width,
                use_bias=False,
                kernel_initializer=keras.initializers.Orthogonal(),
                name="teacher_map",
            )
            layer.build((None, self.config.hidden_size))
            self.parts["teacher_map"] = layer
        return self.parts["teacher_map"]

    def build_dropout(self, seed: int) -> None:
        """Creates the random state of every dropout layer.

        Call it once, in the scope of the distribution strategy.

        Args:
            seed: the seed of the run.
        """
        states = []
        for part in self.parts.values():
            for layer in part._flatten_layers():
                random = getattr(layer, "_random_generator", None)
                if random is not None:
                    random._maybe_init()
                    if random._generator is not None:
                        states.append(random._generator.state)
        # One Philox key per layer, from the run's seed instead of Keras' global state.
        keys = np.random.SeedSequence(seed).generate_state(len(states), np.uint64)
        self._dropout = _Dropout(
            states,
            keys.astype(np.int64).tolist(),
            seed,
            distributed.is_tpu(tf.distribute.get_strategy()),
        )

    def reset_dropout(self, step: tf.Tensor) -> None:
        """Makes dropout's next draw a function of seed, layer, replica and step.

        Keras keeps random state out of checkpoints, and replicas with batches of
        different shape draw different amounts from it. A state that every step sets
        anew needs no saving and makes each step repeatable.

        Call it outside replica context.

        Args:
            step: int64 scalar.
        """
        zero, keys = tf.zeros_like(step), self._dropout.keys
        if self._dropout.on_tpu:
            # Only Philox, the generator of CPUs and GPUs, reads the high counter.
            keys = tf.unstack(
                tf.random.stateless_uniform(
                    [len(keys)],
                    [self._dropout.seed, step],
                    minval=None,
                    maxval=None,
                    dtype=tf.int64,
                    alg="philox",
                )
            )
        for state, key in zip(self._dropout.states, keys, strict=True):
            # [counter low, counter high, key]; replicas hash their number into it.
            state.assign(tf.stack([zero, step, tf.convert_to_tensor(key, tf.int64)]))

    def dropout_state(self) -> list[tf.Tensor]:
        """Returns the state of dropout on this replica; call it in replica context."""
        return [
            tf.raw_ops.ReadVariableOp(resource=state.handle, dtype=state.dtype)
            for state in self._dropout.states
        ]

    def replay_dropout(self, state: list[tf.Tensor]) -> None:
        """Makes this replica repeat its draws since `dropout_state()`."""
        for variable, value in zip(self._dropout.states, state, strict=True):
            # The variable's own method refuses to let replicas differ.
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
