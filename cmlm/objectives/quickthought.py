"""Neighbouring sentences find each other in the batch."""

from __future__ import annotations

import dataclasses

from cmlm.common import fields
from cmlm.data import pipelines
from cmlm.objectives.base import Data, require_neighbours
from cmlm.objectives.contrastive import ContrastiveConfig, ContrastiveObjective


@dataclasses.dataclass
class QuickThoughtConfig(ContrastiveConfig):
    """A sentence ranks its neighbour above the other sentences of the batch."""

    margin: float = fields.ranged(0.0, at_least=0)

    def check_data(self, data: Data) -> None:
        super().check_data(data)
        require_neighbours(data)


class QuickThoughtObjective(ContrastiveObjective):
    """Logeswaran & Lee, 2018, https://arxiv.org/abs/1803.02893, with one encoder.

    CMLM's paper trains it as a baseline: the bitext loss on adjacent sentences.
    """

    config_class = QuickThoughtConfig

    def make_dataset(self, feed):
        return pipelines.neighbours(feed)
