"""Warm starts: a run that begins from trained weights takes over their shape."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
from collections.abc import Collection, Sequence

from cmlm.common import fields
from cmlm.common.counts import counted
from cmlm.config import experiment, model_dir
from cmlm.encoders import locating, pretrained
from cmlm.errors import UserError
from cmlm.modeling import encoder_config, foreign
from cmlm.tokenization import rules, vocabulary_file
from cmlm.vocabulary.settings import VocabularyConfig

logger = logging.getLogger(__name__)

# The fields of `EncoderConfig` that say how weights are trained: the recipe sets them,
# although other programs store them with the weights.
_TRAINING = ("dropout_rate", "attention_dropout_rate", "initializer_range")
# The fields of `EncoderConfig` that trained weights fix.
_SHAPE = (
    *encoder_config.SHAPE_FIELDS,
    "embedding_size",
    "relative_positions",
    "hidden_activation",
    "layer_norm_epsilon",
    "max_position_embeddings",
    "num_views",
    "type_vocab_size",
    "normalized",
    "prompts",
    "prompt",
    "dimensions",
)


def adopt_for_run(
    config: experiment.ExperimentConfig,
    given: Collection[str],
    begun: experiment.ExperimentConfig | None,
    directory: str | None,
) -> None:
    """Takes over the shape of `init_checkpoint`, and a foreign vocabulary's rules.

    Recipe and flags still set the training, such as dropout, and the pooling, unless it
    is `source`. A resumed run takes these settings from its own configuration, so it
    does not need the source. With `trainer.stacking_steps`, the source fills the first
    stage, and the run keeps its own number of layers.

    Args:
        config: the run's configuration, not validated yet; changed in place.
        given: names of the settings that the user has set; they keep their values.
        begun: the configuration of the run in the model_dir, or None if it has no
            checkpoint.
        directory: the model_dir, for the message.

    Raises:
        UserError: a given setting contradicts the source or the begun run, or the first
            stage has another number of layers.
    """
    fields.check_types(config)
    takes_pooling = config.model.pooling == encoder_config.SOURCE_POOLING
    if takes_pooling:
        given = set(given) - {"model.pooling"}
    if begun is not None:
        config.model.refuse_other_preset(given, begun.model.as_dict(), directory)
        for field in dataclasses.fields(config.model):
            if f"model.{field.name}" not in given:
                setattr(config.model, field.name, getattr(begun.model, field.name))
        for field in rules.NAMES:
            if f"vocabulary.{field}" not in given:
                setattr(config.vocabulary, field, getattr(begun.vocabulary, field))
        if "init_layers" in given and config.init_layers != begun.init_layers:
            raise fields.refused(
                "init_layers",
                config.init_layers,
                f"{list(begun.init_layers)}, as the run in {directory} has, or another "
                "--model_dir",
            )
        config.init_layers = begun.init_layers
        return
    source = foreign.find(config.init_checkpoint)
    if source is not None:
        source = foreign.with_layers(source, config.init_layers)
    layers, views = config.model.num_layers, config.model.num_views
    if config.trainer.stacking_steps:
        # Preset and flags say how many layers the last stage has.
        given = {*given, "model.num_layers"}
        config.model.num_layers = _layers_of_first_stage(config, source)
    if source is not None:
        kept = {*given, *(f"model.{name}" for name in _TRAINING)}
        pretrained.adopt(config, source, kept, pooling=takes_pooling)
    else:
        _adopt_shape(config, given, takes_pooling)
    if config.trainer.stacking_steps:
        config.model.num_layers = layers
    if config.model.num_views != views and "cmlm" in config.task.enabled():
        logger.warning(
            "model.num_views is %d, as in %s; the recipe has %d%s",
            *(config.model.num_views, config.init_checkpoint, views),
            ", which needs other weights to start from"
            if source is not None
            else f" (--params_override=model.num_views={views})",
        )


def warn_of_prompts(config: experiment.ExperimentConfig) -> None:
    """Tells the user of a new run that its text gets no prompt of the encoder."""
    enabled = config.task.enabled().values()
    if not any(getattr(objective, "prompts", ()) for objective in enabled):
        pretrained.warn_of_prompts(config.init_checkpoint, config.model.named_prompts)


def _layers_of_first_stage(
    config: experiment.ExperimentConfig, source: foreign.Source | None
) -> int:
    """The layers of the first stage of a run, which are those of its weights.

    Raises:
        UserError: the weights have another number of layers, or the run has a number
            that its stages do not divide.
    """
    model, start = config.model, config.init_checkpoint
    last = encoder_config.EncoderConfig(
        preset=model.preset, num_layers=model.num_layers
    )
    fields.check(last, "model.")
    first = config.trainer.layers_of_stages(last.num_layers)[0]
    if source is not None:
        found = source.model["num_layers"]
    elif folder := own_run(start):
        before = model_dir.read_config(folder).model
        found = _with_layers(before, config.init_layers, folder).num_layers
    else:
        # A checkpoint alone: `restoring.initialize` counts its layers.
        found = first
    if found != first:
        raise UserError(
            f"{start} has {counted(found, 'layer')}, but the first stage of "
            f"trainer.stacking_steps has {first}; allowed: {first} in the weights, or "
            "trainer.stacking_steps=[]"
        )
    return first


def refuse_missing(config: experiment.ExperimentConfig) -> None:
    """Raises UserError if the recipe adapts weights and the run names none."""
    missing = "--init_checkpoint is not given; allowed: weights to start from"
    if config.model.pooling == encoder_config.SOURCE_POOLING:
        raise UserError(f"{missing}, because model.pooling=source takes their pooling")
    if config.init_layers:
        raise UserError(
            f"{missing}, because init_layers={list(config.init_layers)} selects their "
            "layers; or init_layers=[]"
        )
    if list(config.task.enabled()) == ["mirror"]:
        raise UserError(
            f"{missing}, because Mirror-BERT improves pretrained weights; or a second "
            "objective"
        )


def adopt_vocabulary(
    config: experiment.ExperimentConfig,
    given: Collection[str],
    begun: experiment.ExperimentConfig | None,
    directory: str | None,
) -> None:
    """Takes over the rules of a named vocabulary, or those of a begun run.

    Args:
        config: the run's configuration; changed in place.
        given: names of the settings that the user has set.
        begun: the configuration of the run in the model_dir, or None if it has no
            checkpoint.
        directory: the model_dir, for the message.

    Raises:
        UserError: a given setting differs from these rules.
    """
    if config.vocabulary.file:
        config.vocabulary.adopt_file(given)
    elif begun is not None:
        rules_of_run = begun.vocabulary.rules().as_dict()
        config.vocabulary.adopt_rules(rules_of_run, directory, given)


def _adopt_shape(
    config: experiment.ExperimentConfig, given: Collection[str], pooling: bool
) -> None:
    """Takes over shape and vocabulary's rules of the run of `init_checkpoint`.

    Args:
        config: the run's configuration; changed in place.
        given: names of the settings that the user has set.
        pooling: whether to take over the pooling too.

    Raises:
        UserError: a given setting contradicts the run; the message names both.
    """
    folder = own_run(config.init_checkpoint)
    if folder is None:
        return
    begun = model_dir.read_config(folder)
    before = _with_layers(begun.model, config.init_layers, folder)
    config.vocabulary.adopt_rules(begun.vocabulary.rules().as_dict(), folder, given)
    config.model.refuse_other_preset(given, before.as_dict(), folder)
    shape = {name: getattr(before, name) for name in _SHAPE}
    remarks = {}
    if "model.num_views" in given and config.model.num_views != before.num_views:
        # Tokens keep their positions; the conditions get new ones.
        tokens = before.token_positions
        shape["max_position_embeddings"] = tokens + config.model.num_views
        remarks["max_position_embeddings"] = f" ({tokens} and model.num_views)"
    config.model.adopt(given, shape, folder, remarks)
    if pooling:
        config.model.pooling = before.pooling
    if "model.seq_length" not in given:
        # Training on short texts does not shorten an encoder. Pruned weights of another
        # program keep the limit that their source stated.
        own = config.task.longest_sequence() if begun.task.enabled() else 0
        config.model.seq_length = max(begun.longest_sentence, own)


def _with_layers(
    model: encoder_config.EncoderConfig, layers: Sequence[int], folder: str
) -> encoder_config.EncoderConfig:
    """The shape of the encoder of a run, with the chosen ones of its layers.

    Raises:
        UserError: the encoder lacks a layer.
    """
    if not layers:
        return model
    foreign.check_layers(layers, model.num_layers, folder)
    return model.replace(num_layers=len(layers))


def own_run(path: str) -> str | None:
    """The model_dir that a path is, or whose checkpoint it is; None for other paths."""
    folder = locating.run_of(path)
    return folder if model_dir.is_model_dir(folder) else None


def vocabulary_settings(
    config: experiment.ExperimentConfig, begins: bool
) -> VocabularyConfig:
    """The vocabulary settings of a run; a warm start takes its source's vocabulary.

    Args:
        config: the run's configuration. If the run starts from another run of this
            project, the rules of its vocabulary are taken over in place.
        begins: whether the run has no checkpoint, and no stage before it. A run that
            was killed before its first checkpoint begins anew, from its source.

    Raises:
        UserError: the vocabulary does not fit the weights.
    """
    settings, start = config.vocabulary, config.init_checkpoint
    if not (start and begins):
        return settings
    source = foreign.find(start)
    if source is not None:
        in_use = contextlib.ExitStack()
        atexit.register(in_use.close)
        path = pretrained.vocabulary_path(source, in_use, settings.file)
        return settings.replace(file=path)
    folder = own_run(start)
    if folder is None:
        if not settings.file:
            raise UserError(
                f"{start} has no {model_dir.PARAMS} beside it; name its vocabulary "
                "with --vocab_file"
            )
        return settings
    own = vocabulary_file.find(folder)
    if settings.file and not vocabulary_file.same(settings.file, own):
        raise UserError(
            f"--vocab_file={settings.file} differs from {own}, the vocabulary of the "
            f"weights in {start}; leave --vocab_file out"
        )
    rules_of_source = model_dir.read_config(folder).vocabulary.rules()
    settings.adopt_rules(rules_of_source.as_dict())
    return settings.replace(file=own)
