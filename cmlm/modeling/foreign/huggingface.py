"""Hugging Face's encoder folders, and sentence-transformers' around them.

config.json             shape; `architectures` lists the accepted `model_type`s
model.safetensors       weights; a pickle is refused
tokenizer.json, ...     see `huggingface_tokenizer`
modules.json            sentence-transformers: pooling, normalisation, a Dense layer
1_Pooling/config.json

Everything is read as data; nothing of a folder is executed. `architectures` holds the
only table of names; `export.huggingface` uses it too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cmlm.common import json_files
from cmlm.common.counts import counted
from cmlm.errors import UserError, shown
from cmlm.modeling import weights
from cmlm.modeling.foreign import (
    architectures,
    base,
    huggingface_token_ids,
    huggingface_tokenizer,
    modules,
    tensors,
)
from cmlm.modeling.foreign.architecture import Architecture
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import tokenizer_file

CONFIG = "config.json"
# The key of config.json under which our own exports keep settings that BERT lacks.
OURS = "cmlm"

# sentence-transformers' settings of the encoder; the first file that is there counts.
_SENTENCE_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)

# Our activations by their names in config.json.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Settings of sentence-transformers for the encoder, and the only value of each that
# this project follows.
_FOLLOWED = {
    "transformer_task": "feature-extraction",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "last_hidden_state"}
    },
    "module_output_name": "token_embeddings",
}
# By these, sentence-transformers cuts queries and documents at lengths of their own.
_LENGTHS_OF_TASKS = ("query_length", "document_length")
# By this, sentence-transformers appends mask tokens to a query.
_EXPANSION = "query_expansion"
_ENCODER_ARGUMENTS = ("config_args", "config_kwargs", "model_args", "model_kwargs")
# Arguments of the encoder that change no vector beyond rounding.
_WITHOUT_EFFECT = {
    *("add_pooling_layer", "attn_implementation", "dtype", "torch_dtype"),
    *("trust_remote_code", "use_cache"),
}
# The file of an adapter, whose weights transformers adds to those of the encoder.
_ADAPTER = "adapter_config.json"


def is_transposed(name: str) -> bool:
    """Whether the folder stores a weight, given by our name, as [out, in]."""
    return name.endswith("/kernel")


def read(folder: str) -> base.Source:
    """Reads a folder.

    Args:
        folder: an encoder's folder, or a sentence-transformers folder around it.

    Raises:
        UserError: this project cannot represent the encoder; the message says why.
    """
    # In our own folders, the encoder lies beside its modules.
    own = json_files.optional(folder, CONFIG).get(OURS)
    around = modules.read(folder, own if isinstance(own, dict) else ())
    transformer = os.path.join(folder, around.transformer)
    path = os.path.join(transformer, CONFIG)
    config = json_files.read(path)
    adapter = os.path.join(transformer, _ADAPTER)
    if tf.io.gfile.exists(adapter):
        raise UserError(
            f"{adapter} adds an adapter to the weights; allowed: a folder without it, "
            "which merge_and_unload() and save_pretrained() of peft write"
        )
    architecture = architectures.of(config, path)
    model = _shape(architecture, config, path)
    stored = tensors.Tensors(transformer)
    found, unused = architecture.find(stored, transformer, config)
    notes = architecture.tie(found, unused, config)
    architecture.check_shapes(found, stored, model, config, path)
    ours = json_files.field(config, OURS, dict, path, {})
    model |= _vector_settings(around.pooling, ours, path, notes)
    # sentence-transformers keeps a vector whole that has no more components.
    if around.dimensions < model["hidden_size"]:
        model["dimensions"] = around.dimensions
    notes += around.notes
    warnings = list(around.warnings)
    # Large vocabularies take a second to parse.
    fast = json_files.optional(transformer, tokenizer_file.FILE_NAME)
    tokenizer = _tokenizer(
        transformer, architecture, model["vocab_size"], bool(ours), fast
    )
    notes += tokenizer.pop("notes", [])
    warnings += tokenizer.pop("warnings", [])
    padding = tokenizer.pop("padding")
    skipped = architecture.skipped_positions(config, path)
    # The positions of an architecture that skips some follow its padding id.
    if skipped and padding not in (None, skipped - 1):
        raise UserError(
            f"{path} has positions after the padding id {skipped - 1}, its tokenizer "
            f"has the padding id {padding}; allowed: the same id"
        )
    spare = _spare_rows(transformer, model["vocab_size"], tokenizer["vocab"], fast)
    if spare:
        model["vocab_size"] -= spare
        notes.append(f"left out: {counted(spare, 'embedding row')} without a token")
    length = _longest_sentence(
        transformer, model["max_position_embeddings"] if around.is_st else None
    )
    _check_arguments(transformer, length)
    added = huggingface_token_ids.added_to_text(transformer, fast)
    if added:
        warnings.append(
            "the folder's tokenizer finds these added tokens in a text, and here they "
            f"count as text: {weights.listed(added)}"
        )
    if around.dense:
        # The Dense module stands for the pooler.
        found = {
            here: there
            for here, there in found.items()
            if not here.startswith(weights.POOLER)
        }

    def load():
        arrays = architecture.complete(_arrays(stored, found), stored, config, path)
        if spare:
            for name in weights.BY_TOKEN & arrays.keys():
                arrays[name] = arrays[name][:-spare]
        if around.dense:
            arrays |= modules.read_dense(os.path.join(folder, around.dense))
        return arrays

    return base.Source(
        path=folder,
        kind=f"a {'sentence-transformers' if around.is_st else 'Hugging Face'} "
        f"folder ({config['model_type']})",
        model=model,
        load=load,
        seq_length=length,
        **tokenizer,
        own_positions=bool(ours),
        fitted=_fitted(folder, around, ours, path, model),
        normalized=around.normalized,
        prompts=around.prompts,
        prompt=around.prompt,
        unused=unused,
        notes=notes,
        warnings=warnings,
    )


def _fitted(
    folder: str, around: modules.Modules, ours: dict, path: str, model: dict
) -> dict[str, base.Fitted]:
    """The modules that text determined, see `base.Source`.

    Args:
        folder: the folder.
        around: its modules.
        ours: the settings that our own exports add to config.json.
        path: the path of config.json.
        model: fields of EncoderConfig.
    """
    width, found = model.get("dimensions") or model["hidden_size"], {}
    for name, where in around.fitted.items():
        about = json_files.field(ours, name, dict, path)
        read = functools.partial(
            modules.read_fitted, name, os.path.join(folder, where), width
        )
        sentences = json_files.field(about, "sentences", int, path, at_least=1)
        found[name] = base.Fitted(sentences, read)
    return found


def _arrays(stored: tensors.Tensors, found: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Reads the weights under our names and in our order of axes.

    Args:
        stored: the weights of the folder.
        found: the folder's name of each weight, by our name.
    """
    return {
        here: stored.read(there).T if is_transposed(here) else stored.read(there)
        for here, there in found.items()
    }


