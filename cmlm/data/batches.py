"""From texts to batches: streamed, shuffled, deterministic, and exact to resume.

Texts travel as strings and become features at the very end. The masks and swaps of a
batch depend only on (seed, host, number of the batch), so skipping batches does not
change the batches that follow. Skipped batches are neither tokenised nor masked, with
two exceptions: passages are always measured in tokens, and `_batch_by_length` sorts its
first window.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from cmlm.data import streams
from cmlm.data.corpus import Corpus, mix
from cmlm.data.settings import DataConfig
from cmlm.errors import UserError
from cmlm.tokenization.base import Tokenizer

# For each tensor of a batch, the name of the mask that is 0 where the last axis of the
# tensor is padding; None if that axis is not padded.
COLUMNS: dict[str, str | None] = {
    "input_word_ids": "input_mask",
    "input_mask": "input_mask",
    "input_type_ids": "input_mask",
    "input_order": "input_mask",
    "input_replacements": "input_mask",
    "masked_lm_positions": "masked_lm_weights",
    "masked_lm_ids": "masked_lm_weights",
    "masked_lm_weights": "masked_lm_weights",
    "negative_exists": None,
    "nli_label": None,
    "order_label": None,
    "score": None,
    "span_start": None,
    "span_end": None,
    "span_mask": None,
    "teacher_vectors": None,
}
for _side in ("context", "source", "target", "negative", "premise", "hypothesis"):
    COLUMNS[f"{_side}_word_ids"] = f"{_side}_mask"
    COLUMNS[f"{_side}_mask"] = f"{_side}_mask"
for _side in ("source", "target", "negative"):
    COLUMNS[f"{_side}_hash"] = None

# Rows in a window that is sorted by length, and bounds for the number of its batches. A
# large window gives batches of similar length; a small window is ready sooner.
_WINDOW = 16_384
_FEWEST_BATCHES, _MOST_BATCHES = 8, 128
# Largest shuffle buffer of a validation, which reads a few thousand examples. To fill
# the buffer of a training from held-out lines, it would read most of a large corpus.
_VALIDATION_SHUFFLE = 65_536
# Smallest shuffle buffer of a language that is drawn rarely.
_LEAST_SHUFFLE_BUFFER = 1_000
# Between the seeds of two languages; hosts count from the seed on.
_APART = 1_000_003


@dataclasses.dataclass(frozen=True)
class Feed:
    """The source and the receiver of a pipeline's batches.

    Every pipeline takes a Feed. For `train` the pipeline repeats forever, each epoch in
    a new order with new masks, and all batches have the same size. For `validation` and
    `all` it makes one pass in a fixed order with fixed masks, and one batch may be
    smaller, except with `static_shapes`, which drop it. Sequences are padded to the
    longest one of their batch.

    Attributes:
        config: sequence length, shuffling, hold-out and seed.
        tokenizer: turns strings into ids.
        corpus: files in the training format.
        batch_size: examples in a batch of one replica.
        part: `train`, `validation` or `all`.
        input_context: splits the data among hosts.
        skip_batches: number of batches to leave out at the start; the others stay the
            same.
        static_shapes: give every batch the same shape, as TPUs require; rows that fill
            no batch are left out.
        epoch_examples: examples of an epoch, a multiple of the global batch. Each epoch
            then has this number of examples of the training part, each at most once. No
            batch spans two epochs, and the examples of all languages are shuffled
            together. 0: batches may span two epochs, and languages are drawn by
            `sampling_exponent`.
        unbatched: give the examples as strings, in one pass and without batches, so
            that they can be counted.
    """

    config: DataConfig
    tokenizer: Tokenizer
    corpus: Corpus
    batch_size: int
    part: str
    input_context: tf.distribute.InputContext | None = None
    skip_batches: int = 0
    static_shapes: bool = False
    epoch_examples: int = 0
    unbatched: bool = False

    @property
    def is_training(self) -> bool:
        return self.part == "train"

    @property
    def host(self) -> int:
        """The number of this host among those that share the data."""
        return self.input_context.input_pipeline_id if self.input_context else 0

    @property
    def order_seed(self) -> int:
        """Seed of the order of examples, and of the draws of languages.

        With one seed, hosts that share a file would give its adjacent lines to one
        step, and all hosts would draw the same language.
        """
        return self.config.seed + self.host

    def portion(self, language: str, seed: int | None = None) -> streams.Portion:
        """Returns the part of one language's files that this feed reads."""
        return streams.Portion(
            files=self.corpus.files[language],
            part=self.part,
            hold_out_fraction=self.config.hold_out_fraction,
            input_context=self.input_context,
            seed=seed,
        )


