"""The tokenizer of a Hugging Face folder, read as data.

vocab.txt               WordPiece
tokenizer.json          WordPiece, byte-level BPE (or vocab.json and merges.txt) or
                        SentencePiece's unigram model, see
                        `cmlm.tokenization.tokenizer_file`
tokenizer_config.json   case
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import tensorflow as tf

from cmlm.common import files, json_files
from cmlm.errors import UserError, shown
from cmlm.modeling.foreign import architectures, base
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.rules import Rules

_MERGES = "merges.txt"
# The special tokens of RoBERTa by role.
_ROBERTA = {
    "cls": "<s>",
    "pad": "<pad>",
    "sep": "</s>",
    "unk": "<unk>",
    "mask": "<mask>",
}
_SENTENCE_PIECES = ("sentencepiece.bpe.model", "spiece.model", "spm.model")
# The classes of transformers that take every rule from tokenizer.json.
_GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
# The tokens before and after a text.
_BERT_ENDS = ["[CLS]", "[SEP]"]
# Keys of tokenizer_config.json by which other programs divide the text, as BERT models
# of Japanese do, and the only value of each that this project follows.
_DIVISION = {
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
# The rules of tokenizer_config.json, and BertNormalizer's names of them.
_BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def read(folder: str, architecture: architectures.Architecture, rows: int) -> dict:
    """Reads the fields of a `base.Source` that describe the tokenizer.

    Args:
        folder: the folder of the encoder.
        architecture: its architecture.
        rows: the rows of its embedding table.

    Raises:
        UserError: this project does not follow a rule of the tokenizer.
    """
    _check_truncation(folder)
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    if tf.io.gfile.exists(path):
        values = tokenizer_file.load(path)
        # Tokenizers of BERT's family need no more than their tokens and their rules.
        if not architecture.needs_tokenizer_file and _is_bert(values, path):
            return _wordpiece(folder, values, rows)
    elif tf.io.gfile.exists(os.path.join(folder, _MERGES)):
        path = os.path.join(folder, _MERGES)
        values = _byte_pairs(folder)
    elif architecture.needs_tokenizer_file or (
        any(tf.io.gfile.exists(os.path.join(folder, n)) for n in _SENTENCE_PIECES)
        and not tf.io.gfile.exists(os.path.join(folder, vocabulary_file.FILE_NAME))
    ):
        raise UserError(
            f"{folder} has no {tokenizer_file.FILE_NAME}, which its tokenizer needs; "
            "transformers writes it: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)"
        )
    else:
        return _wordpiece(folder, {}, rows)
    found = tokenizer_file.parse(values, path)
    if found.kind == "Unigram":
        tokenizer_file.check_spaces(values, path)
    _check_class(found, folder, path)
    return {
        "vocab": found.tokens,
        "vocab_name": path,
        "tokenizer": values,
        "padding": found.tokens.index(found.special["pad"]),
        "rules": found.rules.as_dict(),
    }


def _check_class(found: tokenizer_file.TokenizerFile, folder: str, path: str) -> None:
    """Refuses rules that transformers' class of the tokenizer takes from elsewhere.

    Args:
        found: what the tokenizer.json says.
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
            f"{path} has {name}={ours}, {where} {theirs}, by default if it is silent; "
            f"allowed: the same, or tokenizer_class={_GENERAL[0]!r}"
        )


def _stated_case(settings: dict) -> Rules:
    """The case and accents that transformers takes from tokenizer_config.json."""
    lowers = settings.get("do_lower_case")
    return Rules(True if lowers is None else lowers, settings.get("strip_accents"))


def _check_truncation(folder: str) -> None:
    """Refuses a tokenizer that cuts the start of a long text."""
    path = os.path.join(folder, "tokenizer_config.json")
    name, side = "truncation_side", json_files.optional(path).get("truncation_side")
    if side is None:
        path = os.path.join(folder, tokenizer_file.FILE_NAME)
        fast = json_files.optional(path)
        stated = json_files.field(fast, "truncation", dict, path, {})
        name, side = "truncation.direction", stated.get("direction")
    if side not in (None, "right", "Right"):
        raise UserError(f"{path} has {name}={shown(side)}; allowed: 'right'")


def last_id(folder: str) -> int:
    """The largest id that the JSON files of a folder give to a token, or -1."""
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    ids = _ids(json_files.optional(path), path)
    ids += json_files.optional(folder, "added_tokens.json").values()
    settings = json_files.optional(folder, "tokenizer_config.json")
    named = settings.get("added_tokens_decoder")
    if isinstance(named, dict):
        ids += [int(number) for number in named if re.fullmatch(r"[0-9]{1,9}", number)]
    return _largest(ids)


def _largest(ids: list) -> int:
    """The largest id, or -1; values of other types do not count."""
    return max((number for number in ids if type(number) is int), default=-1)


def _ids(fast: dict, path: str) -> list:
    """The ids that a tokenizer.json gives to tokens, added ones included."""
    model = json_files.field(fast, "model", dict, path, {})
    vocab = model.get("vocab")
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    added = json_files.field(fast, "added_tokens", list, path, [])
    return ids + [token.get("id") for token in added if isinstance(token, dict)]


