"""Masked words and the order of two sentences: the baselines NSP and SOP."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.data import masked_pipelines
from cmlm.modeling import masked_tokens
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.base import Data, require_neighbours
from cmlm.objectives.masked_text import MaskedTextConfig
from cmlm.objectives.mlm import MlmObjective


@dataclasses.dataclass
class OrderConfig(MaskedTextConfig):
    """Predicts masked words of two neighbouring sentences, and their order.

    The loss is the sum of the mean over masked words and the mean over pairs.
    """

    segments = 2
    reads_documents = True

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        super().check_data(data, model)
        require_neighbours(data)


class OrderObjective(MlmObjective):
    """Base of NSP and SOP, which differ in their wrong pairs.

    Metrics: `loss` (nats per masked word) and `accuracy` of masked words, `order_loss`
    (nats per pair) and `order_accuracy` of pairs.
    """

    config_class = OrderConfig

    train_metrics = ("loss", "accuracy", "order_loss", "order_accuracy")
    # The argument `wrong` of `masked_pipelines.ordered_pairs`.
    wrong: str

    def __init__(self, name: str, config: OrderConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.head = model.classifier(name, num_classes=2)

    @property
    def trained_parts(self) -> list[str]:
        return [*super().trained_parts, self.head.name]

    def make_dataset(self, feed):
        return masked_pipelines.ordered_pairs(feed, self.config.masking, self.wrong)

    def divisor(self, batch):
        pairs = tf.cast(tf.size(batch["order_label"]), tf.float32)
        return tf.stack([super().divisor(batch), pairs])

    def compute(self, batch, training):
        """Returns the two summed losses, float32 [2], and all metrics."""
        outputs = self.model.encoder(batch, training=training)
        sequence = outputs["sequence_output"]
        masked = masked_tokens.of_batch(batch)
        logits = self.masked_lm(tf.gather_nd(sequence, masked.tokens))
        metrics = self.masked_metrics(masked, logits)
        logits = tf.cast(self.head(sequence, training=training), tf.float32)
        label = batch["order_label"]
        order = tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        )
        right = tf.argmax(logits, axis=-1, output_type=label.dtype) == label
        count = tf.cast(tf.size(label), tf.float32)
        return tf.stack([metrics["loss"][0], order]), {
            **metrics,
            "order_loss": (order, count),
            "order_accuracy": (tf.reduce_sum(tf.cast(right, tf.float32)), count),
        }


class NspObjective(OrderObjective):
    """Next-sentence prediction of BERT, https://arxiv.org/abs/1810.04805."""

    wrong = "random"


class SopObjective(OrderObjective):
    """Sentence-order prediction of ALBERT, https://arxiv.org/abs/1909.11942."""

    wrong = "swapped"
