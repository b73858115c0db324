"""The tokenizer of a Hugging Face folder, read as data.

vocab.txt                WordPiece, see `huggingface_wordpiece`
tokenizer.json           WordPiece, byte-level BPE or SentencePiece's unigram model, see
                         `cmlm.tokenization.tokenizer_file`
vocab.json, merges.txt   byte-level BPE, see `huggingface_merges`
tokenizer_config.json    case
"""

from __future__ import annotations

import json
import os

import tensorflow as tf

from cmlm.common import json_files
from cmlm.errors import UserError, shown
from cmlm.modeling.foreign import huggingface_merges, huggingface_wordpiece
from cmlm.modeling.foreign.architecture import Architecture
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.rules import Rules, looks_lower_case

_SENTENCE_PIECES = ("sentencepiece.bpe.model", "spiece.model", "spm.model")
# The classes of transformers that take every rule from tokenizer.json.
_GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Its classes for SentencePiece, by model_type.
_PIECE_CLASSES = {
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}


def read(folder: str, architecture: Architecture, rows: int, fast: dict) -> dict:
    """Reads the fields of a `base.Source` that describe the tokenizer.

    Args:
        folder: the folder of the encoder.
        architecture: its architecture.
        rows: the rows of its embedding table.
        fast: the content of its tokenizer.json, or {}.

    Raises:
        UserError: this project does not follow a rule of the tokenizer.
    """
    _check_truncation(folder, fast)
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    if tf.io.gfile.exists(path):
        values = tokenizer_file.essence(fast)
        # Tokenizers of BERT's family need no more than their tokens and their rules.
        if not architecture.needs_tokenizer_file and _is_bert(values, path):
            return _wordpiece(folder, values, rows)
    elif tf.io.gfile.exists(os.path.join(folder, huggingface_merges.FILE_NAME)):
        path = os.path.join(folder, huggingface_merges.FILE_NAME)
        values = huggingface_merges.read(folder)
    elif architecture.needs_tokenizer_file or (
        any(tf.io.gfile.exists(os.path.join(folder, n)) for n in _SENTENCE_PIECES)
        and not tf.io.gfile.exists(os.path.join(folder, vocabulary_file.FILE_NAME))
    ):
        raise UserError(
            f"{folder} has no {tokenizer_file.FILE_NAME}, which its tokenizer needs; "
            "transformers writes it: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder), in an environment without TensorFlow (pip "
            "install transformers sentencepiece protobuf)"
        )
    else:
        return _wordpiece(folder, {}, rows)
    found = tokenizer_file.parse(values, path)
    _check_class(found, folder, path)
    return {
        "vocab": found.tokens,
        "vocab_name": path,
        "tokenizer": values,
        "padding": found.tokens.index(found.special["pad"]),
        "rules": found.rules.as_dict(),
        "warnings": _warnings_of_steps(found, folder),
    }


def _check_class(found: tokenizer_file.TokenizerFile, folder: str, path: str) -> None:
    """Refuses rules that transformers' class of the tokenizer takes from elsewhere.

    Args:
        found: the content of the tokenizer.json.
        folder: the folder of the encoder.
        path: the file of the tokenizer.
    """
    where = os.path.join(folder, "tokenizer_config.json")
    settings = json_files.optional(where)
    if found.kind == "Unigram" or _is_general(folder, settings):
        return
    if found.kind == "BPE":
        name, ours = "add_prefix_space", found.prefix_space
        theirs = json_files.field(settings, name, bool, where, False)
    else:
        name, ours = "case and accents", Rules(found.lower_case, found.strip_accents)
        theirs = _stated_case(settings)
    if ours != theirs:
        raise UserError(
            f"{path} has {name}={ours}, {where} has {theirs} (stated or the default); "
            f"allowed: the same, or tokenizer_class={_GENERAL[0]!r}"
        )


