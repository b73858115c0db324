"""Finds encoders by name: their kind, their path and their files, without opening them.

`opening` opens the encoders that this module finds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Literal

import tensorflow as tf

from cmlm.common import checksums, files, once, path_names
from cmlm.config import model_dir
from cmlm.encoders import external
from cmlm.errors import UserError, one_line
from cmlm.modeling import export_layout, foreign

_WEIGHTS = re.compile(r"\.(index|data-\d{5}-of-\d{5}|safetensors)$|/saved_model\.pb$")


# The prefixes of a model_dir, as in `best:DIR`.
PREFIXES = ("best", "untrained", "bow", "both")


def split_prefix(name: str) -> tuple[str, str]:
    """Splits `best:DIR` into ("best", "DIR"); no prefix gives ("", name)."""
    prefix, colon, directory = name.partition(":")
    return (prefix, directory) if colon and prefix in PREFIXES else ("", name)


@dataclasses.dataclass(frozen=True)
class Location:
    """The kind and the path of a model.

    Attributes:
        kind: `external`: a server or stored vectors; `run`: a model_dir; `export`;
            `weights`: any other path. Only `foreign.find`, which opens it, tells
            weights of another program, a checkpoint of a run and nothing apart.
        prefix: one of `PREFIXES`, or "".
        path: the name without the prefix; for an export, its newest SavedModel.
    """

    kind: Literal["external", "run", "export", "weights"]
    prefix: str
    path: str


def locate(model: str, exports: bool = True) -> Location:
    """Finds the kind and the path of a model, without opening its weights.

    Args:
        model: as for `opening.open_encoder`.
        exports: look for exports; False takes them as `weights`, which they hold, too.

    Raises:
        UserError: the directory is both an export and the encoder of another program.
    """
    if model.startswith(external.PREFIXES):
        return Location("external", "", model)
    prefix, path = split_prefix(model)
    if prefix or model_dir.is_model_dir(path):
        return Location("run", prefix, path)
    saved_model = _find_saved_model(path) if exports else None
    if saved_model:
        return Location("export", "", saved_model)
    return Location("weights", "", path)


def weight_files(model: str) -> list[str]:
    """Names the files that hold the numbers of an encoder, sorted.

    Args:
        model: as for `opening.open_encoder`.

    Returns:
        The weights or stored vectors; [] for a server, or without such files.

    Raises:
        UserError: `model` names stored vectors without a file of sentences.
    """
    place = locate(model, exports=False)
    if place.kind == "external":
        return external.paths(model)
    path = place.path
    if place.prefix == "best":
        path = os.path.join(path, model_dir.BEST)
    if tf.io.gfile.isdir(path):
        below = [
            os.path.join(at, n) for at, _, ns in tf.io.gfile.walk(path) for n in ns
        ]
    else:
        below = tf.io.gfile.glob(f"{files.escaped(path.removesuffix('.index'))}.*")
    return sorted(filter(_WEIGHTS.search, below))


def find_foreign(model: str) -> foreign.Source | None:
    """Finds weights of another program, see `foreign.find`.

    Raises:
        UserError: the folder holds no weights, those of a tuned model, or a graph that
            an export has for servers.
    """
    if find_tuned(model):
        raise UserError(
            f"{model} is a tuned model, which gives labels and not vectors; allowed: an"
            " encoder, or cmlm.finetune --predict=FILE without --task"
        )
    # An export itself has no versions, which its folder `serving` holds.
    if _find_saved_model(model, folder=""):
        raise UserError(
            f"{model} is a graph for servers, without weights to train; allowed: the "
            "export that holds it"
        )
    return foreign.find(model)


def run_of(checkpoint: str) -> str:
    """The model_dir of a checkpoint in it or in its folder `best`."""
    checkpoint = checkpoint.rstrip("/")
    is_folder = tf.io.gfile.isdir(checkpoint)
    directory = checkpoint if is_folder else os.path.dirname(checkpoint)
    if os.path.basename(directory) == model_dir.BEST:
        directory = os.path.dirname(directory)
    return directory


def find_export(directory: str) -> str:
    """Finds the newest version of an export, whole by its checksums.

    Args:
        directory: an export, the folder `serving` in it, or a version.

    Returns:
        The folder of the SavedModel that servers load.

    Raises:
        UserError: the export does not exist, or a file of it is damaged.
    """
    path = _find_saved_model(directory)
    if path is None:
        how = ""
        if model_dir.is_model_dir(directory):
            how = f", as in {model_dir.export_command(directory)}"
        raise UserError(
            f"{directory} is not an export; allowed: a folder from export.tfhub{how}"
        )
    check_version(path)
    return path


def find_tuned(directory: str) -> str | None:
    """Finds a tuned model of `cmlm.finetune`, whole by its checksums.

    Args:
        directory: an output of the command, the folder `model` in it, or a version.

    Returns:
        The folder of the SavedModel; None without a tuned model.

    Raises:
        UserError: a file of the model is damaged.
    """
    path = _find_saved_model(directory, "model", export_layout.TUNED_TASK)
    if path:
        check_version(path)
    return path


def _find_saved_model(
    directory: str,
    folder: str = export_layout.SERVING,
    description: str = export_layout.PROVENANCE,
) -> str | None:
    """Finds the newest version of an export, like a model server.

    Args:
        directory: the export, the folder of its versions, or a version.
        folder: the name of the folder of versions.
        description: the file that a SavedModel of this kind contains.

    Raises:
        UserError: the directory holds other weights, too.
    """
    candidates = [directory.rstrip("/") or directory]
    for parent in (directory, os.path.join(directory, folder)):
        versions = export_layout.versions(parent)
        candidates += [os.path.join(parent, version) for version in versions]
    for place, candidate in enumerate(candidates):
        if tf.io.gfile.exists(os.path.join(candidate, description)):
            path_names.refuse_pattern(candidate)
            foreign.refuse_other_weights(directory, candidate)
            export_layout.refuse_two_models(candidates[0])
            for newer in candidates[1:place]:
                # A command looks for its export several times.
                once.warn(
                    f"{newer} is not a whole export; version "
                    f"{os.path.basename(candidate)} is used"
                )
            return candidate
    return None


@contextlib.contextmanager
def loading_graph(path: str) -> Iterator[None]:
    """Turns every error of a block that loads a SavedModel into a UserError."""
    try:
        yield
    # TensorFlow has no list of the errors that a damaged graph raises.
    except Exception as error:
        reason = one_line(error)
        raise UserError(f"{path} is not a whole SavedModel: {reason}") from error


def check_version(path: str) -> None:
    """Refuses a version of an export, or of a tuned model, with a damaged file.

    Raises:
        UserError: a file differs from its checksum, or is missing.
    """
    checksums.check(path, os.path.join(path, export_layout.CHECKSUMS))
