"""Mirror-BERT: two views of one text find each other in the batch."""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

from cmlm.common import fields
from cmlm.data import pair_pipelines
from cmlm.data.span_masking import SpanConfig
from cmlm.objectives import losses
from cmlm.objectives.contrastive import (
    ContrastiveConfig,
    ContrastiveObjective,
    Pool,
    ranking_metrics,
)


@dataclasses.dataclass
class MirrorConfig(ContrastiveConfig):
    """A text ranks a changed copy of itself above the other texts of the batch.

    The two views of a text also differ by dropout (`model.dropout_rate`) or by dropped
    attention heads (`model.drophead_rate`).

    Attributes:
        scale: 1 / temperature of the paper: 25 for 0.04 (sentences), 5 for 0.2 (words).
        span: the span that is masked in one of the two views.
        form: the denominator of the loss: `released` includes the positive, as the
            released code does; `paper` has the negatives only, as equation 1 prints.
        mask_rate: share of the tokens that are masked in addition, in both views; the
            paper's recipes have 0.
        controlled_dropout: whether both views share one dropout mask, an ablation of
            the paper (table 8): the views then differ by masking only.
    """

    margin: float = fields.ranged(0.0, at_least=0)
    scale: float = fields.ranged(25.0, above=0)
    span: SpanConfig = dataclasses.field(default_factory=SpanConfig)
    form: str = fields.one_of("released", losses.MIRROR_FORMS)
    mask_rate: float = fields.ranged(0.0, at_least=0, at_most=1)
    controlled_dropout: bool = False


class MirrorObjective(ContrastiveObjective):
    """Mirror-BERT, Liu et al., 2021, https://arxiv.org/abs/2104.08027, equation 1.

        loss = -sum_i log  exp(cos(f(x_i), f(x_i')) / t)
                          ---------------------------------
                           sum_j exp(cos(f(x_i), f(x_j)) / t)

    for both views x_i, x_i' of every text. j runs over both views of all texts of the
    global batch, except x_i itself and other copies of its text. With `form=paper`, it
    leaves out x_i', too.
    """

    config_class = MirrorConfig

    def make_dataset(self, feed):
        return pair_pipelines.copies(feed, self.config.span, self.config.mask_rate)

    @property
    def unpads(self):
        # Controlled dropout needs the same shapes in both views.
        return super().unpads and not self.config.controlled_dropout

    def side_embedders(self, batch, training):
        if not (self.config.controlled_dropout and training):
            return super().side_embedders(batch, training)
        # Dropout draws the same mask for the same state and shape.
        batch, sides = dict(batch), ("source", "target")
        widths = [tf.shape(batch[f"{side}_mask"])[1] for side in sides]
        width = tf.maximum(*widths)
        state = self.model.dropout_state()
        for side, narrow in zip(sides, widths, strict=True):
            for key in ("word_ids", "mask"):
                # The mask is 0 in the new columns, so their token does not matter.
                batch[f"{side}_{key}"] = tf.pad(
                    batch[f"{side}_{key}"], [[0, 0], [0, width - narrow]]
                )

        def embed_side(side):
            self.model.replay_dropout(state)
            return self.embed_side(batch, side, training)

        return [functools.partial(embed_side, side) for side in sides]

    def embedding_loss(self, embeddings, batch):
        pool = Pool(embeddings, batch, self.config.cross_replica_negatives)
        # Both texts of a pair are one string, so this excludes the query and its
        # copies; a positive always counts.
        known, _ = pool.known()
        excluded = tf.tile(known, [2, 2])
        n_rows = tf.shape(pool.all_sources)[0]
        positives = tf.concat([n_rows + pool.own, pool.own], axis=0)
        loss, similarities = losses.additive_margin_softmax(
            tf.concat([pool.sources, pool.targets], axis=0),
            tf.concat([pool.all_sources, pool.all_targets], axis=0),
            positives,
            excluded,
            self.config.margin,
            self.config.scale,
            with_positive=self.config.form == "released",
        )
        rows = tf.shape(pool.own)[0]
        metrics = ranking_metrics(
            similarities[:rows], positives[:rows], excluded[:rows]
        )
        reverse = ranking_metrics(
            similarities[rows:], positives[rows:], excluded[rows:]
        )
        return self.both_ways(loss, metrics, reverse, batch)
