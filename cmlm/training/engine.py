"""Runs an experiment from its configuration to its last checkpoint.

A run may be killed at any time. Started again, it ends with the same weights, bit for
bit, as a run without interruption. The checkpoint holds all state that decides the next
step: weights, optimizer, and the number of batches that each objective has consumed.
Dropout is a function of seed and step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import orbit
import tensorflow as tf

from cmlm.common import distributed, workers
from cmlm.common.counts import counted
from cmlm.common.keras import keras
from cmlm.config import experiment
from cmlm.encoders import model_dir, opening
from cmlm.errors import UserError
from cmlm.modeling import optimization, restoring, stacking
from cmlm.modeling.foreign import tf_checkpoints
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES, Data, Objective
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.training import (
    agreement,
    hold_out,
    inputs,
    metrics_log,
    remote_tpu,
    starts_log,
    validation,
)
from cmlm.training.checkpoints import BestCheckpoint, Checkpoints
from cmlm.training.evals import Evals
from cmlm.training.finite import NonFiniteError
from cmlm.training.pace import Pace
from cmlm.training.reporting import Reporter
from cmlm.training.signals import Signals, Stopped
from cmlm.training.start import Start
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Run:
    """A built run, ready for its next step.

    Attributes:
        directory: the model_dir.
        config: the resolved configuration.
        trainer: model, objectives, optimizer.
        manager: the manager of the checkpoints in `directory`.
        strategy: the devices.
        evals: the tasks of `trainer.evals`.
        score: computes their metrics for the current weights.
        is_over: whether the run had all of its steps when it was built.
    """

    directory: str
    config: experiment.ExperimentConfig
    trainer: Trainer
    manager: Checkpoints
    strategy: tf.distribute.Strategy
    evals: Evals
    score: Callable[[], dict[str, float]]
    is_over: bool


# ------------------------------------------------------------------ building


def build(
    config: experiment.ExperimentConfig,
    directory: str,
    stacked_on: str | None = None,
    *,
    whole: str = "",
    strategy: tf.distribute.Strategy | None = None,
    writes: bool = True,
) -> Run:
    """Builds a run and restores the latest checkpoint, if there is one.

    Args:
        config: validated. The values that depend on the data and on the machine are
            filled in place: file, size and rules of the vocabulary, the steps of a run
            in epochs, the precision `auto`.
        directory: the model_dir.
        stacked_on: directory of a trained model with fewer layers, whose vocabulary the
            run takes. A run without a checkpoint starts from its weights, see
            `modeling.stacking`.
        whole: the model_dir of the whole run, if this one is a stage.
        strategy: the result of `distributed.build_strategy`, or None to build it here.
        writes: whether the run writes; a run that only validates does not.

    Raises:
        UserError: configuration, text, vocabulary and checkpoint do not fit each other,
            the workers have different configurations, or a worker is lost.
    """
    # params.yaml is read once, here, for all checks of this start.
    begun = model_dir.begun_config(directory)
    is_later = begun is not None and stacked_on
    if is_later and not (begun.stacked_on or begun.init_checkpoint):
        # In an earlier version, a later stage kept neither, and the stages that tell
        # both may be gone.
        begun.stacked_on, begun.init_checkpoint = stacked_on, config.init_checkpoint
    # TensorFlow must not run an operation before the workers of a cluster have found
    # each other.
    strategy = strategy or distributed.build_strategy(config.runtime)
    start = Start(config, directory, strategy, begun, stacked_on, whole, writes)
    with workers.lost_workers(strategy):
        return _build(start)


def _build(start: Start) -> Run:
    """The part of `build` that fails if a worker is lost."""
    config, directory, strategy = start.config, start.directory, start.strategy
    agreement.refuse_other_settings(config, strategy)
    agreement.choose_precision(start)
    distributed.set_precision(config.runtime.mixed_precision_dtype)
    on_chief = functools.partial(workers.on_chief, strategy)
    if start.writes:
        on_chief(lambda: agreement.check_folder(directory))
    config.init_checkpoint = on_chief(lambda: agreement.check_begun(start))
    config.stacked_on = start.stacked_on or ""
    if start.begun is not None:
        config.stacked_on = start.begun.stacked_on
    tasks = Evals(config, strategy)
    if start.stacked_on:
        # Only a finished stage shows whether its vocabulary is a tokenizer.json.
        path = vocabulary_file.find(start.stacked_on)
        # A run that has begun has its own copy, and needs the stage no more.
        if start.begun is None or tf.io.gfile.exists(path):
            config.vocabulary.file = path
    data, tokenizer = inputs.prepare(start)
    remote_tpu.refuse_tokenizer(config, tokenizer)
    on_chief(lambda: agreement.refuse_other_model(start))
    trainer = _build_trainer(config, data, tokenizer, strategy)
    with strategy.scope():
        manager = Checkpoints(
            strategy,
            tf.train.Checkpoint(
                model=trainer.model,
                optimizer=trainer.optimizer,
                batches_seen=trainer.batches_seen,
            ),
            [*trainer.model.variables, *trainer.optimizer.variables()],
            directory,
            max_to_keep=config.trainer.max_to_keep,
            writes=start.writes,
        )
        _set_weights(trainer, manager, start)
    if start.writes:
        agreement.refuse_fewer_steps(config, directory, trainer.step)
    is_over = config.trainer.is_over(trainer.step)
    # This comes last: params.yaml marks a model_dir whose run could be built. It keeps
    # the settings that the run was trained with.
    if start.writes and workers.is_chief(strategy):
        changed = agreement.changed_settings(config, start.begun)
        agreement.log_other_settings(changed, is_over)
        if not is_over:
            model_dir.write_config(directory, config)
            starts_log.record(start, trainer, changed)
            agreement.log_other_rate(config, start.begun, trainer.step)
    encoder = opening.live(trainer.model, tokenizer, config.longest_sentence)
    score = functools.partial(tasks.score, encoder)
    return Run(directory, config, trainer, manager, strategy, tasks, score, is_over)


def _build_trainer(
    config: experiment.ExperimentConfig,
    data: dict[str, Data],
    tokenizer: Tokenizer,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Builds model, objectives and optimizer, with the initial weights of the seed."""
    # Makes dropout layers draw from tf.random.Generators, whose state can be set.
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
                # XLA compiles a program for each shape of a batch.
                static_shapes=distributed.is_tpu(strategy),
            )
            for name, objective in config.task.enabled().items()
        }
        hold_out.ensure(objectives, strategy)
        if config.trainer.epochs:
            _count_steps(config, objectives, strategy)
        return Trainer(
            model,
            objectives,
            optimization.build_optimizer(
                config.trainer.optimizer, config.trainer.train_steps
            ),
            strategy,
            config.trainer,
        )


