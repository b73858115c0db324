"""Opens the tokenizer of a vocabulary file."""

from __future__ import annotations

from cmlm.data import byte_pairs, tokenizer_file, unigrams, vocabulary_file
from cmlm.data.rules import UNCASED, Rules
from cmlm.data.tokenization import Tokenizer
from cmlm.data.word_pieces import WordPiece


def open_tokenizer(vocab_file: str, rules: Rules = UNCASED) -> Tokenizer:
    """Returns the tokenizer of a vocabulary file.

    Args:
        vocab_file: `vocab.txt`, or a `tokenizer.json`, whose own rules win.
        rules: the rules of a `vocab.txt`.

    Raises:
        UserError: the vocabulary is unusable.
    """
    if not vocabulary_file.is_json(vocab_file):
        return WordPiece(vocab_file, rules)
    found = tokenizer_file.read(vocab_file)
    if found.kind == "BPE":
        return byte_pairs.BytePairs(vocab_file)
    if found.kind == "Unigram":
        return unigrams.Unigrams(vocab_file)
    return WordPiece(vocab_file, found.rules)
