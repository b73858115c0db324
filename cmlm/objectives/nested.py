"""Matryoshka training: the first components of a vector are a vector as well.

Kusupati et al., 2022, https://arxiv.org/abs/2205.13147. `model.dimensions` and
`--dimensions` then keep the first components alone.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.common import fields
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives.base import ObjectiveConfig
from cmlm.objectives.embedding import EmbeddingObjective


@dataclasses.dataclass
class NestedConfig(ObjectiveConfig):
    """Settings of an objective whose loss compares sentence vectors.

    Attributes:
        dimensions: sizes, such as `[384, 96]`: the loss is a sum with a term for each
            size, of the first dimensions of the vectors (Matryoshka). Empty: the loss
            of the whole vectors.
    """

    dimensions: tuple[int, ...] = fields.ranged((), at_least=1)

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if len(set(self.dimensions)) < len(self.dimensions):
            raise fields.refused(
                f"{prefix}dimensions", self.dimensions, "each size once"
            )

    def check_model(self, prefix: str, model: EncoderConfig) -> None:
        super().check_model(prefix, model)
        if max(self.dimensions, default=0) > model.hidden_size:
            raise fields.refused(
                f"{prefix}dimensions",
                self.dimensions,
                f"sizes from 1 to model.hidden_size, {model.hidden_size}",
            )


class NestedObjective(EmbeddingObjective):
    """Base of the objectives whose loss compares sentence vectors.

    With the loss L of vectors z and the sizes M of `dimensions`,

        loss = sum_{m in M} c_m L(z_{1:m})

    (Kusupati et al., 2022, equation 1), where every c_m is 1, as in the paper. Each
    text is encoded once. Metrics are those of the whole vectors, except for `loss`,
    which is the sum.
    """

    def first(self, embeddings: tf.Tensor, size: int) -> tf.Tensor:
        """The first components of vectors, float32 [..., dim] to [..., size]."""
        return embeddings[..., :size]

    def total_loss(self, embeddings, batch):
        whole, metrics = self.embedding_loss(embeddings, batch)
        if not self.config.dimensions:
            return whole, metrics
        width = self.model.config.hidden_size
        loss = tf.add_n(
            [
                whole
                if size == width
                else self.embedding_loss(self.first(embeddings, size), batch)[0]
                for size in self.config.dimensions
            ]
        )
        return loss, {**metrics, "loss": (loss, metrics["loss"][1])}
