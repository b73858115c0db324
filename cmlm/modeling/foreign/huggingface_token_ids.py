"""The tokens of a Hugging Face folder by id, in its JSON files."""

from __future__ import annotations

import os
import re

from cmlm.common import json_files
from cmlm.errors import UserError, shown
from cmlm.tokenization import tokenizer_file


def last_id(folder: str, fast: dict) -> int:
    """The largest id that the JSON files of a folder give to a token, or -1.

    Args:
        folder: the folder of the encoder.
        fast: the content of its tokenizer.json, or {}.
    """
    ids = ids_of(fast, os.path.join(folder, tokenizer_file.FILE_NAME))
    ids += json_files.optional(folder, "added_tokens.json").values()
    settings = json_files.optional(folder, "tokenizer_config.json")
    named = settings.get("added_tokens_decoder")
    if isinstance(named, dict):
        ids += [int(number) for number in named if re.fullmatch(r"[0-9]{1,9}", number)]
    return largest(ids)


def largest(ids: list) -> int:
    """The largest id, or -1; values of other types do not count."""
    return max((number for number in ids if type(number) is int), default=-1)


def ids_of(fast: dict, path: str) -> list:
    """The ids that a tokenizer.json gives to tokens, added ones included."""
    model = json_files.field(fast, "model", dict, path, {})
    vocab = model.get("vocab")
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    added = json_files.field(fast, "added_tokens", list, path, [])
    return ids + [token.get("id") for token in added if isinstance(token, dict)]


def added_to_text(folder: str, fast: dict | None = None) -> list[str]:
    """The tokens that the folder's tokenizer finds in a text, special ones left out.

    Args:
        folder: the folder of the encoder.
        fast: the content of its tokenizer.json, or {}; None reads it.
    """
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    fast = json_files.optional(path) if fast is None else fast
    added = json_files.field(fast, "added_tokens", list, path, [])
    return [
        json_files.field(token, "content", str, path)
        for token in added
        if isinstance(token, dict) and not token.get("special")
    ]


def refuse_other_ids(vocab: list[str], path: str, fast: dict, fast_path: str) -> None:
    """Refuses ids of vocab.txt that have another token in tokenizer.json, or none.

    Args:
        vocab: the tokens of vocab.txt by id.
        path: its path.
        fast: the content of tokenizer.json, whose tokens are those of transformers.
        fast_path: its path.
    """
    added = json_files.field(fast, "added_tokens", list, fast_path, [])
    added = filter(lambda each: isinstance(each, dict), added)
    pairs = [(each.get("content"), each.get("id")) for each in added]
    pairs += fast["model"]["vocab"].items()
    tokens = {number: token for token, number in pairs if type(number) is int}
    for number, token in enumerate(vocab):
        if tokens.get(number) != token:
            other = shown(tokens[number]) if number in tokens else "no token"
            raise UserError(
                f"{path} gives the id {number} to {shown(token)}, {fast_path} to "
                f"{other}; allowed: the same token"
            )


def tokens_of(fast: dict, path: str) -> list[str]:
    """Returns the tokens of tokenizer.json in the order of their ids."""
    ids = dict(fast["model"]["vocab"])
    added = json_files.field(fast, "added_tokens", list, path, [])
    for token in added:
        if not isinstance(token, dict):
            raise UserError(f"{path} has {shown(token)} in added_tokens; allowed: dict")
        content = json_files.field(token, "content", str, path)
        ids[content] = json_files.field(token, "id", int, path)
    for token, number in ids.items():
        if type(number) is not int:
            raise UserError(
                f"{path} gives {shown(token)} the id {shown(number)}; allowed: an "
                "integer"
            )
    return tokenizer_file.in_order(ids, path)
