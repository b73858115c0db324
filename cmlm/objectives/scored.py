"""Scored pairs: the cosine of two sentences follows a score."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.common import distributed, fields
from cmlm.data import pair_pipelines, scored
from cmlm.errors import UserError
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import losses
from cmlm.objectives.base import Data
from cmlm.objectives.nested import NestedConfig, NestedObjective
from cmlm.objectives.prompted import PromptedConfig

LOSSES = ("cosent", "cosine")


@dataclasses.dataclass
class ScoredConfig(PromptedConfig, NestedConfig):
    """The cosine of two sentences follows their score.

    Attributes:
        loss: `cosent`: a pair with a higher score gets a higher cosine than a pair with
            a lower score; only the order of the scores counts. `cosine`: the cosine
            becomes the score, with `lowest` at cosine 0 and `highest` at cosine 1.
        scale: the factor of the cosines in `cosent`, 1 / temperature.
        lowest, highest: the lowest and the highest score, for the loss `cosine`.
    """

    train_data: scored.ScoredDataConfig = dataclasses.field(
        default_factory=scored.ScoredDataConfig
    )
    loss: str = fields.one_of("cosent", LOSSES)
    scale: float = fields.ranged(20.0, above=0)
    lowest: float = 0.0
    highest: float = 1.0

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.highest <= self.lowest:
            raise fields.refused(
                f"{prefix}highest", self.highest, f"above {prefix}lowest, {self.lowest}"
            )

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        super().check_data(data, model)
        for corpus in data.corpora:
            files = [path for paths in corpus.files.values() for path in paths]
            found = scored.summarize(files)
            outside = found.lowest < self.lowest or found.highest > self.highest
            if self.loss == "cosine" and outside:
                raise UserError(
                    f"{files[0]} has scores from {found.lowest:g} to {found.highest:g};"
                    f" allowed: {self.lowest:g} to {self.highest:g}, which"
                    " task.scored.lowest and task.scored.highest set"
                )
            if corpus is data.train and found.lowest == found.highest:
                raise UserError(
                    f"all scores in {files[0]} are {found.lowest:g}; allowed: at least "
                    "two different scores"
                )


class ScoredObjective(NestedObjective):
    """Learns from sentence pairs with scores: CoSENT, or regression of the cosine.

    CoSENT (Su, 2022, https://kexue.fm/archives/8847) compares all pairs of the global
    batch, see `losses.cosent`; the regression has the squared error of the cosine.

    Metrics: `loss`; `order`, how often the pair with the higher score of two pairs has
    the higher cosine; `cosine`, the mean cosine.
    """

    config_class = ScoredConfig
    train_metrics = ("loss", "order", "cosine")

    def make_dataset(self, feed):
        prompts = self.config.prompt_texts(self.model.config)
        return pair_pipelines.scored_pairs(feed, prompts)

    def can_validate(self, examples):
        # `order` and CoSENT compare pairs of different scores.
        scores = (float(score) for _, _, score in examples)
        first = next(scores, None)
        return any(score != first for score in scores)

    def embedding_loss(self, embeddings, batch):
        config, scores = self.config, batch["score"]
        cosines = losses.cosines(embeddings[:, 0], embeddings[:, 1])
        everything = distributed.gather_replicas(tf.stack([cosines, scores], axis=1))
        all_cosines, all_scores = everything[:, 0], everything[:, 1]
        count = self.divisor(batch)
        if config.loss == "cosine":
            wanted = (scores - config.lowest) / (config.highest - config.lowest)
            loss = tf.reduce_sum(tf.math.squared_difference(cosines, wanted))
        else:
            # One loss for the global batch: each replica has its rows' share of it.
            loss = count * losses.cosent(all_cosines, all_scores, config.scale)
        higher = scores[:, tf.newaxis] > all_scores
        right = higher & (cosines[:, tf.newaxis] > all_cosines)

        def total(flags):
            return tf.reduce_sum(tf.cast(flags, tf.float32))

        return loss, {
            "loss": (loss, count),
            "order": (total(right), total(higher)),
            "cosine": (tf.reduce_sum(cosines), count),
        }
