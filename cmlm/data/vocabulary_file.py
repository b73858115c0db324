"""Reads and writes vocabulary files, `vocab.txt`: one token a line, in order of ids."""

from __future__ import annotations

import tensorflow as tf

from cmlm.common import files as files_lib
from cmlm.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# The longest token, in characters; words of more bytes than `max_word_bytes` are [UNK].
MAX_TOKEN_CHARACTERS = 1000

FILE_NAME = "vocab.txt"


def load(path: str) -> list[str]:
    """Reads a vocabulary; the token with id i is on line i + 1.

    Raises:
        UserError: the file is missing or empty, has an empty line or a repeated token,
            or lacks one of BERT's special tokens, or has a token with NUL or above
            `MAX_TOKEN_CHARACTERS`.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"vocabulary {path} does not exist")
    with files_lib.open_text(path) as lines:
        tokens = [line.rstrip("\r\n") for line in lines]
    if not any(tokens):
        raise UserError(f"vocabulary {path} is empty")
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise UserError(
            f"vocabulary {path} lacks {', '.join(missing)}: it needs"
            f" {' '.join(SPECIAL_TOKENS)}, each on a line of its own"
        )
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(f"vocabulary {path}: line {number} is empty")
        if "\0" in token:
            raise UserError(f"vocabulary {path}: line {number} has the character NUL")
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
    with files_lib.atomic_text(path) as file:
        file.writelines(f"{token}\n" for token in tokens)
