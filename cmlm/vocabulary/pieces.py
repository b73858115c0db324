"""Finds the pieces of a vocabulary that a text needs to keep its tokens.

WordPiece repeatedly takes the longest piece that matches. If pieces that a text never
uses are removed, WordPiece still takes the same pieces of that text. A word that
becomes [UNK] needs care: WordPiece takes some of its pieces before no piece matches. If
one of these pieces were missing, a shorter piece could match instead, and the word
could become known. The text therefore needs these pieces, too.

SentencePiece takes the most likely of all splits of a text. If other pieces are
removed, this split stays the most likely one. The score of an unknown character follows
from the least likely piece, so the text needs that piece, too.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from cmlm.errors import UserError
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import JOINER
from cmlm.tokenization.unigrams import SPACE, Unigrams
from cmlm.tokenization.word_pieces import WordPiece, WordSplitter

_ASCII = string.ascii_letters + string.digits + string.punctuation


def needed(tokenizer: Tokenizer, windows: Iterable[list[str]]) -> np.ndarray:
    """Finds the pieces that a text needs.

    The result has the pieces of the text and the special tokens. For the words of other
    texts it also has every single character that is ASCII or occurs in the text, alone
    and inside a word (SentencePiece: and at its beginning).

    Args:
        tokenizer: tokenizer of the vocabulary.
        windows: the text as lists of lines; one list is in memory at a time.

    Returns:
        bool [vocab_size].

    Raises:
        UserError: the vocabulary is byte-level BPE, whose merges need each other.
    """
    ids = {piece: number for number, piece in enumerate(tokenizer.vocab)}
    kept = tokenizer.is_special.copy()
    texts = (
        tf.constant([line.encode("utf-8", "surrogatepass") for line in lines])
        for lines in windows
    )
    if isinstance(tokenizer, WordPiece):
        prefix, characters = JOINER, _keep_word_pieces(tokenizer, ids, texts, kept)
    elif isinstance(tokenizer, Unigrams):
        prefix, characters = SPACE, _keep_unigrams(tokenizer, texts, kept)
    else:
        raise UserError(
            f"{tokenizer.vocab_file} is {tokenizer.title}; allowed to prune: "
            f"{WordPiece.title}, {Unigrams.title}"
        )
    for character in characters.union(_ASCII):
        for piece in (character, prefix + character):
            if piece in ids:
                kept[ids[piece]] = True
    return kept


def _keep_word_pieces(
    tokenizer: WordPiece,
    ids: Mapping[str, int],
    texts: Iterable[tf.Tensor],
    kept: np.ndarray,
) -> set[str]:
    """Marks the pieces that WordPiece takes.

    Args:
        tokenizer: tokenizer of the vocabulary.
        ids: pieces and their ids.
        texts: the text, string [n] each.
        kept: bool [vocab_size], changed in place.

    Returns:
        The characters of the text.
    """
    characters: set[str] = set()
    splitter = WordSplitter(tokenizer.rules)
    for text in texts:
        tokens = tokenizer.tokenize(text)
        kept[np.unique(tokens.flat_values)] = True
        unknown = tf.reduce_any(tokens == tokenizer.unk_id, axis=1)
        for word in set(splitter.split(tf.boolean_mask(text, unknown))):
            # A long word is [UNK] without a search for its pieces.
            if not tokenizer.is_long(word.decode()):
                kept[longest_matches(word.decode(), ids)] = True
        for line in splitter.normalize(text).numpy():
            characters.update(line.decode())
    return characters


def _keep_unigrams(
    tokenizer: Unigrams, texts: Iterable[tf.Tensor], kept: np.ndarray
) -> set[str]:
    """Marks the pieces that SentencePiece takes; see `_keep_word_pieces`."""
    for text in texts:
        kept[np.unique(tokenizer.tokenize(text).flat_values)] = True
    ordinary = tokenizer.ordinary_ids
    kept[ordinary[np.argmin(tokenizer.scores[ordinary])]] = True
    return set().union(*itertools.compress(tokenizer.vocab, kept))


def longest_matches(word: str, ids: Mapping[str, int]) -> list[int]:
    """Returns the ids of the pieces that WordPiece takes until no piece matches.

    Args:
        word: a normalised word.
        ids: pieces and their ids.
    """
    taken: list[int] = []
    start = 0
    while start < len(word):
        prefix = JOINER if start else ""
        for end in range(len(word), start, -1):
            number = ids.get(prefix + word[start:end])
            if number is not None:
                taken.append(number)
                start = end
                break
        else:
            break
    return taken