def batches(
    source: Callable[[streams.Portion], tf.data.Dataset],
    to_features: Callable[..., dict[str, tf.Tensor]],
    feed: Feed,
    *,
    random: bool = False,
    joined: bool = False,
    measured: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tf.data.Dataset:
    """Shuffles and batches tuples of strings and turns them into features.

    Args:
        source: from a portion of one language to a dataset of tuples of strings, as
            `streams.sentence_pairs`.
        to_features: (seed int [2], string [batch], ...) -> features of a batch.
        feed: see `Feed`.
        random: draw the examples of a batch at random, for losses that compare the
            examples of a batch with each other. The rows of a batch are then sorted by
            length, so that its micro-batches need less padding. False: batches hold
            examples of similar length if `feed.config.length_buckets` is set.
        joined: the texts of an example stand in one sequence; its length is their sum.
        measured: from texts of examples to their parts that count for the length.
    """
    config = feed.config
    dataset = _examples(source, feed)
    if feed.unbatched:
        return dataset
    if random and not feed.is_training:
        # Without shuffling, a batch would hold neighbouring sentences.
        size = min(config.shuffle_buffer_size, _VALIDATION_SHUFFLE)
        dataset = dataset.shuffle(size, feed.order_seed, reshuffle_each_iteration=False)
    window_seed, batch_seed = tf.unstack(
        tf.random.experimental.stateless_split([config.seed, feed.host], 2)
    )
    by_length = config.length_buckets and not feed.static_shapes
    if by_length and not random:
        dataset = _batch_by_length(dataset, feed, window_seed, joined, measured)
    elif feed.epoch_examples:
        dataset = dataset.batch(feed.batch_size, drop_remainder=True).repeat()
        dataset = dataset.skip(feed.skip_batches)
    else:
        dataset = dataset.skip(feed.skip_batches * feed.batch_size).batch(
            feed.batch_size, drop_remainder=feed.is_training or feed.static_shapes
        )

    def finish(number, texts):
        seed = tf.random.experimental.stateless_fold_in(batch_seed, number)
        features = to_features(seed, *texts)
        return sort_by_length(features) if by_length and random else features

    dataset = dataset.enumerate(start=feed.skip_batches).map(
        finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    if feed.is_training:
        # Behind `enumerate`, TensorFlow cannot tell that the dataset never ends. It
        # would ask in each step, on all workers, whether each replica has a batch.
        dataset = dataset.repeat()
    return dataset.prefetch(tf.data.AUTOTUNE)


def _examples(
    source: Callable[[streams.Portion], tf.data.Dataset], feed: Feed
) -> tf.data.Dataset:
    """Returns the examples of all languages as tuples of strings.

    For training, the examples are shuffled and repeat forever; with
    `feed.epoch_examples`, the dataset holds one epoch.
    """
    config = feed.config
    seed = config.seed if feed.is_training else None
    datasets = {
        language: source(feed.portion(language, seed)) for language in feed.corpus.files
    }
    if feed.unbatched:
        return functools.reduce(tf.data.Dataset.concatenate, datasets.values())
    if not feed.is_training:
        return mix(datasets, feed.corpus.probabilities(1.0), config.seed)
    for dataset in datasets.values():
        # Repeating an empty dataset would hang the run.
        if not any(True for _ in dataset.take(1)):
            raise UserError(
                f"no text is left to train on in {config.input_path} with"
                f" hold_out_fraction={config.hold_out_fraction}; allowed: more text, a"
                " smaller fraction, or separate validation text"
            )
    if feed.epoch_examples:
        # One behind the other, languages would leave a small buffer one at a time.
        together = mix(datasets, feed.corpus.probabilities(1.0), config.seed)
        return together.shuffle(
            config.shuffle_buffer_size, feed.order_seed, reshuffle_each_iteration=True
        ).take(feed.epoch_examples)
    shares = feed.corpus.probabilities(config.sampling_exponent)
    least = _LEAST_SHUFFLE_BUFFER if len(datasets) > 1 else 1
    endless = {
        language: dataset.shuffle(
            max(round(shares[language] * config.shuffle_buffer_size), least),
            # With one seed, texts that are translations of each other, line by line,
            # would come in one order, and a batch would repeat their lines.
            feed.order_seed + number * _APART,
            reshuffle_each_iteration=True,
        ).repeat()
        for number, (language, dataset) in enumerate(datasets.items())
    }
    return mix(endless, shares, feed.order_seed)


def _windows(dataset: tf.data.Dataset, feed: Feed) -> tuple[tf.data.Dataset, int]:
    """Returns the numbered windows of `_batch_by_length`, without the skipped ones.

    Args:
        dataset, feed: as for `_batch_by_length`.

    Returns:
        Dataset of (number of the window, its examples), and how many batches to skip in
        the first window.
    """
    batch_size = feed.batch_size
    per_window = min(max(_WINDOW // batch_size, _FEWEST_BATCHES), _MOST_BATCHES)
    window = per_window * batch_size
    if feed.epoch_examples:
        per_epoch = feed.epoch_examples // batch_size
        epochs, rest = divmod(feed.skip_batches, per_epoch)
        n_windows, n_batches = divmod(rest, per_window)
        n_windows += epochs * -(-per_epoch // per_window)
        windows = dataset.batch(window).repeat().skip(n_windows)
    else:
        n_windows, n_batches = divmod(feed.skip_batches, per_window)
        windows = dataset.skip(n_windows * window).batch(
            window, drop_remainder=feed.is_training
        )
    return windows.enumerate(start=n_windows), n_batches


def _batch_by_length(
    dataset: tf.data.Dataset,
    feed: Feed,
    seed: tf.Tensor,
    joined: bool,
    measured: Callable[[tf.Tensor], tf.Tensor],
) -> tf.data.Dataset:
    """Batches tuples of strings so that a batch holds examples of similar length.

    A window of many batches is sorted by length and cut into batches, which are then
    shuffled. Unlike buckets that fill one by one, each window gives a known number of
    batches, so whole windows are skipped without tokenising them. The length of an
    example is the length of its longest text in tokens, or of all texts if `joined`.

    Args:
        dataset: tuples of string [] or [texts]; with `feed.epoch_examples`, one epoch.
        feed: see `Feed`.
        seed: int [2], for the order of the batches in a window.
        joined, measured: see `batches`.
    """
    batch_size, tokenizer = feed.batch_size, feed.tokenizer
    of_example = tf.reduce_sum if joined else tf.reduce_max
    windows, n_batches = _windows(dataset, feed)

    def longest_text(texts):
        n_rows = tf.shape(texts)[0]
        lengths = tokenizer.count(tf.reshape(texts, [-1]))
        return tf.reduce_max(tf.reshape(lengths, [n_rows, -1]), axis=1)

    def cut(number, texts):
        lengths = tf.stack([longest_text(measured(column)) for column in texts])
        lengths = of_example(lengths, axis=0)
        lengths = tf.minimum(lengths, feed.config.seq_length - 2)
        by_length = tf.argsort(lengths, stable=True)
        n_cuts = (tf.size(by_length) + batch_size - 1) // batch_size
        order = tf.random.experimental.stateless_shuffle(
            tf.range(n_cuts), tf.random.experimental.stateless_fold_in(seed, number)
        )
        return order, by_length, texts

    def cut_batches(order, by_length, texts):
        def one(cut_number):
            begin = cut_number * batch_size
            rows = by_length[begin : begin + batch_size]
            if feed.is_training:
                rows = tf.ensure_shape(rows, [batch_size])
            return tuple(tf.gather(text, rows) for text in texts)

        return tf.data.Dataset.from_tensor_slices(order).map(one)

    return (
        windows.map(cut, num_parallel_calls=2, deterministic=True)
        .flat_map(cut_batches)
        .skip(n_batches)
    )


def mask_of(name: str) -> str | None:
    """The mask of a tensor of a batch, see `COLUMNS`.

    Raises:
        ValueError: the table has no such tensor.
    """
    if name not in COLUMNS:
        raise ValueError(
            f"a batch has the tensor {name!r}; allowed: names in COLUMNS of {__name__}"
        )
    return COLUMNS[name]


def sort_by_length(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sorts the rows of a batch by the length of their longest text, ascending.

    Args:
        batch: tensors whose names are in `COLUMNS`, with rows along the first axis.
    """
    lengths = [
        tf.reshape(
            tf.reduce_sum(tf.cast(batch[mask], tf.int32), axis=-1),
            [tf.shape(batch[mask])[0], -1],
        )
        for mask in sorted({mask_of(name) for name in batch} - {None})
    ]
    order = tf.argsort(tf.reduce_max(tf.concat(lengths, axis=1), axis=1), stable=True)
    return {
        name: tf.ensure_shape(tf.gather(value, order), value.shape)
        for name, value in batch.items()
    }


def at_least_one_column(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Gives a column of padding to tensors without any.

    The last batch of a validation may leave a replica without rows. Its tensors are
    [0, 0] then, and an encoder reads at least [CLS].

    Args:
        batch: tensors whose names are in `COLUMNS`.
    """

    def padded(value):
        last = tf.cast(tf.shape(value)[-1] == 0, tf.int32)
        return tf.pad(value, [*[[0, 0]] * (value.shape.rank - 1), [0, last]])

    return {
        # Where TensorFlow knows that there are columns, it keeps the shape.
        name: value if mask_of(name) is None or value.shape[-1] else padded(value)
        for name, value in batch.items()
    }


def trim(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Drops the columns that are padding in every row of a batch, except the first.

    Args:
        batch: tensors whose names are in `COLUMNS`.
    """
    widths = {
        mask: tf.reduce_max(tf.reduce_sum(tf.cast(batch[mask], tf.int32), axis=-1))
        for mask in {mask_of(name) for name in batch}
        if mask is not None
    }
    # The largest of no rows is the least integer.
    widths = {mask: tf.maximum(width, 1) for mask, width in widths.items()}
    return {
        name: value if mask_of(name) is None else value[..., : widths[mask_of(name)]]
        for name, value in batch.items()
    }
