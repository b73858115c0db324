"""Reports of a run: its description, the progress line, rows of metrics, log lines."""

from __future__ import annotations

import functools
import logging
import shlex
import time
from collections.abc import Mapping

from cmlm.common import distributed, once, progress
from cmlm.common.counts import counted
from cmlm.config import experiment, model_dir
from cmlm.training import metrics_log
from cmlm.training.building import Run
from cmlm.training.stages import Stage
from cmlm.training.totals import add_totals, means
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)

# The most metrics in the log line after a validation.
_MOST_TOLD = 40


def describe(run: Run) -> str:
    """Describes model and steps of a run in two lines."""
    model, trainer = run.config.model, run.config.trainer
    weights = {
        variable.ref(): variable.shape.num_elements()
        for part in run.trainer.model.parts.values()
        for variable in part.trainable_variables
    }
    batches = []
    for name, objective in run.trainer.objectives.items():
        batches.append(f"{name} {objective.global_batch_size} a step")
        first, end = objective.config.start_step, objective.config.end_step
        if first:
            batches[-1] += f" from step {first:,}"
        if end is not None and end < trainer.train_steps:
            batches[-1] += f" until step {end:,}"
        parts = run.trainer.gradients[name].micro_batches
        if parts > 1:
            batches[-1] += f" in {parts} micro-batches"
    replicas = run.strategy.num_replicas_in_sync
    return (
        f"model: {counted(model.num_layers, 'layer')} of {model.hidden_size}, "
        f"{model.vocab_size:,} tokens, {sum(weights.values()) / 1e6:.1f} M weights\n"
        f"steps {run.trainer.step:,} to {trainer.train_steps:,}: {', '.join(batches)}; "
        f"{counted(replicas, 'replica')}, {trainer.optimizer.type} "
        f"{trainer.optimizer.learning_rate:g}, "
        f"{run.config.runtime.mixed_precision_dtype or 'float32'}"
    )


def remark(run: Run, stage: Stage) -> str | None:
    """What the user is told of a run that had all of its steps before it was built.

    None for other runs, and for a stage before the last, which may be built only to
    make up for its validation.
    """
    if not run.is_over or stage.whole:
        return None
    length = "epochs" if run.config.trainer.epochs else "train_steps"
    return (
        f"the run has finished its {run.trainer.step:,} steps; a larger "
        f"trainer.{length} continues it on this text. For new text, use "
        f"--init_checkpoint={shlex.quote(run.directory)} and another --model_dir"
    )


class Reporter:
    """Writes the progress line and the rows of metrics from the results of the loops.

    Args:
        directory: the model_dir.
        settings: intervals.
        trainer: the trainer, already restored.
    """

    def __init__(
        self, directory: str, settings: experiment.TrainerConfig, trainer: Trainer
    ):
        self._settings = settings
        self._trainer = trainer
        start = trainer.step
        self._line = progress.ProgressLine(settings.train_steps, start)
        self._log = metrics_log.MetricsLog(directory, start)
        self._begin_row()
        # Before the open loop.
        self._loop_step, self._loop_examples = start, trainer.examples_seen
        self._gains: dict[str, float] = {}
        # A TPU program cannot call back into Python.
        if not distributed.is_tpu(trainer.strategy):
            several = len(trainer.gradients) > 1
            for name, gradients in trainer.gradients.items():
                gradients.on_micro_batch = functools.partial(
                    self._micro_batch, name if several else ""
                )

    def _micro_batch(self, objective: str, done: int, of: int, passes: int) -> None:
        self._line.within_step(self._loop_step, done, of, passes, objective)

    def trained(self, metrics: Mapping[str, float]) -> None:
        """Reports a loop of training steps. Call it after each loop."""
        trainer, settings = self._trainer, self._settings
        step, seen = trainer.step, trainer.examples_seen
        examples = (seen - self._loop_examples) / max(step - self._loop_step, 1)
        self._loop_step, self._loop_examples = step, seen
        shown = {
            key: value
            for key, value in metrics.items()
            if key.endswith(("/loss", "/accuracy", "/candidates"))
        }
        shown |= {**self._gains, "lr": trainer.learning_rate}
        self._line.update(step, shown, examples)

        add_totals(self._totals, trainer.totals)
        done = step >= settings.train_steps
        if step % settings.summary_interval == 0 or done:
            self._write_row()
        self._trained_at = time.monotonic()

    def stopped(self) -> None:
        """Writes the metrics so far. Call it before a signal ends the run."""
        if self._totals:
            self._write_row()

    def close(self) -> None:
        """Ends the progress line. Call it whenever the training ends."""
        self._line.interrupt()

    def _write_row(self) -> None:
        step, rate = self._trainer.step, self._trainer.learning_rate
        seconds = max(time.monotonic() - self._row_start, 1e-9)
        found = means(self._totals)
        row = {f"train/{key}": value for key, value in found.items()}
        row["train/learning_rate"] = rate
        for name, objective in self._trainer.objectives.items():
            prefix = f"{name}/"
            own = {
                key.removeprefix(prefix): value
                for key, value in found.items()
                if key.startswith(prefix)
            }
            if warning := objective.warning(own):
                self._line.interrupt()
                once.warn(f"{name}: {warning}")
        examples = self._trainer.examples_seen - self._row_examples
        row["train/examples_per_second"] = examples / seconds
        self._log.write(step, row)
        self._begin_row()

    def _begin_row(self) -> None:
        self._totals: dict[str, list[float]] = {}
        self._row_examples = self._trainer.examples_seen
        self._row_start = self._trained_at = time.monotonic()

    def validated(self, metrics: Mapping[str, float], kept: str) -> None:
        """Reports a validation.

        Args:
            metrics: the metrics by name.
            kept: the remark of `BestCheckpoint.offer`.
        """
        step = self._trainer.step
        self._gains = {
            name.replace("conditioning_gain", "gain"): value
            for name, value in metrics.items()
            if name.endswith("/conditioning_gain")
        }
        # Validation is not part of the measured training time.
        took = time.monotonic() - self._trained_at
        self._line.interrupt(took)
        self._row_start += took
        if not metrics:
            # The run has said so before its first step.
            return
        row = {f"validation/{key}": value for key, value in metrics.items()}
        self._log.write(step, row)
        # The accuracy of every pair of 15 languages would fill the screen.
        told = list(metrics.items())[:_MOST_TOLD]
        text = "  ".join(f"{key} {value:.4f}" for key, value in told)
        if len(metrics) > _MOST_TOLD:
            text += f"  and {len(metrics) - _MOST_TOLD} more in {model_dir.METRICS}"
        logger.info("validation at step %s: %s%s", f"{step:,}", text, kept)
