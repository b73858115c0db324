"""Reads encoders of other programs into one common form.

    source = foreign.find("/data/bert-base-uncased")
    weights.assign(model, source.load(), source.path)

`huggingface`, `tf_checkpoints` and `tf_hub` read one format each and produce a
`base.Source`.
"""

from __future__ import annotations

import os
import re
from typing import Optional

import tensorflow as tf

from cmlm.common import files
from cmlm.errors import UserError
from cmlm.modeling import export_layout, latest
from cmlm.modeling.foreign import huggingface, modules, tensors, tf_checkpoints, tf_hub
from cmlm.modeling.foreign.base import (
    Source,
    check_layers,
    warn_left_out,
    with_layers,
)

__all__ = [
    "ACCEPTED",
    "Source",
    "check_layers",
    "find",
    "refuse_other_weights",
    "warn_left_out",
    "with_layers",
]

ACCEPTED = (
    "an export, a model_dir or a checkpoint of this project, an original or Model "
    "Garden BERT checkpoint, a TF Hub SavedModel, a Hugging Face or "
    "sentence-transformers folder"
)
# The prefix of every encoder key in a checkpoint of this project.
_OURS = "model/parts/encoder/"
# `ORGANISATION/MODEL`, or the name of an old model without organisation.
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find(path: str) -> Optional[Source]:
    """Recognises the encoder at a path.

    Args:
        path: a directory, or a checkpoint without its `.index`.

    Returns:
        The source of the weights; None for a model_dir or a checkpoint of this project,
        which `cmlm.modeling.restoring` reads.

    Raises:
        UserError: the format is unknown, or the files are damaged, hold another
            architecture, or are an export with two models or beside other weights.
    """
    path = path.rstrip("/") or path
    if not tf.io.gfile.isdir(path):
        return _file(path)
    for folder in (path, os.path.join(path, export_layout.ENCODER)):
        if tf.io.gfile.exists(os.path.join(folder, export_layout.SAVED_MODEL)):
            if folder != path:
                refuse_other_weights(path, folder)
            export_layout.refuse_two_models(path)
            return tf_hub.read(folder)
    if _is_huggingface(path):
        return huggingface.read(path)
    prefixes = _checkpoints(path)
    if len(prefixes) > 1:
        raise UserError(
            f"{path} has {len(prefixes)} checkpoints; allowed: one of them, such as "
            f"{prefixes[0]}"
        )
    if prefixes:
        return _checkpoint(prefixes[0])
    tensors.refuse_pickle(path)
    raise UserError(f"{path} holds no weights; allowed: {ACCEPTED}")


def refuse_other_weights(directory: str, export: str) -> None:
    """Refuses an export beside weights that `find` reads, SavedModels left out.

    The graph of a SavedModel can read and write files, weights cannot. So a name must
    not mean weights in one command and a graph in another.

    Args:
        directory: the directory of both.
        export: the SavedModel of the export, in the directory or the directory itself.

    Raises:
        UserError: the directory holds other weights, too.
    """
    if _is_huggingface(directory) or _checkpoints(directory):
        allowed = f"{export}, or a folder without it"
        if export == directory.rstrip("/"):
            allowed = "a folder with one of them"
        raise UserError(
            f"{directory} holds an export beside other weights; allowed: {allowed}"
        )


def _file(path: str) -> Optional[Source]:
    prefix = path.removesuffix(".index")
    if tf.io.gfile.exists(prefix + ".index"):
        return _checkpoint(prefix)
    folder = os.path.dirname(path)
    if not tf.io.gfile.exists(path):
        raise UserError(f"{path} does not exist; {_download(path)}allowed: {ACCEPTED}")
    if os.path.basename(path) in (tensors.FILE_NAME, export_layout.SAVED_MODEL):
        return find(folder or ".")
    tensors.refuse_pickle_file(path)
    raise UserError(f"{path} is not an encoder; allowed: {ACCEPTED}")


def _download(path: str) -> str:
    """The command that downloads a model of the Hugging Face Hub, or ""."""
    owner, folder = os.path.split(path)
    # `exports/frist` beside a folder `exports` is a mistyped path.
    if not _HUB_NAME.fullmatch(path) or (owner and tf.io.gfile.isdir(owner)):
        return ""
    return (
        f"a model of the Hugging Face Hub is downloaded by `hf download {path} "
        f"--local-dir={folder}` (pip install huggingface_hub); "
    )


def _is_huggingface(folder: str) -> bool:
    names = (huggingface.CONFIG, modules.FILE_NAME)
    return any(tf.io.gfile.exists(os.path.join(folder, name)) for name in names)


def _checkpoints(folder: str) -> list[str]:
    """Returns the latest checkpoint of a directory, or all if none is the latest."""
    if named := latest.named(folder):
        return [named]
    found = tf.io.gfile.glob(os.path.join(files.escaped(folder), "*.index"))
    # Copies of a run may lack the file `checkpoint`, or the checkpoint that it names.
    of_run = [
        re.fullmatch(r"ckpt-\d+\.index", os.path.basename(path)) for path in found
    ]
    if len(found) > 1 and all(of_run) and (newest := latest.newest_whole(folder)):
        return [newest]
    return sorted(path.removesuffix(".index") for path in found)


def _checkpoint(prefix: str) -> Optional[Source]:
    stored = tf_checkpoints.open_file(prefix)
    if any(key.startswith(_OURS) for key in stored.get_variable_to_shape_map()):
        return None
    return tf_checkpoints.read(prefix)
