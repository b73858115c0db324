"""The TensorFlow graph from strings to sentence vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import tensorflow as tf

from cmlm.encoders.signatures import TENSORS
from cmlm.modeling import pooling
from cmlm.tokenization.base import Tokenizer


class SentenceGraph:
    """Turns strings into vectors inside TensorFlow, for exports and for use in Python.

    Args:
        tokenizer: the encoder's tokenizer.
        encoder: a function from a dict of `input_word_ids`, `input_mask` and
            `input_type_ids`, each int32 [batch, seq], to a dict with `default`, float
            [batch, dim].
        seq_length: the longest sentence in tokens, [CLS] and [SEP] included; a longer
            one is cut.

    Attributes:
        vectors: a tf.function from string [n] to float32 [n, dim].
        token_vectors: a tf.function from `input_word_ids`, `input_mask` and
            `input_type_ids`, each int32 [n, seq], to float32 [n, dim].
        lengths: a tf.function from string [n] to int32 [n], the numbers of tokens
            before any cut, [CLS] and [SEP] included.
    """

    TEXT = tf.TensorSpec([None], tf.string, name="text")
    TOKENS = tuple(tf.TensorSpec([None, None], tf.int32, name=name) for name in TENSORS)

    def __init__(self, tokenizer: Tokenizer, encoder: Callable, seq_length: int):
        self.tokenizer = tokenizer
        self._encoder = encoder
        self.seq_length = seq_length
        self._read_text()
        # Text and tensors share one function, so an export holds its graph once.
        self.token_vectors = tf.function(
            self._token_vectors,
            input_signature=self.TOKENS,
            autograph=False,
            # Layers inlined into a loop would lose most of their fusions.
            experimental_attributes={"_noinline": True},
        )
        self.token_vectors._omit_frequent_tracing_warning = True

    def _read_text(self) -> None:
        """Makes the functions of text."""
        signature = {"input_signature": [self.TEXT], "autograph": False}
        self.vectors = tf.function(self._vectors, **signature)
        self.lengths = tf.function(self._lengths, **signature)
        for function in (self.vectors, self.lengths):
            # Each is traced once, but TensorFlow counts them as one function, and warns
            # a process that opens several encoders.
            function._omit_frequent_tracing_warning = True

    def open_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, as every `encoder.Graph` does."""
        return self.tokenizer

    def prompted(self, prompt: str, prompt_name: str = "") -> SentenceGraph:
        """The same graph with another prompt; both share `token_vectors`.

        Args:
            prompt: any text.
            prompt_name: without effect, see `encoder.Graph`.
        """
        other = copy.copy(self)
        other.tokenizer = self.tokenizer.prompted(prompt)
        other._read_text()
        return other

    def _vectors(self, text: tf.Tensor) -> tf.Tensor:
        tokens = self.tokenizer.encode(text, self.seq_length)
        lengths = tokens.row_lengths()
        # The width is the length of the longest sentence, but at least 1: the encoder
        # reads position 0 even without sentences.
        width = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        ids = tokens.to_tensor(self.tokenizer.pad_id, shape=tf.stack([-1, width]))
        mask = tf.sequence_mask(lengths, width, dtype=tf.int32)
        return self.token_vectors(ids, mask, tf.zeros_like(ids))

    def _token_vectors(self, *tensors: tf.Tensor) -> tf.Tensor:
        outputs = self._encoder(dict(zip(TENSORS, tensors, strict=True)))
        return tf.cast(outputs["default"], tf.float32)

    def _lengths(self, text: tf.Tensor) -> tf.Tensor:
        tokens = self.tokenizer.tokenize(text)
        return tf.cast(tokens.row_lengths(), tf.int32) + 2


class TwoGraphs:
    """The vectors of two graphs with one tokenizer, each at unit length, in one vector.

    Args:
        first, second: the graphs. Prompts would need two graphs for each.
    """

    def __init__(self, first: SentenceGraph, second: SentenceGraph):
        self._both = first, second
        self.seq_length = first.seq_length
        self.lengths, self.open_tokenizer = first.lengths, first.open_tokenizer

    def vectors(self, text: tf.Tensor) -> tf.Tensor:
        """Turns string [n] into float32 [n, 2 x dim]."""
        parts = [
            tf.math.l2_normalize(each.vectors(text), axis=1) for each in self._both
        ]
        return tf.concat(parts, axis=1)


class BagOfWords:
    """The mean of a sentence's word embeddings, without layers.

    This baseline shows how much an encoder adds to its embedding table. The mean leaves
    out [CLS] and [SEP]; the vector of a sentence without words is all zeros.

    Args:
        table: the embedding table, float [vocab_size, dim].
        tokenizer: the tokenizer of the table's vocabulary.
        width: the components of a vector, at most dim.
    """

    def __init__(self, table: tf.Variable, tokenizer: Tokenizer, width: int):
        self._table = table
        self._width = width
        self._added = (tokenizer.cls_id, tokenizer.sep_id)

    def __call__(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ids, mask = inputs["input_word_ids"], inputs["input_mask"]
        for added in self._added:
            mask *= tf.cast(ids != added, mask.dtype)
        weights = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        words = tf.cast(tf.gather(self._table, ids), tf.float32)
        total = tf.reduce_sum(words * weights, axis=1)
        count = tf.reduce_sum(weights, axis=1)
        vectors = tf.math.divide_no_nan(total, count)
        return {"default": pooling.shorten(vectors, self._width)}
