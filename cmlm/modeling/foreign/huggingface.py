"""Hugging Face's BERT folders, and sentence-transformers' around them.

config.json             shape; `model_type` must be bert
model.safetensors       weights; a pickle is refused
vocab.txt               or the vocabulary inside tokenizer.json
tokenizer_config.json   case
modules.json            sentence-transformers: pooling, normalisation, a Dense layer
1_Pooling/config.json

Everything is read as data; nothing of a folder is executed. `NAMES` is the one table of
names, used in both directions (see `export.huggingface`).
"""

from __future__ import annotations

import os
import re

import ml_dtypes
import numpy as np
import safetensors
import tensorflow as tf

from cmlm.errors import UserError
from cmlm.modeling import weights
from cmlm.modeling.foreign import base

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MODULES = "modules.json"
# The key of config.json under which our own exports say what BERT has no field for.
OURS = "cmlm"

# Activations by their names there.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_NORMALIZE = re.compile(r"(^|\.)Normalize$")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids)$|cls\.seq_relationship\.|^classifier\."
    # Tied to the word embeddings and to predictions.bias.
    r"|cls\.predictions\.decoder\."
)

_DENSE = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "gamma", "bias": "beta"}
# Name there and here of the modules outside and inside a layer, and what each holds.
_OUTSIDE = {
    "embeddings.LayerNorm": ("embeddings/layer_norm", _NORM),
    "pooler.dense": ("pooler_transform", _DENSE),
    "cls.predictions.transform.dense": ("masked_lm/transform/dense", _DENSE),
    "cls.predictions.transform.LayerNorm": ("masked_lm/transform/LayerNorm", _NORM),
}
_INSIDE = {
    "attention.self.query": ("self_attention/query", _DENSE),
    "attention.self.key": ("self_attention/key", _DENSE),
    "attention.self.value": ("self_attention/value", _DENSE),
    "attention.output.dense": ("self_attention/attention_output", _DENSE),
    "attention.output.LayerNorm": ("self_attention_layer_norm", _NORM),
    "intermediate.dense": ("intermediate", _DENSE),
    "output.dense": ("output", _DENSE),
    "output.LayerNorm": ("output_layer_norm", _NORM),
}


def names(num_layers: int) -> dict[str, str]:
    """The name in a BertModel of every weight here, by the names here.

    In BertForPreTraining and BertForMaskedLM all but those that begin with `cls.` have
    `bert.` in front.
    """
    table = {
        weights.WORDS: "embeddings.word_embeddings.weight",
        weights.POSITIONS: "embeddings.position_embeddings.weight",
        weights.TYPES: "embeddings.token_type_embeddings.weight",
        f"{weights.MASKED_LM}output_bias/bias": "cls.predictions.bias",
    }
    for there, (here, parts) in _OUTSIDE.items():
        for part_there, part_here in parts.items():
            table[f"{here}/{part_here}"] = f"{there}.{part_there}"
    for number in range(num_layers):
        for there, (here, parts) in _INSIDE.items():
            for part_there, part_here in parts.items():
                name = weights.layer(number, f"{here}/{part_here}")
                table[name] = f"encoder.layer.{number}.{there}.{part_there}"
    return table


def is_transposed(name: str) -> bool:
    """Whether a weight, by its name here, is stored as [out, in] there."""
    return name.endswith("/kernel")


