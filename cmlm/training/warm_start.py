"""Warm starts: a run that begins from trained weights adopts their shape."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection

import tensorflow as tf

from cmlm.config import experiment
from cmlm.data import vocabulary_file
from cmlm.encoders import model_dir, pretrained
from cmlm.errors import UserError
from cmlm.modeling import encoder, foreign
from cmlm.vocabulary import learning

# What weights bind, of `EncoderConfig`.
_SHAPE = (
    *encoder.SHAPE_FIELDS,
    "hidden_activation",
    "layer_norm_epsilon",
    "max_position_embeddings",
    "num_views",
    "type_vocab_size",
)


def adopt_for_run(
    config: experiment.ExperimentConfig, given: Collection[str], directory: str
) -> None:
    """As `adopt`, for a run with `init_checkpoint`, also one that is resumed.

    What a run began with is in its own configuration: to resume it, the source need
    not be there any more. A run of this project as the source decides the shape, and
    leaves pooling and dropout to the new run.

    Args:
        config: of the run, not validated yet; changed in place.
        given: settings that the user has set.
        directory: the model_dir.
    """
    begun = _begun(config, directory)
    if begun is None:
        source = foreign.find(config.init_checkpoint)
        if source is not None:
            pretrained.adopt(config, source, given)
        else:
            _adopt_shape(config, given)
        return
    for field in dataclasses.fields(config.model):
        if f"model.{field.name}" not in given:
            setattr(config.model, field.name, getattr(begun.model, field.name))
    if "vocabulary.lower_case" not in given:
        config.vocabulary.lower_case = begun.vocabulary.lower_case


def _adopt_shape(config: experiment.ExperimentConfig, given: Collection[str]) -> None:
    """Takes the shape of the run that `init_checkpoint` is of, or lies in."""
    folder = _own_run(config.init_checkpoint)
    if folder is None:
        return
    before = model_dir.read_config(folder).model
    for name in _SHAPE:
        if f"model.{name}" not in given and "model.preset" not in given:
            setattr(config.model, name, getattr(before, name))


def _own_run(path: str) -> str | None:
    """The model_dir that a path is, or that its checkpoint or `best/` lies in."""
    for folder in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        if tf.io.gfile.exists(os.path.join(folder, model_dir.PARAMS)):
            return folder
    return None


def _begun(
    config: experiment.ExperimentConfig, directory: str
) -> experiment.ExperimentConfig | None:
    """The configuration of a run that began from the same weights, if it began."""
    if not tf.io.gfile.exists(os.path.join(directory, model_dir.PARAMS)):
        return None
    begun = model_dir.read_config(directory)
    return begun if begun.init_checkpoint == config.init_checkpoint else None


def vocabulary_settings(
    config: experiment.ExperimentConfig, directory: str
) -> learning.VocabularyConfig:
    """Where the vocabulary of a run comes from, with the source of a warm start in it.

    Args:
        config: of the run; `vocabulary.lower_case` is set to that of a run of this
            project it starts from.
        directory: the model_dir.

    Raises:
        UserError: the vocabulary does not fit the weights.
    """
    settings, start = config.vocabulary, config.init_checkpoint
    if not start or _begun(config, directory) is not None:
        return settings
    source = foreign.find(start)
    if source is not None:
        return settings.replace(file=pretrained.vocabulary_path(source, settings.file))
    folder = _own_run(start)
    if folder is None:
        if not settings.file:
            raise UserError(
                f"{start} has no {model_dir.PARAMS} beside it: give its vocabulary "
                "with --vocab_file"
            )
        return settings
    own = os.path.join(folder, vocabulary_file.FILE_NAME)
    if settings.file and vocabulary_file.load(settings.file) != vocabulary_file.load(
        own
    ):
        raise UserError(
            f"vocabulary {settings.file} is not {own}, which the weights of {start} are"
            " for: leave it out"
        )
    settings.lower_case = model_dir.read_config(folder).vocabulary.lower_case
    return settings.replace(file=own)
