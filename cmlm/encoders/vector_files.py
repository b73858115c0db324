"""The .npy files of vectors, and `NAME.npy.json`, which describes one.

The description names the encoder as `common.identity` does, whether the vectors have
length 1, and the shape. Files of other programs have no description.
"""

from __future__ import annotations

import json

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, identity, json_files, outputs
from cmlm.common.protocols import DescribedEncoder
from cmlm.errors import UserError


def path_of(npy: str) -> str:
    """Returns the path of the description of an .npy file."""
    return f"{npy}.json"


def describe(
    path: str, encoder: DescribedEncoder, normalized: bool, shape: tuple[int, int]
) -> None:
    """Writes a description.

    Args:
        path: the file to write.
        encoder: the encoder of the vectors.
        normalized: whether they were scaled to length 1.
        shape: [n, dim].
    """
    about = {"model": identity.of(encoder), "normalized": normalized, "shape": shape}
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(about, indent=1, sort_keys=True) + "\n")


def map_described(npy: str) -> np.ndarray:
    """Maps an .npy file of vectors, float [n, dim], into memory.

    Raises:
        UserError: the file is missing or damaged; or its description has another shape,
            so that rows of unknown origin were added, or the file was replaced; or it
            may be that of another array, as a run was killed while it named both.
    """
    outputs.refuse_half_named(npy)
    rows, path = arrays.map_npy(npy), path_of(npy)
    about = json_files.optional(path)
    if about and json_files.field(about, "shape", list, path) != list(rows.shape):
        raise UserError(
            f"{npy} holds {list(rows.shape)}, and {path} describes {about['shape']}; "
            f"allowed: the described vectors, or no {path}"
        )
    return rows


def is_normalized(npy: str) -> bool:
    """Whether the description of an .npy file says that vectors have length 1."""
    path = path_of(npy)
    return json_files.field(
        json_files.optional(path), "normalized", bool, path, default=False
    )


def check_model(npy: str, encoder: DescribedEncoder) -> None:
    """Refuses an .npy file whose description names another encoder.

    Raises:
        UserError: the encoder had other weights or another precision.
    """
    path = path_of(npy)
    model = json_files.field(json_files.optional(path), "model", dict, path, {})
    made_by, now = (each.get("fingerprint") for each in (model, encoder.info))
    if made_by and now and made_by != now:
        raise UserError(
            f"another model, with the fingerprint {str(made_by)[:12]}, made the "
            f"vectors ({path}); allowed: vectors of this model, {now[:12]}"
        )
    there, here = (
        each.get("precision", "float32") for each in (model, identity.of(encoder))
    )
    if made_by and now and there != here:
        raise UserError(
            f"vectors in {there} ({path}), and the model computes in {here}; allowed: "
            "one --precision for both"
        )
