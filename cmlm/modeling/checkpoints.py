"""Reading weights: whole for a resumed or exported model, by part for a warm start."""

from __future__ import annotations

import tensorflow as tf

from cmlm.errors import UserError
from cmlm.modeling.model import SentenceModel

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
    """Gives a model the weights of a checkpoint, part by part.

    Args:
        model: to be changed. Parts that the checkpoint lacks keep what they have.
        path: a checkpoint, or a directory of them.

    Returns:
        The names of the parts that were taken.

    Raises:
        UserError: no checkpoint, no encoder in it, or a part of another shape.
    """
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
