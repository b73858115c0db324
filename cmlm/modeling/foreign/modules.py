"""What sentence-transformers puts around a BERT: pooling, Dense, normalisation."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

from cmlm.errors import UserError
from cmlm.modeling import weights
from cmlm.modeling.foreign import base
from cmlm.modeling.foreign.tensors import Tensors

FILE_NAME = "modules.json"
_CONFIG = "config.json"
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


def read(folder: str) -> dict:
    """What sentence-transformers does around the Transformer.

    Returns:
        `is_st`; `transformer` and `dense`, folders relative to `folder`, "" where there
        is none of its own; `pooling`, "" where none is stated; `normalized`.
    """
    found = {
        "is_st": False,
        "transformer": "",
        "pooling": "",
        "dense": "",
        "normalized": False,
    }
    path = os.path.join(folder, FILE_NAME)
    if not tf.io.gfile.exists(path):
        return found
    found["is_st"] = True
    for entry in base.read_json(path, list):
        kind, where = str(entry.get("type", "")), str(entry.get("path", ""))
        if os.path.isabs(where) or ".." in where.split("/"):
            raise UserError(f"{path} names {where!r}, which is outside of the folder")
        last = kind.rpartition(".")[2]
        if last == "Transformer":
            found["transformer"] = where
        elif last == "Pooling":
            found["pooling"] = _pooling(os.path.join(folder, where, _CONFIG))
        elif last == "Dense" and found["pooling"] == "cls" and not found["dense"]:
            found["dense"], found["pooling"] = where, "pooler"
        elif last == "Normalize":
            found["normalized"] = True
        else:
            raise UserError(
                f"{path} has the module {kind!r} where this project has none; allowed: "
                "Transformer, Pooling, Dense with tanh after [CLS], Normalize"
            )
    return found


def _pooling(path: str) -> str:
    config = base.read_json(path)
    # Newer versions write one word, older ones a switch for each.
    chosen = [
        mode
        for key, mode in _POOLINGS.items()
        if config.get(key) is True or config.get("pooling_mode") == mode
    ]
    others = [
        key
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True and key not in _POOLINGS
    ]
    if len(chosen) != 1 or others:
        stated = config.get("pooling_mode", [*chosen, *others])
        raise UserError(f"{path} pools by {stated}; allowed: one of mean, cls, max")
    return chosen[0]


def read_dense(folder: str) -> dict[str, np.ndarray]:
    """A Dense module after [CLS], which is BERT's pooler by another name."""
    path = os.path.join(folder, _CONFIG)
    config = base.read_json(path)
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    sizes = (config.get("in_features"), config.get("out_features"))
    if activation != "Tanh" or sizes[0] != sizes[1] or config.get("bias") is False:
        raise UserError(
            f"{path} is a layer of {sizes[0]} to {sizes[1]} with {activation}; allowed:"
            " equal sizes, a bias and Tanh"
        )
    stored = Tensors(folder)
    if set(stored) != {"linear.weight", "linear.bias"}:
        raise UserError(f"{folder} holds {sorted(stored)}; allowed: linear.*")
    return {
        f"{weights.POOLER}kernel": stored.read("linear.weight").T,
        f"{weights.POOLER}bias": stored.read("linear.bias"),
    }
