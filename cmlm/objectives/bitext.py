"""Bitext retrieval: a text and its translation find each other in the batch."""

from __future__ import annotations

import dataclasses

from cmlm.data import bitext, pair_pipelines
from cmlm.objectives.contrastive import ContrastiveConfig, ContrastiveObjective
from cmlm.objectives.prompted import PromptedConfig


@dataclasses.dataclass
class BitextConfig(PromptedConfig, ContrastiveConfig):
    """A text ranks its translation above the other texts of the batch."""

    train_data: bitext.BitextDataConfig = dataclasses.field(
        default_factory=bitext.BitextDataConfig
    )


class BitextObjective(ContrastiveObjective):
    """Bitext retrieval with additive margin softmax, both directions summed.

    CMLM, https://arxiv.org/abs/2012.14388, section 4.2 (weight 0.2, inner products),
    and LaBSE, https://arxiv.org/abs/2007.01852, section 2.1 (cosines; margin 0.3).
    """

    config_class = BitextConfig

    def make_dataset(self, feed):
        prompts = self.config.prompt_texts(self.model.config)
        return pair_pipelines.bitext_pairs(feed, prompts)
