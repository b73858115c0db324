"""From sentences to batches: streamed, deterministic, and exact to resume.

Sentences travel as strings through the shuffle; a batch is tokenised, masked and
swapped at the very end. All of its random choices come from (seed, host, number of the
batch), so that skipped batches cost neither tokenising nor masking, nor a change of
what follows.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from cmlm.data import masking, streams
from cmlm.data.corpus import TextDataConfig
from cmlm.data.masking import MaskingConfig
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError

# Rows to sort by length at a time, and bounds for the batches they make: enough that
# those of a batch are alike, few enough to be there soon.
_WINDOW = 16_384
_FEWEST_BATCHES, _MOST_BATCHES = 8, 128


def conditional_pairs(
    config: TextDataConfig,
    masking_config: MaskingConfig,
    tokenizer: Tokenizer,
    files: list[str],
    *,
    batch_size: int,
    part: str,
    input_context: tf.distribute.InputContext | None = None,
    skip_batches: int = 0,
    static_shapes: bool = False,
) -> tf.data.Dataset:
    """Returns batches of neighbouring sentences, the second of each pair masked.

    For `train` it repeats for ever, each epoch in a new order with new masks, all
    batches of the same size; for `validation` and `all` it is one pass in a fixed
    order with fixed masks, of which one batch may be smaller. Which of two neighbours
    comes first is drawn for each pair.

    Args:
        config: sequence length, buckets, shuffling, hold-out, seed.
        masking_config: how the second sentence is masked.
        tokenizer: strings to ids.
        files: paths in the training format.
        batch_size: pairs in a batch of one replica.
        part: `train`, `validation` or `all`.
        input_context: splits the data among hosts.
        skip_batches: leave out this many batches at the start; the rest is what it
            would have been.
        static_shapes: give every batch the same shape, as TPUs need.

    Returns:
        Dataset of dicts: `context_word_ids`, `context_mask`, `input_word_ids`,
        `input_mask` int32 [batch, length], both sides padded to the longest sentence
        of the batch (or to seq_length), and `masked_lm_positions`, `masked_lm_ids`
        int32, `masked_lm_weights` float32 [batch, predictions].
    """

    def to_features(seed, first, second):
        n_rows = tf.shape(first)[0]
        ids = _encode(
            tf.concat([first, second], axis=0), tokenizer, config, static_shapes
        )
        ids = tf.reshape(ids, [2, n_rows, tf.shape(ids)[1]])
        swap_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        swap = tf.random.stateless_uniform([n_rows, 1], swap_seed) < 0.5
        context = tf.where(swap, ids[1], ids[0])
        target = tf.where(swap, ids[0], ids[1])
        return {
            "context_word_ids": context,
            "context_mask": tf.cast(context != tokenizer.pad_id, tf.int32),
            "input_mask": tf.cast(target != tokenizer.pad_id, tf.int32),
            **masking.mask_tokens(
                target, tokenizer, masking_config, mask_seed, static_shapes
            ),
        }

    return _batches(
        streams.sentence_pairs,
        to_features,
        config,
        tokenizer,
        files,
        batch_size,
        part,
        input_context,
        skip_batches,
        static_shapes,
    )


def masked_sentences(
    config: TextDataConfig,
    masking_config: MaskingConfig,
    tokenizer: Tokenizer,
    files: list[str],
    *,
    batch_size: int,
    part: str,
    input_context: tf.distribute.InputContext | None = None,
    skip_batches: int = 0,
    static_shapes: bool = False,
) -> tf.data.Dataset:
    """Returns batches of single masked sentences; arguments as `conditional_pairs`.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length] and
        `masked_lm_positions`, `masked_lm_ids` int32, `masked_lm_weights` float32
        [batch, predictions].
    """

    def to_features(seed, text):
        ids = _encode(text, tokenizer, config, static_shapes)
        return {
            "input_mask": tf.cast(ids != tokenizer.pad_id, tf.int32),
            **masking.mask_tokens(ids, tokenizer, masking_config, seed, static_shapes),
        }

    return _batches(
        lambda *args, **kwargs: streams.sentences(*args, **kwargs).map(
            lambda text: (text,)
        ),
        to_features,
        config,
        tokenizer,
        files,
        batch_size,
        part,
        input_context,
        skip_batches,
        static_shapes,
    )


def _batches(
    source: Callable[..., tf.data.Dataset],
    to_features: Callable[..., dict[str, tf.Tensor]],
    config: TextDataConfig,
    tokenizer: Tokenizer,
    files: list[str],
    batch_size: int,
    part: str,
    input_context: tf.distribute.InputContext | None,
    skip_batches: int,
    static_shapes: bool,
) -> tf.data.Dataset:
    """Shuffles, batches and finishes tuples of strings.

    Args:
        source: as `streams.sentence_pairs`; gives a dataset of tuples of strings.
        to_features: (seed int [2], string [batch], ...) -> features of a batch.
        See `conditional_pairs` for the rest.
    """
    training = part == "train"
    dataset = source(
        files,
        part,
        config.hold_out_fraction,
        input_context,
        seed=config.seed if training else None,
    )
    if training:
        # Repeating nothing for ever would be a run that hangs.
        if not any(True for _ in dataset.take(1)):
            raise UserError(
                f"no text is left to train on in {files[0]} and the like with"
                f" hold_out_fraction={config.hold_out_fraction}: allowed is more text,"
                " a smaller fraction, or validation text of its own"
            )
        dataset = dataset.shuffle(
            config.shuffle_buffer_size,
            seed=config.seed,
            reshuffle_each_iteration=True,
        ).repeat()
    pipeline_id = input_context.input_pipeline_id if input_context else 0
    window_seed, batch_seed = tf.unstack(
        tf.random.experimental.stateless_split([config.seed, pipeline_id], 2)
    )
    if config.length_buckets and not static_shapes:
        dataset = _batch_by_length(
            dataset,
            tokenizer,
            config.seq_length,
            batch_size,
            window_seed,
            skip_batches,
            drop_remainder=training,
        )
    else:
        dataset = dataset.skip(skip_batches * batch_size).batch(
            batch_size, drop_remainder=training
        )

    def finish(number, texts):
        seed = tf.random.experimental.stateless_fold_in(batch_seed, number)
        return to_features(seed, *texts)

    return (
        dataset.enumerate(start=skip_batches)
        .map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )


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
    batches: skipped ones are never tokenised. The length of a pair is that of its
    longer sentence.

    Args:
        dataset: of tuples of string [].
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

    def cut(number, texts):
        lengths = [tokenizer.tokenize(text).row_lengths() for text in texts]
        longest = tf.minimum(tf.reduce_max(tf.stack(lengths), axis=0), seq_length - 2)
        by_length = tf.argsort(longest, stable=True)
        n_cuts = (tf.size(by_length) + batch_size - 1) // batch_size
        order = tf.random.experimental.stateless_shuffle(
            tf.range(n_cuts), tf.random.experimental.stateless_fold_in(seed, number)
        )
        return order, by_length, texts

    def batches(order, by_length, texts):
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
        .flat_map(batches)
        .skip(n_batches)
    )


def _encode(
    text: tf.Tensor, tokenizer: Tokenizer, config: TextDataConfig, static_shapes: bool
) -> tf.Tensor:
    """Tokenises and pads to the longest row, or to seq_length: int32 [n, length]."""
    padded_to = (
        config.seq_length if static_shapes or not config.length_buckets else None
    )
    tokens = tokenizer.encode(text, config.seq_length)
    # Row counts of ragged tensors are not static even where those of the text are.
    return tokens.to_tensor(tokenizer.pad_id, shape=[text.shape[0], padded_to])
