"""What the contrastive family shares: embedding texts, and ranking within the batch."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm import distributed, losses
from cmlm.errors import UserError
from cmlm.objectives.base import EmbeddingObjective, Metric, ObjectiveConfig

SIMILARITIES = ("cosine", "dot")


@dataclasses.dataclass
class ContrastiveConfig(ObjectiveConfig):
    """Ranking the right partner of a text above the other texts of the global batch.

    Attributes:
        similarity: `cosine` (LaBSE), or `dot`, the inner product of vectors as they are
            (CMLM).
        margin: taken off the similarity of the positive.
        scale: factor of all similarities, one over the temperature.
    """

    similarity: str = "cosine"
    margin: float = 0.3
    scale: float = 20.0

    def validate(self, name: str) -> None:
        super().validate(name)
        if self.similarity not in SIMILARITIES:
            raise UserError(
                f"task.{name}.similarity is {self.similarity!r}; "
                f"allowed: {', '.join(SIMILARITIES)}"
            )
        if self.scale <= 0:
            raise UserError(f"task.{name}.scale is {self.scale}; it must be above 0")
        if self.margin < 0 or (self.similarity == "cosine" and self.margin >= 2):
            raise UserError(
                f"task.{name}.margin is {self.margin}; allowed: at least 0, and below 2 "
                "for cosines"
            )


class ContrastiveObjective(EmbeddingObjective):
    """Base of the objectives on pairs of texts.

    Every source ranks the targets, and every target the sources, of the whole global
    batch; hard negatives join the targets. A text that equals the query, or whose
    partner does, or that equals the positive or whose partner does, is no negative.

    A batch holds `source_word_ids`, `source_mask`, `target_word_ids`, `target_mask`
    int32 [rows, length], `source_hash`, `target_hash` int64 [rows]; with hard negatives
    `negative_word_ids`, `negative_mask` int32 [rows, negatives, length] and
    `negative_hash` int64 [rows, negatives].

    Metrics, means over the pairs of the global batch: `loss`, both directions summed;
    `accuracy` of finding the target and `reverse_accuracy` of finding the source;
    `candidates` a source is ranked among and `excluded` ones that were no negatives;
    `positive_similarity` and `negative_similarity`.
    """

    train_metrics = (
        "loss",
        "accuracy",
        "reverse_accuracy",
        "candidates",
        "excluded",
        "positive_similarity",
        "negative_similarity",
    )

    @property
    def trained_parts(self) -> list[str]:
        return ["encoder"]

    def normalizer(self, batch):
        return tf.cast(tf.shape(batch["source_word_ids"])[0], tf.float32)

    def embed(self, batch, training):
        sides = [
            self._embed_side(batch, side, training)
            for side in ("source", "target", "negative")
            if f"{side}_word_ids" in batch
        ]
        return tf.concat(sides, axis=1)

    def _embed_side(self, batch, side, training):
        """Vectors of one side: float32 [rows, texts, dim]."""
        ids, mask = batch[f"{side}_word_ids"], batch[f"{side}_mask"]
        rows, length = tf.shape(ids)[0], tf.shape(ids)[-1]
        inputs = {
            "input_word_ids": tf.reshape(ids, [-1, length]),
            "input_mask": tf.reshape(mask, [-1, length]),
        }
        vectors = self.model.encoder(inputs, training=training)["default"]
        vectors = tf.cast(vectors, tf.float32)
        if self.config.similarity == "cosine":
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        return tf.reshape(vectors, [rows, -1, vectors.shape[-1]])

    def embedding_loss(self, embeddings, batch):
        gather = distributed.gather_replicas
        source, target = embeddings[:, 0], embeddings[:, 1]
        rows = tf.shape(source)[0]
        own = distributed.replica_offset(rows) + tf.range(rows)
        everything = gather(embeddings)
        sources, targets = everything[:, 0], everything[:, 1]
        source_hash, target_hash = batch["source_hash"], batch["target_hash"]
        source_hashes, target_hashes = gather(source_hash), gather(target_hash)

        # Whether [own row, row of the batch] must not be held apart: each of the two
        # texts of the one pair against each of the other.
        related = (
            _equal(target_hash, target_hashes)
            | _equal(source_hash, source_hashes)
            | _equal(source_hash, target_hashes)
            | _equal(target_hash, source_hashes)
        )
        not_target, candidates = related, targets
        if "negative_hash" in batch:
            negatives = tf.reshape(everything[:, 2:], [-1, everything.shape[-1]])
            candidates = tf.concat([targets, negatives], axis=0)
            hashes = tf.reshape(gather(batch["negative_hash"]), [-1])
            equal = _equal(target_hash, hashes) | _equal(source_hash, hashes)
            not_target = tf.concat([related, equal], axis=1)
        settings = (self.config.margin, self.config.scale)
        forward, similarities = losses.additive_margin_softmax(
            source, candidates, own, not_target, *settings
        )
        backward, reverse = losses.additive_margin_softmax(
            target, sources, own, related, *settings
        )
        loss = tf.reduce_sum(forward + backward)
        metrics = _ranking_metrics(similarities, own, not_target)
        metrics["reverse_accuracy"] = _ranking_metrics(reverse, own, related)[
            "accuracy"
        ]
        metrics["loss"] = (loss, self.normalizer(batch))
        return loss, metrics

    def evaluate(self, batch):
        _, metrics = self.embedding_loss(self.embed(batch, training=False), batch)
        return metrics


def _equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """[n], [m] -> bool [n, m]."""
    return a[:, tf.newaxis] == b[tf.newaxis]


def _ranking_metrics(similarities, positives, excluded) -> dict[str, Metric]:
    """Metrics of one direction, summed over queries; arguments as in the loss."""
    shape = tf.shape(similarities)
    is_positive = tf.one_hot(positives, shape[1], on_value=True, off_value=False)
    excluded &= ~is_positive
    is_negative = ~(excluded | is_positive)
    count = tf.cast(shape[0], tf.float32)
    positive = tf.gather(similarities, positives, batch_dims=1)
    lowest = similarities.dtype.min
    hardest = tf.reduce_max(tf.where(is_negative, similarities, lowest), axis=1)
    negatives = tf.where(is_negative, similarities, 0.0)

    def total(flags):
        return tf.reduce_sum(tf.cast(flags, tf.float32))

    return {
        "accuracy": (total(positive > hardest), count),
        "candidates": (total(~excluded), count),
        "excluded": (total(excluded), count),
        "positive_similarity": (tf.reduce_sum(positive), count),
        "negative_similarity": (tf.reduce_sum(negatives), total(is_negative)),
    }
