"""Two views of one text find each other in the batch."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm import losses
from cmlm.data import masking, pipelines
from cmlm.objectives.contrastive import (
    ContrastiveConfig,
    ContrastiveObjective,
    Pool,
    ranking_metrics,
)


@dataclasses.dataclass
class MirrorConfig(ContrastiveConfig):
    """A text ranks a changed copy of itself above the other texts of the batch.

    The two views of a text also differ by dropout, `model.dropout_rate`.

    Attributes:
        scale: one over the paper's temperature: 25 for 0.04 (sentences), 5 for 0.2
            (words).
        span: what is masked in one of the two views.
        mask_rate: share of the tokens that are masked besides, in both views.
    """

    margin: float = 0.0
    scale: float = 25.0
    span: masking.SpanConfig = dataclasses.field(default_factory=masking.SpanConfig)
    mask_rate: float = 0.0

    def validate(self, name: str) -> None:
        super().validate(name)
        self._validate_part(name, self.span)
        if self.mask_rate:
            self._validate_part(name, masking.MaskingConfig(rate=self.mask_rate))


class MirrorObjective(ContrastiveObjective):
    """Mirror-BERT, Liu et al., 2021, https://arxiv.org/abs/2104.08027, equation 1.

        loss = -sum_i log  exp(cos(f(x_i), f(x_i')) / t)
                          ---------------------------------
                           sum_j exp(cos(f(x_i), f(x_j)) / t)

    for both views x_i, x_i' of every text; j runs over both views of all texts of the
    global batch but x_i itself and copies of it.
    """

    def make_dataset(self, feed):
        return pipelines.copies(feed, self.config.span, self.config.mask_rate)

    def embedding_loss(self, embeddings, batch):
        pool = Pool(embeddings, batch)
        # A text is related to itself, so this leaves out the query, and its copy too
        # where that is not the positive.
        excluded = tf.tile(pool.related(), [2, 2])
        n_rows = tf.shape(pool.all_sources)[0]
        positives = tf.concat([n_rows + pool.own, pool.own], axis=0)
        loss, similarities = losses.additive_margin_softmax(
            tf.concat([pool.sources, pool.targets], axis=0),
            tf.concat([pool.all_sources, pool.all_targets], axis=0),
            positives,
            excluded,
            self.config.margin,
            self.config.scale,
        )
        loss = tf.reduce_sum(loss)
        rows = tf.shape(pool.own)[0]
        metrics = ranking_metrics(
            similarities[:rows], positives[:rows], excluded[:rows]
        )
        reverse = ranking_metrics(
            similarities[rows:], positives[rows:], excluded[rows:]
        )
        metrics["reverse_accuracy"] = reverse["accuracy"]
        metrics["loss"] = (loss, self.normalizer(batch))
        return loss, metrics
