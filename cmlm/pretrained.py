"""Weights of other programs: what they decide of a run, and an encoder of them alone.

A warm start takes the shape, the vocabulary and its case from the source, and the
configuration need not repeat them. Where it does, it must say the same.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Collection

import tensorflow as tf

from cmlm import experiments, files, model_dir
from cmlm.data import vocabulary
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.keras import keras
from cmlm.modeling import checkpoints, encoder, foreign
from cmlm.modeling.model import SentenceModel

logger = logging.getLogger(__name__)

# The published encoders of this kind cut at 128 tokens.
DEFAULT_SEQ_LENGTH = 128
# What weights bind, of `EncoderConfig`.
_SHAPE = (
    *encoder.SHAPE_FIELDS,
    "hidden_activation",
    "layer_norm_epsilon",
    "max_position_embeddings",
    "num_views",
    "type_vocab_size",
)


def adopt(
    config: experiments.ExperimentConfig,
    source: foreign.Source,
    given: Collection[str] = (),
) -> None:
    """Fills a configuration with what a source decides, in place.

    BERT's position table gets `model.num_views` rows more, for CMLM's conditions: all
    of the source's own positions stay with the tokens, as they were.

    Args:
        config: of the run, not validated yet.
        source: what it starts from.
        given: settings that the user has set, as `model.num_layers`. They stand; but
            what the weights bind must agree.

    Raises:
        UserError: a setting contradicts the source; both are named.
    """
    values = dict(source.model)
    shape = encoder.PRESETS.get(config.model.preset)
    if "model.preset" in given and shape:
        preset = dict(zip(encoder.SHAPE_FIELDS, shape, strict=True))
        for name, value in preset.items():
            if f"model.{name}" not in given and values[name] != value:
                raise UserError(
                    f"model.preset={config.model.preset} has {name}={value}, "
                    f"{source.path} has {values[name]}"
                )
    binding, remark = list(foreign.BINDING), {}
    if source.own_positions:
        binding.append("num_views")
    else:
        positions = values["max_position_embeddings"]
        values["max_position_embeddings"] += config.model.num_views
        remark["max_position_embeddings"] = f" ({positions} and model.num_views)"
    for name, value in values.items():
        stated = getattr(config.model, name)
        if f"model.{name}" not in given:
            setattr(config.model, name, value)
        elif stated != value and name in binding:
            raise UserError(
                f"model.{name} is {stated}, {source.path} makes it {value}"
                f"{remark.get(name, '')}"
            )
    if source.lower_case is not None:
        lower_case = config.vocabulary.lower_case
        if "vocabulary.lower_case" not in given:
            config.vocabulary.lower_case = source.lower_case
        elif lower_case != source.lower_case:
            raise UserError(
                f"vocabulary.lower_case is {lower_case}, "
                f"{source.path} has {source.lower_case}"
            )


def adopt_for_run(
    config: experiments.ExperimentConfig, given: Collection[str], directory: str
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
            adopt(config, source, given)
        else:
            _adopt_shape(config, given)
        return
    for field in dataclasses.fields(config.model):
        if f"model.{field.name}" not in given:
            setattr(config.model, field.name, getattr(begun.model, field.name))
    if "vocabulary.lower_case" not in given:
        config.vocabulary.lower_case = begun.vocabulary.lower_case


def _adopt_shape(config: experiments.ExperimentConfig, given: Collection[str]) -> None:
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
    config: experiments.ExperimentConfig, directory: str
) -> experiments.ExperimentConfig | None:
    """The configuration of a run that began from the same weights, if it began."""
    if not tf.io.gfile.exists(os.path.join(directory, model_dir.PARAMS)):
        return None
    begun = model_dir.read_config(directory)
    return begun if begun.init_checkpoint == config.init_checkpoint else None


def vocabulary_settings(
    config: experiments.ExperimentConfig, directory: str
) -> vocabulary.VocabularyConfig:
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
        return settings.replace(file=vocab_file(source, settings.file))
    folder = _own_run(start)
    if folder is None:
        if not settings.file:
            raise UserError(
                f"{start} has no {model_dir.PARAMS} beside it: give its vocabulary "
                "with --vocab_file"
            )
        return settings
    own = os.path.join(folder, model_dir.VOCABULARY)
    if settings.file and vocabulary.load(settings.file) != vocabulary.load(own):
        raise UserError(
            f"vocabulary {settings.file} is not {own}, which the weights of {start} are"
            " for: leave it out"
        )
    settings.lower_case = model_dir.read_config(folder).vocabulary.lower_case
    return settings.replace(file=own)


def vocab_file(source: foreign.Source, given: str = "") -> str:
    """A vocabulary file for the weights of a source.

    Args:
        source: where the weights are from.
        given: the user's own file, "" for none.

    Returns:
        `given`, or a file with the source's tokens that lives as long as the process.

    Raises:
        UserError: there is no vocabulary, or it does not fit the weights.
    """
    rows = source.model["vocab_size"]
    if given:
        tokens, name = vocabulary.load(given), given
        if source.vocab and tokens != source.vocab:
            raise UserError(f"vocabulary {given} is not the one of {source.vocab_name}")
    else:
        tokens, name = source.vocab, source.vocab_name
        if not tokens:
            raise UserError(
                f"{source.path} has no vocabulary; give it with --vocab_file"
            )
    if len(tokens) != rows:
        raise UserError(
            f"{name} has {len(tokens)} tokens, {source.path} has {rows} embedding rows"
        )
    if given:
        return given
    folder = tempfile.mkdtemp(prefix="cmlm-vocabulary-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, vocabulary.FILE_NAME)
    with files.atomic_text(path) as file:
        file.writelines(f"{token}\n" for token in tokens)
    return path


def load_encoder(path: str) -> model_dir.TrainedEncoder:
    """An encoder with the weights of another program, untouched.

    Args:
        path: see `foreign.ACCEPTED`; a checkpoint of this project lies in its
            model_dir.

    Returns:
        The encoder. Its `seq_length` is what the source says of its vectors, or what
        published encoders of this kind mostly have.

    Raises:
        UserError: nothing is there, or it cannot be represented here.
    """
    source = foreign.find(path)
    if source is None:
        return _own(path)
    config = experiments.ExperimentConfig(init_checkpoint=path)
    adopt(config, source)
    config.model.resolve()
    vocab = vocab_file(source)
    # What the source does not decide, such as the rows for conditions.
    keras.utils.set_random_seed(config.trainer.seed)
    model = SentenceModel(config.model)
    checkpoints.take(model, source)
    logger.info("weights: %s, %s", path, source.kind)
    if source.normalized:
        logger.info("%s scales its vectors to length 1; `default` is not", path)
    limit = config.model.max_position_embeddings - config.model.num_views
    return model_dir.TrainedEncoder(
        encoder=model.encoder,
        tokenizer=Tokenizer(vocab, config.vocabulary.lower_case),
        config=config,
        checkpoint=path,
        vocab_file=vocab,
        seq_length=min(source.seq_length or DEFAULT_SEQ_LENGTH, limit),
    )


def _own(path: str) -> model_dir.TrainedEncoder:
    """The encoder of a model_dir, or of a checkpoint in one or in its `best/`."""
    if tf.io.gfile.exists(os.path.join(path, model_dir.PARAMS)):
        return model_dir.load_encoder(path)
    directory = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    if os.path.basename(directory) == model_dir.BEST:
        directory = os.path.dirname(directory)
    return model_dir.load_encoder(directory, path.removesuffix(".index"))
