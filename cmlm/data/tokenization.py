"""Turns strings into words and token ids with graph ops, in tf.data and in exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.data import letters, vocabulary_file
from cmlm.data.rules import UNCASED, Rules

# Letters that hardly any vocabulary contains. One of them replaces each long word and
# becomes [UNK].
_RARE_LETTERS = range(0xA66E, 0x14400)


class Tokenizer(tf.Module):
    """BERT's WordPiece tokenizer with the ids that training needs.

    Bytes that are not UTF-8 become U+FFFD before tokenisation. The class is a
    tf.Module, so objects that hold a tokenizer can be exported.

    Attributes:
        vocab_file: path of the vocabulary.
        rules: case, accents and the longest word.
        vocab: tuple of str, the tokens by id.
        vocab_size: number of tokens.
        pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
        special_ids: int32 [5], the ids of the special tokens.
        is_special: bool [vocab_size].
        is_continuation: bool [vocab_size], True for `##` pieces.
        ordinary_ids: int32 [vocab_size - 5], ids of all other tokens.

    Args:
        vocab_file: a WordPiece vocabulary, one token a line.
        rules: the rules of the text that the vocabulary was learnt from. Published
            encoders have their own longest word: 100 bytes in tf-text, 100 characters
            in Hugging Face.

    Raises:
        UserError: the vocabulary is unusable, see `vocabulary_file.load`.
    """

    def __init__(self, vocab_file: str, rules: Rules = UNCASED):
        super().__init__(name="tokenizer")
        self.vocab_file = vocab_file
        self.rules = rules
        vocab = vocabulary_file.load(vocab_file)
        self.vocab_size = len(vocab)
        (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id) = (
            vocab.index(token) for token in vocabulary_file.SPECIAL_TOKENS
        )
        special = [self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id]
        self.special_ids = np.array(special, np.int32)
        self.is_special = np.zeros(self.vocab_size, bool)
        self.is_special[special] = True
        self.is_continuation = np.array([t.startswith("##") for t in vocab])
        self.ordinary_ids = np.flatnonzero(~self.is_special).astype(np.int32)
        self._wordpiece = tf_text.FastBertTokenizer(
            vocab,
            max_bytes_per_word=rules.max_word_bytes,
            token_out_type=tf.int32,
            lower_case_nfd_strip_accents=letters.left_to_tf_text(rules),
        )
        # tf.Module would wrap a list to track it; it does not wrap a tuple.
        self.vocab = tuple(vocab)
        if rules.max_word_characters:
            self._splitter = WordSplitter(rules)
            known = set(vocab)
            self._unknown = next(c for c in map(chr, _RARE_LETTERS) if c not in known)

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Tokenises texts without special tokens.

        Args:
            text: string [n].

        Returns:
            int32 [n, (tokens)]; an empty string has no tokens.
        """
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        if self.rules.max_word_characters:
            text = self._without_long_words(text)
        return self._wordpiece.tokenize(letters.prepare(text, self.rules))

    def is_long(self, word: str) -> bool:
        """Tells whether a normalised word is [UNK] because of its length."""
        return len(word.encode()) > self.rules.max_word_bytes or (
            0 < self.rules.max_word_characters < len(word)
        )

    def _without_long_words(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces words of too many characters with an unknown letter."""
        text = tf.reshape(text, [-1])
        lines, splits, begins, ends = self._splitter.locate(text)

        def replace():
            row = tf.ragged.row_splits_to_segment_ids(splits)
            cut = [tf.cast(n, tf.int32) for n in (begins, ends - begins)]
            words = tf.strings.substr(tf.gather(lines, row), *cut)
            lengths = tf.strings.length(words, unit="UTF8_CHAR")
            is_long = lengths > self.rules.max_word_characters
            words = tf.where(is_long, self._unknown, words)
            by_line = tf.RaggedTensor.from_row_splits(words, splits, validate=False)
            return tf.strings.reduce_join(by_line, axis=1, separator=" ")

        # A word has no more characters than bytes, so this finds every long word.
        may_be_long = tf.reduce_any(ends - begins > self.rules.max_word_characters)
        return tf.cond(may_be_long, replace, lambda: text)

    def encode(self, text: tf.Tensor, seq_length: int) -> tf.RaggedTensor:
        """Tokenises texts and adds the special tokens.

        Args:
            text: string [n].
            seq_length: most tokens of a result, [CLS] and [SEP] included. A longer
                text loses its end; [SEP] follows the rest.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP]`.
        """
        return self.enclose(self.tokenize(text), seq_length)

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
            seq_length: most tokens of a result, special ones included; at least 3.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP] ... [SEP]`.
        """
        first, second = trim(
            [self.tokenize(first), self.tokenize(second)], seq_length - 3
        )
        column = tf.ones([first.nrows(), 1], tf.int32)
        cls, sep = self.cls_id * column, self.sep_id * column
        return tf.concat([cls, first, sep, second, sep], axis=1)


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
        tf.gather(segment, tf.ragged.range(keep), batch_dims=1)
        for segment, keep in zip(segments, kept, strict=True)
    ]


class WordSplitter:
    """Splits text into words, by the tokenizer's own rules.

    Words end at white space and punctuation, and each Chinese character is a word. The
    class runs the tokenizer's op with a vocabulary that matches no word: its only piece
    is a control character, and the normaliser removes those. Every word therefore
    becomes one [UNK] with the offsets of the word.

    Args:
        rules: case and accents; the longest word does not matter here.
    """

    def __init__(self, rules: Rules):
        self._rules = rules
        self._normalizer = tf_text.FastBertNormalizer(
            lower_case_nfd_strip_accents=letters.left_to_tf_text(rules)
        )
        self._splitter = tf_text.FastWordpieceTokenizer(
            ["[UNK]", "\x01"], token_out_type=tf.int32
        )

    def normalize(self, lines: tf.Tensor) -> tf.Tensor:
        """Normalises lines of any bytes, string [n], to valid UTF-8, string [n]."""
        lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8")
        return self._normalizer.normalize(letters.prepare(lines, self._rules))

    def locate(self, lines: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Finds the words of some lines.

        Args:
            lines: string [n].

        Returns:
            The normalised lines, string [n]; the row splits of the words by line, int64
            [n + 1]; and the offsets in the line of each word's first byte and of the
            byte after its last, int64 [words] each.
        """
        lines = self.normalize(lines)
        _, begins, ends = self._splitter.tokenize_with_offsets(lines)
        return lines, begins.row_splits, begins.values, ends.values

    def split_lines(self, lines: tf.Tensor) -> Iterator[list[bytes]]:
        """Yields the words of each line of string [n]."""
        return cut(*(tensor.numpy() for tensor in self.locate(lines)))

    def split(self, lines: tf.Tensor) -> Iterator[bytes]:
        """Yields the words of string [n], line after line."""
        for words in self.split_lines(lines):
            yield from words


def cut(
    lines: np.ndarray, splits: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> Iterator[list[bytes]]:
    """Yields the words of each line, given the result of `WordSplitter.locate`.

    The cutting runs in Python: tf.strings.substr would copy the line for every word,
    and its memory would grow with the square of the line's length.
    """
    for line, start, stop in zip(
        lines.tolist(), splits[:-1].tolist(), splits[1:].tolist(), strict=True
    ):
        bounds = zip(
            begins[start:stop].tolist(), ends[start:stop].tolist(), strict=True
        )
        yield [line[begin:end] for begin, end in bounds]
