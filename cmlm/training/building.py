"""Builds a run from its configuration, up to its last checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable

import tensorflow as tf

from cmlm.common import distributed, workers
from cmlm.common.counts import counted
from cmlm.common.keras import keras
from cmlm.config import experiment, model_dir
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.modeling import latest, optimization, restoring, stacking
from cmlm.modeling.foreign import tf_checkpoints
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES, Data, Objective
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.training import agreement, hold_out, inputs, remote_tpu, starts_log
from cmlm.training.checkpoints import Checkpoints
from cmlm.training.evals import Evals
from cmlm.training.stages import Stage
from cmlm.training.start import Start
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)

# What TensorFlow raises at data that is too short, or has another checksum.
_DAMAGES = (
    *(IndexError, tf.errors.OpError),
    *(tf.errors.DataLossError, tf.errors.OutOfRangeError),
)


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


def build(
    stage: Stage,
    *,
    strategy: tf.distribute.Strategy | None = None,
    writes: bool = True,
) -> Run:
    """Builds a run and restores the latest checkpoint, if there is one.

    Args:
        stage: the run, or a stage of it. A run without a checkpoint starts from the
            weights of the stage before, see `modeling.stacking`, and takes its
            vocabulary.
        strategy: the result of `distributed.build_strategy`, or None to build it here.
        writes: whether the run writes; a run that only validates does not.

    Raises:
        UserError: configuration, text, vocabulary and checkpoint do not fit each other,
            the workers have different configurations, or a worker is lost.
    """
    # TensorFlow must not run an operation before the workers of a cluster have found
    # each other.
    strategy = strategy or distributed.build_strategy(stage.config.runtime)
    start = Start.of(stage, strategy, writes)
    runtime = stage.config.runtime
    with workers.lost_workers(strategy), remote_tpu.naming_operations(runtime):
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
    before = start.stage.stacked_on
    config.stacked_on = before or ""
    if start.begun is not None:
        config.stacked_on = start.begun.stacked_on
    tasks = Evals(config, strategy)
    if before:
        # Only a finished stage shows whether its vocabulary is a tokenizer.json.
        path = vocabulary_file.find(before)
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
        try:
            _restore(manager.latest_checkpoint, trainer)
        except UserError as error:
            older = latest.before(manager.latest_checkpoint)
            # A subclass, such as that of a forbidden file, is no damage.
            if not older or type(error.__cause__) not in _DAMAGES:
                raise
            raise UserError(
                f"{error}; delete {manager.latest_checkpoint}.* to resume from {older}"
            ) from error
    elif before := start.stage.stacked_on:
        # The same checkpoint on every worker.
        path = workers.on_chief(start.strategy, lambda: restoring.find(before))
        found = counted(stacking.stack(model, path), "layer")
        logger.info("weights: the %s of %s, repeated to fill the model", found, before)
    elif source := start.config.init_checkpoint:
        layers = start.config.init_layers
        parts = restoring.initialize(model, source, layers)
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
    logger.info("counting the examples of one pass, for trainer.epochs")
    examples, batch = objective.count_examples(), objective.global_batch_size
    steps = examples // batch
    if not steps:
        raise UserError(
            f"task.{name}.train_data.global_batch_size is {batch}; allowed: at most the"
            f" {examples} training examples, as trainer.epochs is {epochs}"
        )
    objective.epoch_examples = steps * batch
    config.trainer.train_steps = epochs * steps
    config.check_steps()
    logger.info(
        "epochs: %d of %s; steps of each: %d; examples left out of each: %d",
        epochs,
        counted(examples, "example"),
        steps,
        examples - steps * batch,
    )
