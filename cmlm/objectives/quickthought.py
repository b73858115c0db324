"""QuickThought: neighbouring sentences find each other in the batch."""

from __future__ import annotations

import dataclasses
import functools

from cmlm.common import fields
from cmlm.data import pair_pipelines
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel
from cmlm.objectives.base import Data, require_neighbours
from cmlm.objectives.contrastive import (
    ContrastiveConfig,
    ContrastiveObjective,
    Pool,
    rank,
)

ENCODERS = ("one", "two")


@dataclasses.dataclass
class QuickThoughtConfig(ContrastiveConfig):
    """A sentence ranks its neighbour above the other sentences of the batch.

    Attributes:
        encoders: `one` encodes sentence and neighbour with one network, as the other
            objectives do. `two` is the original form: f encodes the sentence and g, of
            the same shape, its neighbour. Exports hold f. The original compares by
            inner products (`similarity=dot`, `scale=1`).
    """

    margin: float = fields.ranged(0.0, at_least=0)
    encoders: str = fields.one_of("one", ENCODERS)

    reads_documents = True

    def weight_settings(self):
        return {"encoders": self.encoders == "two"}

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        # First, since a text of one sentence has no pair.
        require_neighbours(data)
        super().check_data(data, model)


class QuickThoughtObjective(ContrastiveObjective):
    """Logeswaran & Lee, 2018, https://arxiv.org/abs/1803.02893, sections 3 and 4.

    CMLM's paper trains it as a baseline (https://arxiv.org/abs/2012.14388, section
    3.1). With two encoders and neighbours s, t the loss of a pair is

        -log p(g(t) | f(s)) - log p(g(s) | f(t)),

    each a softmax over the sentences of the global batch.
    """

    config_class = QuickThoughtConfig

    def __init__(
        self, name: str, config: QuickThoughtConfig, model: SentenceModel, **data
    ):
        super().__init__(name, config, model, **data)
        self._has_two = config.encoders == "two"
        if self._has_two:
            model.second_encoder()

    @property
    def trained_parts(self) -> list[str]:
        return [*super().trained_parts, *([SECOND_ENCODER] if self._has_two else [])]

    def make_dataset(self, feed):
        return pair_pipelines.neighbours(feed)

    def side_embedders(self, batch, training):
        if not self._has_two:
            return super().side_embedders(batch, training)
        f, g = self.model.encoder, self.model.second_encoder()
        sides = [("source", f), ("target", g), ("target", f), ("source", g)]
        return [
            functools.partial(self.embed_side, batch, side, training, encoder)
            for side, encoder in sides
        ]

    def embedding_loss(self, embeddings, batch):
        if not self._has_two:
            return super().embedding_loss(embeddings, batch)
        forward, metrics = self._rank(embeddings[:, :2], batch, "target")
        backward, reverse = self._rank(embeddings[:, 2:], batch, "source")
        return self.both_ways(forward + backward, metrics, reverse, batch)

    def _rank(self, embeddings, batch, candidates):
        """Ranks the neighbours by g for the sentences by f: [rows, 2, dim].

        `candidates` is the side of the neighbours.
        """
        pool = Pool(embeddings, batch, self.config.cross_replica_negatives)
        known = dict(zip(("source", "target"), pool.known(), strict=True))[candidates]
        return rank(self.config, pool.sources, pool.all_targets, pool.own, known)
