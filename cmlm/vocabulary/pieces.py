"""Which pieces of a vocabulary a text needs: without the rest it reads the same.

WordPiece takes the longest piece that fits, again and again. A vocabulary with fewer
pieces takes the same ones as long as it has them, because what it lacks was never the
longest that was taken. A word that comes out as [UNK] has a path as well, which ends
where nothing fits; without the pieces on it a shorter one could be taken, and the word
would be known all of a sudden. So those are needed too.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from cmlm.data.tokenization import Tokenizer
from cmlm.vocabulary import words

_JOINER = "##"
# The tokenizer reads a longer word as [UNK] without looking at its pieces.
_MAX_WORD_BYTES = 100


def needed(tokenizer: Tokenizer, windows: Iterable[list[str]]) -> np.ndarray:
    """Finds the pieces that a text needs.

    Besides the pieces of its words, the special tokens are kept, and, for words that
    the text does not have, every single character that occurs in it or is ASCII, alone
    and inside a word.

    Args:
        tokenizer: of the vocabulary.
        windows: the text, some lines at a time; memory is that of one of them.

    Returns:
        bool [vocab_size].
    """
    ids = {piece: number for number, piece in enumerate(tokenizer.vocab)}
    kept = tokenizer.is_special.copy()
    splitter = words.WordSplitter(tokenizer.lower_case)
    characters = set(string.ascii_letters + string.digits + string.punctuation)
    for lines in windows:
        text = tf.constant([line.encode("utf-8", "surrogatepass") for line in lines])
        tokens = tokenizer.tokenize(text)
        kept[np.unique(tokens.flat_values)] = True
        unknown = tf.reduce_any(tokens == tokenizer.unk_id, axis=1)
        for word in set(splitter.split(tf.boolean_mask(text, unknown))):
            if len(word) <= _MAX_WORD_BYTES:
                kept[path(word.decode(), ids)] = True
        for line in splitter.normalize(text).numpy():
            characters.update(line.decode())
    for character in characters:
        for piece in (character, _JOINER + character):
            if piece in ids:
                kept[ids[piece]] = True
    return kept


def path(word: str, ids: Mapping[str, int]) -> list[int]:
    """The pieces that WordPiece takes of a word until it is at its end, or stuck.

    Args:
        word: normalised, without white space.
        ids: pieces with their ids.
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
