"""Builds the batches of each objective: from its texts to its features.

Tokenising, masking and swapping happen here, at the very end of a pipeline.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from cmlm.data import bitext, languages, masking, ngram_table, nli, spans, streams
from cmlm.data.batches import Feed, batches
from cmlm.data.masking import MaskingConfig
from cmlm.data.teacher_vectors import hash_of
from cmlm.errors import UserError

# Passages of each language to inspect for documents that give no pair.
_LOOKED_AT = 2_000

logger = logging.getLogger(__name__)


def conditional_pairs(
    feed: Feed, masking_config: MaskingConfig, passages: bool = False
) -> tf.data.Dataset:
    """Returns batches of pairs of consecutive texts, the second of each pair masked.

    The order of a pair is swapped half of the time (CMLM, section 3).

    Args:
        feed: the source and the receiver of the batches.
        masking_config: settings of the masking.
        passages: whether a text is a passage that fills a sequence, not a sentence.

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

    source = streams.sentence_pairs
    if passages:
        source = functools.partial(streams.passage_pairs, **_passage_settings(feed))
        if feed.is_training and not feed.unbatched:
            _report_passages(feed)
    return batches(source, to_features, feed)


def masked_texts(
    feed: Feed, masking_config: MaskingConfig, passages: bool = False
) -> tf.data.Dataset:
    """Returns batches of single masked texts.

    Args:
        feed: the source and the receiver of the batches.
        masking_config: settings of the masking.
        passages: whether a text is a passage that fills a sequence, not a sentence.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length] and
        `masked_lm_positions`, `masked_lm_ids` int32, `masked_lm_weights` float32
        [batch, predictions].
    """

    def to_features(seed, text):
        return _masked(_encode(text, feed), feed, masking_config, seed)

    source = streams.sentences
    if passages:
        source = functools.partial(streams.passages, **_passage_settings(feed))
    return batches(_single(source), to_features, feed)


def _passage_settings(feed: Feed) -> dict[str, Any]:
    """Returns settings of passages that leave room for [CLS] and [SEP]."""
    return {
        "count_tokens": lambda text: feed.tokenizer.tokenize(text).row_lengths(),
        "n_tokens": feed.config.seq_length - 2,
    }


def _report_passages(feed: Feed) -> None:
    """Logs how many documents are too short for a pair of passages.

    Raises:
        UserError: every document of a language fits into one passage.
    """
    for language, files in feed.corpus.files.items():
        starts = streams.passage_starts(
            files, feed.part, feed.config.hold_out_fraction, **_passage_settings(feed)
        )
        opens = np.array([*starts.take(_LOOKED_AT).as_numpy_iterator()], bool)
        # Rarely more than a look: only if all of the first documents are short.
        rest = starts.skip(_LOOKED_AT).filter(tf.math.logical_not).take(1)
        single = int(np.sum(opens & np.append(opens[1:], len(opens) < _LOOKED_AT)))
        what = f"{language}: passages" if language else "passages"
        logger.info(
            "%s: %d of the first %d documents fit into one passage of %d tokens and"
            " give no pair",
            what,
            single,
            opens.sum(),
            feed.config.seq_length,
        )
        if opens.all() and not any(True for _ in rest):
            raise UserError(
                f"text {files[0]} has no document of more than one passage of"
                f" seq_length={feed.config.seq_length} tokens; allowed: longer"
                " documents, a shorter seq_length, or pairs of sentences"
                " (task.cmlm.passages=false)"
            )


def masked_pairs(feed: Feed, masking_config: MaskingConfig) -> tf.data.Dataset:
    """Returns batches of bitext pairs in one masked sequence, `[CLS] a [SEP] b [SEP]`.

    The order of a pair is swapped half of the time.

    Args:
        feed: the source and the receiver of the batches; its corpus is a bitext.
        masking_config: settings of the masking.

    Returns:
        The features of `masked_texts`, and `input_type_ids` int32 [batch, length], 1
        for the second text.
    """

    def to_features(seed, first, second):
        swap_seed, mask_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 2)
        )
        swap = tf.random.stateless_uniform(tf.shape(first), swap_seed) < 0.5
        first, second = tf.where(swap, second, first), tf.where(swap, first, second)
        return _masked_pair(first, second, feed, masking_config, mask_seed)

    return batches(functools.partial(bitext.rows, columns=2), to_features, feed)


