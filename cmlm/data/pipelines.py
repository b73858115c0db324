"""From texts to batches: streamed, deterministic, and exact to resume.

Texts travel as strings through the shuffle; a batch is tokenised, masked and swapped at
the very end. All of its random choices come from (seed, host, number of the batch), so
that skipped batches cost neither tokenising nor masking, nor a change of what follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from cmlm.data import inference, languages, masking, parallel, streams
from cmlm.data.corpus import DataConfig
from cmlm.data.masking import MaskingConfig
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError

# Rows to sort by length at a time, and bounds for the batches they make: enough that
# those of a batch are alike, few enough to be there soon.
_WINDOW = 16_384
_FEWEST_BATCHES, _MOST_BATCHES = 8, 128
# A language that is drawn rarely is still shuffled.
_LEAST_SHUFFLE_BUFFER = 1_000


@dataclasses.dataclass(frozen=True)
class Feed:
    """What a pipeline reads, and whom it feeds.

    Every pipeline below takes one. For `train` it repeats for ever, each epoch in a new
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


def conditional_pairs(feed: Feed, masking_config: MaskingConfig) -> tf.data.Dataset:
    """Returns batches of neighbouring sentences, the second of each pair masked.

    Which of two neighbours comes first is drawn for each pair.

    Returns:
        Dataset of dicts: `context_word_ids`, `context_mask`, `input_word_ids`,
        `input_mask` int32 [batch, length], and `masked_lm_positions`, `masked_lm_ids`
        int32, `masked_lm_weights` float32 [batch, predictions].
    """

    def to_features(seed, first, second):
        n_rows = tf.shape(first)[0]
        ids = _encode(tf.concat([first, second], axis=0), feed)
        ids = tf.reshape(ids, [2, n_rows, tf.shape(ids)[1]])
        swap_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        swap = tf.random.stateless_uniform([n_rows, 1], swap_seed) < 0.5
        context = tf.where(swap, ids[1], ids[0])
        return {
            "context_word_ids": context,
            "context_mask": _mask(context, feed),
            **_masked(tf.where(swap, ids[0], ids[1]), feed, masking_config, mask_seed),
        }

    return _batches(streams.sentence_pairs, to_features, feed)


def masked_sentences(feed: Feed, masking_config: MaskingConfig) -> tf.data.Dataset:
    """Returns batches of single masked sentences.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length] and
        `masked_lm_positions`, `masked_lm_ids` int32, `masked_lm_weights` float32
        [batch, predictions].
    """

    def to_features(seed, text):
        return _masked(_encode(text, feed), feed, masking_config, seed)

    return _batches(_single_sentences, to_features, feed)


def masked_pairs(
    feed: Feed, masking_config: MaskingConfig, source: Callable[..., tf.data.Dataset]
) -> tf.data.Dataset:
    """Returns batches of two texts in one masked sequence, `[CLS] a [SEP] b [SEP]`.

    Which of the two comes first is drawn for each pair.

    Args:
        feed: what is read.
        masking_config: how it is masked.
        source: `streams.sentence_pairs` or `parallel.rows`.

    Returns:
        As `masked_sentences`, and `input_type_ids` int32 [batch, length], 1 for the
        second text.
    """

    def to_features(seed, first, second, *_):
        swap_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        swap = tf.random.stateless_uniform(tf.shape(first), swap_seed) < 0.5
        first, second = tf.where(swap, second, first), tf.where(swap, first, second)
        return _masked_pair(first, second, feed, masking_config, mask_seed)

    return _batches(source, to_features, feed)


def ordered_pairs(
    feed: Feed, masking_config: MaskingConfig, wrong: str
) -> tf.data.Dataset:
    """Returns batches as `masked_pairs` of neighbours, half of them not as in the text.

    Args:
        feed: what is read.
        masking_config: how it is masked.
        wrong: what these are: `random`, the second sentence is that of another pair of
            the batch (BERT's next-sentence prediction), or `swapped`, the two have
            changed places (ALBERT's sentence-order prediction).

    Returns:
        As `masked_pairs`, and `order_label` int32 [batch], 1 for a pair as it stands in
        the text.
    """

    def to_features(seed, first, second):
        label_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        right = tf.random.stateless_uniform(tf.shape(first), label_seed) < 0.5
        if wrong == "swapped":
            first, second = (
                tf.where(right, first, second),
                tf.where(right, second, first),
            )
        else:
            second = tf.where(right, second, tf.roll(second, shift=1, axis=0))
        return {
            **_masked_pair(first, second, feed, masking_config, mask_seed),
            "order_label": tf.cast(right, tf.int32),
        }

    return _batches(streams.sentence_pairs, to_features, feed)


def neighbours(feed: Feed) -> tf.data.Dataset:
    """Returns batches of neighbouring sentences as source and target.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length], and `source_hash`, `target_hash` int64
        [batch], fingerprints of the texts.
    """

    def to_features(_, source, target):
        return {**_side("source", source, feed), **_side("target", target, feed)}

    return _batches(streams.sentence_pairs, to_features, feed)


def translations(feed: Feed) -> tf.data.Dataset:
    """Returns batches of translations, with hard negatives where the files have them.

    Returns:
        As `neighbours`; with hard negatives also `negative_word_ids`, `negative_mask`
        int32 [batch, negatives, length] and `negative_hash` int64 [batch, negatives].
    """

    def to_features(_, source, target, *negatives):
        features = {**_side("source", source, feed), **_side("target", target, feed)}
        if negatives:
            features |= _sides("negative", tf.stack(negatives, axis=1), feed)
        return features

    return _batches(parallel.rows, to_features, feed)