def _warnings_of_steps(found: tokenizer_file.TokenizerFile, folder: str) -> list[str]:
    """Warns of steps before SentencePiece that transformers' class does not take.

    Args:
        found: the content of the tokenizer.json.
        folder: the folder of the encoder.
    """
    settings = json_files.optional(folder, "tokenizer_config.json")
    name = str(_stated_class(folder, settings))
    # Their older classes have "Fast" at the end.
    if found.kind != "Unigram" or not name.startswith(tuple(_PIECE_CLASSES.values())):
        return []
    steps = []
    if name.startswith(_PIECE_CLASSES["albert"]):
        steps += [("Replace", quote, '"') for quote in ("``", "''")]
        if not settings.get("keep_accents", False):
            steps += [("NFKD",), ("StripAccents",)]
        if settings.get("do_lower_case", True):
            steps += [("Lowercase",)]
    if found.steps == tuple(steps):
        return []
    ours, theirs = (
        ", ".join(map(" ".join, each)) or "none" for each in (found.steps, steps)
    )
    return [
        f"the steps before SentencePiece are those of {tokenizer_file.FILE_NAME} "
        f"({ours}); {name} of transformers 5 takes its own ({theirs})"
    ]


def _stated_case(settings: dict) -> Rules:
    """The case and accents that transformers takes from tokenizer_config.json."""
    lowers = settings.get("do_lower_case")
    return Rules(True if lowers is None else lowers, settings.get("strip_accents"))


def _check_truncation(folder: str, fast: dict) -> None:
    """Refuses a tokenizer that cuts the start of a long text."""
    path = os.path.join(folder, "tokenizer_config.json")
    name, side = "truncation_side", json_files.optional(path).get("truncation_side")
    if side is None:
        path = os.path.join(folder, tokenizer_file.FILE_NAME)
        stated = json_files.field(fast, "truncation", dict, path, {})
        name, side = "truncation.direction", stated.get("direction")
    if side not in (None, "right", "Right"):
        raise UserError(f"{path} has {name}={shown(side)}; allowed: 'right'")


def _is_general(folder: str, settings: dict) -> bool:
    """Whether transformers takes every rule of a folder from its tokenizer.json.

    Args: see `_stated_class`.
    """
    return _stated_class(folder, settings) in _GENERAL


def _stated_class(folder: str, settings: dict) -> str | None:
    """transformers' class of a folder's tokenizer; None for an unknown one.

    Args:
        folder: the folder of the encoder.
        settings: the content of its tokenizer_config.json, or {}. If it names no class,
            config.json may; otherwise the architecture has one.
    """
    config = json_files.optional(folder, "config.json")
    stated = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return stated or _PIECE_CLASSES.get(config.get("model_type"))


def _is_bert(values: dict, path: str) -> bool:
    """Whether a tokenizer.json describes WordPiece with BERT's special tokens."""
    model = json_files.field(values, "model", dict, path, {})
    # Older WordPiece files do not name their type.
    if model.get("type", "WordPiece") != "WordPiece":
        return False
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        return True
    processor = json.dumps(values.get("post_processor"))
    return "<s>" not in processor


def _wordpiece(folder: str, fast: dict, rows: int) -> dict:
    """Reads BERT's WordPiece, and tells of rules that the folder does not state."""
    settings = json_files.optional(folder, "tokenizer_config.json")
    # transformers' class of BERT has its rules in tokenizer_config.json and its code.
    is_general = bool(fast) and _is_general(folder, settings)
    found = huggingface_wordpiece.read(folder, fast, rows, is_general)
    ours = Rules(found["rules"]["lower_case"], found["rules"]["strip_accents"])
    found["notes"] = [] if is_general else _note_of_case(ours, _stated_case(settings))
    is_stated = bool(fast) or settings.get("do_lower_case") is not None
    if not is_stated and not looks_lower_case(found["vocab"] or ()):
        found["warnings"] = [
            "text is lower-cased, transformers' default, although the vocabulary has "
            "capitals; do_lower_case=false in tokenizer_config.json keeps capitals"
        ]
    return found


def _note_of_case(ours: Rules, theirs: Rules) -> list[str]:
    """The note on rules that transformers takes from its defaults; empty without one.

    Args:
        ours: the rules that count here.
        theirs: the rules of tokenizer_config.json.
    """
    if theirs == ours:
        return []
    return [
        f"case and accents are those of {tokenizer_file.FILE_NAME} ({ours}); "
        "tokenizer_config.json does not state them, and BertTokenizer of transformers "
        f"takes its defaults ({theirs})"
    ]