def ordered_pairs(
    feed: Feed, masking_config: MaskingConfig, wrong: str
) -> tf.data.Dataset:
    """Returns batches of pairs of consecutive sentences, half of them made wrong.

    Args:
        feed: the source and the receiver of the batches.
        masking_config: settings of the masking.
        wrong: `random` takes the second sentence from another pair of the batch (BERT's
            next-sentence prediction); `swapped` exchanges the two sentences (ALBERT's
            sentence-order prediction).

    Returns:
        The features of `masked_pairs`, and `order_label` int32 [batch], 1 for a pair in
        the order of the text.
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

    # Wrong second sentences come from any pairs, not only from pairs of similar length.
    return batches(streams.sentence_pairs, to_features, feed, random=wrong == "random")


def neighbours(feed: Feed) -> tf.data.Dataset:
    """Returns random batches of consecutive sentences as source and target.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length], and `source_hash`, `target_hash` int64
        [batch], fingerprints of the texts.
    """

    def to_features(_, source, target):
        return {**_side("source", source, feed), **_side("target", target, feed)}

    return batches(streams.sentence_pairs, to_features, feed, random=True)


def bitext_pairs(feed: Feed) -> tf.data.Dataset:
    """Returns random batches of bitext pairs, with the hard negatives of the files.

    Returns:
        The features of `neighbours`; if any file has hard negatives, also
        `negative_word_ids`, `negative_mask` int32 [batch, negatives, length],
        `negative_hash` int64 [batch, negatives], and `negative_exists` int32 [batch,
        negatives]. `negatives` is the largest number of any language pair;
        `negative_exists` is 0 where an example has fewer.
    """
    columns = max(map(bitext.count_columns, feed.corpus.files.values()))

    def to_features(_, source, target, *negatives):
        features = {**_side("source", source, feed), **_side("target", target, feed)}
        if negatives:
            texts = tf.stack(negatives, axis=1)
            exists = tf.cast(tf.strings.length(texts) > 0, tf.int32)
            features |= _sides("negative", texts, feed)
            features["negative_exists"] = exists
        return features

    source = functools.partial(bitext.rows, columns=columns)
    return batches(source, to_features, feed, random=True)


def scored_pairs(feed: Feed) -> tf.data.Dataset:
    """Returns random batches of scored pairs.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length] and `score` float32 [batch].
    """

    def to_features(_, source, target, score):
        return {
            **_text("source", source, feed),
            **_text("target", target, feed),
            "score": tf.strings.to_number(score),
        }

    source = functools.partial(bitext.rows, columns=3)
    return batches(source, to_features, feed, random=True)


def taught_texts(
    feed: Feed, lookup: Callable[[tf.Tensor], tf.Tensor]
) -> tf.data.Dataset:
    """Returns batches of sentences with the vectors that a teacher has for them.

    Args:
        feed: the source and the receiver of the batches.
        lookup: from texts, string [n], to vectors, float32 [n, dim].

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask` int32 [batch, length] and
        `teacher_vectors` float32 [batch, dim].
    """

    def to_features(_, text):
        return {**_text("source", text, feed), "teacher_vectors": lookup(text)}

    return batches(_single(streams.sentences), to_features, feed)


def taught_pairs(
    feed: Feed,
    lookup: Callable[[tf.Tensor], tf.Tensor],
    taught_text: Callable[..., tf.Tensor],
) -> tf.data.Dataset:
    """Returns batches of bitext pairs with a teacher's vectors of one side.

    Args:
        feed, lookup: see `taught_texts`; the corpus is a bitext.
        taught_text: from source and target to the text that the teacher reads.

    Returns:
        The features of `taught_texts`, and `target_word_ids`, `target_mask`.
    """

    def to_features(_, source, target):
        return {
            **_text("source", source, feed),
            **_text("target", target, feed),
            "teacher_vectors": lookup(taught_text(source, target)),
        }

    return batches(functools.partial(bitext.rows, columns=2), to_features, feed)


def copies(feed: Feed, span: masking.SpanConfig, mask_rate: float) -> tf.data.Dataset:
    """Returns random batches of sentences and masked copies: Mirror-BERT's two views.

    Each distinct string is read once (section 2.1: "a set of non-duplicated strings");
    the strings of a pass stay in memory to find the duplicates.

    Args:
        feed: the source and the receiver of the batches.
        span: the span to mask in the copy.
        mask_rate: share of further tokens to mask in each view, drawn independently. If
            the draw would mask all tokens of a text, such as a single word, it masks
            none of them.

    Returns:
        The features of `neighbours`; source and target have the same hash.
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
            features[f"{name}_hash"] = hash_of(text)
        return features

    def distinct(*args, **kwargs):
        return streams.sentences(*args, **kwargs).unique().map(lambda text: (text,))

    return batches(distinct, to_features, feed, random=True)


def sentences_with_spans(
    feed: Feed,
    masking_config: MaskingConfig,
    find: Callable[..., tf.Tensor],
    n_spans: int,
    draws: int,
) -> tf.data.Dataset:
    """Returns batches of sentences with candidate spans and masks that avoid a span.

    Args:
        feed: the source and the receiver of the batches. In a line of text, tabs
            separate the sentence and its marked n-grams.
        masking_config: settings of the masking.
        find: `ngram_table.NgramFinder` or `spans.RandomSpans`.
        n_spans: the most spans of a sentence; a random choice if the sentence has more.
        draws: the number of independent masks of a sentence.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length],
        unmasked; `span_start`, `span_end`, `span_mask` int32 [batch, n_spans], see
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


def nli_pairs(feed: Feed, same_language: bool = False) -> tf.data.Dataset:
    """Returns batches of premises and hypotheses.

    Args:
        feed: the source and the receiver of the batches; its corpus is NLI data.
        same_language: see `nli.rows`.

    Returns:
        Dataset of dicts: `premise_word_ids`, `premise_mask`, `hypothesis_word_ids`,
        `hypothesis_mask` int32 [batch, languages, length] and `nli_label` int32
        [batch]. In training `languages` is 1: the languages of a pair are drawn.
    """

    def to_features(_, premises, hypotheses, label):
        return {
            **_sides("premise", premises, feed),
            **_sides("hypothesis", hypotheses, feed),
            "nli_label": nli.label_ids(label),
        }

    # The files of all languages are read together, so they are one corpus here.
    together = languages.Corpus({"": feed.corpus.files}, {"": 1})
    source = functools.partial(nli.rows, same_language=same_language)
    return batches(source, to_features, dataclasses.replace(feed, corpus=together))


# ------------------------------------------------------------------- features


def _encode(text: tf.Tensor, feed: Feed) -> tf.Tensor:
    """Tokenises and pads to the longest row or to seq_length: int32 [n, length]."""
    tokens = feed.tokenizer.encode(text, feed.config.seq_length)
    return _pad(tokens, text.shape[0], feed)


def _pad(tokens: tf.RaggedTensor, n_rows: int | None, feed: Feed) -> tf.Tensor:
    is_static = feed.static_shapes or not feed.config.length_buckets
    # The ragged tensor has lost the static row count of the text.
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
        "input_type_ids": tf.cast(ends == feed.tokenizer.pair_separators, tf.int32),
        **_masked(ids, feed, masking_config, seed),
    }


def _side(name: str, text: tf.Tensor, feed: Feed) -> dict[str, tf.Tensor]:
    """Returns the features of one side of contrastive pairs, from string [n]."""
    ids = _encode(text, feed)
    return {
        f"{name}_word_ids": ids,
        f"{name}_mask": _mask(ids, feed),
        f"{name}_hash": hash_of(text),
    }


def _text(name: str, text: tf.Tensor, feed: Feed) -> dict[str, tf.Tensor]:
    """Returns ids and mask of one side of an example, from string [n]."""
    ids = _encode(text, feed)
    return {f"{name}_word_ids": ids, f"{name}_mask": _mask(ids, feed)}


def _sides(name: str, texts: tf.Tensor, feed: Feed) -> dict[str, tf.Tensor]:
    """Returns the features of `_side` with one more axis, from string [n, texts]."""
    features = {}
    for key, value in _side(name, tf.reshape(texts, [-1]), feed).items():
        shape = tf.concat([tf.shape(texts), tf.shape(value)[1:]], axis=0)
        features[key] = tf.ensure_shape(
            tf.reshape(value, shape), [*texts.shape, *value.shape[1:]]
        )
    return features


def _single(source: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """Wraps a source of strings as a source of tuples."""
    return lambda *args, **kwargs: source(*args, **kwargs).map(lambda text: (text,))
