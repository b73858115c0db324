"""The objectives, one file each: a configuration above the class that eats it."""

from __future__ import annotations

import dataclasses

from official.modeling import hyperparams

from cmlm.objectives.base import Data, EmbeddingObjective, Objective, ObjectiveConfig
from cmlm.objectives.bitext import BitextConfig, BitextObjective
from cmlm.objectives.cmlm import CmlmConfig, CmlmObjective
from cmlm.objectives.mlm import MlmConfig, MlmObjective
from cmlm.objectives.quickthought import QuickThoughtConfig, QuickThoughtObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "cmlm": CmlmObjective,
    "mlm": MlmObjective,
    "bitext": BitextObjective,
    "quickthought": QuickThoughtObjective,
}


@dataclasses.dataclass
class TaskConfig(hyperparams.Config):
    """Every objective under its own name; a weight other than 0 switches one on."""

    cmlm: CmlmConfig = dataclasses.field(default_factory=CmlmConfig)
    mlm: MlmConfig = dataclasses.field(default_factory=MlmConfig)
    bitext: BitextConfig = dataclasses.field(default_factory=BitextConfig)
    quickthought: QuickThoughtConfig = dataclasses.field(
        default_factory=QuickThoughtConfig
    )

    def enabled(self) -> dict[str, ObjectiveConfig]:
        """The objectives with a weight, by name."""
        return {
            name: getattr(self, name)
            for name in OBJECTIVES
            if getattr(self, name).weight != 0
        }
