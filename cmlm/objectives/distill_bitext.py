"""Distillation to several languages: both texts of a pair learn one teacher's vector.

With `retrieval_weight`, the vectors that a step computes also learn bitext retrieval.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.common import fields
from cmlm.data import bitext, pair_pipelines, streams
from cmlm.objectives import contrastive
from cmlm.objectives.distill import DistillConfig, DistillObjective
from cmlm.objectives.embedding import EmbeddingObjective


@dataclasses.dataclass
class DistillBitextConfig(DistillConfig):
    """Both texts of a pair point in the direction of the teacher's vector of one.

    Attributes:
        teacher_side: the text that the teacher reads, `source` or `target`: the side in
            the language that the teacher knows.
        retrieval_weight: the factor of a further term, the loss of bitext retrieval
            with cosines, over the pairs of the global batch. The term takes the vectors
            that the step computes anyway. The objective `bitext` has the same loss and
            batches of its own.
        margin: of the retrieval loss: subtracted from the similarity of a text and its
            translation.
        scale: of the retrieval loss: the factor of all similarities, 1 / temperature.
    """

    train_data: bitext.BitextDataConfig = dataclasses.field(
        default_factory=bitext.BitextDataConfig
    )
    teacher_side: str = fields.one_of("source", EmbeddingObjective.sides)
    retrieval_weight: float = fields.ranged(0.0, at_least=0)
    margin: float = fields.ranged(0.3, at_least=0, below=2)
    scale: float = fields.ranged(20.0, above=0)

    def check_data(self, data, model):
        super().check_data(data, model)
        if self.retrieval_weight:
            contrastive.require_two_examples(self.train_data.input_path, data)

    def taught_text(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Returns the side of a pair that the teacher reads."""
        return source if self.teacher_side == "source" else target

    def taught_texts(self, files):
        return bitext.rows(streams.Portion(files), columns=2).map(self.taught_text)


class DistillBitextObjective(DistillObjective):
    """Makes a teacher of one language multilingual (Reimers & Gurevych, 2020).

    https://arxiv.org/abs/2004.09813, section 2: for a pair (s, t) and the teacher M,
    the student learns M(s) for s and for t.

    With `retrieval_weight`, `ContrastiveObjective`'s mean over the pairs, times the
    weight, joins the loss, and its metrics join those of distillation; its loss is
    `retrieval_loss`.
    """

    config_class = DistillBitextConfig

    def __init__(self, name: str, config: DistillBitextConfig, model, **values):
        super().__init__(name, config, model, **values)
        if config.retrieval_weight:
            ranked = contrastive.ContrastiveObjective.train_metrics
            others = (metric for metric in ranked if metric != "loss")
            self.train_metrics = (*self.train_metrics, "retrieval_loss", *others)

    def make_dataset(self, feed):
        return pair_pipelines.taught_pairs(
            feed,
            self._vectors.lookup,
            self.config.taught_text,
            compared=bool(self.config.similarity_weight),
            ranked=bool(self.config.retrieval_weight),
        )

    def can_validate(self, examples):
        if self.config.retrieval_weight:
            return contrastive.has_a_negative(examples)
        return super().can_validate(examples)

    def warning(self, means):
        return contrastive.ranking_warning(means)

    def embedding_loss(self, embeddings, batch):
        loss, metrics = super().embedding_loss(embeddings, batch)
        if not self.config.retrieval_weight:
            return loss, metrics
        unit = tf.math.l2_normalize(embeddings, axis=-1)
        pool = contrastive.Pool(unit, batch, cross_replica=True)
        ranking, ranked, reverse = contrastive.rank_pairs(self.config, pool)
        ranking = tf.reduce_sum(ranking)
        # The divisor counts texts, the mean of the ranking is over pairs.
        sides = len(self.sides_of(batch))
        loss += self.config.retrieval_weight * sides * ranking
        count = self.divisor(batch)
        return loss, {
            **metrics,
            **ranked,
            "reverse_accuracy": reverse["accuracy"],
            "loss": (loss, count),
            "retrieval_loss": (ranking, count / sides),
        }
