"""One start of a run: its stage, the devices, and the run so far."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.config import model_dir
from cmlm.config.experiment import ExperimentConfig
from cmlm.training.stages import Stage


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run, or of a stage of a run.

    Attributes:
        stage: the configuration and the folders.
        strategy: the devices.
        begun: the configuration of the last start, or None if the run has no
            checkpoint.
        writes: whether the run trains; a run that only validates writes no results.
    """

    stage: Stage
    strategy: tf.distribute.Strategy
    begun: ExperimentConfig | None = None
    writes: bool = True

    @classmethod
    def of(
        cls, stage: Stage, strategy: tf.distribute.Strategy, writes: bool = True
    ) -> Start:
        """Reads params.yaml, once for all checks of this start."""
        begun = model_dir.begun_config(stage.directory)
        is_later = begun is not None and stage.stacked_on
        if is_later and not (begun.stacked_on or begun.init_checkpoint):
            # In an earlier version, a later stage kept neither, and the stages that
            # tell both may be gone.
            begun.stacked_on = stage.stacked_on
            begun.init_checkpoint = stage.config.init_checkpoint
        return cls(stage, strategy, begun, writes)

    @property
    def config(self) -> ExperimentConfig:
        """The configuration of the command, see `Stage.config`."""
        return self.stage.config

    @property
    def directory(self) -> str:
        """The model_dir of the stage."""
        return self.stage.directory

    @property
    def is_first(self) -> bool:
        """Whether the run has no checkpoint, and no stage before it."""
        return self.begun is None and not self.stage.stacked_on

    @property
    def is_untrained(self) -> bool:
        """Whether the run takes the initial weights of its seed."""
        return self.is_first and not self.config.init_checkpoint
