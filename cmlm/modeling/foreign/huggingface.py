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

from cmlm.data import vocabulary_file
from cmlm.errors import UserError
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
    config = base.read_json(path)
    architecture = architectures.of(config, path)
    model = architecture.settings(config, path)
    activation = model["hidden_activation"]
    if activation not in ACTIVATIONS:
        name = architecture.fields["hidden_activation"][0]
        raise UserError(
            f"{path} has {name}={activation!r}; allowed: {', '.join(ACTIVATIONS)}"
        )
    model["hidden_activation"] = ACTIVATIONS[activation]
    stored = tensors.Tensors(transformer)
    found, unused = architecture.find(stored)
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
    settings = base.optional_json(transformer, "sentence_bert_config.json")
    seq_length = settings.get("max_seq_length")
    if settings.get("do_lower_case") and not rules["lower_case"]:
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
        seq_length=seq_length if isinstance(seq_length, int) else None,
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
    fast = base.optional_json(folder, "tokenizer.json")
    settings = base.optional_json(folder, "tokenizer_config.json")
    model = fast.get("model") or {}
    # Older WordPiece files do not name their type.
    kind = model.get("type", "WordPiece")
    if fast and (kind != "WordPiece" or not isinstance(model.get("vocab"), dict)):
        raise UserError(
            f"{os.path.join(folder, 'tokenizer.json')} is a {kind} tokenizer; "
            f"{_ALLOWED_TOKENIZER}"
        )
    # The fast tokenizer decides, because the folder's vectors were made with it.
    normalizer, before = _normalizer(fast, os.path.join(folder, "tokenizer.json"))
    lower_case = normalizer.get("lowercase", settings.get("do_lower_case", True))
    strip = normalizer.get("strip_accents", settings.get("strip_accents"))
    chinese = normalizer.get(
        "handle_chinese_chars", settings.get("tokenize_chinese_chars", True)
    )
    if chinese is False:
        raise UserError(f"{folder} has tokenize_chinese_chars=False; allowed: True")
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocab = base.read_vocab(path)
    if vocab is None and fast:
        path = os.path.join(folder, "tokenizer.json")
        vocab = _vocab_of(fast, path)
    longest = model.get("max_input_chars_per_word", _MAX_CHARACTERS)
    rules = {
        "lower_case": bool(lower_case),
        "strip_accents": bool(lower_case if strip is None else strip),
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
    steps = fast.get("normalizer") or {}
    steps = steps.get("normalizers", [steps] if steps else [])
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
        kinds = ", ".join(str(step.get("type")) for step in steps)
        raise UserError(f"{path} normalises by {kinds}; allowed: BertNormalizer")
    return left[0], before


def _vocab_of(fast: dict, path: str) -> list[str]:
    """Returns the tokens of tokenizer.json in the order of their ids."""
    ids = dict(fast["model"]["vocab"])
    for token in fast.get("added_tokens") or ():
        ids[token["content"]] = token["id"]
    vocab = sorted(ids, key=ids.get)
    if [ids[token] for token in vocab] != list(range(len(vocab))):
        raise UserError(f"{path} has a vocabulary with missing or repeated ids")
    return vocab