def read(folder: str) -> base.Source:
    """Reads a folder.

    Args:
        folder: a BERT folder, or a sentence-transformers folder with one in it.

    Raises:
        UserError: it is not one that this project can represent.
    """
    modules = _modules(folder)
    transformer = os.path.join(folder, modules["transformer"])
    path = os.path.join(transformer, CONFIG)
    config = base.read_json(path)
    _check(config, path)
    stored = _Tensors(transformer)
    found, unused = _translate(stored)
    num_layers = base.field(config, "num_hidden_layers", int, path)
    activation = base.field(config, "hidden_act", str, path, "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"{path} has hidden_act={activation!r}; allowed: {', '.join(ACTIVATIONS)}"
        )
    model = {
        "num_layers": num_layers,
        "hidden_size": base.field(config, "hidden_size", int, path),
        "num_attention_heads": base.field(config, "num_attention_heads", int, path),
        "intermediate_size": base.field(config, "intermediate_size", int, path),
        "hidden_activation": ACTIVATIONS[activation],
        "layer_norm_epsilon": base.field(config, "layer_norm_eps", float, path, 1e-12),
        "max_position_embeddings": base.field(
            config, "max_position_embeddings", int, path, 512
        ),
        "type_vocab_size": base.field(config, "type_vocab_size", int, path, 2),
        "vocab_size": base.field(config, "vocab_size", int, path),
        "dropout_rate": base.field(config, "hidden_dropout_prob", float, path, 0.1),
        "attention_dropout_rate": base.field(
            config, "attention_probs_dropout_prob", float, path, 0.1
        ),
        "initializer_range": base.field(config, "initializer_range", float, path, 0.02),
    }
    notes = []
    ours = config.get(OURS) or {}
    if ours:
        model["num_views"] = base.field(ours, "num_views", int, path)
        model["sentence_vector"] = base.field(ours, "sentence_vector", str, path)
    if modules["pooling"]:
        model["pooling"] = modules["pooling"]
    elif ours:
        model["pooling"] = base.field(ours, "pooling", str, path)
    else:
        notes.append("no pooling is stated: mean, as sentence-transformers takes it")
        model["pooling"] = "mean"
    dense = modules["dense"]
    if dense:
        found = {k: v for k, v in found.items() if not k.startswith(weights.POOLER)}

    def load():
        loaded = {
            here: stored.read(there).T if is_transposed(here) else stored.read(there)
            for here, there in found.items()
        }
        return loaded | (_dense(os.path.join(folder, dense)) if dense else {})

    vocab, vocab_name, lower_case = _tokenizer(transformer)
    settings = base.optional_json(transformer, "sentence_bert_config.json")
    seq_length = settings.get("max_seq_length")
    return base.Source(
        path=folder,
        kind="a sentence-transformers folder" if modules["is_st"] else "a BERT folder",
        model=model,
        load=load,
        vocab=vocab,
        vocab_name=vocab_name,
        lower_case=lower_case or bool(settings.get("do_lower_case")),
        seq_length=seq_length if isinstance(seq_length, int) else None,
        own_positions=bool(ours),
        normalized=modules["normalized"],
        unused=unused,
        notes=notes,
    )


# ------------------------------------------------------------------- weights


class _Tensors:
    """The arrays of a folder's safetensors file, or of the files its index names."""

    def __init__(self, folder: str):
        index = os.path.join(folder, f"{WEIGHTS}.index.json")
        if tf.io.gfile.exists(os.path.join(folder, WEIGHTS)):
            paths = [os.path.join(folder, WEIGHTS)]
        elif tf.io.gfile.exists(index):
            files = base.field(base.read_json(index), "weight_map", dict, index)
            # A name in the folder: an index has no business outside of it.
            chosen = {os.path.basename(str(name)) for name in files.values()}
            paths = [os.path.join(folder, name) for name in sorted(chosen)]
        else:
            refuse_pickle(folder)
            raise UserError(f"{folder} has no {WEIGHTS}")
        self._files = [_open(path) for path in paths]
        self._where = {
            name: (file, path)
            for file, path in zip(self._files, paths, strict=True)
            for name in file.keys()  # noqa: SIM118  (not a mapping)
        }

    def __iter__(self):
        return iter(self._where)

    def read(self, name: str) -> np.ndarray:
        """An array, as float32."""
        file, path = self._where[name]
        kind = file.get_slice(name).get_dtype()
        if kind not in ("F32", "F16", "BF16", "F64"):
            raise UserError(f"{path} has {name} as {kind}; allowed: F32, F16, BF16")
        return np.asarray(file.get_tensor(name)).astype(np.float32)


def _open(path: str):
    # The library maps a local file; nothing in the format can be executed.
    assert ml_dtypes.bfloat16  # registers bfloat16 with numpy, which it needs
    try:
        return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file: {error}") from error


def refuse_pickle(folder: str) -> None:
    """Raises UserError where a folder has its weights in a pickle only."""
    for name in sorted(tf.io.gfile.listdir(folder)):
        refuse_pickle_file(os.path.join(folder, name))


def refuse_pickle_file(path: str) -> None:
    """Raises UserError for a file with a pickle's name."""
    if path.endswith(_PICKLES):
        raise UserError(
            f"{path} is a pickle, which can run any program when it is read: convert "
            f"it to {WEIGHTS}"
        )


