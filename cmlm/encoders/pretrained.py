"""Weights of other programs: the settings that they imply, and their network.

A warm start takes the model's shape, the vocabulary and the casing from the source. The
configuration need not repeat these settings; if it does, both must agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import weakref
from collections.abc import Collection, Mapping

from cmlm.common import fields, prompts, scratch
from cmlm.config import experiment
from cmlm.encoders.opened_weights import DEFAULT_SEQ_LENGTH, OpenedWeights
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError, shown
from cmlm.modeling import encoder_config, foreign, layers, restoring, weights
from cmlm.modeling.model import SentenceModel
from cmlm.modeling.pooling import POOLINGS
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.base import Tokenizer

logger = logging.getLogger(__name__)


def adopt(
    config: experiment.ExperimentConfig,
    source: foreign.Source,
    given: Collection[str] = (),
    pooling: bool = True,
) -> None:
    """Fills a configuration with the settings of a source, in place.

    The position table gets `model.num_views` additional rows for CMLM's conditions, so
    tokens keep all positions of the source.

    Args:
        config: the configuration of the run, before validation.
        source: the weights that the run starts from.
        given: settings that keep their values, such as `model.num_layers` if the user
            has set it. One that the source determines, such as a shape, must agree
            with it.
        pooling: whether to adopt the source's pooling too. An encoder that is opened
            without training adopts it. A run keeps the pooling of its recipe, and the
            log names the source's pooling.

    Raises:
        UserError: a setting contradicts the source; the message names both. Or the
            source does not show the pooling to adopt.
    """
    values = {
        **source.model,
        "normalized": source.normalized,
        "prompts": prompts.as_settings(source.prompts),
        "prompt": source.prompt,
        "seq_length": source.seq_length or 0,
    }
    if not pooling:
        theirs = values.pop("pooling", None)
        if theirs not in (None, config.model.pooling):
            logger.info(
                "pooling: %s, as the run is configured; %s pools by %s: to pool in the "
                "same way, pass --params_override=model.pooling=%s",
                config.model.pooling,
                source.path,
                theirs,
                theirs,
            )
    elif "pooling" in values and values["pooling"] is None:
        raise UserError(
            f"{source.path} does not show its pooling; allowed: --pooling (in a run, "
            f"model.pooling) of {', '.join(POOLINGS)}, or the folder that "
            "export.huggingface --pooling writes"
        )
    if source.trained_seq_length:
        # As after a start from the run itself.
        own = config.task.longest_sequence()
        values["seq_length"] = max(source.seq_length, own)
    config.model.refuse_other_preset(given, values, source.path)
    binding, remarks = list(encoder_config.BINDING), {}
    if source.own_positions:
        binding.append("num_views")
    else:
        positions = values["max_position_embeddings"]
        values["max_position_embeddings"] += config.model.num_views
        remarks["max_position_embeddings"] = f" ({positions} and model.num_views)"
    config.model.adopt(given, values, source.path, remarks, binding)
    found = dict(source.rules)
    for name in ("max_word_bytes", "max_word_characters"):
        if f"vocabulary.{name}" in given:
            found.pop(name, None)
    config.vocabulary.adopt_rules(found, source.path, given)


def warn_of_prompts(path: str, stated: Mapping[str, str]) -> None:
    """Tells the user of a run that its text gets no prompt of the encoder.

    Args:
        path: the weights that the run starts from.
        stated: the prompts of the encoder by name.
    """
    if any(stated.values()):
        logger.warning(
            "%s has prompts: %s; the run adds no prompt to its text. For pairs, name "
            "the prompts, as in task.pairs.prompts=[query,passage]; in other text, "
            "write a prompt before each sentence",
            *(path, _listed(stated)),
        )


def warn_without_default(
    path: str, stated: Mapping[str, str], default: str, reading: Reading
) -> None:
    """Tells the user of an encoder with prompts by name that a text gets none of them.

    Args:
        path: the encoder.
        stated: its prompts by name.
        default: the prompt that precedes every text, or "".
        reading: the reading of vectors; one that sets the prompt needs no warning.
    """
    if any(stated.values()) and not (default or reading.sets_prompt):
        given = " with --prompts" if reading.prompts is not None else ""
        logger.warning(
            "%s%s has named prompts but no default prompt: %s; name one with "
            "encode(prompt_name=...), --prompt_name or a signature of an export. "
            "Search and retrieval add theirs",
            *(path, given, _listed(stated)),
        )


def vocabulary_path(
    source: foreign.Source, in_use: contextlib.ExitStack, given: str = ""
) -> str:
    """Finds or writes a vocabulary file for the weights of a source.

    Args:
        source: the origin of the weights.
        in_use: removes a file that this function writes, when it closes.
        given: the user's own file, or "".

    Returns:
        `given`, or a temporary file with the source's tokens.

    Raises:
        UserError: the vocabulary is missing or does not fit the weights.
    """
    rows = source.model["vocab_size"]
    if given:
        tokens, name = vocabulary_file.load(given), given
        differs = source.vocab and tokens != source.vocab
        if source.tokenizer and not differs:
            theirs = tokenizer_file.parse(source.tokenizer, source.vocab_name)
            is_json = vocabulary_file.is_json(given)
            differs = not is_json or tokenizer_file.read(given) != theirs
        if differs:
            raise UserError(
                f"--vocab_file={given} differs from {source.vocab_name}, the "
                "vocabulary of the weights; leave --vocab_file out"
            )
    else:
        tokens, name = source.vocab, source.vocab_name
        if not tokens:
            raise UserError(
                f"{source.path} has no vocabulary; allowed: a vocab.txt or "
                "tokenizer.json beside its weights (cmlm.train also takes --vocab_file)"
            )
    if len(tokens) != rows:
        raise UserError(
            f"{name} has {len(tokens)} tokens, {source.path} has {rows} embedding "
            "rows; allowed: the vocabulary of these weights"
        )
    if given:
        return given
    folder = in_use.enter_context(scratch.directory())
    if source.tokenizer:
        return vocabulary_file.write_json(source.tokenizer, folder)
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocabulary_file.write(tokens, path)
    return path


def settings(source: foreign.Source) -> tuple[experiment.ExperimentConfig, Tokenizer]:
    """Returns the configuration and the tokenizer of unchanged weights.

    Raises:
        UserError: the vocabulary is missing or does not fit the weights, or the source
            does not show its pooling.
    """
    config = experiment.ExperimentConfig(init_checkpoint=source.path)
    adopt(config, source)
    fields.check(config.model, "model.")
    with contextlib.ExitStack() as in_use:
        tokenizer = config.vocabulary.tokenizer(vocabulary_path(source, in_use))
        # The file lives as long as the tokenizer: an export copies it.
        weakref.finalize(tokenizer, _close, in_use.pop_all(), os.getpid())
    return config, tokenizer


def load_weights(
    source: foreign.Source, reading: Reading = AS_TRAINED
) -> OpenedWeights:
    """Loads the unchanged weights of another program into our network.

    Args:
        source: the source that `foreign.find` recognised.
        reading: the reading of vectors; by default it keeps the source's settings.

    Returns:
        The weights. Their `seq_length` is the length limit of the source, or
        `DEFAULT_SEQ_LENGTH` if the source states no limit; at most the number of
        positions for tokens.

    Raises:
        UserError: the weights do not fit, or lack a layer that `reading` asks for.
    """
    reading.validate()
    path = source.path
    if reading.sentence_vector == "projected":
        raise UserError(
            f"{reading.given()}: {path} has no projection; allowed: a run of CMLM"
        )
    if reading.pooling and source.model.get("pooling", "") is None:
        stated = {**source.model, "pooling": reading.pooling}
        source = dataclasses.replace(source, model=stated)
    config, tokenizer = settings(source)
    # The seed fixes weights that the source lacks, such as the rows for conditions.
    model = weights.model_for(config.model, config.trainer.seed)
    restoring.take(model, source)
    fitted_for = model.config.pooling, model.config.vector_width
    reading.apply(model, path)
    _add_fitted(model, source, *fitted_for)
    tokenizer.prompt = model.config.prompt
    logger.info("weights: %s, %s", path, source.kind)
    if tokenizer.prompt:
        logger.info("prompt: %s precedes every text", shown(tokenizer.prompt))
    if model.config.dimensions:
        logger.info(
            "dimensions: the first %d of %d",
            *(model.config.dimensions, model.config.hidden_size),
        )
    if source.normalized:
        logger.info(
            "%s scales its vectors to length 1; here, only the signature `normalized` "
            "and encode(normalize=True) do, and `default` does not",
            path,
        )
    return OpenedWeights(
        encoder=model.encoder,
        tokenizer=tokenizer,
        config=config,
        checkpoint=path,
        vocab_file=tokenizer.vocab_file,
        seq_length=min(
            source.seq_length or DEFAULT_SEQ_LENGTH, config.model.token_positions
        ),
        trained_seq_length=source.trained_seq_length,
    )


def _add_fitted(
    model: SentenceModel, source: foreign.Source, mode: str, width: int
) -> None:
    """Adds the layers that text determined, or warns that they do not fit.

    Args:
        model: the model, as its vectors are read.
        source: the source of its weights.
        mode: the pooling that the layers were fitted with.
        width: the width of the vectors that they were fitted on.

    Raises:
        UserError: the arrays of a layer are missing or have other shapes.
    """
    config, encoder = model.config, model.encoder
    shapes = {
        "sif": [(config.vocab_size,)],
        "whitening": [(width, width), (width,)],
    }
    for name, found in source.fitted.items():
        same_width = name == "sif" or config.vector_width == width
        if config.pooling != mode or not same_width:
            foreign.warn_left_out(source.path, [name])
            continue
        arrays = found.load()
        if [array.shape for array in arrays] != shapes[name]:
            raise UserError(
                f"{source.path}: {name} has arrays of the shapes "
                f"{[array.shape for array in arrays]}; allowed: {shapes[name]}"
            )
        setattr(encoder, name, layers.FITTED[name](*arrays, found.sentences))


def _listed(stated: Mapping[str, str]) -> str:
    """The prompts with a text, for messages: "'query: ' (query)"."""
    texts = [f"{shown(text)} ({name})" for name, text in stated.items() if text]
    return weights.listed(texts)


def _close(in_use: contextlib.ExitStack, process: int) -> None:
    # A fork ends its copy of a tokenizer, too.
    if os.getpid() == process:
        in_use.close()
