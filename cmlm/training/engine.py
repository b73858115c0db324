"""A run from its configuration to its last checkpoint, and on from any kill.

Everything that decides what the next step computes is in the checkpoint: weights,
optimizer, and the number of batches each objective has consumed; dropout is a function
of seed and step. A resumed run gives the weights of one that was never stopped, bit for
bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import signal
from collections.abc import Callable, Iterator

import orbit
import tensorflow as tf

from cmlm.common import distributed, workers
from cmlm.common.keras import keras
from cmlm.config import experiment
from cmlm.encoders import model_dir, opening
from cmlm.errors import UserError
from cmlm.modeling import checkpoints, optimization, stacking
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES
from cmlm.training import inputs
from cmlm.training.checkpoints import BestCheckpoint, Checkpoints
from cmlm.training.evals import Evals
from cmlm.training.reporting import Pace, Reporter
from cmlm.training.trainer import NonFiniteError, Trainer

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
        manager: of the checkpoints in `directory`.
        strategy: the devices.
        score: gives the metrics of `trainer.evals`, for the model as it is.
    """

    directory: str
    config: experiment.ExperimentConfig
    trainer: Trainer
    manager: Checkpoints
    strategy: tf.distribute.Strategy
    score: Callable[[], dict[str, float]]


# ------------------------------------------------------------------ building


def build(
    config: experiment.ExperimentConfig,
    directory: str,
    stacked_on: str | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
) -> Run:
    """Builds a run and restores the latest checkpoint, if there is one.

    Args:
        config: checked; filled in place with what the data decides.
        directory: the model_dir.
        stacked_on: where there is no checkpoint yet, directory of a trained model with
            fewer layers to begin from, see `modeling.stacking`.
        strategy: of `distributed.build_strategy`, or None to build it here.

    Raises:
        UserError: configuration, text, vocabulary or checkpoint do not fit; workers
            are not given the same configuration, or one of them is gone.
    """
    distributed.set_precision(config.runtime.mixed_precision_dtype)
    # Before anything else: TensorFlow must not run an operation until the workers of
    # a cluster have found each other.
    strategy = strategy or distributed.build_strategy(config.runtime)
    with workers.lost_workers(strategy):
        return _build(config, directory, stacked_on, strategy)


def _build(config, directory, stacked_on, strategy) -> Run:
    _refuse_other_settings(config, strategy)
    tasks = Evals(config, strategy)
    data, tokenizer = inputs.prepare(config, directory, strategy)
    workers.on_chief(strategy, lambda: _refuse_other_model(config, directory))
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
        manager = Checkpoints(
            strategy,
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
    if workers.is_chief(strategy):
        model_dir.write_config(directory, config)
    seq_length = max(
        objective.train_data.seq_length for objective in config.task.enabled().values()
    )
    encoder = opening.live(model, tokenizer, seq_length)
    score = functools.partial(tasks.score, encoder)
    return Run(directory, config, trainer, manager, strategy, score)


def _refuse_other_settings(
    config: experiment.ExperimentConfig, strategy: tf.distribute.Strategy
) -> None:
    """Workers that were started with different flags would wait for each other."""
    settings = config.as_dict()
    # The one setting in which they differ.
    settings["runtime"]["task_index"] = None
    first, *others = workers.exchange(strategy, settings)
    for number, other in enumerate(others, 1):
        difference = _first_difference(first, other)
        if difference is not None:
            name, value, wrong = difference
            raise UserError(
                f"worker {number} was started with {name}={wrong!r}, worker 0 with "
                f"{value!r}: every worker needs the same flags"
            )


def _first_difference(a, b, path: str = "") -> tuple | None:
    """The first setting in which two configurations differ: (name, in a, in b)."""
    if a == b:
        return None
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return path, a, b
    for key in {**a, **b}:
        name = f"{path}.{key}" if path else key
        difference = _first_difference(a.get(key), b.get(key), name)
        if difference is not None:
            return difference
    return None


def _refuse_other_model(config: experiment.ExperimentConfig, directory: str) -> None:
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
    settings, trainer, strategy = run.config.trainer, run.trainer, run.strategy
    with workers.lost_workers(strategy), _Signals() as signals:
        pace = Pace(settings, trainer.step)
        best = BestCheckpoint(run.directory, settings, trainer)
        reporter = None
        if workers.is_chief(strategy):
            reporter = Reporter(run.directory, settings, trainer, pace)
        validation: dict[str, float] = {}

        def after_loop(metrics):
            step = trainer.step
            pace.looped(step)
            if reporter:
                reporter.trained(metrics)
            # A signal may come to one worker only, and clocks differ: all of them
            # stop, save, and take as many steps next as each other.
            looks = workers.exchange(strategy, [signals.received, pace.steps])
            pace.steps = looks[0][1]
            stop = max(signum or 0 for signum, _ in looks)
            if stop and reporter:
                reporter.stopped()
            if stop or step % settings.checkpoint_interval == 0:
                run.manager.save(step)
            if stop:
                workers.exchange(strategy, "saved")
                raise Stopped(stop, step)

        def after_validation(metrics):
            nonlocal validation
            validation = metrics = {**metrics, **run.score()}
            kept = best.offer(metrics)
            if reporter:
                reporter.validated(metrics, kept)

        # The controller prints what the reporter says better.
        with contextlib.redirect_stdout(io.StringIO()), _leaving_together(strategy):
            controller = orbit.Controller(
                global_step=trainer.optimizer.iterations,
                trainer=trainer,
                evaluator=trainer if validate else None,
                strategy=strategy,
                steps_per_loop=pace.next_loop,
                train_actions=[after_loop],
                eval_actions=[after_validation],
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
        if run.manager.latest_checkpoint != run.manager.path(trainer.step):
            run.manager.save(trainer.step)
        # No worker says that it is done before the last checkpoint is whole.
        workers.exchange(strategy, "saved")
    return validation


@contextlib.contextmanager
def _leaving_together(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Every worker finds a non-finite loss; none may go before all of them have."""
    try:
        yield
    except NonFiniteError:
        workers.exchange(strategy, "stopped")
        raise


def evaluate(run: Run) -> dict[str, float]:
    """Validates the run as it stands.

    Returns:
        `<objective>/<metric>` and `<task>/<metric>` to value.
    """
    with workers.lost_workers(run.strategy):
        metrics = run.trainer.evaluate(run.config.trainer.validation_steps)
        return {**metrics, **run.score()}


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