def _translate(stored: _Tensors) -> tuple[dict[str, str], list[str]]:
    """Names there by names here, and the names without use."""
    layers = {
        int(match.group(1))
        for name in stored
        if (match := re.search(r"(?:^|\.)encoder\.layer\.(\d+)\.", name))
    }
    here_by_there = {
        there: here for here, there in names(max(layers, default=-1) + 1).items()
    }

    def translate(name):
        name = name.removeprefix("bert.")
        # The names that the first conversions from TensorFlow kept.
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        return here_by_there.get(name)

    return base.rename(stored, translate, _UNUSED)


# ------------------------------------------------------------- configuration


def _check(config: dict, path: str) -> None:
    """Refuses what is not BERT as this project builds it."""
    kind = config.get("model_type")
    if kind != "bert":
        raise UserError(f"{path} has model_type={kind!r}; allowed: bert")
    for name, allowed in (
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        value = config.get(name, allowed)
        if value != allowed:
            raise UserError(f"{path} has {name}={value!r}; allowed: {allowed!r}")


def _modules(folder: str) -> dict:
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
    path = os.path.join(folder, MODULES)
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
            found["pooling"] = _pooling(os.path.join(folder, where, CONFIG))
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


def _dense(folder: str) -> dict[str, np.ndarray]:
    """A Dense module after [CLS], which is BERT's pooler by another name."""
    path = os.path.join(folder, CONFIG)
    config = base.read_json(path)
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    sizes = (config.get("in_features"), config.get("out_features"))
    if activation != "Tanh" or sizes[0] != sizes[1] or config.get("bias") is False:
        raise UserError(
            f"{path} is a layer of {sizes[0]} to {sizes[1]} with {activation}; allowed:"
            " equal sizes, a bias and Tanh"
        )
    stored = _Tensors(folder)
    if set(stored) != {"linear.weight", "linear.bias"}:
        raise UserError(f"{folder} holds {sorted(stored)}; allowed: linear.*")
    return {
        f"{weights.POOLER}kernel": stored.read("linear.weight").T,
        f"{weights.POOLER}bias": stored.read("linear.bias"),
    }


# ----------------------------------------------------------------- tokenizer


def _tokenizer(folder: str):
    """Vocabulary, its file's name, and whether text is lower-cased."""
    fast = base.optional_json(folder, "tokenizer.json")
    settings = base.optional_json(folder, "tokenizer_config.json")
    model = fast.get("model") or {}
    # Older files of WordPiece do not name their type.
    kind = model.get("type", "WordPiece")
    if fast and (kind != "WordPiece" or not isinstance(model.get("vocab"), dict)):
        raise UserError(
            f"{os.path.join(folder, 'tokenizer.json')} is a {kind} tokenizer; "
            "allowed: WordPiece"
        )
    normalizer = fast.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        normalizer = {}
    # What the fast tokenizer does is what the folder's vectors were made with.
    lower_case = normalizer.get("lowercase", settings.get("do_lower_case", True))
    strip = normalizer.get("strip_accents", settings.get("strip_accents"))
    chinese = normalizer.get(
        "handle_chinese_chars", settings.get("tokenize_chinese_chars", True)
    )
    if strip is not None and strip != lower_case:
        raise UserError(
            f"{folder} has strip_accents={strip} with lower case {lower_case}; the "
            "tokenizer here does both or neither"
        )
    if chinese is False:
        raise UserError(
            f"{folder} has tokenize_chinese_chars=False; the tokenizer here always "
            "splits Chinese characters"
        )
    path = os.path.join(folder, "vocab.txt")
    vocab = base.read_vocab(path)
    if vocab is None and fast:
        path = os.path.join(folder, "tokenizer.json")
        vocab = _vocab_of(fast, path)
    return vocab, path if vocab else "", bool(lower_case)


def _vocab_of(fast: dict, path: str) -> list[str]:
    """The tokens of tokenizer.json by id."""
    ids = dict(fast["model"]["vocab"])
    for token in fast.get("added_tokens") or ():
        ids[token["content"]] = token["id"]
    vocab = sorted(ids, key=ids.get)
    if [ids[token] for token in vocab] != list(range(len(vocab))):
        raise UserError(f"{path} has a vocabulary whose ids are not 0 to their number")
    return vocab