def added_to_text(folder: str) -> list[str]:
    """The tokens that the folder's tokenizer finds in a text, special ones left out."""
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    added = json_files.field(json_files.optional(path), "added_tokens", list, path, [])
    return [
        json_files.field(token, "content", str, path)
        for token in added
        if isinstance(token, dict) and not token.get("special")
    ]


def _is_general(folder: str, settings: dict) -> bool:
    """Whether transformers takes every rule of a folder from its tokenizer.json.

    Args:
        folder: the folder of the encoder.
        settings: the content of its tokenizer_config.json, or {}. If it names no class,
            config.json may; otherwise the architecture has one.
    """
    config = json_files.optional(folder, "config.json")
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return name in _GENERAL


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


def _special_tokens(settings: dict, folder: str) -> dict[str, str]:
    """Reads the special tokens of byte-level BPE by role, by default RoBERTa's."""
    found = {}
    for role, default in _ROBERTA.items():
        value = settings.get(f"{role}_token", default)
        value = value.get("content", default) if isinstance(value, dict) else value
        if not isinstance(value, str):
            where = os.path.join(folder, "tokenizer_config.json")
            raise UserError(f"{where} has {role}_token={shown(value)}; allowed: str")
        found[role] = value
    return found


def _byte_pairs(folder: str) -> dict:
    """Makes the contents of a tokenizer.json of vocab.json and merges.txt."""
    settings = json_files.optional(folder, "tokenizer_config.json")
    vocab = json_files.read(os.path.join(folder, "vocab.json"))
    path = os.path.join(folder, _MERGES)
    try:
        text = files.whole(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error}") from error
    # Only "\n" ends a line: a token may hold other separators of lines.
    lines = text.split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]

    special = _special_tokens(settings, folder)
    cls, sep = special["cls"], special["sep"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab.get(token),
                "content": token,
                "single_word": False,
                "lstrip": token == special["mask"],
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in dict.fromkeys(special.values())
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": bool(settings.get("add_prefix_space", False)),
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [sep, vocab.get(sep)],
            "cls": [cls, vocab.get(cls)],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _wordpiece(folder: str, fast: dict, rows: int) -> dict:
    """Reads BERT's WordPiece: the tokens, and the rules of the text."""
    fast_name = os.path.join(folder, tokenizer_file.FILE_NAME)
    settings_name = os.path.join(folder, "tokenizer_config.json")
    settings = json_files.optional(settings_name)
    for name, allowed in _DIVISION.items():
        if settings.get(name) not in (None, allowed):
            raise UserError(
                f"{settings_name} has {name}={shown(settings[name])}; allowed: "
                f"{allowed!r}"
            )
    model = json_files.field(fast, "model", dict, fast_name, {})
    if fast:
        json_files.field(model, "vocab", dict, fast_name)
    normalizer, before = _normalizer(fast, fast_name)
    # transformers' class of BERT has its rules in tokenizer_config.json and its code.
    is_general = bool(fast) and _is_general(folder, settings)
    _check_division(fast, normalizer, before["style"], is_general, fast_name)

    def switch(name, default):
        """The value of a rule; None counts as the default."""
        places = [
            (settings, name, settings_name),
            (normalizer, _BERT_NORMALIZER[name], fast_name),
        ]
        if is_general:
            places.reverse()
        for values, key, path in places:
            if key in values:
                if values[key] is None:
                    return default
                return json_files.field(values, key, bool, path)
        return default

    lower_case = switch("do_lower_case", True)
    strip = switch("strip_accents", None)
    if not switch("tokenize_chinese_chars", True):
        raise UserError(f"{folder} has tokenize_chinese_chars=False; allowed: True")
    vocab, path = _vocabulary(folder, fast, rows)
    longest = tokenizer_file.longest_word(model, fast_name)
    rules = {
        "lower_case": lower_case,
        "strip_accents": lower_case if strip is None else strip,
        **before,
        # Words with more characters are [UNK].
        "max_word_bytes": 4 * longest,
        "max_word_characters": longest,
    }
    return {
        "vocab": vocab,
        "vocab_name": path if vocab else "",
        "padding": vocab.index("[PAD]") if "[PAD]" in (vocab or ()) else None,
        "rules": rules,
        "notes": (
            []
            if is_general
            else _note_of_case(settings, lower_case, rules["strip_accents"])
        ),
    }


def _note_of_case(settings: dict, lower_case: bool, strip_accents: bool) -> list[str]:
    """The note on rules that transformers takes from its defaults; empty without one.

    Args:
        settings: the content of tokenizer_config.json.
        lower_case, strip_accents: the rules that count here.
    """
    theirs = _stated_case(settings)
    ours = Rules(lower_case, strip_accents)
    if theirs == ours:
        return []
    return [
        f"case and accents are those of {tokenizer_file.FILE_NAME} ({ours}); "
        "tokenizer_config.json does not state them, and BertTokenizer of transformers "
        f"takes its defaults ({theirs})"
    ]


def _vocabulary(folder: str, fast: dict, rows: int) -> tuple[list[str] | None, str]:
    """Reads WordPiece's tokens by id from vocab.txt, or else from tokenizer.json.

    Args:
        folder: the folder of the encoder.
        fast: the content of its tokenizer.json, or {}.
        rows: the rows of its embedding table. tokenizer.json alone has the tokens that
            were added to vocab.txt, and they count if they have rows.

    Returns:
        The tokens, or None without a file, and the path of the file.
    """
    path = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocab = base.read_vocab(path)
    if not fast:
        return vocab, path
    fast_path = os.path.join(folder, tokenizer_file.FILE_NAME)
    if vocab is None:
        return _vocab_of(fast, fast_path), fast_path
    _check_ids(vocab, path, fast["model"]["vocab"], fast_path)
    if len(vocab) <= _largest(_ids(fast, fast_path)) < rows:
        return _vocab_of(fast, fast_path), fast_path
    return vocab, path


def _replace(there: str, here: str, kind: str = "String") -> dict:
    """A step of a normaliser that replaces a string, or matches of a `Regex`."""
    return {"type": "Replace", "pattern": {kind: there}, "content": here}


# The steps before BertNormalizer that our own folders may have. These fold letters as
# tf-text does.
FOLDING = [
    {"type": "NFKD"},
    _replace("\u00df", "ss"),
    _replace("\u1e9e", "ss"),
    _replace("\u03c2", "\u03c3"),
    _replace("\u0345", "\u03b9"),
]
# tf-text's folding drops joiners, soft hyphens and other invisible characters.
DROPPING = _replace(r"\p{Default_Ignorable_Code_Point}", "", "Regex")
# This step ends words as tf-text does, where BertNormalizer would join them.
SPLITTING = _replace(r"[\p{Cc}\p{Cf}]", " ", "Regex")
# Older folders have this step instead of the two above.
_SPLITTING_FOLDED = _replace(
    r"[[\p{Cc}\p{Cf}]&&\P{Default_Ignorable_Code_Point}]", " ", "Regex"
)
NORMALIZERS = {"nfc": {"type": "NFC"}, "nfkc": {"type": "NFKC"}}
DOTLESS_I = [
    _replace("I\u0307", "i"),
    _replace("\u0130", "i"),
    _replace("I", "\u0131"),
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
        left = left[left[:1] == [DROPPING] :]
    if left[:1] in ([SPLITTING], [_SPLITTING_FOLDED]):
        before["style"], left = "tf-text", left[1:]
    if not left:
        return {}, before
    if len(left) > 1 or left[0].get("type") != "BertNormalizer":
        kinds = ", ".join(shown(step.get("type")) for step in steps)
        raise UserError(f"{path} normalises by {kinds}; allowed: BertNormalizer")
    return left[0], before


def _check_division(
    fast: dict, normalizer: dict, style: str, is_general: bool, path: str
) -> None:
    """Raises UserError if tokenizer.json divides the text into other words or pieces.

    Args:
        fast: its content.
        normalizer: its BertNormalizer, or {}.
        style: the style of the rules before it.
        is_general: whether it must state every rule.
        path: its path.
    """
    splitter = fast.get("pre_tokenizer")
    if isinstance(splitter, dict):
        steps = splitter.get("pretokenizers")
        # A sequence of one step is that step.
        splitter = steps[0] if isinstance(steps, list) and len(steps) == 1 else splitter
    # The rules before it clean the text in the style of tf-text.
    cleans = True if style != "tf-text" else normalizer.get("clean_text")
    for name, values, key, allowed, is_needed in (
        ("normalizer", normalizer, "type", "BertNormalizer", is_general),
        ("normalizer", normalizer, "clean_text", cleans, False),
        ("pre_tokenizer", splitter, "type", "BertPreTokenizer", is_general),
        ("model", fast.get("model"), "continuing_subword_prefix", "##", False),
        ("model", fast.get("model"), "unk_token", "[UNK]", False),
    ):
        value = values.get(key) if isinstance(values, dict) else None
        if value != allowed and (is_needed or value is not None):
            raise UserError(
                f"{path} has {name}.{key}={shown(value)}; allowed: {allowed!r}"
            )
    if is_general:
        tokens = list(tokenizer_file.enclosing(fast, path).values())
        if tokens != _BERT_ENDS:
            raise UserError(
                f"{path} puts {shown(tokens)} around a text; allowed: {_BERT_ENDS}"
            )


def _check_ids(vocab: list[str], path: str, ids: dict, fast_path: str) -> None:
    """Raises UserError if two files of one folder give an id to different tokens.

    Args:
        vocab: the tokens of vocab.txt by id.
        path: its path.
        ids: the ids of tokenizer.json by token.
        fast_path: its path.
    """
    tokens = {number: token for token, number in ids.items() if type(number) is int}
    for number, token in enumerate(vocab):
        if tokens.get(number, token) != token:
            raise UserError(
                f"{path} gives the id {number} to {shown(token)}, {fast_path} to "
                f"{shown(tokens[number])}; allowed: the same token"
            )


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