def copies(feed: Feed, span: masking.SpanConfig, mask_rate: float) -> tf.data.Dataset:
    """Returns batches of sentences and changed copies of them, as Mirror-BERT's views.

    Args:
        feed: what is read.
        span: what is masked in the copy.
        mask_rate: share of the tokens masked besides, in both, independently.

    Returns:
        As `neighbours`; source and target have the same hash.
    """

    def to_features(seed, text):
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        changed = masking.mask_span(text, feed.tokenizer, span, seeds[0])
        source = feed.tokenizer.enclose(
            feed.tokenizer.tokenize(text), feed.config.seq_length
        )
        target = feed.tokenizer.enclose(changed, feed.config.seq_length)
        features = {}
        for name, tokens, side_seed in (
            ("source", source, seeds[1]),
            ("target", target, seeds[2]),
        ):
            ids = _pad(tokens, text.shape[0], feed)
            if mask_rate:
                config = MaskingConfig(
                    rate=mask_rate,
                    max_predictions=feed.config.seq_length,
                    mask_token_share=1.0,
                    random_token_share=0.0,
                )
                masked = masking.mask_tokens(ids, feed.tokenizer, config, side_seed)
                ids = masked["input_word_ids"]
            features[f"{name}_word_ids"] = ids
            features[f"{name}_mask"] = _mask(ids, feed)
            features[f"{name}_hash"] = _hash(text)
        return features

    return _batches(_single_sentences, to_features, feed)


def inference_pairs(feed: Feed) -> tf.data.Dataset:
    """Returns batches of premises and hypotheses.

    Returns:
        Dataset of dicts: `premise_word_ids`, `premise_mask`, `hypothesis_word_ids`,
        `hypothesis_mask` int32 [batch, languages, length] and `nli_label` int32
        [batch]. For training, languages is 1: a language drawn for each side.
    """

    def to_features(_, premises, hypotheses, label):
        return {
            **_sides("premise", premises, feed),
            **_sides("hypothesis", hypotheses, feed),
            "nli_label": inference.label_ids(label),
        }

    # The files are read together: to the shuffle they are one corpus.
    together = languages.Corpus({"": feed.corpus.files}, {"": 1})
    return _batches(
        inference.rows, to_features, dataclasses.replace(feed, corpus=together)
    )


# ------------------------------------------------------------------- features


def _encode(text: tf.Tensor, feed: Feed) -> tf.Tensor:
    """Tokenises and pads to the longest row, or to seq_length: int32 [n, length]."""
    tokens = feed.tokenizer.encode(text, feed.config.seq_length)
    return _pad(tokens, text.shape[0], feed)


def _pad(tokens: tf.RaggedTensor, n_rows: int | None, feed: Feed) -> tf.Tensor:
    is_static = feed.static_shapes or not feed.config.length_buckets
    # Row counts of ragged tensors are not static even where those of the text are.
    shape = [n_rows, feed.config.seq_length if is_static else None]
    return tokens.to_tensor(feed.tokenizer.pad_id, shape=shape)


def _mask(ids: tf.Tensor, feed: Feed) -> tf.Tensor:
    return tf.cast(ids != feed.tokenizer.pad_id, tf.int32)


def _masked(ids, feed, masking_config, seed) -> dict[str, tf.Tensor]:
    return {
        "input_mask": _mask(ids, feed),
        **masking.mask_tokens(
            ids, feed.tokenizer, masking_config, seed, feed.static_shapes
        ),
    }


def _masked_pair(first, second, feed, masking_config, seed) -> dict[str, tf.Tensor]:
    tokens = feed.tokenizer.encode_pair(first, second, feed.config.seq_length)
    ids = _pad(tokens, first.shape[0], feed)
    ends = tf.cumsum(
        tf.cast(ids == feed.tokenizer.sep_id, tf.int32), axis=1, exclusive=True
    )
    return {
        "input_type_ids": tf.cast(ends == 1, tf.int32),
        **_masked(ids, feed, masking_config, seed),
    }


def _side(name: str, text: tf.Tensor, feed: Feed) -> dict[str, tf.Tensor]:
    """One side of a contrastive pair, from string [n]."""
    ids = _encode(text, feed)
    return {
        f"{name}_word_ids": ids,
        f"{name}_mask": _mask(ids, feed),
        f"{name}_hash": _hash(text),
    }


def _hash(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(text, tf.int64.max)


def _sides(name: str, texts: tf.Tensor, feed: Feed) -> dict[str, tf.Tensor]:
    """The same of string [n, texts], with an axis more."""
    features = {}
    for key, value in _side(name, tf.reshape(texts, [-1]), feed).items():
        shape = tf.concat([tf.shape(texts), tf.shape(value)[1:]], axis=0)
        features[key] = tf.ensure_shape(
            tf.reshape(value, shape), [*texts.shape, *value.shape[1:]]
        )
    return features


# -------------------------------------------------------------------- batches


def _single_sentences(*args, **kwargs) -> tf.data.Dataset:
    return streams.sentences(*args, **kwargs).map(lambda text: (text,))


def _batches(
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
