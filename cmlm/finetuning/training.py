"""Fine-tuning: an encoder and a classification head, all weights trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from cmlm.common import fields
from cmlm.common.keras import keras
from cmlm.encoders import batching
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.signatures import TENSORS
from cmlm.errors import UserError
from cmlm.finetuning import examples as examples_lib
from cmlm.finetuning.examples import Examples
from cmlm.finetuning.tasks import Task
from cmlm.modeling import layers, optimization
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel

# The name of the head among the parts of the model.
HEAD = "head"
# The default, and what a task with few examples has at most.
_EPOCHS, _MOST_EPOCHS = 3, 30


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of fine-tuning; the defaults are BERT's and ULR's.

    Attributes:
        epochs: the number of passes over the training examples; None: see
            `with_epochs`.
        batch_size: the number of examples in a step.
        learning_rate: AdamW's rate after the warm-up; it decays linearly to 0.
        warmup_share: the share of the steps in which the rate grows from 0.
        weight_decay: decoupled weight decay, without layer norms and biases.
        dropout_rate: the rate in the whole encoder and, for the head `cls`, before the
            logits; it replaces the rates of the encoder's training.
        seq_length: the longest sequence in tokens; None: 128 for a head over [CLS], the
            trained length for a head on sentence vectors.
    """

    epochs: int | None = fields.ranged(None, at_least=1)
    batch_size: int = fields.ranged(32, at_least=1)
    learning_rate: float = fields.ranged(3e-5, above=0)
    warmup_share: float = fields.ranged(0.1, at_least=0, below=1)
    weight_decay: float = fields.ranged(0.01, at_least=0)
    dropout_rate: float = fields.ranged(0.1, at_least=0, below=1)
    seq_length: int | None = None

    def with_epochs(self, least_steps: int, examples: int) -> Settings:
        """The settings with a number of epochs: 3, if they leave it open.

        A new head hardly learns in few steps, so a task with few examples has as many
        epochs as make `least_steps` steps, at most 30.
        """
        wanted = math.ceil(least_steps / math.ceil(examples / self.batch_size))
        default = max(_EPOCHS, min(wanted, _MOST_EPOCHS))
        return dataclasses.replace(self, epochs=self.epochs or default)

    def steps(self, examples: int) -> int:
        """The number of steps of all passes over `examples` examples."""
        return self.epochs * math.ceil(examples / self.batch_size)


class StartWeights:
    """The weights that every seed starts from.

    A trained BERT pooler, as in the original checkpoints, becomes the first layer of
    the head over [CLS]. If the pooler was never trained, that layer is random.

    Args:
        opened: the weights of the encoder. This object keeps copies.
    """

    def __init__(self, opened: OpenedWeights):
        bert = opened.encoder.bert
        self._weights = bert.get_weights()
        kernel, bias = bert.pooler_layer.get_weights()
        # A bias starts at 0 and changes in training only.
        self.pooler = (kernel, bias) if bias.any() else None
        self._config = opened.config.model
        projection = opened.encoder.projection
        self._projection = None if projection is None else projection.get_weights()

    def head(self, task: Task) -> str:
        """A description of the head's initial weights, for messages and results."""
        if task.head == "vectors":
            config = self._config
            return f"new, on {config.sentence_vector} {config.pooling} vectors"
        return "new" if self.pooler is None else "from BERT's pooler"

    def build(self, task: Task, dropout_rate: float) -> SentenceModel:
        """A model with these weights and a new head for a task."""
        config: EncoderConfig = self._config.replace(
            dropout_rate=dropout_rate,
            attention_dropout_rate=dropout_rate,
            drophead_rate=0.0,
        )
        if task.head == "cls":
            # The head reads [CLS]: a trainable pooler or projection would only decay.
            config = config.replace(pooling="cls", sentence_vector="pooled")
        model = SentenceModel(config)
        model.encoder.bert.set_weights(self._weights)
        if task.head == "vectors":
            if self._projection is not None:
                model.encoder.projection.set_weights(self._projection)
            model.pair_classifier(HEAD, task.num_outputs)
            return model
        head = model.classifier(HEAD, task.num_outputs)
        if self.pooler is not None:
            head.dense.set_weights(self.pooler)
        return model