def _shape(architecture: Architecture, config: dict, path: str) -> dict[str, Any]:
    """Reads the fields of EncoderConfig for the shape of the encoder.

    Raises:
        UserError: a value is missing or cannot be represented.
    """
    model = architecture.settings(config, path)
    activation = model["hidden_activation"]
    if activation not in ACTIVATIONS:
        name = architecture.fields["hidden_activation"][0]
        raise UserError(
            f"{path} has {name}={shown(activation)}; allowed: {', '.join(ACTIVATIONS)}"
        )
    return model | {"hidden_activation": ACTIVATIONS[activation]}


def _vector_settings(
    pooling: str, ours: dict, path: str, notes: list[str]
) -> dict[str, Any]:
    """Reads the fields of EncoderConfig that make a sentence vector of tokens.

    Args:
        pooling: the pooling of the module around the encoder; "" without one.
        ours: the settings that our own exports add to config.json, or {}.
        path: the path of config.json.
        notes: receives a sentence if the pooling is assumed.
    """
    if not ours and not pooling:
        notes.append(
            "the folder states no pooling: mean, sentence-transformers' default"
        )
    if not ours:
        return {"pooling": pooling or "mean"}
    return {
        "num_views": json_files.field(ours, "num_views", int, path),
        "sentence_vector": json_files.field(ours, "sentence_vector", str, path),
        "pooling": pooling or json_files.field(ours, "pooling", str, path),
    }


