"""Masked language modelling over a text and its translation."""

from __future__ import annotations

import dataclasses

from cmlm.data import bitext, masked_pipelines
from cmlm.objectives.masked_text import MaskedTextConfig
from cmlm.objectives.mlm import MlmObjective


@dataclasses.dataclass
class TlmConfig(MaskedTextConfig):
    """Masked words of a text and its translation in one sequence."""

    train_data: bitext.BitextDataConfig = dataclasses.field(
        default_factory=bitext.BitextDataConfig
    )

    segments = 2


class TlmObjective(MlmObjective):
    """TLM of XLM, https://arxiv.org/abs/1901.07291, as LaBSE trains it.

    Metrics: `loss` (nats per masked word) and `accuracy`.
    """

    config_class = TlmConfig

    def make_dataset(self, feed):
        return masked_pipelines.masked_pairs(feed, self.config.masking)
