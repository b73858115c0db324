"""Finds the pieces of a vocabulary that a text needs to keep its tokens.

WordPiece repeatedly takes the longest piece that matches. If pieces that a text never
uses are removed, WordPiece still takes the same pieces of that text. A word that
becomes [UNK] needs care: WordPiece takes some of its pieces before no piece matches. If
one of these pieces were missing, a shorter piece could match instead, and the word
could become known. The text therefore needs these pieces, too.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.word_pieces import WordSplitter

_JOINER = "##"


def needed(tokenizer: Tokenizer, windows: Iterable[list[str]]) -> np.ndarray:
    """Finds the pieces that a text needs.

    The result has the pieces of the text's words and the special tokens. For the words
    of other texts it also has every single character that is ASCII or occurs in the
    text, alone and inside a word.

    Args:
        tokenizer: tokenizer of the vocabulary.
        windows: the text as lists of lines; one list is in memory at a time.

    Returns:
        bool [vocab_size].
    """
    ids = {piece: number for number, piece in enumerate(tokenizer.vocab)}
    kept = tokenizer.is_special.copy()
    splitter = WordSplitter(tokenizer.rules)
    characters = set(string.ascii_letters + string.digits + string.punctuation)
    for lines in windows:
        text = tf.constant([line.encode("utf-8", "surrogatepass") for line in lines])
        tokens = tokenizer.tokenize(text)
        kept[np.unique(tokens.flat_values)] = True
        unknown = tf.reduce_any(tokens == tokenizer.unk_id, axis=1)
        for word in set(splitter.split(tf.boolean_mask(text, unknown))):
            # A long word is [UNK] without a search for its pieces.
            if not tokenizer.is_long(word.decode()):
                kept[path(word.decode(), ids)] = True
        for line in splitter.normalize(text).numpy():
            characters.update(line.decode())
    for character in characters:
        for piece in (character, _JOINER + character):
            if piece in ids:
                kept[ids[piece]] = True
    return kept


def path(word: str, ids: Mapping[str, int]) -> list[int]:
    """Returns the ids of the pieces that WordPiece takes until no piece matches.

    Args:
        word: a normalised word.
        ids: pieces and their ids.
    """
    taken: list[int] = []
    start = 0
    while start < len(word):
        prefix = _JOINER if start else ""
        for end in range(len(word), start, -1):
            number = ids.get(prefix + word[start:end])
            if number is not None:
                taken.append(number)
                start = end
                break
        else:
            break
    return taken
