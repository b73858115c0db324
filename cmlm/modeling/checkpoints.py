"""Reading weights: whole for a resumed or exported model, by part for a warm start."""

from __future__ import annotations

import logging

import tensorflow as tf

from cmlm.errors import UserError
from cmlm.modeling import foreign, weights
from cmlm.modeling.model import SentenceModel

logger = logging.getLogger(__name__)

# Where a checkpoint keeps the parts of a SentenceModel.
_PARTS_PREFIX = "model/parts/"
# The embedding table, under the name of whichever layer the checkpoint met first.
_TABLE_KEYS = tuple(
    f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
    for name in ("bert/_embedding_layer/embeddings", "/embedding_table")
)


def find(path: str) -> str:
    """The checkpoint meant by `path`: itself, or the latest of a directory.

    Raises:
        UserError: there is none.
    """
    if tf.io.gfile.isdir(path):
        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise UserError(f"{path} holds no checkpoint")
        return latest
    if not tf.io.gfile.exists(path + ".index"):
        raise UserError(f"{path} is neither a checkpoint nor a directory with one")
    return path


def restore(path: str, **objects) -> None:
    """Restores objects, each under its keyword; all of their variables must be there.

    Raises:
        UserError: the checkpoint is damaged, or is of another model.
    """
    try:
        status = tf.train.Checkpoint(**objects).restore(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
    except (tf.errors.OpError, ValueError, AssertionError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is damaged or of another model than this configuration's: {reason}"
        ) from error


def initialize(model: SentenceModel, path: str) -> list[str]:
    """Gives a model the weights that lie at a path, part by part.

    Args:
        model: to be changed. Parts that the source lacks keep what they have.
        path: a checkpoint or a directory of them, or weights of another program, see
            `foreign.ACCEPTED`.

    Returns:
        The names of the parts that were taken.

    Raises:
        UserError: no encoder is there, or a weight is missing, unknown or of another
            shape.
    """
    source = foreign.find(path)
    if source is None:
        return _initialize_own(model, path)
    return take(model, source)


def take(model: SentenceModel, source: foreign.Source) -> list[str]:
    """Gives a model the weights of another program, and says what was left.

    Returns, Raises: as `initialize`.
    """
    arrays = source.load()
    kept = weights.assign(model, arrays, source.path)
    for note in source.notes:
        logger.info("%s: %s", source.path, note)
    if source.unused:
        names = weights.listed(source.unused)
        logger.info("%s: not used here: %s", source.path, names)
    if any(name.startswith(weights.POOLER) for name in kept):
        logger.info("%s has no pooler; nothing here uses one", source.path)
    parts = ["encoder"]
    if "masked_lm" in model.parts:
        if any(name.startswith(weights.MASKED_LM) for name in kept):
            logger.info("%s has no masked-LM head: it starts anew", source.path)
        else:
            parts.append("masked_lm")
    return parts


def _initialize_own(model: SentenceModel, path: str) -> list[str]:
    path = find(path)
    try:
        stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise UserError(f"{path} is not a readable checkpoint") from error
    parts = {
        name: part
        for name, part in model.parts.items()
        if any(key.startswith(f"{_PARTS_PREFIX}{name}/") for key in stored)
    }
    if "encoder" not in parts:
        raise UserError(f"{path} has no encoder; is it a checkpoint of this project?")
    rows = model.encoder.embedding_table.shape[0]
    for key, shape in stored.items():
        if key.endswith(_TABLE_KEYS) and shape[0] != rows:
            raise UserError(
                f"{path} has {shape[0]} embedding rows, "
                f"the vocabulary has {rows} entries"
            )
    holder = tf.Module()
    holder.parts = parts
    restore(path, model=holder)
    return sorted(parts)
