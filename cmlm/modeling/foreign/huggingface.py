"""Hugging Face's encoder folders, and sentence-transformers' around them.

config.json             shape; `architectures` lists the accepted `model_type`s
model.safetensors       weights; a pickle is refused
vocab.txt               WordPiece
tokenizer.json          WordPiece, byte-level BPE (or vocab.json and merges.txt) or
                        SentencePiece's unigram model, see `cmlm.data.tokenizer_file`
tokenizer_config.json   case
modules.json            sentence-transformers: pooling, normalisation, a Dense layer
1_Pooling/config.json

Everything is read as data; nothing of a folder is executed. `architectures` holds the
only table of names; `export.huggingface` uses it too.
"""

from __future__ import annotations

import os

from cmlm.common import json_files
from cmlm.data import rules as rules_lib
from cmlm.errors import UserError, shown
from cmlm.modeling import weights
from cmlm.modeling.foreign import (
    architectures,
    base,
    huggingface_tokenizer,
    modules,
    tensors,
)

CONFIG = "config.json"
# The key of config.json under which our own exports keep settings that BERT lacks.
OURS = "cmlm"

# Our activations by their names in config.json.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

# The weights with a row for each token.
_BY_TOKEN = (weights.WORDS, weights.OUTPUT_BIAS)


def names(num_layers: int, family: str = "bert") -> dict[str, str]:
    """Returns the name in a family's encoder of every weight, by our name."""
    return architectures.ARCHITECTURES[family].names(num_layers)


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
    around = modules.read(folder)
    transformer = os.path.join(folder, around["transformer"])
    path = os.path.join(transformer, CONFIG)
    config = json_files.read(path)
    architecture = architectures.of(config, path)
    model = architecture.settings(config, path)
    activation = model["hidden_activation"]
    if activation not in ACTIVATIONS:
        name = architecture.fields["hidden_activation"][0]
        raise UserError(
            f"{path} has {name}={shown(activation)}; allowed: {', '.join(ACTIVATIONS)}"
        )
    model["hidden_activation"] = ACTIVATIONS[activation]
    stored = tensors.Tensors(transformer)
    found, unused = architecture.find(stored, transformer)
    architecture.check_shapes(found, stored, model, config, path)
    notes = []
    ours = json_files.field(config, OURS, dict, path, {})
    if ours:
        model["num_views"] = json_files.field(ours, "num_views", int, path)
        model["sentence_vector"] = json_files.field(ours, "sentence_vector", str, path)
    if around["pooling"]:
        model["pooling"] = around["pooling"]
    elif ours:
        model["pooling"] = json_files.field(ours, "pooling", str, path)
    else:
        notes.append(
            "the folder states no pooling: mean, sentence-transformers' default"
        )
        model["pooling"] = "mean"
    prompts = [
        f"{shown(text)} ({name})" for name, text in around["prompts"].items() if text
    ]
    if prompts:
        notes.append(
            f"prompts are not applied: {weights.listed(prompts)}; write the one that "
            "you need before each text"
        )
    dense = around["dense"]
    if dense:
        found = {k: v for k, v in found.items() if not k.startswith(weights.POOLER)}

    def load():
        loaded = {
            here: stored.read(there).T if is_transposed(here) else stored.read(there)
            for here, there in found.items()
        }
        loaded = architecture.complete(loaded, stored, config, path)
        if spare:
            for name in _BY_TOKEN:
                if name in loaded:
                    loaded[name] = loaded[name][:-spare]
        return loaded | (
            modules.read_dense(os.path.join(folder, dense)) if dense else {}
        )

    tokenizer = huggingface_tokenizer.read(transformer, architecture)
    vocab_name, tokens = tokenizer["vocab_name"], len(tokenizer["vocab"] or [])
    # Tables are often padded to a round number of rows.
    spare = max(model["vocab_size"] - tokens, 0) if tokens else 0
    if spare and huggingface_tokenizer.last_id(transformer) < tokens:
        model["vocab_size"] = tokens
        notes.append(f"{spare:,} embedding rows without a token are left out")
    else:
        spare = 0
    if ours and vocab_name and "tokenizer" not in tokenizer:
        record = rules_lib.read(vocab_name)
        if record is not None and record.path == rules_lib.path_of(vocab_name):
            # Our own folder says what BertNormalizer cannot.
            tokenizer["rules"] = dict(record.rules)
    name = os.path.join(transformer, "sentence_bert_config.json")
    settings = json_files.optional(name)
    seq_length = settings.get("max_seq_length")
    if seq_length is not None:
        # [CLS], a token and [SEP].
        seq_length = json_files.field(settings, "max_seq_length", int, name, at_least=3)
    lowers = json_files.field(settings, "do_lower_case", bool, name, False)
    if lowers and not tokenizer["rules"]["lower_case"]:
        if "tokenizer" in tokenizer:
            raise UserError(f"{name} has do_lower_case=true; allowed: false")
        tokenizer["rules"]["lower_case"] = True
    return base.Source(
        path=folder,
        kind=f"a {'sentence-transformers' if around['is_st'] else 'Hugging Face'} "
        f"folder ({config['model_type']})",
        model=model,
        load=load,
        **tokenizer,
        seq_length=seq_length,
        own_positions=bool(ours),
        normalized=around["normalized"],
        prompts=around["prompts"],
        unused=unused,
        notes=notes,
    )
