"""Reads and writes vocabulary files.

`vocab.txt` has a WordPiece token on each line, in the order of ids. `tokenizer.json`
describes the other tokenizers, see `tokenizer_file`.
"""

from __future__ import annotations

import os

import tensorflow as tf

from cmlm.common import atomic, json_files
from cmlm.common import files as files_lib
from cmlm.errors import UserError
from cmlm.tokenization import tokenizer_file
from cmlm.tokenization.tokenizer_file import MAX_TOKEN_CHARACTERS

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = {token.strip("[]").lower(): token for token in SPECIAL_TOKENS}

FILE_NAME = "vocab.txt"
# The names of vocabularies in a folder; the first one that is there counts.
NAMES = (tokenizer_file.FILE_NAME, FILE_NAME)


def is_json(path: str) -> bool:
    """Whether a vocabulary file is a tokenizer.json."""
    return path.endswith(".json")


def find(folder: str) -> str:
    """Returns the path of a folder's vocabulary; `vocab.txt` without one."""
    paths = [os.path.join(folder, name) for name in NAMES]
    return next(filter(tf.io.gfile.exists, paths), paths[-1])


def name_of(path: str) -> str:
    """Returns the usual name of a vocabulary file, which tells its format."""
    return tokenizer_file.FILE_NAME if is_json(path) else FILE_NAME


def same(path: str, other: str) -> bool:
    """Whether two vocabulary files give the same ids."""
    return is_json(path) == is_json(other) and read(path) == read(other)


def copy(path: str, folder: str) -> str:
    """Writes a vocabulary into a folder under its usual name, and returns its path."""
    if not is_json(path):
        copied = os.path.join(folder, FILE_NAME)
        write(load(path), copied)
        return copied
    tokenizer_file.read(path)
    return write_json(tokenizer_file.load(path), folder)


def write_json(values: dict, folder: str) -> str:
    """Writes a tokenizer.json into a folder, whole or not at all; returns its path."""
    path = os.path.join(folder, tokenizer_file.FILE_NAME)
    json_files.write(path, values, ensure_ascii=False)
    return path


def read(path: str) -> tokenizer_file.TokenizerFile:
    """Reads a vocabulary of either kind.

    Raises:
        UserError: see `load`.
    """
    if is_json(path):
        return tokenizer_file.read(path)
    return tokenizer_file.TokenizerFile("WordPiece", load(path), ROLES)


def load(path: str) -> list[str]:
    """Reads the tokens of a vocabulary in the order of their ids.

    Raises:
        UserError: the file is missing or empty, has an empty line or a repeated token,
            or lacks one of BERT's special tokens, or has a token above
            `MAX_TOKEN_CHARACTERS`; or see `files.open_text`, `tokenizer_file.read`.
    """
    if is_json(path):
        return tokenizer_file.read(path).tokens
    if not tf.io.gfile.exists(path):
        raise UserError(
            f"vocabulary {path} does not exist; allowed: a vocab.txt, as python -m "
            "cmlm.vocab writes it, or a tokenizer.json"
        )
    with files_lib.open_text(path) as lines:
        tokens = [line.rstrip("\r\n") for line in lines]
    if not any(tokens):
        raise UserError(f"vocabulary {path} is empty; allowed: one token a line")
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise UserError(
            f"vocabulary {path} lacks {', '.join(missing)}: it needs"
            f" {' '.join(SPECIAL_TOKENS)}, each on a line of its own"
        )
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(
                f"vocabulary {path}: line {number} is empty; allowed: one token a line"
            )
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise UserError(
                f"vocabulary {path}: line {number} has {len(token):,} characters; "
                f"allowed: at most {MAX_TOKEN_CHARACTERS:,}"
            )
        if token in first:
            raise UserError(
                f"vocabulary {path} has {token!r} twice: lines {first[token]} and"
                f" {number}"
            )
        first[token] = number
    return tokens


def write(tokens: list[str], path: str) -> None:
    """Writes a vocabulary atomically, one token a line."""
    with atomic.text(path) as file:
        file.writelines(f"{token}\n" for token in tokens)
