"""Builds batches of masked texts: from the texts of an objective to its features.

Tokenising, masking and swapping happen here, at the very end of a pipeline.
"""

from __future__ import annotations

import functools
import logging

import numpy as np
import tensorflow as tf

from cmlm.data import bitext, features, ngram_table, removable_spans, streams
from cmlm.data.batches import Feed, batches
from cmlm.data.masking import MaskingConfig
from cmlm.data.passages import Passages
from cmlm.errors import UserError

# Passages of each language to inspect for documents that give no pair.
_LOOKED_AT = 2_000

logger = logging.getLogger(__name__)


def conditional_pairs(
    feed: Feed, masking_config: MaskingConfig, passages: bool
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
        ids = features.encode(tf.concat([first, second], axis=0), feed)
        ids = tf.reshape(ids, [2, n_rows, tf.shape(ids)[1]])
        swap, mask_seed = _tosses([n_rows, 1], seed)
        context = tf.where(swap, ids[1], ids[0])
        return {
            "context_word_ids": context,
            "context_mask": features.real_tokens(context, feed),
            **features.masked(
                tf.where(swap, ids[0], ids[1]), feed, masking_config, mask_seed
            ),
        }

    source = streams.sentence_pairs
    if passages:
        source = _passages(feed).pairs
        if feed.is_training and not feed.unbatched:
            _report_passages(feed)
    return batches(source, to_features, feed)


def masked_texts(
    feed: Feed, masking_config: MaskingConfig, passages: bool
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
        return features.masked(features.encode(text, feed), feed, masking_config, seed)

    source = streams.sentences
    if passages:
        source = _passages(feed).alone
    return batches(streams.as_tuples(source), to_features, feed)


def _tosses(shape, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns true half of the time, bool in a shape, and another seed, int [2]."""
    own, rest = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    return tf.random.stateless_uniform(shape, own) < 0.5, rest


def _passages(feed: Feed) -> Passages:
    """The passages of a text, which leave room for [CLS] and [SEP]."""
    return Passages(feed.tokenizer.count, feed.config.seq_length - 2)


def _report_passages(feed: Feed) -> None:
    """Logs how many documents are too short for a pair of passages.

    Raises:
        UserError: every document of a language fits into one passage.
    """
    for language, files in feed.corpus.files.items():
        starts = _passages(feed).starts(feed.portion(language))
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
        swap, mask_seed = _tosses(tf.shape(first), seed)
        first, second = tf.where(swap, second, first), tf.where(swap, first, second)
        return features.masked_pair(first, second, feed, masking_config, mask_seed)

    source = functools.partial(bitext.rows, columns=2)
    return batches(source, to_features, feed, joined=True)


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
        right, mask_seed = _tosses(tf.shape(first), seed)
        if wrong == "swapped":
            first, second = (
                tf.where(right, first, second),
                tf.where(right, second, first),
            )
        else:
            # A pair alone has no wrong second sentence.
            right |= tf.size(first) < 2
            second = tf.where(right, second, tf.roll(second, shift=1, axis=0))
        return {
            **features.masked_pair(first, second, feed, masking_config, mask_seed),
            "order_label": tf.cast(right, tf.int32),
        }

    # Wrong second sentences come from any pairs, not only from pairs of similar length.
    return batches(
        streams.sentence_pairs,
        to_features,
        feed,
        random=wrong == "random",
        joined=True,
    )


def sentences_with_spans(
    feed: Feed,
    masking_config: MaskingConfig,
    find: removable_spans.SpanFinder,
    n_spans: int,
    draws: int,
) -> tf.data.Dataset:
    """Returns batches of sentences with candidate spans and masks that avoid a span.

    Args:
        feed: the source and the receiver of the batches. In a line of text, tabs
            separate the sentence and its marked n-grams.
        masking_config: settings of the masking.
        find: finds the spans.
        n_spans: the most spans of a sentence; a random choice if the sentence has more.
        draws: the number of independent masks of a sentence.

    Returns:
        Dataset of dicts: `input_word_ids`, `input_mask` int32 [batch, length],
        unmasked; `span_start`, `span_end`, `span_mask` int32 [batch, n_spans], see
        `removable_spans.draw`; `input_order`, `input_replacements` int32 [batch, draws,
        length] and `masked_lm_weights` float32 [batch, predictions], see
        `removable_spans.prepare_masks`.
    """

    def to_features(seed, text):
        sentence, marks = ngram_table.split_marks(text)
        ids = features.encode(sentence, feed)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        drawn = removable_spans.draw(find(ids, marks, seeds[0]), n_spans, seeds[1])
        masks = removable_spans.prepare_masks(
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
            "input_mask": features.real_tokens(ids, feed),
            **drawn,
            **masks,
        }

    source = streams.as_tuples(streams.marked_sentences)
    return batches(source, to_features, feed, measured=ngram_table.without_marks)
