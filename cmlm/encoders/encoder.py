"""The encoder of strings: `encode` turns a list of str into sentence vectors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from cmlm.common import forks, once, prompts, threads
from cmlm.common.progress import bar as progress_bar
from cmlm.encoders.batching import MOST_TOKENS, length_batches
from cmlm.encoders.comparing import Comparing
from cmlm.encoders.sentences import check_sentences, to_bytes
from cmlm.errors import UserError
from cmlm.tokenization.base import Tokenizer

_LENGTHS_AT_ONCE = _ROWS_AT_ONCE = 4096
# A warning of [UNK] looks at the first texts, unless there are fewer than the least.
_SOME_TEXTS, _LEAST_TEXTS = 256, 100
_MOST_UNKNOWN = 0.2


class Graph(Protocol):
    """Turns strings into vectors inside TensorFlow.

    A `SentenceGraph` takes any prompt by its text, an `ExportedGraph` the prompts of
    its signatures by their names, and `TwoGraphs` none.

    Attributes:
        seq_length: the longest sentence in tokens; a longer one is cut.
    """

    seq_length: int

    def open_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer; an export opens it here.

        Raises:
            UserError: the graph is a version of an export without the rest of it.
        """

    def vectors(self, text: tf.Tensor) -> tf.Tensor:
        """Turns string [n] into vectors, float32 [n, dim]."""

    def lengths(self, text: tf.Tensor) -> tf.Tensor:
        """Counts the tokens of string [n] before any cut, as int32 [n]."""

    def prompted(self, prompt: str, prompt_name: str) -> Graph:
        """The same graph with another prompt, if it takes prompts."""


class Encoder(Comparing):
    """Encodes sentences as vectors; `opening.open_encoder` creates it.

    Args:
        graph: from strings to vectors.
        info: a description for reports: `dim`, the checkpoint, pooling and so on.
        name: the name of the encoder in messages.
        prompts: texts that may precede a text, by name; `graph` accepts each.
    """

    def __init__(
        self,
        graph: Graph,
        info: dict,
        name: str,
        prompts: Mapping[str, str] | None = None,
    ):
        self._graph = graph
        self.dim = info["dim"]
        self.seq_length = graph.seq_length
        self.info = info
        self.name = name
        self.prompts = dict(prompts or {})

    def __repr__(self) -> str:
        return f"<Encoder {self.name}: dim {self.dim}, seq_length {self.seq_length}>"

    def __reduce__(self):
        raise TypeError(
            f"{self.name} cannot be pickled, because its graph belongs to one process; "
            "allowed: pickle its path, and open it with cmlm.load in the other process"
        )

    def _prompted(self, prompt_name: str) -> Encoder:
        prompt = self.prompts[prompt_name]
        described = prompts.describe(self.info, prompt_name, prompt)
        graph = self._graph.prompted(prompt, prompt_name)
        return Encoder(graph, described, self.name, self.prompts)

    def _encode(
        self, sentences: Sequence[str], progress: bool | None = None
    ) -> np.ndarray:
        """Encodes each distinct sentence once, in a batch of similar lengths.

        Apart from rounding, a vector does not depend on the other sentences.
        """
        # Each distinct sentence, with its first row.
        distinct: dict[str, int] = {}
        sources = [distinct.setdefault(text, row) for row, text in enumerate(sentences)]
        texts = to_bytes(distinct)
        forks.refuse(self.name)
        self._warn_of_unknown(texts)
        # One text is one batch, whatever its length.
        lengths = self._count(texts) if len(texts) > 1 else np.ones(len(texts))
        lengths = np.minimum(lengths, self.seq_length)
        vectors = np.empty([len(sources), self.dim], np.float32)
        rows = np.array([*distinct.values()])
        if progress is None:
            progress = lengths.sum() > 50 * MOST_TOKENS

        def encode_rows(batch: np.ndarray) -> int:
            text = tf.constant([texts[row] for row in batch])
            vectors[rows[batch]] = self._graph.vectors(text).numpy()
            return len(batch)

        with progress_bar(len(texts), disable=not progress) as bar:
            for count in threads.each(encode_rows, length_batches(lengths)):
                bar.update(count)
        if len(texts) < len(sources):
            # In pieces: a copy of all vectors would double the memory.
            sources = np.array(sources)
            repeats = np.flatnonzero(sources != np.arange(len(sources)))
            for start in range(0, len(repeats), _ROWS_AT_ONCE):
                some = repeats[start : start + _ROWS_AT_ONCE]
                vectors[some] = vectors[sources[some]]
        return vectors

    def _warn_of_unknown(self, texts: list[bytes]) -> None:
        """Warns once of texts whose words the vocabulary lacks.

        Args:
            texts: distinct ones; few of them do not count.
        """
        if len(texts) < _LEAST_TEXTS:
            return
        try:
            tokenizer = self._tokenizer
        except UserError:
            # A version of an export without the rest of it.
            return
        # Without cut and special tokens, this takes a quarter of the time of `encode`.
        ids = tokenizer.tokenize(tf.constant(texts[:_SOME_TEXTS])).flat_values.numpy()
        if np.sum(ids == tokenizer.unk_id) > _MOST_UNKNOWN * len(ids):
            once.warn(
                f"{self.name}: more than {_MOST_UNKNOWN:.0%} of the tokens of some "
                "texts are [UNK]: the vocabulary lacks their words, so the vectors say "
                "little about them"
            )

    def lengths(self, sentences: Sequence[str]) -> np.ndarray:
        """Counts the tokens of each sentence before any cut, [CLS] and [SEP] included.

        Returns:
            int32 [len(sentences)]; `encode` cuts sentences above `seq_length`.
        """
        check_sentences(sentences)
        forks.refuse(self.name)
        return self._count(to_bytes(sentences))

    def tokens(self, sentences: Sequence[str]) -> list[list[str]]:
        """The tokens of each sentence as `encode` reads them: after the cut.

        Returns:
            The tokens of each sentence, such as ["[CLS]", "token", "##s", "[SEP]"].

        Raises:
            UserError: the encoder is a version of an export without the rest of it.
        """
        check_sentences(sentences)
        forks.refuse(self.name)
        tokenizer = self._tokenizer
        text = tf.constant(to_bytes(sentences), tf.string)
        ids = tokenizer.encode(text, self.seq_length)
        return [[tokenizer.vocab[number] for number in row] for row in ids.to_list()]

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._graph.open_tokenizer()

    def _count(self, texts: list[bytes]) -> np.ndarray:
        counts = [
            self._graph.lengths(tf.constant(texts[start : start + _LENGTHS_AT_ONCE]))
            for start in range(0, len(texts), _LENGTHS_AT_ONCE)
        ]
        return np.concatenate([np.zeros(0, np.int32), *counts])
