"""BERT's WordPiece of a Hugging Face folder: its tokens and its rules."""

from __future__ import annotations

import os

from cmlm.common import json_files
from cmlm.errors import UserError, shown
from cmlm.modeling.foreign import base
from cmlm.modeling.foreign import huggingface_token_ids as token_ids
from cmlm.tokenization import bert_normalizer, tokenizer_file, vocabulary_file

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


def read(folder: str, fast: dict, rows: int, is_general: bool) -> dict:
    """Reads the tokens, and the rules of the text.

    Args:
        folder: the folder of the encoder.
        fast: the content of its tokenizer.json, or {}.
        rows: the rows of its embedding table.
        is_general: whether transformers takes every rule from tokenizer.json; if not,
            tokenizer_config.json wins.

    Returns:
        Fields of a `base.Source`.

    Raises:
        UserError: this project does not follow a rule.
    """
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
    normalizer, before = bert_normalizer.read(fast, fast_name, is_general)
    _check_special(fast, is_general, fast_name)

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
    }


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
        return token_ids.tokens_of(fast, fast_path), fast_path
    token_ids.refuse_other_ids(vocab, path, fast, fast_path)
    if len(vocab) <= token_ids.largest(token_ids.ids_of(fast, fast_path)) < rows:
        return token_ids.tokens_of(fast, fast_path), fast_path
    return vocab, path


def _check_special(fast: dict, is_general: bool, path: str) -> None:
    """Raises UserError if tokenizer.json has other special tokens than BERT's.

    Args:
        fast: its content.
        is_general: whether it must state the tokens around a text.
        path: its path.
    """
    unknown = json_files.field(fast, "model", dict, path, {}).get("unk_token")
    if unknown not in (None, "[UNK]"):
        raise UserError(
            f"{path} has model.unk_token={shown(unknown)}; allowed: '[UNK]'"
        )
    if is_general:
        tokens = list(tokenizer_file.enclosing(fast, path).values())
        if tokens != _BERT_ENDS:
            raise UserError(
                f"{path} puts {shown(tokens)} around a text; allowed: {_BERT_ENDS}"
            )
