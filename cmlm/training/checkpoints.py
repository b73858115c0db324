"""The checkpoints of a run: the latest ones and the best one."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cmlm.common import scratch, workers
from cmlm.config import experiment, model_dir
from cmlm.modeling import latest, restoring
from cmlm.modeling.foreign import tf_checkpoints
from cmlm.training import finite, metrics_log
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a directory: all workers save them, worker 0 keeps them.

    TensorFlow sums up some variables over the workers only when they are read, so all
    workers have to save. The others save to a temporary directory and delete it.

    Every worker must build it and call its methods.

    Args:
        strategy: the run's strategy.
        checkpoint: the objects to save.
        variables: the weights among them, which must be finite.
        directory: where worker 0 keeps the checkpoints.
        max_to_keep: the number of checkpoints to keep.
        writes: whether the run writes checkpoints, or only finds the latest one.

    Attributes:
        latest_checkpoint: the path of the latest checkpoint, the same on every worker,
            or None.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        checkpoint: tf.train.Checkpoint,
        variables: Iterable[tf.Variable],
        directory: str,
        max_to_keep: int,
        writes: bool = True,
    ):
        self._directory = directory
        self._checkpoint = checkpoint
        self._variables = list(variables)
        self._manager = None

        def find():
            if writes:
                # TensorFlow would take a run with a damaged state for a new one.
                latest.repair(directory)
                self._manager = tf.train.CheckpointManager(
                    checkpoint, directory, max_to_keep
                )
            return latest.find(directory)

        self.latest_checkpoint: str | None = workers.on_chief(strategy, find)

    def path(self, step: int) -> str:
        """Returns the path of the checkpoint that `save(step)` writes."""
        return os.path.join(self._directory, f"ckpt-{step}")

    def save(self, step: int) -> None:
        """Saves the state after `step` steps.

        Raises:
            NonFiniteError: a weight is not finite; nothing is saved.
        """
        finite.refuse_variables(self._variables, step)
        if self._manager is not None:
            self._manager.save(checkpoint_number=step)
        else:
            with scratch.directory() as own:
                manager = tf.train.CheckpointManager(self._checkpoint, own, 1)
                manager.save(checkpoint_number=step)
        self.latest_checkpoint = self.path(step)


class BestCheckpoint:
    """The checkpoint with the best value of one validation metric.

    Values of another metric, on other data, or of a run before this one do not count:
    their checkpoint stays until the first validation. Every worker must build it, and
    call it. It reads `metrics.jsonl`, so build it before the log of this start.

    Args:
        directory: the model_dir.
        settings: the metric, and whether lower or higher is better.
        trainer: the trainer, already restored.
        chosen_on: describes the data of the metric, in plain values by name.
        chooses: whether the run validates again, so that it may replace the checkpoint.
    """

    def __init__(
        self,
        directory: str,
        settings: experiment.TrainerConfig,
        trainer: Trainer,
        chosen_on: Mapping[str, Any],
        chooses: bool,
    ):
        self._trainer = trainer
        self._metric = settings.best_checkpoint_metric
        self._sign = 1 if settings.best_checkpoint_comparison == "higher" else -1
        # The checkpoint holds the value, so that value and weights belong together.
        self._value = tf.Variable(float("nan"), trainable=False, dtype=tf.float32)
        chosen_by = f"{self._metric}, {settings.best_checkpoint_comparison} is better"
        self._manager = Checkpoints(
            trainer.strategy,
            tf.train.Checkpoint(
                model=trainer.model,
                best_value=self._value,
                chosen_by=tf.Variable(chosen_by, trainable=False),
                chosen_on=tf.Variable(json.dumps(chosen_on), trainable=False),
            ),
            trainer.model.variables,
            os.path.join(directory, model_dir.BEST),
            max_to_keep=1,
        )
        path = self._manager.latest_checkpoint
        if not (self._metric and path):
            return
        strategy, reason = trainer.strategy, ""
        if others := _differences(path, chosen_by, chosen_on):
            reason = f"with another {', '.join(others)}"
        # A run that begins, perhaps again, has no best value.
        elif not trainer.step or not workers.on_chief(
            strategy, lambda: _is_of_this_run(directory, path, self._metric)
        ):
            reason = f"by a validation that is not in {model_dir.METRICS}"
        if not reason:
            restoring.restore(path, best_value=self._value)
        elif workers.is_chief(strategy) and chooses:
            logger.info("best/ was chosen %s: the run chooses it anew", reason)

    def offer(self, metrics: Mapping[str, float]) -> str:
        """Saves a checkpoint if `metrics` are the best so far.

        Returns:
            A remark for the log, or "".
        """
        if not self._metric:
            return ""
        if self._metric not in metrics:
            objective = self._metric.split("/")[0]
            # The objective may start later. If it has other metrics, this one is
            # misspelt, or the held-out text is too small for it.
            has_others = any(name.startswith(f"{objective}/") for name in metrics)
            if not has_others:
                return ""
            return f"  (this validation has not measured {self._metric}: best/ stays)"
        # Rounded as the best value is, so that equal values tie.
        value = float(np.float32(metrics[self._metric]))
        best = float(self._value.numpy())
        if not math.isfinite(value):
            return ""
        if math.isfinite(best) and self._sign * value <= self._sign * best:
            return ""
        self._value.assign(value)
        self._manager.save(self._trainer.step)
        return f"  (best {self._metric}, kept)"


def _is_of_this_run(directory: str, path: str, metric: str) -> bool:
    """Whether the log of a run has the validation that chose a best checkpoint.

    A run that begins again in its folder begins a new log. Without a log, nothing tells
    of another run.
    """
    if not tf.io.gfile.exists(os.path.join(directory, model_dir.METRICS)):
        return True
    step = latest.step(os.path.dirname(path))
    return metrics_log.has_validation(directory, step, metric)


def _differences(path: str, chosen_by: str, chosen_on: Mapping[str, Any]) -> list[str]:
    """Names the parts of a best checkpoint's record that differ from those of now.

    Earlier versions wrote fewer parts, or no record; these do not differ.

    Raises:
        UserError: the checkpoint is damaged.
    """
    if _stored(path, "chosen_by", chosen_by) != chosen_by:
        return ["metric"]
    before = json.loads(_stored(path, "chosen_on", "{}"))
    return [name for name, value in before.items() if chosen_on.get(name) != value]


def _stored(path: str, name: str, default: str) -> str:
    """Reads a string of a checkpoint, or the default of a checkpoint without it."""
    key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
    if not tf_checkpoints.open_file(path).has_tensor(key):
        return default
    found = tf.Variable(default, trainable=False)
    restoring.restore(path, **{name: found})
    return found.numpy().decode()
