"""Streams text in the training format as passages, or pairs of consecutive ones.

A passage is consecutive sentences of one document, joined until they fill a sequence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from cmlm.data import line_files, streams


@dataclasses.dataclass(frozen=True)
class Passages:
    """Passages: consecutive sentences of a document, joined by spaces.

    A document is divided into steps of `n_tokens` tokens, and a passage holds the
    sentences that begin within one step. A passage is therefore longer or shorter than
    a step by up to a sentence, and a document's last passage may be short. A held-out
    block divides a document in two.

    Attributes:
        count_tokens: string [n] -> int [n], the tokens of each sentence.
        n_tokens: length of a step.
    """

    count_tokens: Callable[[tf.Tensor], tf.Tensor]
    n_tokens: int

    def alone(self, portion: streams.Portion) -> tf.data.Dataset:
        """Returns the passages of a text: string []."""
        reader = _passage_reader(_passages_alone, self.count_tokens, self.n_tokens)
        return streams.read_files(portion, reader)

    def pairs(self, portion: streams.Portion) -> tf.data.Dataset:
        """Returns all pairs of consecutive passages of one document.

        A document that fits into one passage gives no pair.

        Returns:
            Dataset of (string [], string []).
        """
        reader = _passage_reader(_passages_joined, self.count_tokens, self.n_tokens)
        return streams.read_files(portion, reader)

    def starts(self, portion: streams.Portion) -> tf.data.Dataset:
        """Tells which passages open a document: bool [], file by file."""
        reader = _passage_reader(_passage_opens, self.count_tokens, self.n_tokens)
        buckets = portion.buckets
        return line_files.named(portion.files).flat_map(
            lambda *file: reader(*file, buckets)
        )


def _passages_alone(passages, previous, joined):
    return passages


def _passages_joined(passages, previous, joined):
    return previous[joined], passages[joined]


def _passage_opens(passages, previous, joined):
    return ~joined


# A run has one tokenizer and few lengths.
@functools.lru_cache(maxsize=8)
def _passage_reader(
    select: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]],
    count_tokens: Callable[[tf.Tensor], tf.Tensor],
    n_tokens: int,
) -> streams.Reader:
    """Returns a reader that applies `select` to the results of `_join_passages`."""

    def read(*arguments):
        chunks = streams.read_chunks(*arguments)
        return _join_passages(chunks, count_tokens, n_tokens).map(select).unbatch()

    return streams.traced_once(read)


def _join_passages(chunks, count_tokens, n_tokens) -> tf.data.Dataset:
    """Joins the sentences of one file's chunks into passages.

    Args:
        chunks: from `streams.read_chunks`.
        count_tokens, n_tokens: see `Passages`.

    Returns:
        Dataset of tuples, one a chunk: `passages` string [n]; `previous` string [n],
        the passage before each passage; `joined` bool [n], whether the two belong to
        one document.
    """
    start = _OpenPassage(*map(tf.constant, ("", "", False, 0, 0)))
    # An empty last line that opens a run completes the last passage.
    end = tf.data.Dataset.from_tensors((tf.constant([""]), tf.constant([False])))
    sentences_of_part = chunks.map(
        lambda lines, _, kept, joined: (lines[kept], joined[kept])
    )
    return sentences_of_part.concatenate(end).scan(
        start,
        lambda before, chunk: _join_chunk(before, *chunk, count_tokens, n_tokens),
    )


class _OpenPassage(NamedTuple):
    """The state between two chunks of `_join_passages`.

    A run is consecutive sentences of one document and part.

    Attributes:
        complete: the last complete passage.
        text: the open passage; "" if none is open.
        joined: whether the open passage continues the document of the complete one.
        number: the number of the open passage in its run.
        position: the tokens of the run so far.
    """

    complete: tf.Tensor
    text: tf.Tensor
    joined: tf.Tensor
    number: tf.Tensor
    position: tf.Tensor


def _join_chunk(before: _OpenPassage, lines, joined, count_tokens, n_tokens):
    """Joins the sentences of one chunk.

    Args:
        before: the state before the chunk.
        lines: string [sentences].
        joined: bool [sentences], whether each sentence continues the run before it.
        count_tokens, n_tokens: see `Passages`.

    Returns:
        The state behind the chunk, and the element of `_join_passages`.
    """
    counts = tf.cast(count_tokens(lines), tf.int32)
    # The tokens before each line, counted from the start of the open run.
    ends = before.position + tf.cumsum(counts)
    begins = tf.concat([[before.position], ends], axis=0)[:-1]
    # Lines at which a run begins; run 0 is the open one.
    openings = tf.where(~joined)[:, 0]
    run = tf.cumsum(tf.cast(~joined, tf.int32))
    origins = tf.concat([[0], tf.gather(begins, openings)], axis=0)
    origin = tf.gather(origins, run)
    numbers = tf.concat([[before.number], (begins - origin) // n_tokens], axis=0)
    opens = ~joined | (numbers[1:] != numbers[:-1])

    texts = tf.concat([[before.text], lines], axis=0)
    of = tf.concat([[0], tf.cumsum(tf.cast(opens, tf.int32))], axis=0)
    found = tf.strings.reduce_join(
        tf.RaggedTensor.from_value_rowids(texts, of), axis=1, separator=" "
    )
    found_joined = tf.concat([[before.joined], joined[opens]], axis=0)
    # The last passage may continue in the next chunk. The first passage is empty if no
    # passage was open.
    done = tf.strings.length(found[:-1]) > 0
    given, given_joined = found[:-1][done], found_joined[:-1][done]
    previous = tf.concat([[before.complete], given], axis=0)
    positions = tf.concat([[before.position], ends - origin], axis=0)
    behind = _OpenPassage(
        previous[-1], found[-1], found_joined[-1], numbers[-1], positions[-1]
    )
    return behind, (given, previous[:-1], given_joined)
