"""Scores tasks of `cmlm.evaluate` at every validation of a run."""

from __future__ import annotations

import os

import tensorflow as tf

from cmlm.common import checksums, fields, workers
from cmlm.config import experiment
from cmlm.encoders.encoder import Encoder
from cmlm.errors import UserError


class Evals:
    """The tasks of `trainer.evals`: worker 0 scores them, all workers get the numbers.

    The data is read once, before the first step: a missing file stops the run at its
    start. Every worker must build it and call it.

    Args:
        config: the run's configuration.
        strategy: the run's strategy.

    Attributes:
        metrics: names of the main metrics, such as `stsb-dev/spearman`. Higher values
            are better. Any of them may choose the best checkpoint.

    Raises:
        UserError: a task is unknown, its data is missing or damaged, or
            `trainer.best_checkpoint_metric` names a metric that does not exist.
    """

    def __init__(
        self, config: experiment.ExperimentConfig, strategy: tf.distribute.Strategy
    ):
        self._strategy = strategy
        self._tasks = []
        self.metrics: list[str] = []
        settings = config.trainer
        if not settings.evals:
            return
        self.metrics = workers.on_chief(strategy, lambda: self._read(settings))
        best = settings.best_checkpoint_metric
        if best in self.metrics and settings.best_checkpoint_comparison != "higher":
            raise fields.refused(
                "trainer.best_checkpoint_comparison",
                settings.best_checkpoint_comparison,
                f"higher, as higher values of {best} are better",
            )
        objectives = config.task.enabled()
        if best and not (best in self.metrics or best.partition("/")[0] in objectives):
            raise fields.refused(
                "trainer.best_checkpoint_metric",
                best,
                f"empty, {', '.join(self.metrics)}, or a metric of "
                f"{', '.join(objectives)}",
            )

    def _read(self, settings: experiment.TrainerConfig) -> list[str]:
        """Reads the tasks; returns the names of their main metrics."""
        # This imports scipy and scikit-learn, which training alone does not need.
        from cmlm.evaluation import catalogue, run

        tasks = catalogue.select(settings.evals, flag="trainer.evals")
        for task in tasks:
            task.check()
        self._tasks, failed = run.read(
            tasks, settings.evals_data_dir, "trainer.evals_data_dir"
        )
        if failed:
            name, reason = next(iter(failed.items()))
            raise UserError(f"{name}: {reason}")
        return [f"{item.task.name}/{item.task.main_metric}" for item in self._tasks]

    def described(self, metric: str) -> dict[str, str]:
        """Describes the test set of a metric. Call it on worker 0 only."""
        files = self._tasks[self.metrics.index(metric)].checksums
        named = sorted((os.path.basename(path), files[path]) for path in files)
        return {"test set": checksums.of_values(named)}

    def score(self, encoder: Encoder) -> dict[str, float]:
        """Scores the current weights.

        Args:
            encoder: an encoder with the weights of the trained model.

        Returns:
            The main metrics by name, the same on every worker.
        """
        if not self.metrics:
            return {}
        return workers.on_chief(self._strategy, lambda: self._score(encoder))

    def _score(self, encoder: Encoder) -> dict[str, float]:
        from cmlm.evaluation import run

        scores = run.score(encoder, self._tasks).scores
        found = (scores[item.task.name][item.task.main_metric] for item in self._tasks)
        return dict(zip(self.metrics, found, strict=True))
