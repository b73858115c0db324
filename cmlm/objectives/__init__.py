"""From batches to losses: an objective a file, a configuration above its class.

To add an objective, write its file and add its line to `OBJECTIVES`. The task
configuration, `training.building` and the recipes find it there.
"""

from __future__ import annotations

import dataclasses

from official.modeling import hyperparams

from cmlm.objectives.base import Data, Objective, ObjectiveConfig
from cmlm.objectives.bitext import BitextObjective
from cmlm.objectives.cmlm import CmlmObjective
from cmlm.objectives.distill import DistillObjective
from cmlm.objectives.distill_bitext import DistillBitextObjective
from cmlm.objectives.embedding import EmbeddingObjective
from cmlm.objectives.mirror import MirrorObjective
from cmlm.objectives.misad import MisadObjective
from cmlm.objectives.mlm import MlmObjective
from cmlm.objectives.nli import NliObjective
from cmlm.objectives.order import NspObjective, SopObjective
from cmlm.objectives.pairs import PairsObjective
from cmlm.objectives.quickthought import QuickThoughtObjective
from cmlm.objectives.scored import ScoredObjective
from cmlm.objectives.tlm import TlmObjective

__all__ = ["OBJECTIVES", "Data", "EmbeddingObjective", "Objective", "TaskConfig"]

# Objectives by their names under `task`. params.yaml and the metrics keep this order.
OBJECTIVES: dict[str, type[Objective]] = {
    "cmlm": CmlmObjective,
    "mlm": MlmObjective,
    "tlm": TlmObjective,
    "bitext": BitextObjective,
    "pairs": PairsObjective,
    "scored": ScoredObjective,
    "nli": NliObjective,
    "quickthought": QuickThoughtObjective,
    "mirror": MirrorObjective,
    "misad": MisadObjective,
    "distill": DistillObjective,
    "distill_bitext": DistillBitextObjective,
    "nsp": NspObjective,
    "sop": SopObjective,
}


class _Task(hyperparams.Config):
    """Every objective under its own name; a weight other than 0 switches one on."""

    def enabled(self) -> dict[str, ObjectiveConfig]:
        """The objectives with a weight, by name."""
        found = {name: getattr(self, name) for name in OBJECTIVES}
        return {name: config for name, config in found.items() if config.is_enabled}

    def longest_sequence(self) -> int:
        """The most tokens of a sequence of the enabled objectives; 0 without any."""
        lengths = [each.train_data.seq_length for each in self.enabled().values()]
        return max(lengths, default=0)


TaskConfig = dataclasses.make_dataclass(
    "TaskConfig",
    [
        (name, of.config_class, dataclasses.field(default_factory=of.config_class))
        for name, of in OBJECTIVES.items()
    ],
    bases=(_Task,),
    namespace={"__doc__": _Task.__doc__, "__module__": __name__},
)
