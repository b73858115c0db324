"""The base of masked-LM objectives: masking and the scoring of masked tokens."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.data import masking
from cmlm.modeling.masked_tokens import MaskedTokens
from cmlm.objectives import losses
from cmlm.objectives.base import Metric, Objective, ObjectiveConfig


@dataclasses.dataclass
class MaskedTextConfig(ObjectiveConfig):
    """Masked prediction on monolingual text.

    Attributes:
        masking: the share of masked words, and their replacements.
    """

    masking: masking.MaskingConfig = dataclasses.field(
        default_factory=masking.MaskingConfig
    )


class MaskedTextObjective(Objective):
    """Base of the objectives that predict masked words."""

    train_metrics = ("loss", "accuracy")

    def divisor(self, batch):
        return tf.reduce_sum(batch["masked_lm_weights"])

    @staticmethod
    def masked_metrics(masked: MaskedTokens, logits: tf.Tensor) -> dict[str, Metric]:
        """Returns `loss`, whose sum is the loss of the batch, and `accuracy`."""
        count = tf.reduce_sum(masked.weights)
        loss, right = losses.masked_lm(logits, masked.labels, masked.weights)
        return {"loss": (loss, count), "accuracy": (right, count)}
