"""What a batch of each objective holds: from strings to features.

Texts are tokenised, masked and swapped here, at the very end of a pipeline.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from cmlm.data import bitext, languages, masking, ngram_table, nli, spans, streams
from cmlm.data.batches import Feed, batches
from cmlm.data.masking import MaskingConfig


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

    return batches(streams.sentence_pairs, to_features, feed)


def masked_texts(
    feed: Feed, masking_config: MaskingConfig, passages: bool = False
) -> tf.data.Dataset:
    """Returns batches of single masked texts.

    Args:
        feed: what is read.
        masking_config: how it is masked.
        passages: whether a text is a stretch of a document that fills a sequence, not
            a sentence.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length] and
        `masked_lm_positions`, `masked_lm_ids` int32, `masked_lm_weights` float32
        [batch, predictions].
    """

    def to_features(seed, text):
        return _masked(_encode(text, feed), feed, masking_config, seed)

    source = streams.sentences
    if passages:
        source = functools.partial(
            streams.passages,
            count_tokens=lambda text: feed.tokenizer.tokenize(text).row_lengths(),
            n_tokens=feed.config.seq_length - 2,
        )
    return batches(_single(source), to_features, feed)


def masked_pairs(
    feed: Feed, masking_config: MaskingConfig, source: Callable[..., tf.data.Dataset]
) -> tf.data.Dataset:
    """Returns batches of two texts in one masked sequence, `[CLS] a [SEP] b [SEP]`.

    Which of the two comes first is drawn for each pair.

    Args:
        feed: what is read.
        masking_config: how it is masked.
        source: `streams.sentence_pairs` or `bitext.rows`.

    Returns:
        As `masked_texts`, and `input_type_ids` int32 [batch, length], 1 for the
        second text.
    """

    def to_features(seed, first, second, *_):
        swap_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        swap = tf.random.stateless_uniform(tf.shape(first), swap_seed) < 0.5
        first, second = tf.where(swap, second, first), tf.where(swap, first, second)
        return _masked_pair(first, second, feed, masking_config, mask_seed)

    return batches(source, to_features, feed)


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

    return batches(streams.sentence_pairs, to_features, feed)


def neighbours(feed: Feed) -> tf.data.Dataset:
    """Returns batches of neighbouring sentences as source and target.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length], and `source_hash`, `target_hash` int64
        [batch], fingerprints of the texts.
    """

    def to_features(_, source, target):
        return {**_side("source", source, feed), **_side("target", target, feed)}

    return batches(streams.sentence_pairs, to_features, feed)


def bitext_pairs(feed: Feed) -> tf.data.Dataset:
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

    return batches(bitext.rows, to_features, feed)


def copies(feed: Feed, span: masking.SpanConfig, mask_rate: float) -> tf.data.Dataset:
    """Returns batches of sentences and changed copies of them, as Mirror-BERT's views.

    Args:
        feed: what is read.
        span: what is masked in the copy.
        mask_rate: share of the tokens masked besides, in both, independently. A text
            of which nothing would be left, such as a single word, is spared.

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
                masked = masked["input_word_ids"]
                ordinary = ~tf.gather(tf.constant(feed.tokenizer.is_special), masked)
                left = tf.reduce_any(ordinary, axis=1, keepdims=True)
                ids = tf.where(left, masked, ids)
            features[f"{name}_word_ids"] = ids
            features[f"{name}_mask"] = _mask(ids, feed)
            features[f"{name}_hash"] = _hash(text)
        return features

    return batches(_single(streams.sentences), to_features, feed)


def sentences_with_spans(
    feed: Feed,
    masking_config: MaskingConfig,
    find: Callable[..., tf.Tensor],
    n_spans: int,
    draws: int,
) -> tf.data.Dataset:
    """Returns batches of sentences, spans in them, and masks that spare any one span.

    Args:
        feed: what is read. A tab ends a sentence; its marked n-grams follow.
        masking_config: how it is masked.
        find: `ngram_table.NgramFinder` or `spans.RandomSpans`.
        n_spans: the most spans of a sentence, drawn if there are more.
        draws: independent masks of a sentence.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length], not
        masked; `span_start`, `span_end`, `span_mask` int32 [batch, n_spans], see
        `spans.draw`; `input_order`, `input_replacements` int32 [batch, draws, length]
        and `masked_lm_weights` float32 [batch, predictions], see `spans.prepare_masks`.
    """

    def to_features(seed, text):
        sentence, marks = ngram_table.split_marks(text)
        ids = _encode(sentence, feed)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        drawn = spans.draw(find(ids, seeds[0], marks), n_spans, seeds[1])
        masks = spans.prepare_masks(
            ids,
            drawn,
            feed.tokenizer,
            masking_config,
            draws,
            seeds[2],
            feed.static_shapes,
        )
        return {
            "input_word_ids": ids,
            "input_mask": _mask(ids, feed),
            **drawn,
            **masks,
        }

    return batches(_single(streams.sentences), to_features, feed)


def nli_pairs(feed: Feed) -> tf.data.Dataset:
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
            "nli_label": nli.label_ids(label),
        }

    # The files are read together: to the shuffle they are one corpus.
    together = languages.Corpus({"": feed.corpus.files}, {"": 1})
    return batches(nli.rows, to_features, dataclasses.replace(feed, corpus=together))


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


def _single(source: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """A source of strings as one of tuples."""
    return lambda *args, **kwargs: source(*args, **kwargs).map(lambda text: (text,))