class SentenceClassifier:
    """An encoder and its head, for one seed.

    The head `cls` computes

        logits = W2 dropout(tanh(W1 h_[CLS] + b1)) + b2          (Devlin et al., 2018)

    and the head `vectors`, with the sentence vectors u and v,

        logits = W [u, v, |u - v|, u * v] + b                      (CMLM, section 4.5.2)

    The loss is the cross-entropy of classes, the mean of the binary cross-entropies of
    several labels, or the squared error of a score.

    Args:
        start: the weights that every seed starts from.
        task: the task of the head.
        settings: the training settings.
        seed: the seed of the head, of dropout and of the order of the examples.
    """

    def __init__(self, start: StartWeights, task: Task, settings: Settings, seed: int):
        self._task = task
        self._settings = settings
        self._seed = seed
        keras.utils.set_random_seed(seed)
        self.model = start.build(task, settings.dropout_rate)
        self.model.build_dropout(seed)
        tokens = tf.TensorSpec([None, None], tf.int32)
        features = dict.fromkeys(TENSORS, tokens)
        shape = [None, task.num_outputs] if task.is_several else [None]
        labels = tf.TensorSpec(shape, tf.float32)
        self._predict = tf.function(
            self._outputs, input_signature=[features], autograph=False
        )
        self._step = tf.function(
            self._train_step, input_signature=[features, labels], autograph=False
        )

    def train(
        self, examples: Examples, report: Callable[[int, float, float], None]
    ) -> float:
        """Runs all epochs.

        Args:
            examples: the labelled examples.
            report: called with (step, loss, learning rate) after every step.

        Returns:
            The mean loss over the examples of the last epoch.

        Raises:
            UserError: the loss is not finite.
        """
        settings = self._settings
        steps = settings.steps(len(examples))
        config = optimization.OptimizerConfig(
            type="adamw",
            learning_rate=settings.learning_rate,
            warmup_steps=round(settings.warmup_share * steps),
            weight_decay_rate=settings.weight_decay,
        )
        self._clip_norm = config.clip_norm
        self._optimizer = optimization.build_optimizer(config, steps)
        self._variables = [
            variable
            for part in ("encoder", HEAD)
            for variable in self.model.parts[part].trainable_variables
        ]
        # The traced step must not create variables.
        self._optimizer._create_all_weights(self._variables)
        step, losses, counts = 0, [], []
        for number in range(settings.epochs):
            random = np.random.default_rng([self._seed, number])
            losses, counts = [], []
            for rows in examples_lib.epoch(
                examples.lengths, settings.batch_size, random
            ):
                rate = float(self._optimizer._decayed_lr(tf.float32))
                loss = float(self._step(examples.batch(rows), examples.labels[rows]))
                step += 1
                if not math.isfinite(loss):
                    raise UserError(
                        f"the loss is not finite in step {step}, seed {self._seed}: "
                        f"--learning_rate={settings.learning_rate:g} may be too high, "
                        "or a weight of the encoder is not finite"
                    )
                losses.append(loss)
                counts.append(len(rows))
                report(step, loss, rate)
        return float(np.average(losses, weights=counts))

    def outputs(self, examples: Examples) -> np.ndarray:
        """The outputs of the head without dropout, float32 [n, outputs]."""
        outputs = np.empty([len(examples), self._task.num_outputs], np.float32)
        for rows in batching.length_batches(examples.lengths):
            outputs[rows] = self._predict(examples.batch(rows)).numpy()
        return outputs

    def _outputs(self, features, training=False) -> tf.Tensor:
        outputs = self.model.encoder(features, training=training)
        head = self.model.parts[HEAD]
        if self._task.head == "vectors":
            vectors = tf.cast(outputs["default"], tf.float32)
            pair = layers.pair_features(vectors[0::2], vectors[1::2])
            return tf.cast(head(pair), tf.float32)
        logits = head(outputs["sequence_output"], training=training)
        return tf.cast(logits, tf.float32)

    def _train_step(self, features, labels) -> tf.Tensor:
        # The dropout masks are a function of the seed and the step.
        self.model.reset_dropout(self._optimizer.iterations)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._losses(features, labels))
        gradients = [
            # The gradient of the embedding table is sparse and repeats rows.
            tf.convert_to_tensor(gradient)
            for gradient in tape.gradient(loss, self._variables)
        ]
        gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
        self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return loss

    def _losses(self, features, labels) -> tf.Tensor:
        """The loss of each example, float32 [batch]."""
        logits = self._outputs(features, training=True)
        task = self._task
        if task.is_several:
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            return tf.reduce_mean(each, axis=1)
        if task.is_regression:
            wanted = (labels - task.center) / task.spread
            return tf.math.squared_difference(logits[:, 0], wanted)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.cast(labels, tf.int32), logits
        )
