"""One start of a run: the configuration, the folders, and the run so far."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.config.experiment import ExperimentConfig


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run, or of a stage of a run.

    Attributes:
        config: the configuration of the command. The values that depend on the data and
            on the machine are filled in place.
        directory: the model_dir, the same for every worker.
        strategy: the devices.
        begun: the configuration of the last start, or None if the run has no
            checkpoint.
        stacked_on: the directory of the stage before, or None.
        whole: the model_dir of the whole run, if this one is a stage.
        writes: whether the run trains; a run that only validates writes no results.
    """

    config: ExperimentConfig
    directory: str
    strategy: tf.distribute.Strategy
    begun: ExperimentConfig | None = None
    stacked_on: str | None = None
    whole: str = ""
    writes: bool = True

    @property
    def shared_directory(self) -> str:
        """The model_dir whose text and teacher's vectors all stages of a run share."""
        return self.whole or self.directory

    @property
    def is_first(self) -> bool:
        """Whether the run has no checkpoint, and no stage before it."""
        return self.begun is None and not self.stacked_on

    @property
    def is_untrained(self) -> bool:
        """Whether the run takes the initial weights of its seed."""
        return self.is_first and not self.config.init_checkpoint
