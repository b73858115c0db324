"""Streams text in the training format as sentences, or pairs of consecutive ones.

Lines are read in chunks and each chunk is processed as a whole. This is fast for
millions of lines and needs the same memory for any corpus. `Portion` says which lines
are held out, for every format of data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from cmlm.data import file_mixing, line_files, ngram_table

# A longer line is cut before it is tokenised, which bounds the memory of the shuffle
# buffer. The limit allows 256 tokens of 64 bytes each.
MAX_SENTENCE_BYTES = 16_384
# Lines of a document that are held out together. Smaller blocks lose more pairs at the
# borders; larger blocks may leave a small corpus without validation text.
HOLD_OUT_BLOCK = 128

_BUCKETS = 1_000_000
# The largest share of a host, in shares of the smallest one, if hosts share by file.
# Each host gives as many examples of a step, so a smaller share is read more often.
_UNEVEN = 1.1

# Makes a dataset of the two tensors of a file (`line_files`) and the buckets of a part,
# int32 [2].
Reader = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class Portion:
    """The examples of a corpus that a dataset reads, and their order.

    A fingerprint of a document's first line, without marked n-grams, and the line's
    block of `HOLD_OUT_BLOCK` lines decide whether a line of text is held out; a
    fingerprint of the first cell decides for a line of a table. The seed, the order of
    the files and the number of hosts do not matter.

    Attributes:
        files: paths of one language; of NLI data, language to paths.
        part: `train`, `validation`, or `all` to ignore the hold-out.
        hold_out_fraction: share of the blocks, or of the lines of a table, that belongs
            to `validation`.
        input_context: splits the data among hosts, by file if the files divide into
            shares of nearly one size, else by example.
        seed: seed of the order of the files, which is new in each pass over the
            dataset; a rebuilt dataset repeats these orders. None keeps the order of
            `files`.
    """

    files: list[str] | dict[str, list[str]]
    part: str = "all"
    hold_out_fraction: float = 0.0
    input_context: tf.distribute.InputContext | None = None
    seed: int | None = None

    @property
    def buckets(self) -> tuple[int, int]:
        """The first bucket of the part, and the bucket behind its last one.

        A fingerprint puts each block, or each line of a table, into one of `_BUCKETS`
        buckets. The first ones are held out.
        """
        held_out = round(self.hold_out_fraction * _BUCKETS)
        parts = {
            "train": (held_out, _BUCKETS),
            "validation": (0, held_out),
            "all": (0, _BUCKETS),
        }
        if self.part not in parts:
            raise ValueError(f"part is {self.part!r}; allowed: {', '.join(parts)}")
        return parts[self.part]


def traced_once(read: Reader) -> Reader:
    """Lets TensorFlow trace a reader at its first use only.

    tf.data would trace it again for each dataset, 0.1 to 0.5 s for each language and
    part. The reader must depend on nothing but its arguments.
    """
    function = tf.function(
        read,
        autograph=False,
        input_signature=[*line_files.SIGNATURE, tf.TensorSpec([2], tf.int32)],
    )

    @functools.wraps(read)
    def call(*arguments):
        with tf.init_scope():
            # Where functions run eagerly, a call of `function` itself would run Python.
            concrete = function.get_concrete_function()
        return concrete(*arguments)

    return call


def sentences(portion: Portion) -> tf.data.Dataset:
    """Returns the sentences of a text: string []."""
    return read_files(portion, _read_sentences)


def marked_sentences(portion: Portion) -> tf.data.Dataset:
    """Returns the sentences of a text with their marked n-grams: string [].

    The parts are those of the text without marks.
    """
    return read_files(portion, _read_marked_sentences)


@traced_once
def _read_sentences(*arguments):
    return _kept_lines(read_chunks(*arguments))


@traced_once
def _read_marked_sentences(*arguments):
    return _kept_lines(read_chunks(*arguments, is_marked=True))


def _kept_lines(chunks: tf.data.Dataset) -> tf.data.Dataset:
    return chunks.map(lambda lines, _, kept, __: lines[kept]).unbatch()


def sentence_pairs(portion: Portion) -> tf.data.Dataset:
    """Returns all pairs of consecutive sentences of a text, in one streamed pass.

    A pair is two consecutive lines of one document. Both lines of a pair belong to the
    same part, so training and validation pairs share no line.

    Returns:
        Dataset of (string [], string []).
    """
    return read_files(portion, _read_pairs)


@traced_once
def _read_pairs(*arguments):
    chunks = read_chunks(*arguments)
    return chunks.map(
        lambda lines, previous, _, joined: (previous[joined], lines[joined])
    ).unbatch()


def read_files(portion: Portion, read: Reader) -> tf.data.Dataset:
    """Reads the files of a portion together, see `file_mixing`.

    Args:
        portion: the files, their order, and the hosts that share them.
        read: from a file and the buckets of the portion's part to a dataset.
    """
    files, context = portion.files, portion.input_context
    hosts, host = 1, 0
    if context is not None:
        hosts, host = context.num_input_pipelines, context.input_pipeline_id
    sizes = line_files.estimated_sizes(files)
    shares = file_mixing.divide(sizes, hosts)
    totals = [sum(sizes[i] for i in share) for share in shares]
    by_file = len(files) >= hosts and max(totals) <= _UNEVEN * min(totals)
    if by_file:
        files = [files[i] for i in shares[host]]
    buckets = portion.buckets
    dataset = file_mixing.read_together(
        files, lambda *file: read(*file, buckets), portion.seed
    )
    return dataset if by_file else dataset.shard(hosts, host)


def read_chunks(
    path: tf.Tensor,
    unpacked_length: tf.Tensor,
    buckets: tf.Tensor,
    is_marked: bool = False,
) -> tf.data.Dataset:
    """Streams one file of a text as chunks of consecutive lines.

    Args:
        path, unpacked_length: from `line_files.named`.
        buckets: int32 [2], the buckets of the part.
        is_marked: the lines have marked n-grams behind tabs.

    Returns:
        Dataset of tuples: `lines` string [n]; `previous` string [n], the line before
        each line; `kept` bool [n], True for sentences of the part; `joined` bool [n],
        True for kept sentences that directly follow a kept sentence of their document.
    """
    # State between chunks: the last line ("" if no document is open), whether that line
    # is in this part, the fingerprint of the open document, and the number of its lines
    # so far.
    start = (
        tf.constant(""),
        tf.constant(False),
        tf.constant(0, tf.int64),
        tf.constant(0),
    )

    def step(state, lines):
        last_line, last_in_part, last_document, n_before = state
        lines = tf.strings.substr(lines, 0, MAX_SENTENCE_BYTES)
        lines = tf.strings.strip(lines)
        previous = tf.concat([[last_line], lines[:-1]], axis=0)
        filled = tf.strings.length(lines) > 0
        follows = filled & (tf.strings.length(previous) > 0)

        opens = filled & ~follows
        openings = tf.cast(tf.where(opens)[:, 0], tf.int32)
        index = tf.cumsum(tf.cast(opens, tf.int32))  # 0: the document still open
        opening = tf.gather(lines, openings)
        # A marked text holds out what its plain text does. Where a sentence has tabs,
        # `cmlm.ngrams` writes spaces.
        if is_marked:
            opening = ngram_table.without_marks(opening)
        else:
            opening = tf.strings.regex_replace(opening, ngram_table.MARK, " ")
        document = tf.concat([[last_document], _fingerprints(opening)], axis=0)
        document = tf.gather(document, index)
        first = tf.gather(tf.concat([[-n_before], openings], axis=0), index)
        line_in_document = tf.range(tf.size(lines)) - first

        kept = _in_buckets(document, line_in_document, buckets)
        both_kept = kept & tf.concat([[last_in_part], kept[:-1]], axis=0)
        state = (
            lines[-1],
            kept[-1],
            document[-1],
            line_in_document[-1] + 1,
        )
        return state, (lines, previous, filled & kept, follows & both_kept)

    return line_files.read(path, unpacked_length).scan(start, step)


def rows_in_buckets(first: tf.Tensor, buckets: tf.Tensor) -> tf.Tensor:
    """Tells which rows of a table belong to a part: bool [rows].

    Args:
        first: string [rows], the first cell of each row.
        buckets: int32 [2], see `Portion.buckets`.
    """
    document = _fingerprints(first)
    return _in_buckets(document, tf.zeros_like(document, tf.int32), buckets)


def hash_of(text: tf.Tensor) -> tf.Tensor:
    """Returns a fingerprint of each text: int64, in the shape of the strings.

    Equal texts have equal ones. A teacher's vectors are stored under these numbers.
    """
    return tf.strings.to_hash_bucket_fast(text, tf.int64.max)


def _fingerprints(texts: tf.Tensor) -> tf.Tensor:
    """The numbers that decide which texts are held out: string [n] to int64 [n]."""
    return tf.strings.to_hash_bucket_fast(texts, 1 << 62)


def _in_buckets(
    document: tf.Tensor, line_in_document: tf.Tensor, buckets: tf.Tensor
) -> tf.Tensor:
    """Tells which lines belong to a part: bool [lines].

    Args:
        document: int64 [lines], fingerprint of each line's document.
        line_in_document: int32 [lines].
        buckets: int32 [2], see `Portion.buckets`.
    """
    block = tf.strings.join(
        [
            tf.strings.as_string(document),
            tf.strings.as_string(line_in_document // HOLD_OUT_BLOCK),
        ],
        separator="/",
    )
    bucket = tf.strings.to_hash_bucket_fast(block, _BUCKETS)
    first, behind = tf.unstack(tf.cast(buckets, tf.int64))
    return (bucket >= first) & (bucket < behind)


def as_tuples(
    source: Callable[[Portion], tf.data.Dataset],
) -> Callable[[Portion], tf.data.Dataset]:
    """Wraps a source of strings as a source of tuples."""
    return lambda portion: source(portion).map(lambda text: (text,))
