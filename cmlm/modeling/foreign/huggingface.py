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

from cmlm.errors import UserError
from cmlm.modeling import weights
from cmlm.modeling.foreign import base, modules, tensors

CONFIG = "config.json"
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
    around = modules.read(folder)
    transformer = os.path.join(folder, around["transformer"])
    path = os.path.join(transformer, CONFIG)
    config = base.read_json(path)
    _check(config, path)
    stored = tensors.Tensors(transformer)
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
    if around["pooling"]:
        model["pooling"] = around["pooling"]
    elif ours:
        model["pooling"] = base.field(ours, "pooling", str, path)
    else:
        notes.append("no pooling is stated: mean, as sentence-transformers takes it")
        model["pooling"] = "mean"
    dense = around["dense"]
    if dense:
        found = {k: v for k, v in found.items() if not k.startswith(weights.POOLER)}

    def load():
        loaded = {
            here: stored.read(there).T if is_transposed(here) else stored.read(there)
            for here, there in found.items()
        }
        return loaded | (
            modules.read_dense(os.path.join(folder, dense)) if dense else {}
        )

    vocab, vocab_name, lower_case = _tokenizer(transformer)
    settings = base.optional_json(transformer, "sentence_bert_config.json")
    seq_length = settings.get("max_seq_length")
    return base.Source(
        path=folder,
        kind="a sentence-transformers folder" if around["is_st"] else "a BERT folder",
        model=model,
        load=load,
        vocab=vocab,
        vocab_name=vocab_name,
        lower_case=lower_case or bool(settings.get("do_lower_case")),
        seq_length=seq_length if isinstance(seq_length, int) else None,
        own_positions=bool(ours),
        normalized=around["normalized"],
        unused=unused,
        notes=notes,
    )


# ------------------------------------------------------------------- weights


def _translate(stored: tensors.Tensors) -> tuple[dict[str, str], list[str]]:
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
