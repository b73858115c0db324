"""Turns strings into token ids with graph ops, in tf.data and in exports.

`word_pieces`, `byte_pairs` and `unigrams` hold the tokenizers; `opening` opens the one
that a vocabulary file names.
"""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.rules import Rules


class Tokenizer(tf.Module):
    """The base of the tokenizers, which define `_tokenize` and `_word_borders`.

    Bytes that are not UTF-8 become U+FFFD before tokenisation. No text gives a special
    token, whatever it contains. The class is a tf.Module, so objects that hold a
    tokenizer can be exported.

    Attributes:
        vocab_file: path of the vocabulary.
        vocab: tuple of str, the tokens by id.
        vocab_size: number of tokens.
        pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
        is_special: bool [vocab_size]; reserved tokens count as special.
        ordinary_ids: int32, the ids of all other tokens.
        rules: case, accents and the longest word.
        title: the name of the algorithm.
        pair_separators: number of separators between the two texts of a pair.
        contents: all other data that ids depend on, as JSON; empty for a
            vocab.txt.
        prompt: a text that precedes every text. Its tokens count as the text's own.

    Args:
        vocab_file: see above.
        found: the contents of that file.
        rules: see above.
    """

    title = ""
    # bool [2, vocab_size], see `word_borders`.
    _word_borders: np.ndarray

    def __init__(
        self, vocab_file: str, found: tokenizer_file.TokenizerFile, rules: Rules
    ):
        super().__init__(name="tokenizer")
        self.vocab_file = vocab_file
        self.rules = rules
        self.pair_separators = found.pair_separators
        self.contents = found.contents if vocabulary_file.is_json(vocab_file) else ""
        self.prompt = ""
        tokens, special = found.tokens, found.special
        self.vocab_size = len(tokens)
        ids = {token: number for number, token in enumerate(tokens)}
        roles = [ids[special[role]] for role in ("pad", "unk", "cls", "sep", "mask")]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = roles
        self.is_special = np.zeros(self.vocab_size, bool)
        self.is_special[roles] = True
        self.is_special[[ids[token] for token in found.reserved if token in ids]] = True
        self.ordinary_ids = np.flatnonzero(~self.is_special).astype(np.int32)
        # tf.Module would wrap a list to track it; it does not wrap a tuple.
        self.vocab = tuple(tokens)

    def prompted(self, prompt: str) -> Tokenizer:
        """The same tokenizer with another prompt."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Tokenises texts without special tokens.

        Args:
            text: string [n].

        Returns:
            int32 [n, (tokens)]; an empty string has no tokens.
        """
        return self._tokenize(self._valid(text))

    def count(self, text: tf.Tensor) -> tf.Tensor:
        """Counts the tokens of texts string [n], without special tokens: int64 [n]."""
        return self.tokenize(text).row_lengths()

    def _valid(self, text: tf.Tensor) -> tf.Tensor:
        """The texts string [n] behind the prompt, as valid UTF-8."""
        if self.prompt:
            text = tf.strings.join([self.prompt, text])
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")

    def _first_tokens(self, text: tf.Tensor, number: int) -> tf.RaggedTensor:
        """`tokenize`, whose rows may lack tokens behind the first `number`."""
        return self._tokenize(self._beginning(self._valid(text), number))

    def _beginning(self, text: tf.Tensor, number: int) -> tf.Tensor:
        """Texts of valid UTF-8 with the same first `number` tokens; long ones cut."""
        return text

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """`tokenize` of valid UTF-8."""
        raise NotImplementedError

    def ordinary(self, ids: tf.Tensor) -> tf.Tensor:
        """Tells which tokens are not special: ids of any shape to bool."""
        return ~tf.gather(tf.constant(self.is_special), ids)

    def continues(self, ids: tf.Tensor) -> tf.Tensor:
        """Tells which tokens continue the word of the token before them.

        Args:
            ids: int32 [batch, length].

        Returns:
            bool [batch, length].
        """
        joins_left, joins_right = (
            tf.gather(tf.constant(column), ids) for column in self._word_borders
        )
        first = tf.zeros_like(joins_right[:, :1])
        return joins_left & tf.concat([first, joins_right[:, :-1]], axis=1)

    def encode(self, text: tf.Tensor, seq_length: int) -> tf.RaggedTensor:
        """Tokenises texts and adds the special tokens.

        Args:
            text: string [n].
            seq_length: most tokens of a result, [CLS] and [SEP] included. A longer
                text loses its end; [SEP] follows the rest.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP]`.
        """
        return self.enclose(self._first_tokens(text, seq_length), seq_length)

    def enclose(self, tokens: tf.RaggedTensor, seq_length: int) -> tf.RaggedTensor:
        """Adds the special tokens to tokenised texts.

        Args:
            tokens: int32 [n, (tokens)] from `tokenize`.
            seq_length: see `encode`.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP]`.
        """
        tokens = tokens[:, : seq_length - 2]
        column = tf.ones([tokens.nrows(), 1], tf.int32)
        return tf.concat([self.cls_id * column, tokens, self.sep_id * column], axis=1)

    def encode_pair(
        self, first: tf.Tensor, second: tf.Tensor, seq_length: int
    ) -> tf.RaggedTensor:
        """Tokenises each pair of texts into one sequence, shortened by `trim`.

        Args:
            first: string [n].
            second: string [n].
            seq_length: most tokens of a result, special ones included; at least 4.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP] ... [SEP]`, with `pair_separators`
            separators between the texts.
        """
        first, second = (self._first_tokens(t, seq_length) for t in (first, second))
        return self.enclose_pair(first, second, seq_length)

    def enclose_pair(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, seq_length: int
    ) -> tf.RaggedTensor:
        """Adds the special tokens to tokenised pairs of texts.

        Args:
            first: int32 [n, (tokens)] from `tokenize`.
            second: the same.
            seq_length: see `encode_pair`.

        Returns:
            int32 [n, (tokens)], see `encode_pair`.
        """
        room = seq_length - 2 - self.pair_separators
        first, second = trim([first, second], room)
        column = tf.ones([first.nrows(), 1], tf.int32)
        cls, sep = self.cls_id * column, self.sep_id * column
        between = [sep] * self.pair_separators
        return tf.concat([cls, first, *between, second, sep], axis=1)

    def segments(self, ids: tf.Tensor) -> tf.Tensor:
        """Tells the two texts of `encode_pair` apart.

        Args:
            ids: int32 [n, length], padded.

        Returns:
            int32 [n, length]: 1 for the second text and the separator behind it, 0 for
            all other tokens and padding; without a second text, 0 everywhere.
        """
        ends = tf.cast(ids == self.sep_id, tf.int32)
        before = tf.cumsum(ends, axis=1, exclusive=True)
        is_second = (before >= self.pair_separators) & (ids != self.pad_id)
        return tf.cast(is_second, tf.int32)


