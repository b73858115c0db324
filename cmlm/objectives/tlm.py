"""Masked language modelling over a text and its translation."""

from __future__ import annotations

import dataclasses

from cmlm.data import bitext, masked_pipelines
from cmlm.objectives.masked_text import MaskedTextConfig
from cmlm.objectives.mlm import MlmObjective


@dataclasses.dataclass
class TlmConfig(MaskedTextConfig):
    """Predicts masked words of a text and its translation in one sequence."""

    train_data: bitext.BitextDataConfig = dataclasses.field(
        default_factory=bitext.BitextDataConfig
    )

    segments = 2


class TlmObjective(MlmObjective):
    """Translation LM of LaBSE, https://arxiv.org/abs/2007.01852, section 2.2.

    The inputs are those of BERT for two texts: one count of positions, and segments 0
    and 1. In XLM, which introduced translation LM (https://arxiv.org/abs/1901.07291),
    the positions of the second text begin at 0 again, and each token has an embedding
    of its language.

    Metrics: `loss` (nats per masked word) and `accuracy`.
    """

    config_class = TlmConfig

    def make_dataset(self, feed):
        return masked_pipelines.masked_pairs(feed, self.config.masking)
