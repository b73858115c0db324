"""Progressive stacking: a run in stages of L/4, L/2 and L layers (LaBSE, section 3.4).

Each stage is a run with its own directory, warm-up and decay, and resumes like any
other run. All stages but the last lie in `stages/` below the model_dir.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence

from cmlm.config import model_dir
from cmlm.config.experiment import ExperimentConfig
from cmlm.modeling import latest
from cmlm.training import metrics_log

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of a run. A run without stacking is its only stage.

    Attributes:
        config: the configuration of the stage, validated. The values that depend on
            the data and on the machine are filled in place: file, size and rules of the
            vocabulary, the steps of a run in epochs, the precision `auto`.
        directory: the model_dir of the stage, the same for every worker.
        stacked_on: the directory of the stage before; None for the first stage.
        whole: the model_dir of the whole run; "" for the last stage, which has it as
            its own.
    """

    config: ExperimentConfig
    directory: str
    stacked_on: str | None = None
    whole: str = ""

    @property
    def shared_directory(self) -> str:
        """The model_dir whose text and teacher's vectors all stages of a run share."""
        return self.whole or self.directory


def count_done(planned: Sequence[Stage], validates: bool) -> int:
    """Returns the number of stages that are done, the first ones of a plan.

    A stage is done if it has a checkpoint and a validation of its last step, or a later
    one has begun: that one needs it no more.

    Args:
        planned: the stages in order.
        validates: whether the command validates; if not, no stage needs a validation.
            Nor does a stage that has nothing to measure.
    """
    for number, stage in reversed(list(enumerate(planned))):
        step = latest.step(stage.directory)
        if step:
            owes_one = validates and stage.config.has_validation
            is_done = stage.config.trainer.is_over(step) and (
                not owes_one or metrics_log.has_validation(stage.directory, step)
            )
            return number + int(is_done)
    return 0


def plan(config: ExperimentConfig, directory: str) -> list[Stage]:
    """Returns the stages of a run in order: one stage without `trainer.stacking_steps`.

    It warns of an objective that a stage is too short for.

    Args:
        config: the run's configuration, validated.
        directory: the model_dir.

    Raises:
        UserError: a stage has a step in which no objective takes part.
    """
    steps = config.trainer.stacking_steps
    layers = config.trainer.layers_of_stages(config.model.num_layers)
    planned: list[Stage] = []
    for number, train_steps in enumerate([*steps, config.trainer.train_steps]):
        own = config.replace()
        own.model.num_layers = layers[number]
        own.trainer.train_steps = train_steps
        own.trainer.stacking_steps = ()
        before = planned[-1].directory if planned else None
        where, whole = directory, ""
        if number < len(steps):
            name = f"{own.model.num_layers}-layers"
            where, whole = os.path.join(directory, model_dir.STAGES, name), directory
            own.check_steps()
        for name, objective in own.task.enabled().items():
            if objective.start_step >= train_steps:
                logger.warning(
                    "task.%s.start_step is %s, and the run in %s has %s steps: it does "
                    "not train %s",
                    name,
                    f"{objective.start_step:,}",
                    where,
                    f"{train_steps:,}",
                    name,
                )
        planned.append(Stage(own, where, before, whole))
    return planned
