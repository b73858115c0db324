"""The base of objectives on all sentence vectors of a global batch."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from cmlm.modeling.encoder import EncoderNetwork
from cmlm.objectives.base import Metric, Objective


def side_vectors(
    batch: dict[str, tf.Tensor], side: str, encoder: EncoderNetwork, training: bool
) -> tf.Tensor:
    """Computes the sentence vectors of one side of a batch.

    Args:
        batch: its ids are int32 [rows, length] or [rows, texts, length].
        side: the side's name, such as `source`.
        encoder: reads the texts.
        training: whether dropout is on.

    Returns:
        float32 [rows, texts, dim].
    """
    ids, mask = batch[f"{side}_word_ids"], batch[f"{side}_mask"]
    # A replica of a validation may have no rows, so reshape cannot infer a size by -1.
    rows, texts = tf.shape(ids)[0], tf.reduce_prod(tf.shape(ids)[1:-1])
    flat = [rows * texts, tf.shape(ids)[-1]]
    inputs = {
        "input_word_ids": tf.reshape(ids, flat),
        "input_mask": tf.reshape(mask, flat),
    }
    vectors = tf.cast(encoder.sentence_vector(inputs, training=training), tf.float32)
    return tf.reshape(vectors, [rows, texts, vectors.shape[-1]])


class EmbeddingObjective(Objective):
    """An objective whose loss depends on all sentence vectors of the global batch.

    The loss does not split into micro-batches, because each text is a candidate for all
    others. The vectors do split, so training caches gradients: it computes the
    vectors micro-batch by micro-batch without keeping activations, then the loss and
    its gradient with respect to the vectors. It then computes each side of each
    micro-batch again, with the same dropout, and propagates that gradient into the
    weights.
    """

    # The names of the sides that a row may have.
    sides: ClassVar[tuple[str, ...]] = ("source", "target")

    @property
    def trained_parts(self) -> list[str]:
        return ["encoder"]

    def divisor(self, batch):
        return tf.cast(tf.shape(batch["source_word_ids"])[0], tf.float32)

    def sides_of(self, batch: dict[str, tf.Tensor]) -> list[str]:
        """The names of the sides that a batch has."""
        return [side for side in self.sides if f"{side}_word_ids" in batch]

    def side_embedders(
        self, batch: dict[str, tf.Tensor], training: bool
    ) -> list[Callable[[], tf.Tensor]]:
        """Returns a function for each side of the rows.

        A function embeds the texts of its side: float32 [rows, texts of a row, dim].
        The functions are called once, in order.
        """
        return [
            functools.partial(self.embed_side, batch, side, training)
            for side in self.sides_of(batch)
        ]

    def embed(self, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        """Embeds a batch or micro-batch: float32 [rows, texts of a row, dim]."""
        sides = [embed_side() for embed_side in self.side_embedders(batch, training)]
        return tf.concat(sides, axis=1)

    def embed_side(
        self,
        batch: dict[str, tf.Tensor],
        side: str,
        training: bool,
        encoder: EncoderNetwork | None = None,
    ) -> tf.Tensor:
        """Embeds the texts of one side, see `side_vectors`.

        Args:
            batch, side, training: as there.
            encoder: None for the model's.
        """
        return side_vectors(batch, side, encoder or self.model.encoder, training)

    @abc.abstractmethod
    def embedding_loss(
        self, embeddings: tf.Tensor, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Sums this replica's part of the loss; it may gather from all replicas.

        Args:
            embeddings: the vectors of all rows of this replica, as `embed` returns
                them.
            batch: this replica's rows.

        Returns:
            The summed loss and the metrics, as `compute` returns them.
        """

    def total_loss(
        self, embeddings: tf.Tensor, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, Metric]]:
        """The loss to minimise and the metrics, as `embedding_loss` returns them."""
        return self.embedding_loss(embeddings, batch)

    def compute(self, batch, training):
        return self.total_loss(self.embed(batch, training), batch)
