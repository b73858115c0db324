"""Queries and passages: the objective of bitext under the name of retrieval."""

from __future__ import annotations

import dataclasses

from cmlm.common import fields
from cmlm.data import bitext
from cmlm.objectives.bitext import BitextObjective
from cmlm.objectives.contrastive import ContrastiveConfig
from cmlm.objectives.prompted import PromptedConfig


@dataclasses.dataclass
class PairsConfig(PromptedConfig, ContrastiveConfig):
    """A query ranks its passage above the other passages of the batch.

    Further columns of a line are passages that do not answer the query.
    """

    train_data: bitext.PairDataConfig = dataclasses.field(
        default_factory=bitext.PairDataConfig
    )
    margin: float = fields.ranged(0.0, at_least=0)


class PairsObjective(BitextObjective):
    """Multiple negatives ranking, both directions summed (`losses`, margin 0).

    Henderson et al., 2017, https://arxiv.org/abs/1705.00652, section 4.4; with cosines
    and the factor 20, as sentence-transformers trains. Metrics as in bitext.
    """

    config_class = PairsConfig
