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

    vocab, vocab_name, lower_case, max_characters = _tokenizer(transformer)
    settings = base.optional_json(transformer, "sentence_bert_config.json")
    seq_length = settings.get("max_seq_length")
    return base.Source(
        path=folder,
        kind=f"a {'sentence-transformers' if around['is_st'] else 'Hugging Face'} "
        f"folder ({config['model_type']})",
        model=model,
        load=load,
        vocab=vocab,
        vocab_name=vocab_name,
        lower_case=lower_case or bool(settings.get("do_lower_case")),
        max_word_bytes=4 * max_characters,
        max_word_characters=max_characters,
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
    """Reads the vocabulary, its file's name, lower case, and the longest known word.

    Words with more characters than the longest known word are [UNK].

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
    normalizer = fast.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        normalizer = {}
    # The fast tokenizer decides, because the folder's vectors were made with it.
    lower_case = normalizer.get("lowercase", settings.get("do_lower_case", True))
    strip = normalizer.get("strip_accents", settings.get("strip_accents"))
    chinese = normalizer.get(
        "handle_chinese_chars", settings.get("tokenize_chinese_chars", True)
    )
    if strip is not None and strip != lower_case:
        raise UserError(
            f"{folder} has strip_accents={strip} and lower case {lower_case}; allowed: "
            "both or neither"
        )
    if chinese is False:
        raise UserError(f"{folder} has tokenize_chinese_chars=False; allowed: True")
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocab = base.read_vocab(path)
    if vocab is None and fast:
        path = os.path.join(folder, "tokenizer.json")
        vocab = _vocab_of(fast, path)
    longest = model.get("max_input_chars_per_word", _MAX_CHARACTERS)
    return vocab, path if vocab else "", bool(lower_case), longest


def _vocab_of(fast: dict, path: str) -> list[str]:
    """Returns the tokens of tokenizer.json in the order of their ids."""
    ids = dict(fast["model"]["vocab"])
    for token in fast.get("added_tokens") or ():
        ids[token["content"]] = token["id"]
    vocab = sorted(ids, key=ids.get)
    if [ids[token] for token in vocab] != list(range(len(vocab))):
        raise UserError(f"{path} has a vocabulary with missing or repeated ids")
    return vocab
