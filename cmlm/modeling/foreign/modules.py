"""The modules of sentence-transformers after a BERT: pooling, Dense, normalisation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection

import numpy as np
import tensorflow as tf

from cmlm.common import json_files
from cmlm.errors import UserError, shown
from cmlm.modeling import pooling, weights
from cmlm.modeling.foreign.tensors import Tensors

FILE_NAME = "modules.json"
PROMPTS = "config_sentence_transformers.json"
# The setting for the first components of a vector. sentence-transformers cuts the
# vector of the last module, so one that Normalize has scaled is shorter than 1 then.
TRUNCATED = "truncate_dim"
# The name of a Dense module without activation in our own folders.
WHITENING = "Whitening"
# The modules, in the order in which this project computes them.
_ORDER = ("Transformer", "WordWeights", "Pooling", "Dense", WHITENING, "Normalize")
# The flags of our own exports that add modules.
_FITTED = {"WordWeights": "sif", WHITENING: "whitening"}
_CONFIG = "config.json"
_COSINE = "cosine"
_PACKAGE = "sentence_transformers."
# Settings of a Dense module, and the values that this project follows.
_DENSE = {
    "use_residual": (None, False),
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
}
_KEY = "pooling_mode_"
# Our name of each pooling mode of sentence-transformers, by its switch `_KEY` + NAME.
POOLINGS = {
    row.sentence_transformers: mode
    for mode, row in pooling.POOLINGS.items()
    if row.sentence_transformers and not row.through_pooler
}
# The switches that older versions write.
_SWITCHES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
# The names of modes in newer versions, where they differ from the switches.
_NAMES = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "weightedmean_tokens": "weightedmean",
}


@dataclasses.dataclass
class Modules:
    """The modules around a Transformer; empty by default.

    Attributes:
        is_st: whether the folder has a modules.json.
        transformer: the Transformer's folder, relative to the folder; "" for itself.
        pooling: a key of `pooling.POOLINGS`; "" if the folder does not state it.
        dense: the folder of the Dense module, relative to the folder; "" without one.
        fitted: the folders of the modules that text determined, relative to the folder,
            by their names in `layers.FITTED`.
        normalized: whether vectors are scaled to length 1.
        prompts: the texts that may precede a text, by name.
        prompt: the text that precedes every text by default, or "".
        dimensions: the first components of a vector, this many; 0: all.
        notes: settings that are not followed and change no vector, one sentence each.
        warnings: settings that are not followed and change vectors, likewise.
    """

    is_st: bool = False
    transformer: str = ""
    pooling: str = ""
    dense: str = ""
    fitted: dict[str, str] = dataclasses.field(default_factory=dict)
    normalized: bool = False
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    prompt: str = ""
    dimensions: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


def _name_of(switch: str) -> str:
    """The name of a mode in newer versions."""
    return _NAMES.get(switch, switch)


def pooling_config(mode: str, width: int) -> dict:
    """The configuration of the Pooling module.

    Args:
        mode: a key of `pooling.POOLINGS`.
        width: the width of a token vector.

    Raises:
        UserError: sentence-transformers has no such mode.
    """
    chosen = pooling.POOLINGS[mode].sentence_transformers
    if not chosen:
        raise UserError(
            f"model.pooling is {mode!r}; allowed for a Hugging Face folder: "
            f"{', '.join(POOLINGS.values())}"
        )
    return {
        "word_embedding_dimension": width,
        **{
            f"{_KEY}{name}": name == chosen
            for name in dict.fromkeys([*_SWITCHES, chosen])
        },
    }


def read(folder: str, fitted: Collection[str] = ()) -> Modules:
    """Reads modules.json, the chain of modules around the Transformer.

    Args:
        folder: the folder.
        fitted: the flags of `export.huggingface` that added modules to it.

    Raises:
        UserError: a module that this project cannot represent.
    """
    path = os.path.join(folder, FILE_NAME)
    if not tf.io.gfile.exists(path):
        return Modules()
    settings_path = os.path.join(folder, PROMPTS)
    settings = json_files.optional(settings_path)
    prompts = _prompts(settings, settings_path)
    # An unknown name is no prompt, as in sentence-transformers before version 6, which
    # refuses it.
    default = json_files.field(settings, "default_prompt_name", str, settings_path, "")
    found = Modules(is_st=True, prompts=prompts, prompt=prompts.get(default, ""))
    similarity = settings.get("similarity_fn_name")
    if similarity not in (None, _COSINE):
        found.notes.append(
            f"similarity_fn_name {shown(similarity)} is not kept: similarity is the "
            "cosine here and in an export"
        )
    if settings.get(TRUNCATED) is not None:
        found.dimensions = json_files.field(
            settings, TRUNCATED, int, settings_path, at_least=1
        )
    left = list(_ORDER)
    for number, entry in enumerate(json_files.read(path, list)):
        kind, where = str(entry.get("type", "")), str(entry.get("path", ""))
        if os.path.isabs(where) or ".." in where.split("/"):
            raise UserError(f"{path} names {where!r}; allowed: paths inside the folder")
        last = kind.rpartition(".")[2]
        if last == "Dense" and where.endswith(WHITENING):
            last = WHITENING
        # A class of another package may compute anything.
        is_known = kind.startswith(_PACKAGE) and last in left
        is_known = is_known and (last not in _FITTED or _FITTED[last] in fitted)
        if not is_known or (last == "Dense" and found.pooling != "cls"):
            raise UserError(
                f"{path} has the module {kind!r} at position {number}; allowed, in this"
                " order: Transformer, Pooling, Dense with tanh after [CLS], Normalize, "
                "all of the package sentence_transformers"
            )
        # A second Normalize changes nothing.
        left = left[left.index(last) + (last != "Normalize") :]
        if last == "Transformer":
            found.transformer = where
        elif last == "Pooling":
            config = os.path.join(folder, where, _CONFIG)
            found.pooling = _pooling(config)
            if json_files.read(config).get("include_prompt") is False:
                found.warnings.append(
                    "include_prompt false is not kept: the tokens of a prompt count in "
                    "the pooling"
                )
        elif last in _FITTED:
            found.fitted[_FITTED[last]] = where
        elif last == "Dense":
            found.dense, found.pooling = where, "pooler"
        else:
            found.normalized = True
    if not found.pooling:
        raise UserError(f"{path} has no module Pooling; allowed: one after Transformer")
    return found


def _prompts(settings: dict, path: str) -> dict[str, str]:
    """Reads the prompts by name.

    Args:
        settings: the content of `PROMPTS`, or {}.
        path: its path.
    """
    stated = json_files.field(settings, "prompts", dict, path, {})
    prompts = {name: json_files.field(stated, name, str, path, "") for name in stated}
    for name in prompts:
        if not name or "=" in name:
            raise UserError(
                f"{path} has the prompt {shown(name)}; allowed: a name without ="
            )
    return prompts


def _pooling(path: str) -> str:
    config = json_files.read(path)
    # Newer versions write the name of the mode, older ones a switch for each mode.
    # Beside a name, switches do not count.
    stated = config.get("pooling_mode")
    if stated is None:
        stated = [
            _name_of(key.removeprefix(_KEY))
            for key, value in config.items()
            if key.startswith(_KEY) and value is True
        ] or "mean"
    modes = list(map(str, stated if isinstance(stated, list) else [stated]))
    allowed = {_name_of(name): mode for name, mode in POOLINGS.items()}
    if len(modes) != 1 or modes[0] not in allowed:
        raise UserError(
            f"{path} pools by {', '.join(modes)}; allowed: one of {', '.join(allowed)}"
        )
    return allowed[modes[0]]


def read_fitted(name: str, folder: str, dimensions: int) -> list[np.ndarray]:
    """Reads the arrays of a module that text determined.

    Args:
        name: its name in `layers.FITTED`.
        folder: its folder.
        dimensions: the components of a vector that it reads.
    """
    stored = Tensors(folder)
    if name == "sif":
        return [stored.read("emb_layer.weight")[:, 0]]
    kernel = stored.read("linear.weight").T[:dimensions]
    return [np.ascontiguousarray(kernel), stored.read("linear.bias")]


def read_dense(folder: str) -> dict[str, np.ndarray]:
    """Reads a Dense module after [CLS]: BERT's pooler under another name.

    Raises:
        UserError: the module is not a square dense layer of the sentence vector with
            bias and tanh.
    """
    path = os.path.join(folder, _CONFIG)
    config = json_files.read(path)
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    sizes = (config.get("in_features"), config.get("out_features"))
    if activation != "Tanh" or sizes[0] != sizes[1] or config.get("bias") is False:
        raise UserError(
            f"{path} is a layer from {sizes[0]} to {sizes[1]} with {activation}; "
            "allowed: equal sizes, a bias and Tanh"
        )
    for name, allowed in _DENSE.items():
        if config.get(name) not in allowed:
            raise UserError(
                f"{path} has {name}={shown(config[name])}; allowed: {allowed[-1]!r}"
            )
    stored = Tensors(folder)
    if set(stored) != {"linear.weight", "linear.bias"}:
        raise UserError(f"{folder} holds {sorted(stored)}; allowed: linear.*")
    return {
        f"{weights.POOLER}/kernel": stored.read("linear.weight").T,
        f"{weights.POOLER}/bias": stored.read("linear.bias"),
    }