def _set_weights(trainer: Trainer, manager: Checkpoints, start: Start) -> None:
    """Restores the latest checkpoint, or gives a new run its first weights.

    Args:
        trainer: model, objectives, optimizer; changed in place.
        manager: the checkpoints of the run.
        start: the stage before, or `init_checkpoint`.

    Raises:
        UserError: the weights do not fit the model, or an objective needs more of them.
    """
    model, objectives = trainer.model, trainer.objectives.values()
    if manager.latest_checkpoint:
        _restore(manager.latest_checkpoint, trainer)
    elif start.stacked_on:
        layers = stacking.stack(model, start.stacked_on)
        found = counted(layers, "layer")
        logger.info(
            "weights: the %s of %s, repeated to fill the model", found, start.stacked_on
        )
    elif source := start.config.init_checkpoint:
        parts = restoring.initialize(model, source)
        for objective in objectives:
            objective.check_start(source, parts)
        new = ", ".join(name for name in model.parts if name not in parts)
        logger.info(
            "weights: %s from %s%s", ", ".join(parts), source, new and f"; new: {new}"
        )
    else:
        for objective in objectives:
            objective.set_initial_weights()


def _restore(path: str, trainer: Trainer) -> None:
    """Restores the state of a run from a checkpoint.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    state = {"model": trainer.model, "batches_seen": trainer.batches_seen}
    keys = tf_checkpoints.open_file(path).get_variable_to_shape_map()
    if optimization.counts_updates(keys):
        restoring.restore(path, **state, optimizer=trainer.optimizer)
        return
    # An earlier version counted the updates of the run, not those of each weight.
    restoring.restore(path, **state)
    everything = tf.train.Checkpoint(**state, optimizer=trainer.optimizer)
    everything.restore(path).expect_partial()
    trainer.optimizer.count_as_run(trainer.trained_variables)


def _count_steps(
    config: experiment.ExperimentConfig,
    objectives: dict[str, Objective],
    strategy: tf.distribute.Strategy,
) -> None:
    """Sets `trainer.train_steps` from `trainer.epochs`, for a run with one objective.

    Raises:
        UserError: there are several workers, or fewer examples than a batch.
    """
    epochs = config.trainer.epochs
    if distributed.num_hosts(strategy) > 1:
        raise UserError(
            f"trainer.epochs is {epochs}; allowed with several workers or hosts of a"
            " TPU: 0 (trainer.train_steps decides), as each of them reads its own files"
        )
    ((name, objective),) = objectives.items()
    examples, batch = objective.count_examples(), objective.global_batch_size
    steps = examples // batch
    if not steps:
        raise UserError(
            f"task.{name}.train_data.global_batch_size is {batch}; allowed: at most the"
            f" {examples} training examples, as trainer.epochs is {epochs}"
        )
    objective.epoch_examples = steps * batch
    config.trainer.train_steps = epochs * steps
    logger.info(
        "epochs: %d of %s; steps of each: %d; examples left out of each: %d",
        epochs,
        counted(examples, "example"),
        steps,
        examples - steps * batch,
    )


# ------------------------------------------------------------------- running


def train(run: Run, validate: bool = True) -> dict[str, float]:
    """Trains from the step of the last checkpoint to the last step.

    Args:
        run: the run, as `build` returns it.
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
        with contextlib.redirect_stdout(io.StringIO()), _leaving_together(strategy):
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
    if not (step and is_due):
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
