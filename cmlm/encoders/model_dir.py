"""A model_dir: the directory of a run, with the files to resume, export and evaluate.

docs/training.md lists the files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import files, folders
from cmlm.common.keras import building, undrawn
from cmlm.config import experiment, overrides
from cmlm.encoders.opened_weights import DEFAULT_SEQ_LENGTH, OpenedWeights
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError
from cmlm.modeling import latest, restoring
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel
from cmlm.tokenization import vocabulary_file

logger = logging.getLogger(__name__)

PARAMS = "params.yaml"
BEST = latest.BEST
METRICS = "metrics.jsonl"
STARTS = "starts.jsonl"
TENSORBOARD = "tensorboard"
TEXT = "text"
TEACHER = "teacher"
BASES = "teacher_bases"
STAGES = "stages"
# The name of a stage in `STAGES`.
_STAGE = re.compile(r"(\d+)-layers")

# The prefixes of a model_dir, as in `best:DIR`.
PREFIXES = ("best", "untrained", "bow", "both")


def split_prefix(name: str) -> tuple[str, str]:
    """Splits `best:DIR` into ("best", "DIR"); no prefix gives ("", name)."""
    prefix, colon, directory = name.partition(":")
    return (prefix, directory) if colon and prefix in PREFIXES else ("", name)


def is_model_dir(path: str) -> bool:
    """Whether a run wrote its configuration to the path."""
    return tf.io.gfile.exists(os.path.join(path, PARAMS))


def export_command(model_dir: str) -> str:
    """The command that exports a run to a folder beside it, for messages."""
    export_dir = f"{model_dir.rstrip('/')}_export"
    return (
        f"python -m export.tfhub --model_dir={shlex.quote(model_dir)} "
        f"--export_dir={shlex.quote(export_dir)}"
    )


def write_config(model_dir: str, config: experiment.ExperimentConfig) -> None:
    """Writes `params.yaml`, whole or not at all."""
    with files.atomic_text(os.path.join(model_dir, PARAMS)) as file:
        file.write(overrides.to_yaml(config))


def add_start(model_dir: str, row: Mapping[str, Any]) -> None:
    """Adds a row to `starts.jsonl`, whole or not at all."""
    path = os.path.join(model_dir, STARTS)
    with files.atomic_text(path) as file:
        file.writelines(json.dumps(each) + "\n" for each in [*_starts(path), row])


def read_config(model_dir: str) -> experiment.ExperimentConfig:
    """Reads `params.yaml`.

    In an earlier version, a later stage of stacking kept neither the stage before nor
    the start of the run; both come from the stages that are still there.

    Raises:
        UserError: the directory has no `params.yaml`.
    """
    if not is_model_dir(model_dir):
        raise UserError(
            f"{model_dir} has no {PARAMS}: no run has written there; allowed: the "
            "--model_dir of a run"
        )
    config = overrides.from_yaml(os.path.join(model_dir, PARAMS))
    stages = [] if config.stacked_on else _stages_before(model_dir, config)
    if stages:
        config.stacked_on = stages[-1]
        first = read_config(stages[0])
        config.init_checkpoint = config.init_checkpoint or first.init_checkpoint
    return config


def _stages_before(model_dir: str, config: experiment.ExperimentConfig) -> list[str]:
    """Returns the stages of progressive stacking before one of them, in order.

    Args:
        model_dir: the run, which is its last stage, or a stage in its `STAGES`.
        config: the configuration there.
    """
    folder, name = os.path.split(os.fspath(model_dir).rstrip("/"))
    if not (os.path.basename(folder) == STAGES and _STAGE.fullmatch(name)):
        folder = os.path.join(model_dir, STAGES)
    found: dict[int, str] = {}
    for name in folders.entries(folder) if tf.io.gfile.isdir(folder) else ():
        path, match = os.path.join(folder, name), _STAGE.fullmatch(name.rstrip("/"))
        if match and int(match[1]) < config.model.num_layers and is_model_dir(path):
            found[int(match[1])] = path.rstrip("/")
    return [found[layers] for layers in sorted(found)]


def begun_config(model_dir: str) -> experiment.ExperimentConfig | None:
    """Reads `params.yaml` of a run that has a checkpoint; None for any other."""
    return None if latest.find(model_dir) is None else read_config(model_dir)


def find_checkpoint(
    model_dir: str, config: experiment.ExperimentConfig, checkpoint: str
) -> str:
    """Returns the path of a checkpoint of a run.

    Args:
        model_dir: the run.
        config: its configuration.
        checkpoint: `latest`, `best`, or a path.

    Raises:
        UserError: the checkpoint does not exist.
    """
    best = os.path.join(model_dir, BEST)
    if checkpoint == "best" and not tf.io.gfile.isdir(best):
        metric = config.trainer.best_checkpoint_metric
        reason = "no validation has chosen one" if metric else "the run keeps none"
        raise UserError(
            f"{model_dir} has no best checkpoint: {reason} "
            f"(trainer.best_checkpoint_metric={metric!r}); allowed: the latest"
        )
    return restoring.find(
        {"latest": model_dir, "best": best}.get(checkpoint, checkpoint)
    )


def load_weights(
    model_dir: str,
    checkpoint: str = "latest",
    reading: Reading = AS_TRAINED,
    part: str = "encoder",
) -> OpenedWeights:
    """Loads the weights of a run into their network.

    Args:
        model_dir: the directory of the run.
        checkpoint: `latest`, `best`, `untrained` (the weights that the run started
            from, see `_give_initial_weights`) or the path of a checkpoint.
        reading: the reading of vectors; by default it keeps the run's settings.
        part: the part of the model, `encoder` or `SECOND_ENCODER`.

    Raises:
        UserError: the directory or its checkpoint is missing or damaged, or lacks a
            layer that `reading` or `part` asks for.
    """
    reading.validate()
    config = read_config(model_dir)
    vocab_file = vocabulary_file.find(model_dir)
    if not tf.io.gfile.exists(vocab_file):
        raise UserError(
            f"{model_dir} has no {vocabulary_file.FILE_NAME}; allowed: a model_dir "
            "with the vocabulary of its run"
        )
    tokenizer = config.vocabulary.tokenizer(vocab_file)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"{vocab_file} has {tokenizer.vocab_size} entries, "
            f"the encoder has {config.model.vocab_size} embedding rows; allowed: the "
            "vocabulary of the run"
        )
    # With the run's seed, a model without a checkpoint has the run's initial weights.
    is_untrained = checkpoint == "untrained"
    initial = contextlib.nullcontext() if is_untrained else undrawn()
    with building(config.trainer.seed), initial:
        model = SentenceModel(config.model)
        if reading.sentence_vector == "projected":
            model.projection()
        if part == SECOND_ENCODER:
            model.second_encoder()
    if is_untrained:
        _give_initial_weights(model, config, model_dir)
    else:
        checkpoint = find_checkpoint(model_dir, config, checkpoint)
        if reading.sentence_vector == "projected" and config.model.num_views > 1:
            trainer = "CMLM trains one"
            restoring.require_part(checkpoint, "projection", reading.given(), trainer)
        if part == SECOND_ENCODER:
            trainer = "QuickThought trains one with task.quickthought.encoders=two"
            restoring.require_part(checkpoint, part, f"both:{model_dir}", trainer)
        restoring.restore(checkpoint, model=model)
    reading.apply(model, checkpoint)
    tokenizer.prompt = config.model.prompt
    longest = config.longest_sentence
    # Only pruned weights of another program have no objective.
    is_trained = bool(config.task.enabled())
    return OpenedWeights(
        encoder=model.parts[part],
        tokenizer=tokenizer,
        config=config,
        checkpoint=checkpoint,
        vocab_file=vocab_file,
        seq_length=longest or min(DEFAULT_SEQ_LENGTH, config.model.token_positions),
        run=model_dir if is_trained else None,
        trained_seq_length=longest if is_trained else None,
    )


def _give_initial_weights(
    model: SentenceModel, config: experiment.ExperimentConfig, model_dir: str
) -> None:
    """Gives a new model the weights that a run started from.

    Args:
        model: the model with the initial weights of the run's seed, which is changed if
            the run has a warm start.
        config: the configuration of the run.
        model_dir: the directory of the run.

    Raises:
        UserError: the start cannot be repeated, or its weights are gone.
    """
    asked, start = f"untrained:{model_dir}", config.init_checkpoint
    if config.stacked_on:
        # Only the first stage began with weights of its own.
        stages = _stages_before(model_dir, config)
        is_there = bool(stages) and not read_config(stages[0]).stacked_on
        first = f"untrained:{stages[0]}, or " if is_there else ""
        raise UserError(
            f"{asked}: it started from the layers of {config.stacked_on}, the stage "
            f"before; allowed: {first}{model_dir}, best:{model_dir} or bow:{model_dir}"
        )
    if start:
        if not any(tf.io.gfile.exists(start + end) for end in ("", ".index")):
            raise UserError(
                f"{asked}: the run started from {start}, which no longer exists; "
                f"allowed: {model_dir}, best:{model_dir} or bow:{model_dir}, or "
                "--model=PATH of those weights"
            )
        try:
            parts = restoring.initialize(model, start, config.init_layers)
        except UserError as error:
            raise UserError(f"{asked}: {error}") from error
        logger.info("%s: %s from %s", asked, ", ".join(parts), start)
        return
    for name, objective in config.task.enabled().items():
        setting = objective.initial_weights_setting()
        if setting:
            raise UserError(
                f"{asked}: task.{name}.{setting} set the weights that the run started "
                f"from; allowed: {model_dir}, best:{model_dir} or bow:{model_dir}, or "
                "an encoder of another run"
            )


def read_starts(model_dir: str) -> list[dict]:
    """Reads the rows of `starts.jsonl` whose steps count.

    A start from an earlier checkpoint repeats the steps of the starts behind it.
    """
    kept: list[dict] = []
    for row in _starts(os.path.join(model_dir, STARTS)):
        kept = [each for each in kept if each["step"] < row["step"]] + [row]
    return kept


def _starts(path: str) -> list[dict]:
    """The rows of a `starts.jsonl`; [] for a run of a version that wrote none."""
    rows = _rows(path, "starts") if tf.io.gfile.exists(path) else []
    parts = ("global_batch_size", "text")
    return [row for row in rows if all(isinstance(row.get(p), dict) for p in parts)]


def read_metrics(path: str) -> list[dict]:
    """Reads the rows of a `metrics.jsonl`."""
    return _rows(path, "metrics")


def _rows(path: str, noun: str) -> list[dict]:
    """Reads rows with a step from JSON lines.

    An incomplete last line is skipped. A line that is not such a row, such as one of
    another program, is skipped too, and the log says so.
    """
    rows, skipped = [], []
    with tf.io.gfile.GFile(path, "rb") as file:
        for number, line in enumerate(file.read().split(b"\n")[:-1], 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and type(row.get("step")) is int:
                rows.append(row)
            else:
                skipped.append(number)
    if skipped:
        logger.warning(
            "%s: %d lines are not rows of %s and do not count; line %d is the first",
            path,
            len(skipped),
            noun,
            skipped[0],
        )
    return rows