def _tokenizer(
    folder: str,
    architecture: Architecture,
    rows: int,
    is_ours: bool,
    fast: dict,
) -> dict[str, Any]:
    """Reads the fields of a `Source` that describe the tokenizer; see `read`.

    Raises:
        UserError: this project does not follow a rule of the tokenizer.
    """
    found = huggingface_tokenizer.read(folder, architecture, rows, fast)
    vocab_name = found["vocab_name"]
    if is_ours and vocab_name and "tokenizer" not in found:
        record = rules_lib.read(vocab_name)
        if record is not None and record.path == rules_lib.path_of(vocab_name):
            # Our own folder says what BertNormalizer cannot.
            found["rules"] = dict(record.rules)
    settings, path = _sentence_settings(folder)
    lowers = json_files.field(settings, "do_lower_case", bool, path, False)
    if lowers and not found["rules"]["lower_case"]:
        if "tokenizer" in found:
            raise UserError(f"{path} has do_lower_case=true; allowed: false")
        found["rules"]["lower_case"] = True
    return found


def _spare_rows(folder: str, rows: int, vocab: list[str] | None, fast: dict) -> int:
    """The last embedding rows, if no token has them: tables are often padded."""
    if not vocab or rows <= len(vocab):
        return 0
    is_used = huggingface_token_ids.last_id(folder, fast) >= len(vocab)
    return 0 if is_used else rows - len(vocab)


def _sentence_settings(folder: str) -> tuple[dict[str, Any], str]:
    """sentence-transformers' settings of an encoder, and the path of their file."""
    paths = [os.path.join(folder, name) for name in _SENTENCE_SETTINGS]
    path = next(filter(tf.io.gfile.exists, paths), paths[0])
    return json_files.optional(path), path


def _check_arguments(folder: str, length: int | None) -> None:
    """Refuses arguments by which sentence-transformers changes encoder or tokenizer.

    Args:
        folder: the folder of the encoder.
        length: the longest sentence in tokens.

    Raises:
        UserError: an argument that says more than the other files of the folder.
    """
    settings, path = _sentence_settings(folder)
    for name, value in _FOLLOWED.items():
        if settings.get(name) not in (None, value):
            raise UserError(
                f"{path} has {name}={shown(settings[name])}; allowed: {value!r}"
            )
    for name in _LENGTHS_OF_TASKS:
        if settings.get(name) not in (None, length):
            raise UserError(
                f"{path} has {name}={shown(settings[name])}; allowed: null, or the "
                f"longest sentence, {length}"
            )
    if settings.get(_EXPANSION) is not None:
        raise UserError(
            f"{path} has {_EXPANSION}={shown(settings[_EXPANSION])}; allowed: null"
        )
    for group in _ENCODER_ARGUMENTS:
        values = json_files.field(settings, group, dict, path, {})
        for name in sorted(values.keys() - _WITHOUT_EFFECT):
            raise UserError(
                f"{path} has {group}.{name}={shown(values[name])}; allowed: the "
                f"setting in {CONFIG}"
            )
    groups = {name: settings for name in ("tokenizer_args", "processor_kwargs")}
    calls = json_files.field(settings, "processing_kwargs", dict, path, {})
    groups |= {name: calls for name in ("common", "text")}
    known = {
        "model_max_length": (length,),
        "max_length": (length,),
        "truncation": (True, "longest_first"),
        "padding": (True, "longest"),
        "return_tensors": ("pt",),
        "use_fast": (True, False),
        "trust_remote_code": (True, False),
    }
    for group, values in groups.items():
        for name, value in json_files.field(values, group, dict, path, {}).items():
            allowed = (None, *known.get(name, ()))
            if value not in allowed:
                raise UserError(
                    f"{path} has {group}.{name}={shown(value)}; allowed: "
                    f"{' or '.join(map(str, allowed))}"
                )


def _longest_sentence(folder: str, positions: int | None) -> int | None:
    """Returns the longest sentence in tokens, if sentence-transformers states it.

    Args:
        folder: the folder of the encoder.
        positions: the longest sequence of the encoder, for a folder of
            sentence-transformers; None for any other folder.

    Raises:
        UserError: a value is not allowed.
    """
    settings, path = _sentence_settings(folder)
    if settings.get("max_seq_length") is not None:
        # [CLS], a token and [SEP].
        return json_files.field(settings, "max_seq_length", int, path, at_least=3)
    if positions is None:
        return None
    # sentence-transformers 6 states the length there only.
    limit = json_files.optional(folder, "tokenizer_config.json").get("model_max_length")
    is_limit = type(limit) in (int, float) and 3 <= limit < positions
    return int(limit) if is_limit else positions
