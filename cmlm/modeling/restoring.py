"""Reads weights: all of them to resume or export a run, single parts to start one."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

from cmlm.common.counts import counted
from cmlm.common.keras import keras
from cmlm.errors import UserError, one_line
from cmlm.modeling import foreign, latest, weights
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.foreign import tf_checkpoints
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel

logger = logging.getLogger(__name__)

# The checkpoint keys of a SentenceModel's parts begin with this prefix.
_PARTS_PREFIX = "model/parts/"
_POSITIONS_KEY = "bert/_position_embedding_layer/embeddings/.ATTRIBUTES/VARIABLE_VALUE"
# The attribute of an encoder whose keys are those of its relative positions.
_RELATIVE = "relative_positions"
# A network of P(v).
_VIEW = re.compile(rf"{_PARTS_PREFIX}projection/_networks/(\d+)/")
# A Transformer layer of the encoder.
_LAYER = re.compile(rf"{_PARTS_PREFIX}encoder/bert/_transformer_layers/(\d+)/")
# The embedding table, under the name of the layer that the checkpoint visited first.
_TABLE_KEYS = (
    "bert/_embedding_layer/embeddings/.ATTRIBUTES/VARIABLE_VALUE",
    "/embedding_table/.ATTRIBUTES/VARIABLE_VALUE",
)
# What programs store beside weights: counters, flags, random states, constant ranges,
# and the slots of an optimizer.
_BOOKKEEPING = re.compile(
    r"(^|\.)(position_ids|token_type_ids)$|(^|/)global_step\b|/adam_[mv]$|_power$"
    r"|(^|/)(save_counter|do_lower_case|dropout_state|_random_generator)/"
)


def find(path: str) -> str:
    """Finds a checkpoint: `path` itself, or the latest one in that directory.

    Raises:
        UserError: the path holds no checkpoint.
    """
    if tf.io.gfile.isdir(path):
        found = latest.find(path)
        if found is None:
            raise UserError(
                f"{path} holds no checkpoint; allowed: a directory where a run has "
                "saved one"
            )
        return found
    if not tf.io.gfile.exists(path + ".index"):
        raise UserError(
            f"{path} is neither a checkpoint nor a directory with one; allowed: a "
            "model_dir, or a checkpoint such as MODEL_DIR/ckpt-1000"
        )
    return path


def restore(path: str, whole: bool = True, **objects) -> None:
    """Restores objects, each under its keyword.

    Args:
        path: the path of the checkpoint.
        whole: whether the checkpoint must have all variables of the objects; else some.
        objects: the objects.

    Raises:
        UserError: the checkpoint is damaged or lacks variables of the objects.
    """
    try:
        status = tf.train.Checkpoint(**objects).restore(path)
        if whole:
            status.assert_existing_objects_matched()
        else:
            status.assert_nontrivial_match()
        status.expect_partial()
    except (tf.errors.OpError, ValueError, AssertionError, IndexError) as error:
        raise UserError(
            f"{path} is damaged, or does not fit this configuration: {one_line(error)}"
        ) from error


def count_layers(keys: Iterable[str]) -> int:
    """Returns the number of layers of the encoder in a checkpoint with these keys."""
    return len({match[1] for match in map(_LAYER.match, keys) if match})


def _count_views(keys: Iterable[str]) -> int:
    """The number of views of P(v) in a checkpoint; the first one has no weights."""
    return 1 + len({match[1] for match in map(_VIEW.match, keys) if match})


def require_part(path: str, name: str, flags: str, trainer: str) -> None:
    """Makes sure that a checkpoint has a part of the model.

    Args:
        path: the path of the checkpoint.
        name: the name of the part.
        flags: the flags that ask for the part, for the message.
        trainer: the source of such a part, for the message.

    Raises:
        UserError: the checkpoint lacks the part, or is damaged.
    """
    if name not in _parts(stored_shapes(path)):
        raise UserError(f"{flags}: {path} has no {name}; {trainer}")


def stored_shapes(path: str) -> dict[str, list[int]]:
    """The shapes of a checkpoint's tensors by key."""
    return tf_checkpoints.open_file(path).get_variable_to_shape_map()


def _parts(keys: Iterable[str]) -> set[str]:
    """The names of the model's parts that a checkpoint with these keys has."""
    return {
        key.removeprefix(_PARTS_PREFIX).partition("/")[0]
        for key in keys
        if key.startswith(_PARTS_PREFIX)
    }


def initialize(
    model: SentenceModel, path: str, layers: Sequence[int] = ()
) -> list[str]:
    """Gives a model the weights at a path, part by part.

    Args:
        model: the model to change. Parts that the source lacks keep their weights.
        path: a checkpoint or a directory of checkpoints, or weights of another program
            (see `foreign.ACCEPTED`).
        layers: the layers of the source that the model has, see `foreign.with_layers`.

    Returns:
        The names of the parts that received weights.

    Raises:
        UserError: the path holds no encoder, or a weight is missing, unknown or of
            another shape.
    """
    source = foreign.find(path)
    if source is None:
        parts = _initialize_own(model, path, layers)
    else:
        parts = take(model, foreign.with_layers(source, layers))
        # Objectives train vectors without these layers.
        foreign.warn_left_out(source.path, source.fitted)
    if SECOND_ENCODER in model.parts and SECOND_ENCODER not in parts:
        # Not the projection of CMLM, which the first encoder may have.
        model.second_encoder().bert.set_weights(model.encoder.bert.get_weights())
        logger.info("%s has one encoder: both encoders start from it", path)
        parts.append(SECOND_ENCODER)
    return parts


