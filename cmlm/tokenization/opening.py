"""Opens the tokenizer of a vocabulary file."""

from __future__ import annotations

from cmlm.tokenization import byte_pairs, unigrams, vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import UNCASED, Rules
from cmlm.tokenization.word_pieces import WordPiece


def open_tokenizer(vocab_file: str, rules: Rules = UNCASED) -> Tokenizer:
    """Returns the tokenizer of a vocabulary file.

    Args:
        vocab_file: `vocab.txt`, or a `tokenizer.json`, whose own rules win.
        rules: the rules of a `vocab.txt`.

    Raises:
        UserError: the vocabulary is unusable.
    """
    found = vocabulary_file.read(vocab_file)
    if found.kind == "BPE":
        return byte_pairs.BytePairs(vocab_file, found)
    if found.kind == "Unigram":
        return unigrams.Unigrams(vocab_file, found)
    if vocabulary_file.is_json(vocab_file):
        rules = found.rules
    return WordPiece(vocab_file, rules, found)
