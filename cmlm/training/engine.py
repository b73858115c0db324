"""Trains a run from its last checkpoint to its last step.

A run may be killed at any time. Started again, it ends with the same weights, bit for
bit, as a run without interruption. The checkpoint holds all state that decides the next
step: weights, optimizer, and the number of batches that each objective has consumed.
Dropout is a function of seed and step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import orbit
import tensorflow as tf

from cmlm.common import workers
from cmlm.training import metrics_log, validation
from cmlm.training.building import Run
from cmlm.training.checkpoints import BestCheckpoint
from cmlm.training.finite import NonFiniteError
from cmlm.training.pace import Pace
from cmlm.training.reporting import Reporter
from cmlm.training.signals import Signals, Stopped


def train(run: Run, validate: bool = True) -> dict[str, float]:
    """Trains from the step of the last checkpoint to the last step.

    Args:
        run: the run, as `building.build` returns it.
        validate: whether to validate at every `trainer.validation_interval`.

    Returns:
        The metrics of the last validation.

    Raises:
        Stopped: a signal arrived, and the run wrote a checkpoint.
        NonFiniteError: a loss, a gradient or a weight is not finite; the last
            checkpoint precedes it.
    """
    settings, trainer, strategy = run.config.trainer, run.trainer, run.strategy
    interval = settings.validation_interval if validate else settings.train_steps
    with workers.lost_workers(strategy), Signals() as signals:
        owes_validation = validate and _owes_validation(run)
        validates = owes_validation or (validate and not run.is_over)
        loops = _Loops(run, signals, validates)
        # The reporter replaces the controller's own output.
        with (
            contextlib.closing(loops),
            open(os.devnull, "w") as nothing,
            contextlib.redirect_stdout(nothing),
            _leaving_together(strategy),
        ):
            controller = orbit.Controller(
                global_step=trainer.optimizer.iterations,
                trainer=trainer,
                evaluator=trainer if validate else None,
                strategy=strategy,
                steps_per_loop=loops.pace.next_loop,
                train_actions=[loops.trained],
                eval_actions=[loops.validated],
            )
            if owes_validation:
                controller.evaluate(settings.validation_steps)
            while trainer.step < settings.train_steps:
                # A multiple of the interval, even if the run resumed between two of
                # them.
                target = (trainer.step // interval + 1) * interval
                controller.train(min(target, settings.train_steps))
                if validate:
                    controller.evaluate(settings.validation_steps)
        # No worker ends before the last checkpoint is complete. A signal in the last
        # validation counts for the stage that would follow.
        received = workers.exchange(strategy, signals.received)
        if stop := max(signum or 0 for signum in received):
            raise Stopped(stop, trainer.step)
    return loops.validation


class _Loops:
    """What a run does after each loop of steps, and after each validation.

    Args:
        run: the run, already restored.
        signals: the signals that this worker has received.
        validates: whether a validation follows.

    Attributes:
        pace: the number of steps of a loop.
        validation: the metrics of the last validation.
    """

    def __init__(self, run: Run, signals: Signals, validates: bool):
        settings, trainer = run.config.trainer, run.trainer
        self._run, self._signals = run, signals
        chosen_on = workers.on_chief(run.strategy, lambda: _data_of_best(run))
        self._best = BestCheckpoint(
            run.directory, settings, trainer, chosen_on, validates
        )
        self.pace = Pace(settings, trainer.step)
        self._reporter = None
        if workers.is_chief(run.strategy):
            self._reporter = Reporter(run.directory, settings, trainer)
        self.validation: dict[str, float] = {}

    def close(self) -> None:
        """Lets other messages follow. Call it whenever the training ends."""
        if self._reporter:
            self._reporter.close()

    def trained(self, metrics: dict[str, float]) -> None:
        """Reports and saves; raises Stopped if a worker has received a signal."""
        run, step = self._run, self._run.trainer.step
        settings = run.config.trainer
        self.pace.looped(step)
        if self._reporter:
            self._reporter.trained(metrics)
        # A signal may reach one worker only, and clocks differ. All workers stop
        # together, save together, and take the same number of steps next.
        own = [self._signals.received, self.pace.steps]
        looks = workers.exchange(run.strategy, own)
        self.pace.steps = looks[0][1]
        stop = max(signum or 0 for signum, _ in looks)
        if stop and self._reporter:
            self._reporter.stopped()
        # The last validation may take long, or fail: the weights come first.
        if stop or settings.is_over(step) or step % settings.checkpoint_interval == 0:
            run.manager.save(step)
        if stop:
            workers.exchange(run.strategy, "saved")
            raise Stopped(stop, step)

    def validated(self, metrics: dict[str, float]) -> None:
        """Scores the tasks of `trainer.evals`, keeps the best weights, and reports."""
        self.validation = {**metrics, **self._run.score()}
        kept = self._best.offer(self.validation)
        if self._reporter:
            self._reporter.validated(self.validation, kept)


def _data_of_best(run: Run) -> dict[str, Any]:
    """Describes the data of `trainer.best_checkpoint_metric`; empty without one."""
    settings = run.config.trainer
    metric = settings.best_checkpoint_metric
    if metric in run.evals.metrics:
        return run.evals.described(metric)
    objective = run.trainer.objectives.get(metric.partition("/")[0])
    return validation.described(objective, settings) if objective else {}


def _owes_validation(run: Run) -> bool:
    """Whether the run was stopped after a checkpoint, but before its validation."""
    settings, step = run.config.trainer, run.trainer.step
    is_due = step % settings.validation_interval == 0 or step == settings.train_steps
    if not (step and is_due and run.config.has_validation):
        return False
    return workers.on_chief(
        run.strategy, lambda: not metrics_log.has_validation(run.directory, step)
    )


@contextlib.contextmanager
def _leaving_together(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Holds a worker with a non-finite loss until every worker has found it."""
    try:
        yield
    except NonFiniteError:
        workers.exchange(strategy, "stopped")
        raise


def evaluate(run: Run) -> dict[str, float]:
    """Validates the current weights.

    Returns:
        The value of each metric, under `<objective>/<metric>` or `<task>/<metric>`.
    """
    with workers.lost_workers(run.strategy):
        metrics = run.trainer.evaluate(run.config.trainer.validation_steps)
        return {**metrics, **run.score()}
