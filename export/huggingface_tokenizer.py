"""Writes the tokenizer of a folder for Hugging Face's libraries.

`modeling/foreign/huggingface_tokenizer.py` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cmlm.tokenization import (
    bert_normalizer,
    letters,
    tokenizer_file,
    vocabulary_file,
)
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import Rules
from export import huggingface_files

# The class of transformers that reads a tokenizer.json as it stands, in every version.
_GENERAL_CLASS = "PreTrainedTokenizerFast"
_BERT_NORMALIZER = "BertNormalizer"


def write(
    tokenizer: Tokenizer, directory: str, seq_length: int, with_segments: bool
) -> None:
    """Writes the vocabulary, its rules and the files of the tokenizer.

    Args:
        tokenizer: the tokenizer.
        directory: the folder.
        seq_length: the longest sentence in tokens.
        with_segments: whether the two texts of a pair have different segments.
    """
    special = {
        f"{role}_token": tokenizer.vocab[getattr(tokenizer, f"{role}_id")]
        for role in ("unk", "sep", "pad", "cls", "mask")
    }
    if vocabulary_file.is_json(tokenizer.vocab_file):
        vocabulary_file.copy(tokenizer.vocab_file, directory)
        special["bos_token"] = special["cls_token"]
        special["eos_token"] = special["sep_token"]
        settings = {"tokenizer_class": _GENERAL_CLASS}
    else:
        settings = _write_word_pieces(tokenizer, directory)
    if with_segments:
        # The general class leaves token_type_ids out by default.
        settings["model_input_names"] = [
            "input_ids",
            "token_type_ids",
            "attention_mask",
        ]
    huggingface_files.write_json(directory, "special_tokens_map.json", special)
    huggingface_files.write_json(
        directory,
        "tokenizer_config.json",
        {
            **settings,
            "model_max_length": seq_length,
            # In this project, no text gives a special token.
            "split_special_tokens": True,
            **special,
        },
    )


def _write_word_pieces(tokenizer: Tokenizer, directory: str) -> dict[str, Any]:
    """Writes the vocabulary, its rules and a tokenizer.json.

    Returns:
        The settings of tokenizer_config.json for them.
    """
    rules = tokenizer.rules
    vocab_file = os.path.join(directory, vocabulary_file.FILE_NAME)
    vocabulary_file.write(tokenizer.vocab, vocab_file)
    rules_lib.write(vocab_file, rules)
    normalizer = _normalizer(rules)
    values = _tokenizer_json(tokenizer.vocab, normalizer, rules)
    huggingface_files.write_json(directory, "tokenizer.json", values)
    # BertTokenizer would build its own normaliser and limit.
    is_plain = (
        normalizer["type"] == _BERT_NORMALIZER
        and _longest_word(rules) == tokenizer_file.MAX_CHARACTERS
    )
    return {
        "tokenizer_class": "BertTokenizer" if is_plain else _GENERAL_CLASS,
        "do_lower_case": rules.lower_case,
        "strip_accents": _strip_accents(rules),
        "tokenize_chinese_chars": True,
    }


def _longest_word(rules: Rules) -> int:
    """The longest word in characters, which Hugging Face counts.

    Scripts whose words are long, such as Thai, have three bytes a character, so a third
    of the bytes is the same limit there.
    """
    return rules.max_word_characters or rules.max_word_bytes // 3


def _strip_accents(rules: Rules) -> bool | None:
    """Hugging Face's setting, whose None means: as `lower_case` says."""
    return rules.strip_accents if rules.strip_accents != rules.lower_case else None


def _normalizer(rules: Rules) -> dict:
    """BERT's normaliser, after the steps that it lacks."""
    bert = {
        "type": _BERT_NORMALIZER,
        # It would drop U+FFFD, which tf-text keeps.
        "clean_text": rules.style != "tf-text",
        "handle_chinese_chars": True,
        "strip_accents": _strip_accents(rules),
        "lowercase": rules.lower_case,
    }
    before = []
    if rules.normalization:
        before.append(bert_normalizer.NORMALIZERS[rules.normalization])
    if rules.dotless_i:
        before += bert_normalizer.DOTLESS_I
    if letters.left_to_tf_text(rules):
        before += [*bert_normalizer.FOLDING, bert_normalizer.DROPPING]
    if rules.style == "tf-text":
        before.append(bert_normalizer.SPLITTING)
    return {"type": "Sequence", "normalizers": [*before, bert]} if before else bert


def _tokenizer_json(vocab: Sequence[str], normalizer: dict, rules: Rules) -> dict:
    """The content of tokenizer.json for a WordPiece vocabulary."""
    ids = {token: index for index, token in enumerate(vocab)}

    def special(token):
        return {"id": token, "ids": [ids[token]], "tokens": [token]}

    def piece(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    first = [
        piece("SpecialToken", "[CLS]", 0),
        piece("Sequence", "A", 0),
        piece("SpecialToken", "[SEP]", 0),
    ]
    second = [piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                **dict.fromkeys(flags, False),
                "special": True,
            }
            for token in sorted(vocabulary_file.SPECIAL_TOKENS, key=ids.get)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {t: special(t) for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": rules_lib.JOINER, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": rules_lib.JOINER,
            "max_input_chars_per_word": _longest_word(rules),
            "vocab": ids,
        },
    }