def take(model: SentenceModel, source: foreign.Source) -> list[str]:
    """Gives a model the weights of another program, and logs the unused ones.

    It returns and raises the same as `initialize`.
    """
    arrays = source.load()
    kept = weights.assign(model, arrays, source.path)
    for warning in source.warnings:
        logger.warning("%s: %s", source.path, warning)
    for note in source.notes:
        logger.info("%s: %s", source.path, note)
    unused = [name for name in source.unused if not _BOOKKEEPING.search(name)]
    if unused:
        names = weights.listed(unused)
        logger.info("%s: unused weights: %s", source.path, names)
    if any(name.startswith(weights.POOLER) for name in kept):
        logger.info("%s has no pooler; this run needs no pooler", source.path)
    parts = ["encoder"]
    has_head = not any(name.startswith(weights.MASKED_LM) for name in kept)
    if "masked_lm" in model.parts and has_head:
        parts.append("masked_lm")
    return parts


def _initialize_own(
    model: SentenceModel, path: str, chosen: Sequence[int]
) -> list[str]:
    path = find(path)
    stored = stored_shapes(path)
    found = _parts(stored)
    parts = {name: part for name, part in model.parts.items() if name in found}
    if "encoder" not in parts:
        raise UserError(f"{path} has no encoder; allowed: a checkpoint of cmlm.train")
    rows = model.encoder.embedding_table.shape[0]
    for key, shape in stored.items():
        if key.endswith(_TABLE_KEYS) and shape[0] != rows:
            raise UserError(
                f"{path} has {shape[0]} embedding rows, but the vocabulary has {rows} "
                "tokens"
            )
    layers = len(model.encoder.bert.transformer_layers)
    if chosen:
        foreign.check_layers(chosen, count_layers(stored), path)
    elif count_layers(stored) != layers:
        raise UserError(
            f"{path} has {counted(count_layers(stored), 'layer')}; allowed: {layers}, "
            "the model's layers"
        )
    projection, views = parts.get("projection"), _count_views(stored)
    if projection is not None and projection.num_views != views:
        del parts["projection"]
        logger.info(
            "%s has %d projected vectors, but the model has %d (model.num_views): the "
            "projection starts from random weights",
            *(path, views, projection.num_views),
        )
    holder = tf.Module()
    holder.parts = dict(parts)
    tables = {}
    for name in {"encoder", SECOND_ENCODER} & parts.keys():
        shape = stored.get(f"{_PARTS_PREFIX}{name}/{_POSITIONS_KEY}")
        if shape and shape[0] != model.config.max_position_embeddings:
            tables[name] = tf.Variable(tf.zeros(shape))
        relative = parts[name].relative_positions
        prefix = f"{_PARTS_PREFIX}{name}/{_RELATIVE}/"
        if relative is None and any(key.startswith(prefix) for key in stored):
            raise UserError(
                f"model.relative_positions is False; allowed: True, because {path} has "
                "relative positions"
            )
        # Without P(v), which the encoder, too, holds: the source may lack it.
        bare = tf.Module()
        bare.bert = _under_stored_names(parts[name].bert, chosen, tables.get(name))
        bare.relative_positions = relative
        holder.parts[name] = bare
    restore(path, model=holder)
    for name, table in tables.items():
        _take_positions(parts[name], table, model.config.token_positions, path)
    return sorted(parts)


def _under_stored_names(
    bert: keras.layers.Layer, chosen: Sequence[int], positions: tf.Variable | None
) -> tf.Module:
    """Returns the parts of an encoder under the names of the source's checkpoint.

    Args:
        bert: the encoder.
        chosen: the numbers of its layers in a deeper encoder; none: as they are.
        positions: receives the position table of the source; None: `bert` does.
    """
    if not chosen and positions is None:
        return bert
    found = tf.Module()
    for name, value in vars(bert).items():
        if isinstance(value, keras.layers.Layer):
            setattr(found, name, value)
    layers = bert.transformer_layers
    numbers = map(str, chosen or range(len(layers)))
    found._transformer_layers = dict(zip(numbers, layers, strict=True))
    if positions is not None:
        found._position_embedding_layer = tf.Module()
        found._position_embedding_layer.embeddings = positions
    return found


def _take_positions(
    encoder: EncoderNetwork, source: tf.Variable, tokens: int, path: str
) -> None:
    """Gives an encoder the positions of a source with another number of conditions.

    Args:
        encoder: the encoder to change. Its rows for conditions keep their values.
        source: the position table of the source, [positions, width].
        tokens: the number of rows for tokens.
        path: the source, for the message.

    Raises:
        UserError: the source has fewer positions.
    """
    if source.shape[0] < tokens:
        raise UserError(
            "model.max_position_embeddings minus model.num_views is "
            f"{tokens}; allowed: at most {source.shape[0]}, the positions of {path}"
        )
    table = weights.encoder_variables(encoder)[weights.POSITIONS]
    table.assign(tf.concat([source[:tokens], table[tokens:]], axis=0))
