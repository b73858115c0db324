"""A run from its configuration to its last checkpoint, and on from any kill.

Everything that decides what the next step computes is in the checkpoint: weights,
optimizer, and the number of batches each objective has consumed; dropout is a function
of seed and step. A resumed run gives the weights of one that was never stopped, bit for
bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import signal
import time
from collections.abc import Mapping

import orbit
import tensorflow as tf

from cmlm import distributed, experiments, model_dir, optimization, progress
from cmlm.data import corpus, vocabulary
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.keras import keras
from cmlm.modeling import checkpoints
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES
from cmlm.objectives.masked_text import TextFiles
from cmlm.trainer import Trainer

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """SIGTERM or SIGINT came; the run is saved. `signum` says which."""

    def __init__(self, signum: int, step: int):
        super().__init__(f"stopped by {signal.Signals(signum).name} at step {step}")
        self.signum = signum


@dataclasses.dataclass
class Run:
    """A built run, ready for its next step.

    Attributes:
      directory: its model_dir.
      config: resolved.
      trainer: model, objectives, optimizer.
      checkpoint: everything that is saved.
      manager: of the checkpoints in `directory`.
      strategy: the devices.
    """

    directory: str
    config: experiments.ExperimentConfig
    trainer: Trainer
    checkpoint: tf.train.Checkpoint
    manager: tf.train.CheckpointManager
    strategy: tf.distribute.Strategy


# ------------------------------------------------------------------ building


def prepare_text(
    config: experiments.ExperimentConfig, directory: str
) -> dict[str, TextFiles]:
    """Resolves the text of every enabled objective and says what it holds.

    Raises:
      UserError: text that is missing, empty, or not text.
    """
    work_dir = os.path.join(directory, model_dir.TEXT)
    resolved: dict[tuple[str, str], TextFiles] = {}
    by_objective = {}
    for name, objective in config.task.enabled().items():
        key = (objective.train_data.input_path, objective.validation_data)
        if key not in resolved:
            train = corpus.resolve(objective.train_data, work_dir)
            logger.info("text: %s: %s", key[0], corpus.inspect(train))
            validation = None
            if objective.validation_data:
                other = objective.train_data.replace(
                    input_path=objective.validation_data
                )
                validation = corpus.resolve(other, work_dir)
                logger.info("validation: %s: %s", key[1], corpus.inspect(validation))
            resolved[key] = TextFiles(train, validation)
        by_objective[name] = resolved[key]
    return by_objective


def prepare_vocabulary(
    config: experiments.ExperimentConfig,
    text: Mapping[str, TextFiles],
    directory: str,
) -> Tokenizer:
    """Puts the vocabulary into the model_dir and its size into the configuration.

    A warm start takes the vocabulary of the run it starts from, unless one is given.

    Raises:
      UserError: a vocabulary that cannot be used or that does not fit.
    """
    settings = config.vocabulary
    if config.init_checkpoint and not settings.file:
        source = config.init_checkpoint
        if not tf.io.gfile.isdir(source):
            source = os.path.dirname(source)
        beside = os.path.join(source, model_dir.VOCABULARY)
        if tf.io.gfile.exists(beside):
            settings = settings.replace(file=beside)
    files = sorted({path for entry in text.values() for path in entry.train})
    path = vocabulary.prepare(settings, files, directory)
    tokenizer = Tokenizer(path, settings.lower_case)
    if config.model.vocab_size not in (0, tokenizer.vocab_size):
        raise UserError(
            f"model.vocab_size is {config.model.vocab_size}, "
            f"{path} has {tokenizer.vocab_size} entries"
        )
    config.model.vocab_size = tokenizer.vocab_size
    return tokenizer


def build(config: experiments.ExperimentConfig, directory: str) -> Run:
    """Builds a run and restores the latest checkpoint, if there is one.

    Args:
      config: checked; filled in place with what the data decides.
      directory: the model_dir.

    Raises:
      UserError: configuration, text, vocabulary or checkpoint do not fit.
    """
    tf.io.gfile.makedirs(directory)
    text = prepare_text(config, directory)
    tokenizer = prepare_vocabulary(config, text, directory)
    _refuse_other_model(config, directory)

    distributed.set_precision(config.runtime.mixed_precision_dtype)
    strategy = distributed.build_strategy(config.runtime)
    # Dropout layers draw from tf.random.Generators, whose state can be set.
    keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(config.trainer.seed)
    with strategy.scope():
        model = SentenceModel(config.model)
        objectives = {
            name: OBJECTIVES[name](
                name,
                objective,
                model,
                tokenizer=tokenizer,
                files=text[name],
                static_shapes=distributed.is_static(strategy),
            )
            for name, objective in config.task.enabled().items()
        }
        optimizer = optimization.build_optimizer(
            config.trainer.optimizer, config.trainer.train_steps
        )
        trainer = Trainer(
            model,
            objectives,
            optimizer,
            strategy,
            clip_norm=config.trainer.optimizer.clip_norm,
            micro_batch_size=config.trainer.micro_batch_size,
            seed=config.trainer.seed,
        )
        checkpoint = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            batches_seen=trainer.batches_seen,
        )
        manager = tf.train.CheckpointManager(
            checkpoint,
            directory,
            max_to_keep=config.trainer.max_to_keep,
        )
        if manager.latest_checkpoint:
            checkpoints.restore(
                manager.latest_checkpoint,
                model=model,
                optimizer=optimizer,
                batches_seen=trainer.batches_seen,
            )
        elif config.init_checkpoint:
            parts = checkpoints.initialize(model, config.init_checkpoint)
            logger.info("weights: %s from %s", ", ".join(parts), config.init_checkpoint)
    # Last: a model_dir with params.yaml is one that could be built.
    model_dir.write_config(directory, config)
    return Run(directory, config, trainer, checkpoint, manager, strategy)


def _refuse_other_model(config: experiments.ExperimentConfig, directory: str) -> None:
    """A model_dir belongs to one model; naming the difference beats a shape error."""
    if tf.train.latest_checkpoint(directory) is None:
        return
    before = model_dir.read_config(directory).model.as_dict()
    for field, value in config.model.as_dict().items():
        if field in before and before[field] != value and field != "preset":
            raise UserError(
                f"--model_dir={directory} holds a model with {field}="
                f"{before[field]!r}, this command asks for {value!r}; "
                "use another --model_dir"
            )


# ------------------------------------------------------------------- running


def train(run: Run, validate: bool = True) -> dict[str, float]:
    """Trains to the last step, from wherever the run stands.

    Returns:
      The last validation's metrics.

    Raises:
      Stopped: a signal came; the checkpoint is written.
      NonFiniteError: see `Trainer.train`; the last checkpoint stays as it was.
    """
    settings, trainer = run.config.trainer, run.trainer
    reporter = _Reporter(run)
    with _Signals() as signals:

        def after_loop(metrics):
            reporter.trained(metrics)
            step = trainer.step
            stop = signals.received is not None
            if stop or step % settings.checkpoint_interval == 0:
                run.manager.save(checkpoint_number=step)
            if stop:
                raise Stopped(signals.received, step)

        # The controller prints what the reporter says better.
        with contextlib.redirect_stdout(io.StringIO()):
            controller = orbit.Controller(
                global_step=trainer.optimizer.iterations,
                trainer=trainer,
                evaluator=trainer if validate else None,
                strategy=run.strategy,
                steps_per_loop=reporter.next_loop,
                train_actions=[after_loop],
                eval_actions=[reporter.validated],
            )
            if validate:
                controller.train_and_evaluate(
                    train_steps=settings.train_steps,
                    eval_steps=settings.validation_steps,
                    eval_interval=settings.validation_interval,
                )
            else:
                controller.train(settings.train_steps)
        last = os.path.join(run.directory, f"ckpt-{trainer.step}")
        if run.manager.latest_checkpoint != last:
            run.manager.save(checkpoint_number=trainer.step)
    return reporter.validation


def evaluate(run: Run) -> dict[str, float]:
    """Validates the run as it stands: `<objective>/<metric>` to value."""
    return run.trainer.evaluate(run.config.trainer.validation_steps)


class _Signals:
    """Notes SIGTERM and SIGINT instead of dying; a second one dies."""

    def __init__(self):
        self.received: int | None = None
        self._previous: dict = {}

    def __enter__(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum, _frame):
        self.received = signum
        signal.signal(signum, self._previous[signum])


class _Reporter:
    """Turns what the loops return into the progress line, metrics and `best/`."""

    def __init__(self, run: Run):
        self._run = run
        start = run.trainer.step
        at = run.directory
        self._line = progress.ProgressLine(run.config.trainer.train_steps, start)
        self._log = progress.MetricsLog(
            os.path.join(at, model_dir.METRICS),
            os.path.join(at, model_dir.TENSORBOARD),
            start,
        )
        self._best = _BestCheckpoint(run)
        self._rows: list[tuple[int, Mapping[str, float]]] = []
        self._row_start = (time.monotonic(), start)
        self._last_loop = (time.monotonic(), start)
        self._seconds_per_step: float | None = None
        self.validation: dict[str, float] = {}
        # A TPU program cannot call back, and does not need to.
        if not distributed.is_static(run.strategy):
            run.trainer.on_micro_batch = self._micro_batch

    def _micro_batch(self, _name: str, done: int, of: int) -> None:
        self._line.within_step(self._last_loop[1], done, of)

    def next_loop(self, step: int) -> int:
        """Steps until the next look: about a second's, and never past an interval."""
        settings = self._run.config.trainer
        self._last_loop = (time.monotonic(), int(step))
        steps = 1
        if self._seconds_per_step:
            steps = min(
                settings.steps_per_loop, max(1, int(1.0 / self._seconds_per_step))
            )
        for interval in (settings.summary_interval, settings.checkpoint_interval):
            steps = min(steps, interval - int(step) % interval)
        return steps

    def trained(self, metrics: Mapping[str, float]) -> None:
        """After every loop of training steps."""
        run, step = self._run, self._run.trainer.step
        began, before = self._last_loop
        self._seconds_per_step = (time.monotonic() - began) / max(step - before, 1)
        rate = float(run.trainer.optimizer._decayed_lr(tf.float32))
        examples = sum(
            run.trainer.objectives[name].global_batch_size
            for name in run.trainer.active(max(step - 1, 0))
        )
        shown = {
            name: value for name, value in metrics.items() if name != "gradient_norm"
        }
        for name, value in self.validation.items():
            if name.endswith("/conditioning_gain"):
                shown[name.replace("conditioning_gain", "gain")] = value
        self._line.update(step, {**shown, "lr": rate}, examples)

        self._rows.append((step - before, metrics))
        done = step >= run.config.trainer.train_steps
        if step % run.config.trainer.summary_interval == 0 or done:
            since, first = self._row_start
            seconds = max(time.monotonic() - since, 1e-9)
            row = {
                f"train/{key}": value for key, value in _weighted(self._rows).items()
            }
            row["train/learning_rate"] = rate
            row["train/examples_per_second"] = examples * (step - first) / seconds
            self._log.write(step, row)
            self._rows, self._row_start = [], (time.monotonic(), step)

    def validated(self, metrics: Mapping[str, float]) -> None:
        """After every validation."""
        step = self._run.trainer.step
        self.validation = dict(metrics)
        self._line.interrupt()
        if not metrics:
            logger.warning("no held-out text: give --validation_data to validate")
            return
        row = {f"validation/{key}": value for key, value in metrics.items()}
        self._log.write(step, row)
        best = self._best.offer(metrics)
        text = "  ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        logger.info("validation at step %s: %s%s", f"{step:,}", text, best)
        # Validation is not training time: it must not slow the measured pace.
        self._row_start = (time.monotonic(), step)


class _BestCheckpoint:
    """Keeps the checkpoint with the best value of one validation metric."""

    def __init__(self, run: Run):
        settings = run.config.trainer
        self._run = run
        self._metric = settings.best_checkpoint_metric
        self._sign = 1 if settings.best_checkpoint_comparison == "higher" else -1
        # The value travels in the checkpoint itself, so it cannot disagree with it.
        self._value = tf.Variable(float("nan"), trainable=False, dtype=tf.float32)
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=run.trainer.model, best_value=self._value),
            os.path.join(run.directory, model_dir.BEST),
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
            known = sorted(self._run.trainer.objectives)
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
        self._manager.save(checkpoint_number=self._run.trainer.step)
        return f"  (best {self._metric}, kept)"


def _weighted(rows: list[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means over loops of different length."""
    totals: dict[str, tuple[float, int]] = {}
    for steps, metrics in rows:
        for key, value in metrics.items():
            total, count = totals.get(key, (0.0, 0))
            totals[key] = (total + steps * value, count + steps)
    return {key: total / count for key, (total, count) in totals.items()}
