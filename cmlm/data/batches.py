"""From texts to batches: streamed, shuffled, deterministic, and exact to resume.

Texts travel as strings; a batch becomes features at the very end. All of its random
choices come from (seed, host, number of the batch), so that skipped batches cost
neither tokenising nor masking, nor a change of what follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from cmlm.data import languages
from cmlm.data.corpus import DataConfig
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError

# What the last axis of each tensor of a batch counts: the tokens of which this tensor
# is the mask (0 in padding), or None for a tensor with no such axis.
COLUMNS: dict[str, str | None] = {
    **{f"input_{name}": "input_mask" for name in ("word_ids", "mask", "type_ids")},
    **{f"input_{name}": "input_mask" for name in ("order", "replacements")},
    **{
        f"masked_lm_{name}": "masked_lm_weights"
        for name in ("positions", "ids", "weights")
    },
    **{
        f"{side}_{name}": None if name == "hash" else f"{side}_mask"
        for side in ("context", "source", "target", "negative", "premise", "hypothesis")
        for name in ("word_ids", "mask", "hash")
    },
    **dict.fromkeys(("order_label", "nli_label")),
    **dict.fromkeys(("span_start", "span_end", "span_mask")),
}

# Rows to sort by length at a time, and bounds for the batches they make: enough that
# those of a batch are alike, few enough to be there soon.
_WINDOW = 16_384
_FEWEST_BATCHES, _MOST_BATCHES = 8, 128
# A language that is drawn rarely is still shuffled.
_LEAST_SHUFFLE_BUFFER = 1_000


@dataclasses.dataclass(frozen=True)
class Feed:
    """What a pipeline reads, and whom it feeds.

    Every pipeline takes one. For `train` it repeats for ever, each epoch in a new
    order with new masks, all batches of the same size; for `validation` and `all` it is
    one pass in a fixed order with fixed masks, of which one batch may be smaller.
    Sequences are padded to the longest of their batch.

    Attributes:
        config: sequence length, buckets, shuffling, hold-out, seed.
        tokenizer: strings to ids.
        corpus: files in the training format.
        batch_size: examples in a batch of one replica.
        part: `train`, `validation` or `all`.
        input_context: splits the data among hosts.
        skip_batches: leave out this many batches at the start; the rest is what it
            would have been.
        static_shapes: give every batch the same shape, as TPUs need.
    """

    config: DataConfig
    tokenizer: Tokenizer
    corpus: languages.Corpus
    batch_size: int
    part: str
    input_context: tf.distribute.InputContext | None = None
    skip_batches: int = 0
    static_shapes: bool = False


def batches(
    source: Callable[..., tf.data.Dataset],
    to_features: Callable[..., dict[str, tf.Tensor]],
    feed: Feed,
) -> tf.data.Dataset:
    """Shuffles, batches and finishes tuples of strings.

    Args:
        source: as `streams.sentence_pairs`; gives a dataset of tuples of strings.
        to_features: (seed int [2], string [batch], ...) -> features of a batch.
        feed: says from where and for whom.
    """
    config, training = feed.config, feed.part == "train"
    dataset = _examples(source, feed)
    pipeline_id = feed.input_context.input_pipeline_id if feed.input_context else 0
    window_seed, batch_seed = tf.unstack(
        tf.random.experimental.stateless_split([config.seed, pipeline_id], 2)
    )
    if config.length_buckets and not feed.static_shapes:
        dataset = _batch_by_length(
            dataset,
            feed.tokenizer,
            config.seq_length,
            feed.batch_size,
            window_seed,
            feed.skip_batches,
            drop_remainder=training,
        )
    else:
        dataset = dataset.skip(feed.skip_batches * feed.batch_size).batch(
            feed.batch_size, drop_remainder=training
        )

    def finish(number, texts):
        seed = tf.random.experimental.stateless_fold_in(batch_seed, number)
        return to_features(seed, *texts)

    return (
        dataset.enumerate(start=feed.skip_batches)
        .map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def _examples(source: Callable[..., tf.data.Dataset], feed: Feed) -> tf.data.Dataset:
    """Tuples of strings of all languages: shuffled and without end for training."""
    config, training = feed.config, feed.part == "train"
    if training:
        shares = feed.corpus.probabilities(config.sampling_exponent)
    else:
        shares = feed.corpus.probabilities(1.0)
    datasets = {}
    for language, files in feed.corpus.files.items():
        dataset = source(
            files,
            feed.part,
            config.hold_out_fraction,
            feed.input_context,
            seed=config.seed if training else None,
        )
        if training:
            # Repeating nothing for ever would be a run that hangs.
            if not any(True for _ in dataset.take(1)):
                raise UserError(
                    f"no text is left to train on in {config.input_path} with"
                    f" hold_out_fraction={config.hold_out_fraction}: allowed is more"
                    " text, a smaller fraction, or validation text of its own"
                )
            buffer = round(shares[language] * config.shuffle_buffer_size)
            if len(feed.corpus.files) > 1:
                buffer = max(buffer, _LEAST_SHUFFLE_BUFFER)
            dataset = dataset.shuffle(
                buffer, seed=config.seed, reshuffle_each_iteration=True
            ).repeat()
        datasets[language] = dataset
    return languages.mix(datasets, shares, config.seed)


def _batch_by_length(
    dataset: tf.data.Dataset,
    tokenizer: Tokenizer,
    seq_length: int,
    batch_size: int,
    seed: tf.Tensor,
    skip_batches: int,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches tuples of strings so that a batch holds sentences of like length.

    A window of many batches is sorted by length, cut into batches, and these are
    shuffled. Unlike buckets that fill one by one, each window gives a known number of
    batches: skipped ones are never tokenised. The length of an example is that of its
    longest text.

    Args:
        dataset: of tuples of string [] or [texts].
        tokenizer: says how many tokens a string has.
        seq_length: longer strings count as this long.
        batch_size: rows of a batch.
        seed: int [2], for the order of the batches in a window.
        skip_batches: leave out this many batches at the start.
        drop_remainder: leave out a last window that is not full.
    """
    per_window = min(max(_WINDOW // batch_size, _FEWEST_BATCHES), _MOST_BATCHES)
    window = per_window * batch_size
    n_windows, n_batches = divmod(skip_batches, per_window)

    def longest_text(texts):
        n_rows = tf.shape(texts)[0]
        lengths = tokenizer.tokenize(tf.reshape(texts, [-1])).row_lengths()
        return tf.reduce_max(tf.reshape(lengths, [n_rows, -1]), axis=1)

    def cut(number, texts):
        lengths = tf.stack([longest_text(column) for column in texts])
        longest = tf.minimum(tf.reduce_max(lengths, axis=0), seq_length - 2)
        by_length = tf.argsort(longest, stable=True)
        n_cuts = (tf.size(by_length) + batch_size - 1) // batch_size
        order = tf.random.experimental.stateless_shuffle(
            tf.range(n_cuts), tf.random.experimental.stateless_fold_in(seed, number)
        )
        return order, by_length, texts

    def cut_batches(order, by_length, texts):
        def one(cut_number):
            begin = cut_number * batch_size
            rows = by_length[begin : begin + batch_size]
            if drop_remainder:
                rows = tf.ensure_shape(rows, [batch_size])
            return tuple(tf.gather(text, rows) for text in texts)

        return tf.data.Dataset.from_tensor_slices(order).map(one)

    return (
        dataset.skip(n_windows * window)
        .batch(window, drop_remainder=drop_remainder)
        .enumerate(start=n_windows)
        .map(cut, num_parallel_calls=2, deterministic=True)
        .flat_map(cut_batches)
        .skip(n_batches)
    )


def trim(
    batch: dict[str, tf.Tensor], columns: Mapping[str, str | None] = COLUMNS
) -> dict[str, tf.Tensor]:
    """Drops the columns that are padding in every row of a batch.

    Args:
        batch: tensors whose names are in `columns`.
        columns: see `COLUMNS`.
    """
    widths = {
        mask: tf.reduce_max(tf.reduce_sum(tf.cast(batch[mask], tf.int32), axis=-1))
        for mask in {columns[name] for name in batch}
        if mask is not None
    }
    return {
        name: value if columns[name] is None else value[..., : widths[columns[name]]]
        for name, value in batch.items()
    }
