"""Strings to token ids, inside the graph: the same in tf.data and in an export."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.data import vocabulary_file

# Longer words are [UNK]. BERT's own limit is 200 characters, here in scripts of three
# bytes: tf-text's default of 100 bytes would lose two thirds of all Thai, which has no
# spaces between words.
MAX_WORD_BYTES = 600


class Tokenizer(tf.Module):
    """BERT's WordPiece tokenizer with the ids that training needs.

    Bytes that are not UTF-8 become U+FFFD before tokenisation. A tf.Module, so that
    an object which holds one can be exported.

    Attributes:
        vocab_file: path of the vocabulary.
        lower_case: whether text is lower-cased and stripped of accents.
        vocab: list of str, the tokens by id.
        vocab_size: number of tokens.
        pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
        special_ids: int32 [5], those ids.
        is_special: bool [vocab_size].
        is_continuation: bool [vocab_size], true for the `##` pieces inside a word.
        ordinary_ids: int32 [vocab_size - 5], every id that is not special.

    Args:
        vocab_file: a WordPiece vocabulary, one token a line.
        lower_case: as the vocabulary was learnt.

    Raises:
        UserError: the vocabulary is not usable, see `vocabulary.load`.
    """

    def __init__(self, vocab_file: str, lower_case: bool = True):
        super().__init__(name="tokenizer")
        self.vocab_file = vocab_file
        self.lower_case = lower_case
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
            max_bytes_per_word=MAX_WORD_BYTES,
            token_out_type=tf.int32,
            lower_case_nfd_strip_accents=lower_case,
        )
        # tf.Module would wrap a list attribute to track it: keep a tuple.
        self.vocab = tuple(vocab)

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Tokenises sentences.

        Args:
            text: string [n].

        Returns:
            int32 [n, (tokens)], without special tokens; an empty string gives none.
        """
        return self._wordpiece.tokenize(
            tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        )

    def encode(self, text: tf.Tensor, seq_length: int) -> tf.RaggedTensor:
        """Tokenises sentences and adds the special tokens.

        Args:
            text: string [n].
            seq_length: longest result in tokens, [CLS] and [SEP] included; what is
                longer loses its end, never its [SEP].

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP]`.
        """
        return self.enclose(self.tokenize(text), seq_length)

    def enclose(self, tokens: tf.RaggedTensor, seq_length: int) -> tf.RaggedTensor:
        """Adds the special tokens: int32 [n, (tokens)] -> `[CLS] ... [SEP]`.

        Args:
            tokens: as `tokenize` gives them.
            seq_length: see `encode`.
        """
        tokens = tokens[:, : seq_length - 2]
        column = tf.ones([tokens.nrows(), 1], tf.int32)
        return tf.concat([self.cls_id * column, tokens, self.sep_id * column], axis=1)

    def encode_pair(
        self, first: tf.Tensor, second: tf.Tensor, seq_length: int
    ) -> tf.RaggedTensor:
        """Tokenises pairs of texts into one sequence each.

        Where both do not fit, each is cut to half of the room, or to what the other
        leaves.

        Args:
            first: string [n].
            second: string [n].
            seq_length: longest result in tokens, special ones included; at least 3.

        Returns:
            int32 [n, (tokens)] as `[CLS] ... [SEP] ... [SEP]`.
        """
        first, second = self.tokenize(first), self.tokenize(second)
        room = seq_length - 3
        lengths = [tf.cast(side.row_lengths(), tf.int32) for side in (first, second)]
        kept = tf.minimum(lengths[0], tf.maximum(room - lengths[1], room - room // 2))
        first = _cut(first, kept)
        second = _cut(second, tf.minimum(lengths[1], room - kept))
        column = tf.ones([first.nrows(), 1], tf.int32)
        cls, sep = self.cls_id * column, self.sep_id * column
        return tf.concat([cls, first, sep, second, sep], axis=1)


def _cut(tokens: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `lengths` [n] tokens of each row."""
    position = tf.ragged.range(tokens.row_lengths())
    kept = position < tf.cast(lengths, tf.int64)[:, tf.newaxis]
    return tf.ragged.boolean_mask(tokens, kept)
