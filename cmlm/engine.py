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
from collections.abc import Mapping

import orbit
import tensorflow as tf

from cmlm import distributed, experiments, model_dir, optimization, pretrained
from cmlm.data import languages, vocabulary
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.keras import keras
from cmlm.modeling import checkpoints, stacking
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES, Data
from cmlm.reporting import Reporter
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


def prepare_data(
    config: experiments.ExperimentConfig, directory: str
) -> dict[str, Data]:
    """Finds the data of every enabled objective and says what it holds.

    Raises:
        UserError: data that is missing, empty, or not what it should be.
    """
    work_dir = os.path.join(directory, model_dir.TEXT)
    found: dict[tuple, Data] = {}
    by_objective = {}
    for name, objective in config.task.enabled().items():
        source = objective.train_data
        key = (type(source), source.input_path, objective.validation_data)
        if key not in found:
            found[key] = objective.load_data(work_dir)
        by_objective[name] = found[key]
    return by_objective


def prepare_vocabulary(
    config: experiments.ExperimentConfig,
    data: Mapping[str, Data],
    directory: str,
) -> Tokenizer:
    """Puts the vocabulary into the model_dir and its size into the configuration.

    A warm start takes the vocabulary of the run it starts from, unless one is given.

    Raises:
        UserError: a vocabulary that cannot be used or that does not fit.
    """
    settings = pretrained.vocabulary_settings(config, directory)
    path = vocabulary.prepare(
        settings, languages.merge(entry.train for entry in data.values()), directory
    )
    tokenizer = Tokenizer(path, settings.lower_case)
    if config.model.vocab_size not in (0, tokenizer.vocab_size):
        raise UserError(
            f"model.vocab_size is {config.model.vocab_size}, "
            f"{path} has {tokenizer.vocab_size} entries"
        )
    config.model.vocab_size = tokenizer.vocab_size
    return tokenizer


def build(
    config: experiments.ExperimentConfig,
    directory: str,
    stacked_on: str | None = None,
) -> Run:
    """Builds a run and restores the latest checkpoint, if there is one.

    Args:
        config: checked; filled in place with what the data decides.
        directory: the model_dir.
        stacked_on: where there is no checkpoint yet, directory of a trained model with
            fewer layers to begin from, see `modeling.stacking`.

    Raises:
        UserError: configuration, text, vocabulary or checkpoint do not fit.
    """
    tf.io.gfile.makedirs(directory)
    data = prepare_data(config, directory)
    tokenizer = prepare_vocabulary(config, data, directory)
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
                data=data[name],
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
            schedule=config.trainer.schedule,
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
        elif stacked_on:
            layers = stacking.stack(model, stacked_on)
            logger.info("weights: %d layers of %s, repeated", layers, stacked_on)
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
    reporter = Reporter(run.directory, settings, trainer)
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
            interval = (
                settings.validation_interval if validate else settings.train_steps
            )
            while trainer.step < settings.train_steps:
                # Multiples of the interval, wherever the run was resumed.
                target = (trainer.step // interval + 1) * interval
                controller.train(min(target, settings.train_steps))
                if validate:
                    controller.evaluate(settings.validation_steps)
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
