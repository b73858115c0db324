"""Builds batches of texts that an objective compares with each other or with vectors.

Tokenising happens here, at the very end of a pipeline.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import tensorflow as tf

from cmlm.data import bitext, features, masking, nli, span_masking, streams
from cmlm.data.batches import Feed, batches
from cmlm.data.corpus import Corpus
from cmlm.data.masking import MaskingConfig
from cmlm.data.span_masking import SpanConfig


def neighbours(feed: Feed) -> tf.data.Dataset:
    """Returns random batches of consecutive sentences as source and target.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length], and `source_hash`, `target_hash` int64
        [batch], fingerprints of the texts.
    """

    def to_features(_, source, target):
        return {
            **features.side("source", source, feed),
            **features.side("target", target, feed),
        }

    return batches(streams.sentence_pairs, to_features, feed, random=True)


def bitext_pairs(feed: Feed, prompts: tuple[str, str] = ("", "")) -> tf.data.Dataset:
    """Returns random batches of bitext pairs, with the hard negatives of the files.

    Args:
        feed: the source and the receiver of the batches.
        prompts: texts that precede every source, and every target and hard negative.

    Returns:
        The features of `neighbours`; if any file has hard negatives, also
        `negative_word_ids`, `negative_mask` int32 [batch, negatives, length],
        `negative_hash` int64 [batch, negatives], and `negative_exists` int32 [batch,
        negatives]. `negatives` is the largest number of any language pair;
        `negative_exists` is 0 where an example has fewer.
    """
    columns = max(map(bitext.count_columns, feed.corpus.files.values()))
    of_source, of_target = prompts

    def to_features(_, source, target, *negatives):
        found = {
            **features.side("source", source, feed, of_source),
            **features.side("target", target, feed, of_target),
        }
        if negatives:
            texts = tf.stack(negatives, axis=1)
            exists = tf.cast(tf.strings.length(texts) > 0, tf.int32)
            found |= features.several(features.side, "negative", texts, feed, of_target)
            found["negative_exists"] = exists
        return found

    source = functools.partial(bitext.rows, columns=columns)
    return batches(source, to_features, feed, random=True)


def scored_pairs(feed: Feed, prompts: tuple[str, str] = ("", "")) -> tf.data.Dataset:
    """Returns random batches of scored pairs.

    Args:
        feed: the source and the receiver of the batches.
        prompts: texts that precede every source and every target.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask`, `target_word_ids`,
        `target_mask` int32 [batch, length] and `score` float32 [batch].
    """

    of_source, of_target = prompts

    def to_features(_, source, target, score):
        return {
            **features.tokens("source", source, feed, of_source),
            **features.tokens("target", target, feed, of_target),
            "score": tf.strings.to_number(score),
        }

    source = functools.partial(bitext.rows, columns=3)
    return batches(source, to_features, feed, random=True)


def taught_texts(
    feed: Feed, lookup: Callable[[tf.Tensor], tf.Tensor], compared: bool = False
) -> tf.data.Dataset:
    """Returns batches of sentences with the vectors that a teacher has for them.

    Args:
        feed: the source and the receiver of the batches.
        lookup: from texts, string [n], to vectors, float32 [n, dim].
        compared: whether the loss compares the texts of a batch, which are then drawn
            at random.

    Returns:
        Dataset of dicts: `source_word_ids`, `source_mask` int32 [batch, length] and
        `teacher_vectors` float32 [batch, dim].
    """

    def to_features(_, text):
        found = features.tokens("source", text, feed)
        return {**found, "teacher_vectors": lookup(text)}

    source = streams.as_tuples(streams.sentences)
    return batches(source, to_features, feed, random=compared)


def taught_pairs(
    feed: Feed,
    lookup: Callable[[tf.Tensor], tf.Tensor],
    taught_text: Callable[..., tf.Tensor],
    compared: bool = False,
    ranked: bool = False,
) -> tf.data.Dataset:
    """Returns batches of bitext pairs with a teacher's vectors of one side.

    Args:
        feed, lookup, compared: see `taught_texts`; the corpus is a bitext.
        taught_text: from source and target to the text that the teacher reads.
        ranked: whether the texts of a batch rank each other. Its pairs are then drawn
            at random, too, and have the hashes of `bitext_pairs`.

    Returns:
        The features of `taught_texts`, and `target_word_ids`, `target_mask`.
    """
    side = features.side if ranked else features.tokens

    def to_features(_, source, target):
        return {
            **side("source", source, feed),
            **side("target", target, feed),
            "teacher_vectors": lookup(taught_text(source, target)),
        }

    source = functools.partial(bitext.rows, columns=2)
    return batches(source, to_features, feed, random=compared or ranked)


def copies(feed: Feed, span: SpanConfig, mask_rate: float) -> tf.data.Dataset:
    """Returns random batches of sentences and masked copies: Mirror-BERT's two views.

    Each distinct string is read once (section 2.1: "a set of non-duplicated strings"),
    even if several languages have it. A training without epochs draws languages, and
    reads a string once in a pass of each of its languages. The strings of a pass stay
    in memory to find the duplicates.

    Args:
        feed: the source and the receiver of the batches.
        span: the span to mask in the copy.
        mask_rate: share of further tokens to mask in each view, drawn independently. If
            the draw would mask all tokens of a text, such as a single word, it masks
            none of them.

    Returns:
        The features of `neighbours`; source and target have the same hash.
    """

    tokenizer = feed.tokenizer
    masking_config = MaskingConfig(
        rate=mask_rate, mask_token_share=1.0, random_token_share=0.0
    )

    def view(name, text, tokens, seed):
        tokens = tokenizer.enclose(tokens, feed.config.seq_length)
        ids = features.pad(tokens, text.shape[0], feed)
        if mask_rate:
            found = masking.mask_tokens(ids, tokenizer, masking_config, seed)
            masked = found["input_word_ids"]
            left = tf.reduce_any(tokenizer.ordinary(masked), axis=1, keepdims=True)
            ids = tf.where(left, masked, ids)
        return {
            f"{name}_word_ids": ids,
            f"{name}_mask": features.real_tokens(ids, feed),
            f"{name}_hash": streams.hash_of(text),
        }

    def to_features(seed, text):
        span_seed, source_seed, target_seed = tf.unstack(
            tf.random.experimental.stateless_split(seed, 3)
        )
        tokens = tokenizer.tokenize(text)
        changed = span_masking.mask_span(text, tokens, tokenizer, span, span_seed)
        return {
            **view("source", text, tokens, source_seed),
            **view("target", text, changed, target_seed),
        }

    def distinct(portion):
        return streams.sentences(portion).unique()

    draws_languages = feed.is_training and not (feed.epoch_examples or feed.unbatched)
    if not draws_languages:
        # In one pass over all languages, their files are one set of strings.
        files = itertools.chain.from_iterable(feed.corpus.files.values())
        together = Corpus({"": list(files)}, {"": sum(feed.corpus.sizes.values())})
        feed = dataclasses.replace(feed, corpus=together)
    return batches(streams.as_tuples(distinct), to_features, feed, random=True)


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
            **features.several(features.tokens, "premise", premises, feed),
            **features.several(features.tokens, "hypothesis", hypotheses, feed),
            "nli_label": nli.label_ids(label),
        }

    # The files of all languages are read together, so they are one corpus here.
    together = Corpus({"": feed.corpus.files}, {"": 1})
    source = functools.partial(nli.rows, same_language=same_language)
    return batches(source, to_features, dataclasses.replace(feed, corpus=together))
