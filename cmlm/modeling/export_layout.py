"""The files of an export: their names, and the versions of a served model.

EXPORT/export.json, checksums.json     its origin and its settings, and its checksums
EXPORT/preprocessor/, encoder/         SavedModels of TF Hub's text API
EXPORT/serving/1/, serving/2/ ...      versions for a model server
"""

from __future__ import annotations

import os

import tensorflow as tf

from cmlm.common import checksums, folders, json_files
from cmlm.errors import UserError

PREPROCESSOR, ENCODER, SERVING = "preprocessor", "encoder", "serving"
SAVED_MODEL, ASSETS = "saved_model.pb", "assets"
OF_SAVED_MODEL = (SAVED_MODEL, "variables", ASSETS)
# The description beside the SavedModels.
DESCRIPTION = "export.json"
# Servers ignore this folder of a SavedModel.
_EXTRA = "assets.extra"
# The same description inside a version, which may be moved alone; its checksums; and
# the description of a tuned model of `cmlm.finetune`.
PROVENANCE = os.path.join(_EXTRA, DESCRIPTION)
CHECKSUMS = os.path.join(_EXTRA, checksums.FILE_NAME)
TUNED_TASK = os.path.join(_EXTRA, "task.json")
# Requests that a server answers before it takes others.
WARM_UP = os.path.join(_EXTRA, "tf_serving_warmup_requests")


def versions(folder: str) -> list[str]:
    """The names of the versions of a model in a folder, the newest first.

    Model servers take every folder whose name is a number for a version.
    """
    if not tf.io.gfile.isdir(folder):
        return []
    names = [name.rstrip("/") for name in folders.entries(folder)]
    numbers = [name for name in names if name.isascii() and name.isdecimal()]
    return sorted(numbers, key=int, reverse=True)


def refuse_two_models(export: str) -> None:
    """Refuses an export whose newest version for servers has other weights.

    `encoder/` gives the weights of an export and `serving/` gives its vectors.

    Raises:
        UserError: a version of another model was moved into the export.
    """
    folder = os.path.join(export, SERVING)
    paths = [os.path.join(folder, version) for version in versions(folder)]
    newest = next((path for path in paths if json_files.optional(path, PROVENANCE)), "")
    if not newest:
        return
    own = json_files.optional(export, DESCRIPTION).get("fingerprint")
    served = json_files.optional(newest, PROVENANCE).get("fingerprint")
    if own and own != served:
        raise UserError(
            f"{export} holds two models; allowed: {newest}, or "
            f"{os.path.join(export, ENCODER)}"
        )
