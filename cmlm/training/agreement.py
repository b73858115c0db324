"""Checks that a run agrees with its other workers and with its model_dir."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import distributed, folders, locks, path_names, workers
from cmlm.config import model_dir, overrides
from cmlm.config.experiment import ExperimentConfig
from cmlm.errors import UserError, listed
from cmlm.modeling import export_layout, latest, optimization
from cmlm.modeling.foreign import modules, tensors
from cmlm.tokenization import rules, tokenizer_file, vocabulary_file
from cmlm.training.stages import Stage
from cmlm.training.start import Start

# These decide how a vocabulary is learnt, once, before the first checkpoint.
_OF_LEARNING = {
    f"vocabulary.{name}" for name in ("size", "max_text_bytes", "sampling_exponent")
}

# The files by which a folder is known as an export or as another program's encoder.
_OF_EXPORTS = (
    export_layout.DESCRIPTION,
    export_layout.SAVED_MODEL,
    modules.FILE_NAME,
    tensors.FILE_NAME,
)

# The files of a run that was killed before it wrote its params.yaml.
_OF_BEGINNINGS = {
    locks.FILE_NAME,
    model_dir.BASES,
    model_dir.STAGES,
    model_dir.TEACHER,
    model_dir.TEXT,
    vocabulary_file.FILE_NAME,
    os.path.basename(rules.path_of(vocabulary_file.FILE_NAME)),
    tokenizer_file.FILE_NAME,
}

logger = logging.getLogger(__name__)


def refuse_other_settings(
    config: ExperimentConfig, strategy: tf.distribute.Strategy
) -> None:
    """Raises UserError if the workers of a run were started with different flags.

    Such workers would wait for each other forever.
    """
    settings = config.as_dict()
    # Each worker has its own task_index.
    settings["runtime"]["task_index"] = None
    first, *others = (
        dict(overrides.flat(of)) for of in workers.exchange(strategy, settings)
    )
    for number, other in enumerate(others, 1):
        for name in first | other:
            value, wrong = first.get(name), other.get(name)
            if value != wrong:
                raise UserError(
                    f"worker {number} was started with {name}={wrong!r}, and worker 0 "
                    f"with {value!r}; allowed: the same flags for every worker"
                )


def check_folder(directory: str) -> None:
    """Logs a warning if a new run writes among files of the user.

    Raises:
        UserError: the folder holds an encoder of another kind, and would open as the
            run from then on; or the run would replace a file.
    """
    if model_dir.is_model_dir(directory) or not tf.io.gfile.isdir(directory):
        return
    names = {name.rstrip("/") for name in folders.entries(directory)}
    for name in _OF_EXPORTS:
        if name in names:
            raise UserError(
                f"--model_dir={directory} holds {name}, a part of an encoder; allowed: "
                "a new folder, or the folder of a run"
            )
    for name in (model_dir.METRICS, model_dir.STARTS):
        if name in names:
            raise UserError(
                f"--model_dir={directory} holds {name}, which the run would replace; "
                "allowed: a new folder, or the folder of a run"
            )
    others = sorted(
        name
        for name in names
        if name not in _OF_BEGINNINGS and not name.startswith(".")
    )
    if others:
        logger.warning(
            "--model_dir=%s holds files that no run wrote: %s; the run writes its own "
            "files beside them",
            directory,
            listed(others, 3),
        )


def choose_precision(start: Start) -> None:
    """Replaces the precision `auto` by that of the run so far, or of worker 0."""
    runtime = start.config.runtime
    if runtime.mixed_precision_dtype != distributed.AUTO:
        return

    def choose():
        before = start.begun
        if before is None and start.stage.stacked_on:
            before = model_dir.begun_config(start.stage.stacked_on)
        if before is None:
            return distributed.fast_precision(runtime)
        # A run does not change its precision on the way from machine to machine.
        return before.runtime.mixed_precision_dtype or "float32"

    # The machines of the workers may differ.
    runtime.mixed_precision_dtype = workers.on_chief(start.strategy, choose)


def check_begun(start: Start) -> str:
    """Checks that a command can go on with the run in a model_dir.

    These checks need neither text nor vocabulary, so they come before both are read.

    Returns:
        The `init_checkpoint` of the run, see `begun_start`.

    Raises:
        UserError: the command asks for another run.
    """
    source = begun_start(start.config, start.begun, start.directory)
    if start.begun is not None:
        # A validation may name another teacher.
        if start.writes:
            _refuse_other_teacher(start)
        _refuse_new_objectives(start)
        _refuse_other_weights(start)
        _refuse_other_optimizer(start)
    return source


def check_done(stage: Stage) -> None:
    """Raises UserError if a finished stage began with other weights than asked for."""
    # The checkpoints of a stage before a begun one may be gone.
    if model_dir.is_model_dir(stage.directory):
        begun = model_dir.read_config(stage.directory)
        begun_start(stage.config, begun, stage.directory)


def refuse_other_model(start: Start) -> None:
    """Raises UserError if a model_dir holds checkpoints of a model of another shape.

    The error names the setting. Without this check, restoring would fail on the shape
    of a weight.
    """
    if start.begun is None:
        return
    before = start.begun.model.as_dict()
    for field, value in start.config.model.as_dict().items():
        if before[field] != value and field != "preset":
            raise UserError(
                f"--model_dir={start.directory} holds a model with {field}="
                f"{before[field]!r}, but this command asks for {value!r}; allowed: "
                "another --model_dir"
            )


def begun_start(
    config: ExperimentConfig, begun: ExperimentConfig | None, directory: str
) -> str:
    """Returns the `init_checkpoint` of the run in a model_dir, else that of `config`.

    A run with a checkpoint has taken its first weights. A command that resumes it may
    name the same path in another form, or none.

    Raises:
        UserError: the command names other weights.
    """
    now = config.init_checkpoint
    if begun is None:
        return now
    before = begun.init_checkpoint
    if not now or (before and path_names.real(before) == path_names.real(now)):
        return before
    started, allowed = "without --init_checkpoint", "no --init_checkpoint"
    if before:
        started = f"from {before}"
        allowed = f"--init_checkpoint={before}, even if these weights have moved"
    raise UserError(
        f"--model_dir={directory} started {started}, but this command names {now}; "
        f"allowed: {allowed}, or another --model_dir"
    )


def _refuse_other_teacher(start: Start) -> None:
    """Raises UserError if a run with all of its steps gets another teacher.

    That teacher would read every text, and the run would learn nothing from it. A run
    in epochs may get one: how many steps it has is known only after its text is read.
    """
    steps, settings = latest.step(start.directory), start.config.trainer
    if settings.epochs or not settings.is_over(steps):
        return
    objectives = start.begun.task.enabled()
    for name, objective in start.config.task.enabled().items():
        now = getattr(objective, "teacher", None)
        before = getattr(objectives.get(name), "teacher", None)
        if now and before and path_names.real(before) != path_names.real(now):
            raise UserError(
                f"--teacher is {now}, and the run in --model_dir={start.directory} has"
                f" finished its {steps:,} steps; allowed: {before}, a larger"
                " trainer.train_steps, or another --model_dir"
            )


def _refuse_other_optimizer(start: Start) -> None:
    """Raises UserError if the optimizer of a model_dir has another type.

    Its checkpoints hold the state of that optimizer.
    """
    before = start.begun.trainer.optimizer.type
    now = start.config.trainer.optimizer.type
    if before != now:
        raise UserError(
            f"--model_dir={start.directory} trained with "
            f"trainer.optimizer.type={before}, but this command asks for {now}; "
            f"allowed: {before}, or --init_checkpoint={start.directory} with another "
            "--model_dir"
        )


def _refuse_new_objectives(start: Start) -> None:
    """Raises UserError for an objective that did not train in a model_dir.

    Its checkpoints lack the head of the objective and its place in the data.
    """
    before = start.begun.task.enabled()
    new = [name for name in start.config.task.enabled() if name not in before]
    if new:
        trained = ", ".join(before) or "no objective"
        raise UserError(
            f"--model_dir={start.directory} trained {trained}, but this command asks "
            f"for {', '.join(new)}; allowed: --init_checkpoint={start.directory} with "
            "another --model_dir"
        )


def _refuse_other_weights(start: Start) -> None:
    """Raises UserError if an objective would train other weights than in a model_dir.

    Its checkpoints lack them, or hold weights that nothing would read any more.
    """
    objectives = start.begun.task.enabled()
    for name, objective in start.config.task.enabled().items():
        had = objectives[name].weight_settings()
        for field, has_weights in objective.weight_settings().items():
            if has_weights != had[field]:
                before = getattr(objectives[name], field)
                now = getattr(objective, field)
                raise UserError(
                    f"--model_dir={start.directory} trained with "
                    f"task.{name}.{field}={before}, but this command asks for {now}; "
                    f"allowed: {before}, or --init_checkpoint={start.directory} with "
                    "another --model_dir"
                )


def refuse_fewer_steps(config: ExperimentConfig, directory: str, step: int) -> None:
    """Raises UserError if a run has more steps than the command asks for.

    Args:
        config: the run's configuration, with the steps of its epochs.
        directory: the model_dir.
        step: the step of the run's last checkpoint.
    """
    settings = config.trainer
    if step > settings.train_steps:
        asked = f"trainer.train_steps is {settings.train_steps}"
        if settings.epochs:
            asked = f"trainer.epochs is {settings.epochs}, {settings.train_steps} steps"
        raise UserError(
            f"{asked}, and the run in --model_dir={directory} has {step} steps;"
            f" allowed: at least {step} steps"
        )


def changed_settings(
    config: ExperimentConfig, begun: ExperimentConfig | None
) -> dict[str, list]:
    """Returns [before, now] of each setting in which a run differs from its last start.

    Args:
        config: the configuration of the command.
        begun: that of the last start, or None.
    """
    if begun is None:
        return {}
    before = dict(overrides.flat(begun.as_dict()))
    return {
        name: [before.get(name), value]
        for name, value in overrides.flat(config.as_dict())
        if before.get(name) != value and not name.startswith("runtime.")
    }


def log_other_settings(changed: Mapping[str, list], is_over: bool) -> None:
    """Logs the settings in which a resumed run differs from its last start.

    Args:
        changed: the result of `changed_settings`.
        is_over: whether the run has all of its steps.
    """
    told = [f"{name} {before!r} -> {now!r}" for name, (before, now) in changed.items()]
    for place, name in enumerate(changed):
        if name in _OF_LEARNING:
            told[place] += " (no effect: the run keeps its vocabulary)"
    if told:
        said = "resuming with other settings"
        if is_over:
            said = "nothing is left to train, so these settings have no effect"
        logger.info("%s: %s", said, ", ".join(told))


def log_other_rate(
    config: ExperimentConfig, begun: ExperimentConfig | None, step: int
) -> None:
    """Logs the learning rate of a resumed run if its settings change the rate.

    Args:
        config: the configuration of the command.
        begun: that of the last start, or None.
        step: the step of the run's last checkpoint.
    """
    if begun is None:
        return
    before, now = (
        optimization.learning_rate(of.trainer.optimizer, of.trainer.train_steps, step)
        for of in (begun, config)
    )
    if not math.isclose(before, now, rel_tol=1e-3):
        logger.info(
            "the learning rate at step %s was %.2g, and is now %.2g",
            f"{step:,}",
            before,
            now,
        )
