"""Byte-level BPE of a Hugging Face folder without tokenizer.json."""

from __future__ import annotations

import os

from cmlm.common import files, json_files
from cmlm.errors import UserError, shown

FILE_NAME = "merges.txt"
# The special tokens of RoBERTa by role.
_ROBERTA = {
    "cls": "<s>",
    "pad": "<pad>",
    "sep": "</s>",
    "unk": "<unk>",
    "mask": "<mask>",
}


def read(folder: str) -> dict:
    """Makes the contents of a tokenizer.json of vocab.json and merges.txt."""
    settings = json_files.optional(folder, "tokenizer_config.json")
    vocab = json_files.read(os.path.join(folder, "vocab.json"))
    path = os.path.join(folder, FILE_NAME)
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
