"""Loads the weights of a run from its model_dir into their network."""

from __future__ import annotations

import contextlib
import logging
import os

import tensorflow as tf

from cmlm.common.keras import building, undrawn
from cmlm.config import experiment, model_dir
from cmlm.encoders.opened_weights import DEFAULT_SEQ_LENGTH, OpenedWeights
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError
from cmlm.modeling import restoring
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel
from cmlm.tokenization import vocabulary_file

logger = logging.getLogger(__name__)


def find_checkpoint(
    directory: str, config: experiment.ExperimentConfig, checkpoint: str
) -> str:
    """Returns the path of a checkpoint of a run.

    Args:
        directory: the run.
        config: its configuration.
        checkpoint: `latest`, `best`, or a path.

    Raises:
        UserError: the checkpoint does not exist.
    """
    best = os.path.join(directory, model_dir.BEST)
    if checkpoint == "best" and not tf.io.gfile.isdir(best):
        metric = config.trainer.best_checkpoint_metric
        reason = "no validation has chosen one" if metric else "the run keeps none"
        raise UserError(
            f"{directory} has no best checkpoint: {reason} "
            f"(trainer.best_checkpoint_metric={metric!r}); allowed: the latest"
        )
    return restoring.find(
        {"latest": directory, "best": best}.get(checkpoint, checkpoint)
    )


def load(
    directory: str,
    checkpoint: str = "latest",
    reading: Reading = AS_TRAINED,
    part: str = "encoder",
) -> OpenedWeights:
    """Loads the weights of a run into their network.

    Args:
        directory: the directory of the run.
        checkpoint: `latest`, `best`, `untrained` (the weights that the run started
            from, see `_give_initial_weights`) or the path of a checkpoint.
        reading: the reading of vectors; by default it keeps the run's settings.
        part: the part of the model, `encoder` or `SECOND_ENCODER`.

    Raises:
        UserError: the directory or its checkpoint is missing or damaged, or lacks a
            layer that `reading` or `part` asks for.
    """
    reading.validate()
    config = model_dir.read_config(directory)
    vocab_file = vocabulary_file.find(directory)
    if not tf.io.gfile.exists(vocab_file):
        raise UserError(
            f"{directory} has no {vocabulary_file.FILE_NAME}; allowed: a model_dir "
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
        _give_initial_weights(model, config, directory)
    else:
        checkpoint = find_checkpoint(directory, config, checkpoint)
        if reading.sentence_vector == "projected" and config.model.num_views > 1:
            trainer = "CMLM trains one"
            restoring.require_part(checkpoint, "projection", reading.given(), trainer)
        if part == SECOND_ENCODER:
            trainer = "QuickThought trains one with task.quickthought.encoders=two"
            restoring.require_part(checkpoint, part, f"both:{directory}", trainer)
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
        run=directory if is_trained else None,
        trained_seq_length=longest if is_trained else None,
    )


def _give_initial_weights(
    model: SentenceModel, config: experiment.ExperimentConfig, directory: str
) -> None:
    """Gives a new model the weights that a run started from.

    Args:
        model: the model with the initial weights of the run's seed, which is changed if
            the run has a warm start.
        config: the configuration of the run.
        directory: the directory of the run.

    Raises:
        UserError: the start cannot be repeated, or its weights are gone.
    """
    asked, start = f"untrained:{directory}", config.init_checkpoint
    if config.stacked_on:
        # Only the first stage began with weights of its own.
        stages = model_dir.stages_before(directory, config)
        is_there = bool(stages) and not model_dir.read_config(stages[0]).stacked_on
        first = f"untrained:{stages[0]}, or " if is_there else ""
        raise UserError(
            f"{asked}: it started from the layers of {config.stacked_on}, the stage "
            f"before; allowed: {first}{directory}, best:{directory} or bow:{directory}"
        )
    if start:
        if not any(tf.io.gfile.exists(start + end) for end in ("", ".index")):
            raise UserError(
                f"{asked}: the run started from {start}, which no longer exists; "
                f"allowed: {directory}, best:{directory} or bow:{directory}, or "
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
                f"from; allowed: {directory}, best:{directory} or bow:{directory}, or "
                "an encoder of another run"
            )
