"""The checkpoints that a run writes: the latest ones, and the best one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import workers
from cmlm.config import experiment
from cmlm.encoders import model_dir
from cmlm.errors import UserError
from cmlm.modeling import checkpoints
from cmlm.training.trainer import Trainer


class Checkpoints:
    """The checkpoints of a directory, saved by all workers of a run, kept by worker 0.

    To save a variable may take every worker: TensorFlow sums some of them up only when
    they are read. So all of them save; what the others write goes to a temporary
    directory of their own machine and away.

    Build it and call its methods on every worker alike.

    Args:
        strategy: of the run.
        checkpoint: what to save.
        directory: where worker 0 keeps it.
        max_to_keep: the number of checkpoints that stay.

    Attributes:
        latest_checkpoint: path of the last one, the same on every worker, or None.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        checkpoint: tf.train.Checkpoint,
        directory: str,
        max_to_keep: int,
    ):
        self._directory = directory
        self._checkpoint = checkpoint
        self._manager = None
        if workers.is_chief(strategy):
            self._manager = tf.train.CheckpointManager(
                checkpoint, directory, max_to_keep
            )
        self.latest_checkpoint: str | None = workers.on_chief(
            strategy, lambda: self._manager.latest_checkpoint
        )

    def path(self, step: int) -> str:
        """The checkpoint that `save(step)` makes."""
        return os.path.join(self._directory, f"ckpt-{step}")

    def save(self, step: int) -> None:
        """Saves the state after `step` steps."""
        if self._manager is not None:
            self._manager.save(checkpoint_number=step)
        else:
            with tempfile.TemporaryDirectory(prefix="cmlm-") as own:
                manager = tf.train.CheckpointManager(self._checkpoint, own, 1)
                manager.save(checkpoint_number=step)
        self.latest_checkpoint = self.path(step)


class BestCheckpoint:
    """Keeps the checkpoint with the best value of one validation metric.

    Build it and call it on every worker alike.

    Args:
        directory: the model_dir.
        settings: which metric, and which way is better.
        trainer: restored.
    """

    def __init__(
        self, directory: str, settings: experiment.TrainerConfig, trainer: Trainer
    ):
        self._trainer = trainer
        self._metric = settings.best_checkpoint_metric
        self._sign = 1 if settings.best_checkpoint_comparison == "higher" else -1
        # The value travels in the checkpoint itself, so it cannot disagree with it.
        self._value = tf.Variable(float("nan"), trainable=False, dtype=tf.float32)
        self._manager = Checkpoints(
            trainer.strategy,
            tf.train.Checkpoint(model=trainer.model, best_value=self._value),
            os.path.join(directory, model_dir.BEST),
            max_to_keep=1,
        )
        if self._metric and self._manager.latest_checkpoint:
            checkpoints.restore(self._manager.latest_checkpoint, best_value=self._value)

    def offer(self, metrics: Mapping[str, float]) -> str:
        """Saves if `metrics` are the best so far; says so, for the log."""
        if not self._metric:
            return ""
        if self._metric not in metrics:
            # Its objective may not have begun; a name that never comes is an error.
            known = sorted(self._trainer.objectives)
            if self._metric.split("/")[0] not in known:
                raise UserError(
                    f"trainer.best_checkpoint_metric is {self._metric!r}; validation "
                    f"gives: {', '.join(metrics)}"
                )
            return ""
        value, best = metrics[self._metric], float(self._value.numpy())
        if best == best and self._sign * value <= self._sign * best:
            return ""
        self._value.assign(value)
        self._manager.save(self._trainer.step)
        return f"  (best {self._metric}, kept)"
