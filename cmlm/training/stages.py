"""A run in stages: progressive stacking, L/4 -> L/2 -> L layers.

Every stage is a run of its own in a directory of its own, so that it resumes as exactly
as any other, and its learning rate warms up and decays by itself. All but the last lie
below the model_dir, in `stages/`.
"""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from cmlm.config.experiment import ExperimentConfig
from cmlm.data import vocabulary_file


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of the runs.

    Attributes:
        directory: its model_dir.
        config: its configuration.
        stacked_on: directory of the stage it begins from; None for the first.
    """

    directory: str
    config: ExperimentConfig
    stacked_on: str | None = None

    def is_done(self) -> bool:
        """Whether its last checkpoint is there."""
        last = f"ckpt-{self.config.trainer.train_steps}"
        latest = tf.train.latest_checkpoint(self.directory)
        return latest is not None and os.path.basename(latest) == last


def plan(config: ExperimentConfig, directory: str) -> list[Stage]:
    """The stages of a run; only itself, unless `trainer.stacking_steps` names some.

    Args:
        config: validated.
        directory: the model_dir.
    """
    steps = config.trainer.stacking_steps
    planned: list[Stage] = []
    for number, train_steps in enumerate([*steps, config.trainer.train_steps]):
        own = config.replace()
        own.model.num_layers = config.model.num_layers // 2 ** (len(steps) - number)
        own.trainer.train_steps = train_steps
        own.trainer.stacking_steps = ()
        before = planned[-1].directory if planned else None
        if before:
            # The vocabulary is learnt once; weights come from the stage before.
            own.vocabulary.file = os.path.join(before, vocabulary_file.FILE_NAME)
            own.init_checkpoint = ""
        is_last = number == len(steps)
        layers = f"{own.model.num_layers}-layers"
        where = directory if is_last else os.path.join(directory, "stages", layers)
        planned.append(Stage(where, own, before))
    return planned
