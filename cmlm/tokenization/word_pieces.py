"""BERT's WordPiece: splits a text into words, and the words into pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.errors import UserError, one_line
from cmlm.tokenization import letters, tokenizer_file, vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import JOINER, UNCASED, Rules

# Letters that hardly any vocabulary contains. One of them replaces each long word and
# becomes [UNK].
_RARE_LETTERS = range(0xA66E, 0x14400)


class WordPiece(Tokenizer):
    """BERT's WordPiece tokenizer.

    Attributes:
        is_continuation: bool [vocab_size], True for `##` pieces.

    Args:
        vocab_file: a WordPiece vocabulary, one token a line, or a `tokenizer.json`.
        rules: the rules of the text that the vocabulary was learnt from. Published
            encoders have their own longest word: 100 bytes in tf-text, 100 characters
            in Hugging Face.
        found: the contents of that file, if they were read already.

    Raises:
        UserError: the vocabulary is unusable, see `vocabulary_file.read`.
    """

    title = "WordPiece"

    def __init__(
        self,
        vocab_file: str,
        rules: Rules = UNCASED,
        found: tokenizer_file.TokenizerFile | None = None,
    ):
        found = found or vocabulary_file.read(vocab_file)
        super().__init__(vocab_file, found, rules)
        # Only a `##` piece joins, and it joins whatever stands before it.
        self.is_continuation = np.array([t.startswith(JOINER) for t in found.tokens])
        self._word_borders = np.array([self.is_continuation, [True] * self.vocab_size])
        try:
            self._wordpiece = tf_text.FastBertTokenizer(
                found.tokens,
                max_bytes_per_word=rules.max_word_bytes,
                token_out_type=tf.int32,
                unknown_token=found.special["unk"],
                lower_case_nfd_strip_accents=letters.left_to_tf_text(rules),
            )
        except RuntimeError as error:
            raise UserError(
                f"vocabulary {vocab_file} has no token that a word can have "
                f"({one_line(error)}); allowed: at least one beside special tokens"
            ) from error
        if rules.max_word_characters:
            self._splitter = WordSplitter(rules)
            known = set(found.tokens)
            self._unknown = next(c for c in map(chr, _RARE_LETTERS) if c not in known)

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        if self.rules.max_word_characters:
            text = self._without_long_words(text)
        else:
            text = letters.prepare(text, self.rules)
        return self._wordpiece.tokenize(text)

    def is_long(self, word: str) -> bool:
        """Tells whether a normalised word is [UNK] because of its length."""
        return len(word.encode()) > self.rules.max_word_bytes or (
            0 < self.rules.max_word_characters < len(word)
        )

    def _without_long_words(self, text: tf.Tensor) -> tf.Tensor:
        """Normalises text, with an unknown letter for words of too many characters."""
        text = tf.reshape(text, [-1])
        lines, splits, begins, ends = self._splitter.locate(text)
        # A word has no more characters than bytes, so this finds every long word.
        may_be_long = ends - begins > self.rules.max_word_characters

        def replace():
            row = tf.ragged.row_splits_to_segment_ids(splits)
            n_long = tf.math.unsorted_segment_sum(
                tf.cast(may_be_long, tf.int64), row, tf.size(lines)
            )
            chosen = n_long > 0
            # The words of the chosen lines, by the number of the line among them.
            place = tf.gather(tf.cumsum(tf.cast(chosen, tf.int64)) - 1, row)
            of_chosen = tf.gather(chosen, row)
            words = (
                tf.boolean_mask(tensor, of_chosen) for tensor in (place, begins, ends)
            )
            shortened = self._with_long_replaced(tf.boolean_mask(lines, chosen), *words)
            return tf.tensor_scatter_nd_update(lines, tf.where(chosen), shortened)

        return tf.cond(tf.reduce_any(may_be_long), replace, lambda: lines)

    def _with_long_replaced(
        self, lines: tf.Tensor, row: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Replaces the long words of some lines.

        It works on code points: tf.strings.substr would copy a line for each word, and
        the memory would grow with the square of the line's length.

        Args:
            lines: normalised lines, string [n].
            row: the line of each word, int64 [words].
            begins, ends: the offsets of each word in its line, int64 [words].
        """
        codes, offsets = tf.strings.unicode_decode_with_offsets(lines, "UTF-8")
        # Offsets in all lines together.
        starts = tf.cumsum(tf.strings.length(lines), exclusive=True)
        starts = tf.cast(starts, tf.int64)
        place = offsets.values + tf.gather(starts, offsets.value_rowids())
        begins, ends = (side + tf.gather(starts, row) for side in (begins, ends))
        # The last word that begins at the character or before it.
        word = tf.maximum(tf.searchsorted(begins, place, side="right") - 1, 0)
        begin, end = tf.gather(begins, word), tf.gather(ends, word)
        is_first = place == begin
        inside = (place >= begin) & (place < end)
        characters = tf.math.unsorted_segment_sum(
            tf.cast(inside, tf.int32), word, tf.size(begins)
        )
        is_long = characters > self.rules.max_word_characters
        is_long = inside & tf.gather(is_long, word)
        new = tf.where(is_long, ord(self._unknown), codes.values)
        kept = codes.with_values(~is_long | is_first)
        new = tf.ragged.boolean_mask(codes.with_values(new), kept)
        return tf.strings.unicode_encode(new, "UTF-8")


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
