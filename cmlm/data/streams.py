"""Text in the training format as streams of sentences, passages and pairs.

Lines are read in chunks, and each chunk is worked on as a whole: cheap for millions of
lines, and flat in memory however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from cmlm.common import iterators

LINES_PER_CHUNK = 4096
# A sentence is cut here before it is tokenised, so that no line, however long, costs
# more than this in the shuffle buffer: 64 bytes a token for 256 tokens.
MAX_SENTENCE_BYTES = 16_384
# Held-out text is chosen in blocks of this many lines of a document: small enough for
# a corpus of one document to have some, large enough to lose few pairs at the borders.
HOLD_OUT_BLOCK = 128

_PARTS = ("train", "validation", "all")
_BUCKETS = 1_000_000


def sentences(
    files: list[str],
    part: str = "all",
    hold_out_fraction: float = 0.0,
    input_context: tf.distribute.InputContext | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Returns the sentences of a corpus, as string scalars; see `sentence_pairs`."""

    def give(chunk):
        return chunk.lines[chunk.kept]

    return _elements(files, part, hold_out_fraction, input_context, seed, give)


def passages(
    files: list[str],
    part: str = "all",
    hold_out_fraction: float = 0.0,
    input_context: tf.distribute.InputContext | None = None,
    seed: int | None = None,
    *,
    count_tokens: Callable[[tf.Tensor], tf.Tensor],
    n_tokens: int,
) -> tf.data.Dataset:
    """Returns stretches of documents: sentences in a row, joined by a space.

    A document is measured off in steps of `n_tokens`, and a passage is the sentences
    that begin within one: up to a sentence longer or shorter than the step. It ends
    early with its document, or with a chunk of the file.

    Args:
        files: see `sentence_pairs`, as for the rest.
        part: see `sentence_pairs`.
        hold_out_fraction: see `sentence_pairs`.
        input_context: see `sentence_pairs`.
        seed: see `sentence_pairs`.
        count_tokens: string [n] -> int [n].
        n_tokens: of a passage.

    Returns:
        Dataset of string [].
    """

    def give(chunk):
        lines = chunk.lines[chunk.kept]
        # A run is what is kept of a document without a gap.
        run = tf.cumsum(tf.cast(~chunk.joined[chunk.kept], tf.int32))
        ends = tf.cumsum(tf.cast(count_tokens(lines), tf.int32))
        begins = tf.concat([[0], ends[:-1]], axis=0)[: tf.size(lines)]
        first = tf.gather(tf.math.segment_min(begins, run), run)
        number = (begins - first) // n_tokens
        goes_on = (run[1:] == run[:-1]) & (number[1:] == number[:-1])
        opens = tf.concat([tf.ones_like(run[:1]), tf.cast(~goes_on, tf.int32)], axis=0)
        passage = tf.RaggedTensor.from_value_rowids(lines, tf.cumsum(opens) - 1)
        return tf.strings.reduce_join(passage, axis=1, separator=" ")

    return _elements(files, part, hold_out_fraction, input_context, seed, give)


