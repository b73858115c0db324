"""The objectives, one file each: a configuration above the class that eats it."""

from __future__ import annotations

import dataclasses

from official.modeling import hyperparams

from cmlm.objectives.base import Data, EmbeddingObjective, Objective, ObjectiveConfig
from cmlm.objectives.bitext import BitextConfig, BitextObjective
from cmlm.objectives.cmlm import CmlmConfig, CmlmObjective
from cmlm.objectives.mirror import MirrorConfig, MirrorObjective
from cmlm.objectives.misad import MisadConfig, MisadObjective
from cmlm.objectives.mlm import MlmConfig, MlmObjective
from cmlm.objectives.nli import NliConfig, NliObjective
from cmlm.objectives.order import NspObjective, OrderConfig, SopObjective
from cmlm.objectives.quickthought import QuickThoughtConfig, QuickThoughtObjective
from cmlm.objectives.tlm import TlmConfig, TlmObjective

__all__ = ["OBJECTIVES", "Data", "EmbeddingObjective", "Objective", "TaskConfig"]

OBJECTIVES: dict[str, type[Objective]] = {
    "cmlm": CmlmObjective,
    "mlm": MlmObjective,
    "tlm": TlmObjective,
    "bitext": BitextObjective,
    "nli": NliObjective,
    "quickthought": QuickThoughtObjective,
    "mirror": MirrorObjective,
    "misad": MisadObjective,
    "nsp": NspObjective,
    "sop": SopObjective,
}


@dataclasses.dataclass
class TaskConfig(hyperparams.Config):
    """Every objective under its own name; a weight other than 0 switches one on."""

    cmlm: CmlmConfig = dataclasses.field(default_factory=CmlmConfig)
    mlm: MlmConfig = dataclasses.field(default_factory=MlmConfig)
    tlm: TlmConfig = dataclasses.field(default_factory=TlmConfig)
    bitext: BitextConfig = dataclasses.field(default_factory=BitextConfig)
    nli: NliConfig = dataclasses.field(default_factory=NliConfig)
    quickthought: QuickThoughtConfig = dataclasses.field(
        default_factory=QuickThoughtConfig
    )
    mirror: MirrorConfig = dataclasses.field(default_factory=MirrorConfig)
    misad: MisadConfig = dataclasses.field(default_factory=MisadConfig)
    nsp: OrderConfig = dataclasses.field(default_factory=OrderConfig)
    sop: OrderConfig = dataclasses.field(default_factory=OrderConfig)

    def enabled(self) -> dict[str, ObjectiveConfig]:
        """The objectives with a weight, by name."""
        return {
            name: getattr(self, name)
            for name in OBJECTIVES
            if getattr(self, name).weight != 0
        }
