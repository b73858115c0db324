"""Weights of other programs: what they decide of a run, and an encoder of them alone.

A warm start takes the shape, the vocabulary and its case from the source, and the
configuration need not repeat them. Where it does, it must say the same.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Collection

import tensorflow as tf

from cmlm.common import files
from cmlm.common.keras import keras
from cmlm.config import experiment
from cmlm.data import vocabulary_file
from cmlm.data.tokenization import Tokenizer
from cmlm.encoders import model_dir
from cmlm.encoders.trained import DEFAULT_SEQ_LENGTH, TrainedEncoder
from cmlm.errors import UserError
from cmlm.modeling import checkpoints, encoder, foreign
from cmlm.modeling.model import SentenceModel

logger = logging.getLogger(__name__)


def adopt(
    config: experiment.ExperimentConfig,
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


def vocabulary_path(source: foreign.Source, given: str = "") -> str:
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
        tokens, name = vocabulary_file.load(given), given
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
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    with files.atomic_text(path) as file:
        file.writelines(f"{token}\n" for token in tokens)
    return path


def load_encoder(path: str) -> TrainedEncoder:
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
    config = experiment.ExperimentConfig(init_checkpoint=path)
    adopt(config, source)
    config.model.resolve()
    vocab = vocabulary_path(source)
    # What the source does not decide, such as the rows for conditions.
    keras.utils.set_random_seed(config.trainer.seed)
    model = SentenceModel(config.model)
    checkpoints.take(model, source)
    logger.info("weights: %s, %s", path, source.kind)
    if source.normalized:
        logger.info("%s scales its vectors to length 1; `default` is not", path)
    limit = config.model.max_position_embeddings - config.model.num_views
    return TrainedEncoder(
        encoder=model.encoder,
        tokenizer=Tokenizer(vocab, config.vocabulary.lower_case),
        config=config,
        checkpoint=path,
        vocab_file=vocab,
        seq_length=min(source.seq_length or DEFAULT_SEQ_LENGTH, limit),
    )


def _own(path: str) -> TrainedEncoder:
    """The encoder of a model_dir, or of a checkpoint in one or in its `best/`."""
    if tf.io.gfile.exists(os.path.join(path, model_dir.PARAMS)):
        return model_dir.load_encoder(path)
    directory = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    if os.path.basename(directory) == model_dir.BEST:
        directory = os.path.dirname(directory)
    return model_dir.load_encoder(directory, path.removesuffix(".index"))
