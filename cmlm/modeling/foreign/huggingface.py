"""Hugging Face's encoder folders, and sentence-transformers' around them.

config.json             shape; `architectures` lists the accepted `model_type`s
model.safetensors       weights; a pickle is refused
vocab.txt               or the vocabulary inside tokenizer.json; WordPiece only
tokenizer_config.json   case
modules.json            sentence-transformers: pooling, normalisation, a Dense layer
1_Pooling/config.json

Everything is read as data; nothing of a folder is executed. `architectures` holds the
only table of names; `export.huggingface` uses it too.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from cmlm.common import json_files
from cmlm.data import rules as rules_lib
from cmlm.data import vocabulary_file
from cmlm.errors import UserError, shown
from cmlm.modeling import weights
from cmlm.modeling.foreign import architectures, base, modules, tensors

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
# The longest word in characters, by transformers' default; longer words are [UNK].
_MAX_CHARACTERS = 100


def names(num_layers: int) -> dict[str, str]:
    """Returns the name in a BertModel of every weight, by our name."""
    return architectures.ARCHITECTURES["bert"].names(num_layers)


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
    found, unused = architecture.find(stored)
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
    dense = around["dense"]
    if dense:
        found = {k: v for k, v in found.items() if not k.startswith(weights.POOLER)}

    def load():
        loaded = {
            here: stored.read(there).T if is_transposed(here) else stored.read(there)
            for here, there in found.items()
        }
        loaded = architecture.complete(loaded, stored, config, path)
        return loaded | (
            modules.read_dense(os.path.join(folder, dense)) if dense else {}
        )

    vocab, vocab_name, rules = _tokenizer(transformer)
    record = rules_lib.read(vocab_name) if ours and vocab_name else None
    if record is not None and record.path == rules_lib.path_of(vocab_name):
        # Our own folder says what BertNormalizer cannot.
        rules = dict(record.rules)
    name = os.path.join(transformer, "sentence_bert_config.json")
    settings = json_files.optional(name)
    seq_length = settings.get("max_seq_length")
    if seq_length is not None:
        # [CLS], a token and [SEP].
        seq_length = json_files.field(settings, "max_seq_length", int, name, at_least=3)
    lowers = json_files.field(settings, "do_lower_case", bool, name, False)
    if lowers and not rules["lower_case"]:
        rules["lower_case"] = True
    return base.Source(
        path=folder,
        kind=f"a {'sentence-transformers' if around['is_st'] else 'Hugging Face'} "
        f"folder ({config['model_type']})",
        model=model,
        load=load,
        vocab=vocab,
        vocab_name=vocab_name,
        rules=rules,
        seq_length=seq_length,
        own_positions=bool(ours),
        normalized=around["normalized"],
        unused=unused,
        notes=notes,
    )


# ----------------------------------------------------------------- tokenizer


_ALLOWED_TOKENIZER = "allowed: WordPiece, because tf-text runs it inside the graph"
_OTHER_TOKENIZERS = {
    "merges.txt": "byte-level BPE",
    "sentencepiece.bpe.model": "SentencePiece",
    "spiece.model": "SentencePiece",
}


def _refuse_other_tokenizers(folder: str) -> None:
    if tf.io.gfile.exists(os.path.join(folder, vocabulary_file.FILE_NAME)):
        return
    for name, kind in _OTHER_TOKENIZERS.items():
        path = os.path.join(folder, name)
        if tf.io.gfile.exists(path):
            raise UserError(f"{path} belongs to {kind}; {_ALLOWED_TOKENIZER}")


def _tokenizer(folder: str):
    """Reads the vocabulary, its file's name, and the rules of the text.

    Raises:
        UserError: the tokenizer is not BERT's WordPiece.
    """
    _refuse_other_tokenizers(folder)
    fast = json_files.optional(folder, "tokenizer.json")
    settings = json_files.optional(folder, "tokenizer_config.json")
    fast_name = os.path.join(folder, "tokenizer.json")
    settings_name = os.path.join(folder, "tokenizer_config.json")
    model = json_files.field(fast, "model", dict, fast_name, {})
    # Older WordPiece files do not name their type.
    kind = model.get("type", "WordPiece")
    if fast and (kind != "WordPiece" or not isinstance(model.get("vocab"), dict)):
        raise UserError(
            f"{fast_name} is a {shown(kind)[1:-1]} tokenizer; {_ALLOWED_TOKENIZER}"
        )
    normalizer, before = _normalizer(fast, fast_name)

    # The fast tokenizer decides, because the folder's vectors were made with it.
    def switch(fast_key, key, default):
        if normalizer.get(fast_key) is not None:
            return json_files.field(normalizer, fast_key, bool, fast_name)
        if fast_key not in normalizer and settings.get(key) is not None:
            return json_files.field(settings, key, bool, settings_name)
        return default

    lower_case = switch("lowercase", "do_lower_case", True)
    strip = switch("strip_accents", "strip_accents", None)
    chinese = switch("handle_chinese_chars", "tokenize_chinese_chars", True)
    if chinese is False:
        raise UserError(f"{folder} has tokenize_chinese_chars=False; allowed: True")
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocab = base.read_vocab(path)
    if vocab is None and fast:
        path = fast_name
        vocab = _vocab_of(fast, path)
    longest = json_files.field(
        *(model, "max_input_chars_per_word", int, fast_name, _MAX_CHARACTERS),
        at_least=1,
    )
    rules = {
        "lower_case": lower_case,
        "strip_accents": lower_case if strip is None else strip,
        **before,
        # Words with more characters are [UNK].
        "max_word_bytes": 4 * longest,
        "max_word_characters": longest,
    }
    return vocab, path if vocab else "", rules


# The steps before BertNormalizer that our own folders may have. These fold letters as
# tf-text does.
FOLDING = [
    {"type": "NFKD"},
    *(
        {"type": "Replace", "pattern": {"String": there}, "content": here}
        for there, here in (
            *(("\u00df", "ss"), ("\u1e9e", "ss"), ("\u03c2", "\u03c3")),
            ("\u0345", "\u03b9"),
        )
    ),
]
NORMALIZERS = {"nfc": {"type": "NFC"}, "nfkc": {"type": "NFKC"}}
DOTLESS_I = [
    {"type": "Replace", "pattern": {"String": there}, "content": here}
    for there, here in (("I\u0307", "i"), ("\u0130", "i"), ("I", "\u0131"))
]


def _normalizer(fast: dict, path: str) -> tuple[dict, dict[str, Any]]:
    """Returns the BertNormalizer of tokenizer.json, and the rules before it.

    Raises:
        UserError: a step that tf-text cannot do inside the graph.
    """
    whole = json_files.field(fast, "normalizer", dict, path, {})
    steps = json_files.field(whole, "normalizers", list, path, [whole] if whole else [])
    if not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{path} has normalizers={shown(steps)}; allowed: objects")
    before: dict[str, Any] = {
        "normalization": "",
        "dotless_i": False,
        "style": "hugging-face",
    }
    left = list(steps)
    for name, step in NORMALIZERS.items():
        if left[:1] == [step]:
            before["normalization"], left = name, left[1:]
    if left[: len(DOTLESS_I)] == DOTLESS_I:
        before["dotless_i"], left = True, left[len(DOTLESS_I) :]
    if left[: len(FOLDING)] == FOLDING:
        before["style"], left = "tf-text", left[len(FOLDING) :]
    if not left:
        return {}, before
    if len(left) > 1 or left[0].get("type") != "BertNormalizer":
        kinds = ", ".join(shown(step.get("type")) for step in steps)
        raise UserError(f"{path} normalises by {kinds}; allowed: BertNormalizer")
    return left[0], before


def _vocab_of(fast: dict, path: str) -> list[str]:
    """Returns the tokens of tokenizer.json in the order of their ids."""
    ids = dict(fast["model"]["vocab"])
    added = json_files.field(fast, "added_tokens", list, path, [])
    for token in added:
        if not isinstance(token, dict):
            raise UserError(f"{path} has {shown(token)} in added_tokens; allowed: dict")
        content = json_files.field(token, "content", str, path)
        ids[content] = json_files.field(token, "id", int, path)
    if not all(type(number) is int for number in ids.values()):
        raise UserError(f"{path} has a vocabulary with other ids; allowed: integers")
    vocab = sorted(ids, key=ids.get)
    if [ids[token] for token in vocab] != list(range(len(vocab))):
        raise UserError(f"{path} has a vocabulary with missing or repeated ids")
    return vocab