def sentence_pairs(
    files: list[str],
    part: str = "all",
    hold_out_fraction: float = 0.0,
    input_context: tf.distribute.InputContext | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Returns the pairs of neighbours of a corpus: one pass, streamed.

    A pair is two lines that follow each other in one document. Held-out text is
    chosen by a fingerprint of the document's first line and the block of
    `HOLD_OUT_BLOCK` lines a line is in: it stays the same whatever the seed, the
    order of the files or the number of hosts. Both lines of a pair are in its part,
    so no line of a validation pair is in a training pair.

    Args:
        files: paths in the training format.
        part: `train`, `validation`, or `all`, which holds out nothing.
        hold_out_fraction: share of the blocks that is validation.
        input_context: splits the data among hosts: by file if each host gets at least
            one, else by element. The shares differ a little in size.
        seed: reads the files in a new random order in each pass over the dataset,
            a rebuilt dataset in the same orders; None keeps their order.

    Returns:
        Dataset of (string [], string []).
    """

    def give(chunk):
        return chunk.previous[chunk.joined], chunk.lines[chunk.joined]

    return _elements(files, part, hold_out_fraction, input_context, seed, give)


class _Chunk(NamedTuple):
    """Some lines of a file in a row.

    Attributes:
        lines: string [lines].
        previous: string [lines], the one before each; the first one's is in the chunk
            before.
        kept: bool [lines], which are sentences of the part that is read.
        joined: bool [lines], which of these follow another one of their document.
    """

    lines: tf.Tensor
    previous: tf.Tensor
    kept: tf.Tensor
    joined: tf.Tensor


def _elements(files, part, hold_out_fraction, input_context, seed, give):
    return read_files(
        files,
        lambda path: _read_file(path, part, hold_out_fraction, give),
        input_context,
        seed,
    )


def read_files(
    files: list[str],
    read: Callable[[tf.Tensor], tf.data.Dataset],
    input_context: tf.distribute.InputContext | None,
    seed: int | None,
) -> tf.data.Dataset:
    """Interleaves what `read` gives for each file; arguments as `sentence_pairs`."""
    shard = (
        (input_context.num_input_pipelines, input_context.input_pipeline_id)
        if input_context is not None
        else (1, 0)
    )
    by_file = len(files) >= shard[0]
    if by_file:
        files = files[shard[1] :: shard[0]]
    paths = iterators.untuned(tf.data.Dataset.from_tensor_slices(files))
    if seed is not None:
        paths = paths.shuffle(len(files), seed=seed, reshuffle_each_iteration=True)
    dataset = paths.interleave(
        read,
        cycle_length=min(8, len(files)),
        block_length=16,
        num_parallel_calls=min(2, len(files)),
        deterministic=True,
    )
    return dataset if by_file else dataset.shard(*shard)


def read_lines(path: tf.Tensor) -> tf.data.Dataset:
    """Streams one file, plain or gzip, in chunks: string [lines]."""
    compression = tf.where(tf.strings.regex_full_match(path, r".*\.gz"), "GZIP", "")
    return tf.data.TextLineDataset(path, compression).batch(LINES_PER_CHUNK)


def _read_file(path, part, hold_out_fraction, give) -> tf.data.Dataset:
    """Streams the elements that `give` makes of each _Chunk of one file."""
    # What a chunk must know of the one before: its last line ("" where no document is
    # open), whether that line is in this part, the fingerprint of the open document
    # and how many lines of it have gone by.
    start = (
        tf.constant(""),
        tf.constant(False),
        tf.constant(0, tf.int64),
        tf.constant(0),
    )

    def step(state, lines):
        last_line, last_in_part, last_document, n_before = state
        lines = tf.strings.substr(lines, 0, MAX_SENTENCE_BYTES)
        lines = tf.strings.strip(tf.strings.regex_replace(lines, "^\ufeff", ""))
        previous = tf.concat([[last_line], lines[:-1]], axis=0)
        filled = tf.strings.length(lines) > 0
        follows = filled & (tf.strings.length(previous) > 0)

        opens = filled & ~follows
        openings = tf.cast(tf.where(opens)[:, 0], tf.int32)
        index = tf.cumsum(tf.cast(opens, tf.int32))  # 0: the document still open
        fingerprints = tf.strings.to_hash_bucket_fast(
            tf.gather(lines, openings), 1 << 62
        )
        document = tf.gather(tf.concat([[last_document], fingerprints], 0), index)
        first = tf.gather(tf.concat([[-n_before], openings], axis=0), index)
        line_in_document = tf.range(tf.size(lines)) - first

        kept = in_part(document, line_in_document, part, hold_out_fraction)
        both_kept = kept & tf.concat([[last_in_part], kept[:-1]], axis=0)
        state = (
            lines[-1],
            kept[-1],
            document[-1],
            line_in_document[-1] + 1,
        )
        return state, give(_Chunk(lines, previous, filled & kept, follows & both_kept))

    return read_lines(path).scan(start, step).unbatch()


def in_part(document, line_in_document, part, hold_out_fraction) -> tf.Tensor:
    """Tells which lines are in a part: bool [lines].

    Args:
        document: int64 [lines], fingerprint of each line's document.
        line_in_document: int32 [lines].
        part: `train`, `validation` or `all`.
        hold_out_fraction: share of the blocks that is validation.
    """
    if part not in _PARTS:
        raise ValueError(f"part {part!r}: allowed are {', '.join(_PARTS)}")
    if part == "all":
        return tf.ones_like(line_in_document, tf.bool)
    block = tf.strings.join(
        [
            tf.strings.as_string(document),
            tf.strings.as_string(line_in_document // HOLD_OUT_BLOCK),
        ],
        separator="/",
    )
    bucket = tf.strings.to_hash_bucket_fast(block, _BUCKETS)
    held_out = bucket < round(hold_out_fraction * _BUCKETS)
    return held_out if part == "validation" else ~held_out