def word_borders(texts: Sequence[str], is_special: np.ndarray) -> np.ndarray:
    """Tells which tokens can join a word with the token before and the one after.

    Words end at white space and at every character that is not a letter, mark or digit.

    Args:
        texts: the text of each token; a leading space begins a word.
        is_special: bool [n]; a special token is a word of its own.

    Returns:
        bool [2, n]: whether the token can continue, and can be continued.
    """
    joins = np.zeros([2, len(texts)], bool)
    for number, text in enumerate(texts):
        if text and not is_special[number]:
            joins[0, number] = _is_word(text[0])
            # A space on its own belongs to the word after it.
            joins[1, number] = text[-1] == " " or _is_word(text[-1])
    return joins


def _is_word(character: str) -> bool:
    """Whether a character is a part of words: a letter, a mark or a digit."""
    # U+FFFD stands for a part of a character, which is a letter in nearly all texts.
    return character == "\ufffd" or unicodedata.category(character)[0] in "LMN"


def trim(
    segments: Sequence[tf.RaggedTensor], budget: int | tf.Tensor
) -> list[tf.RaggedTensor]:
    """Cuts the ends of segments until all segments of a row fit the budget.

    The segments take turns, beginning with the first, and keep one more token a turn
    until the budget is spent. This is the rule of tf_text.RoundRobinTrimmer. TensorFlow
    Serving 2.17 to 2.19 does not know that class's op, TFText>RoundRobinTrim, so this
    function computes the lengths itself.

    Args:
        segments: one or two tensors, int32 [batch, (tokens)].
        budget: most tokens of all segments of a row together.

    Returns:
        The trimmed segments.
    """
    budget = tf.cast(budget, tf.int64)
    lengths = [segment.row_lengths() for segment in segments]
    if len(segments) == 1:
        kept = [tf.minimum(lengths[0], budget)]
    else:
        # The first segment gets the odd token and the tokens that the second leaves.
        first = tf.minimum(
            lengths[0], tf.maximum(budget - lengths[1], (budget + 1) // 2)
        )
        kept = [first, tf.minimum(lengths[1], budget - first)]
    return [
        _starts(segment, length, keep)
        for segment, length, keep in zip(segments, lengths, kept, strict=True)
    ]


def _starts(
    rows: tf.RaggedTensor, lengths: tf.Tensor, kept: tf.Tensor
) -> tf.RaggedTensor:
    """Returns the first `kept` int64 [batch] tokens of rows of `lengths` int64 [batch].

    A ragged gather needs more than twice as many operations, each of them traced.
    """
    place = tf.range(tf.size(rows.values, tf.int64)) - tf.repeat(
        rows.row_starts(), lengths
    )
    values = tf.boolean_mask(rows.values, place < tf.repeat(kept, lengths))
    return tf.RaggedTensor.from_row_lengths(values, kept, validate=False)
