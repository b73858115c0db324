"""From texts to the features of a batch: ids, masks, masked words, hashes."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from cmlm.data import masking, streams
from cmlm.data.batches import Feed


def encode(text: tf.Tensor, feed: Feed) -> tf.Tensor:
    """Tokenises and pads to the longest row or to seq_length: int32 [n, length]."""
    tokens = feed.tokenizer.encode(text, feed.config.seq_length)
    return pad(tokens, text.shape[0], feed)


def pad(tokens: tf.RaggedTensor, n_rows: int | None, feed: Feed) -> tf.Tensor:
    """Pads ids to the longest row, or to seq_length where shapes are static."""
    is_static = feed.static_shapes or not feed.config.length_buckets
    # The ragged tensor has lost the static row count of the text.
    shape = [n_rows, feed.config.seq_length if is_static else None]
    return tokens.to_tensor(feed.tokenizer.pad_id, shape=shape)


def real_tokens(ids: tf.Tensor, feed: Feed) -> tf.Tensor:
    """Returns 1 for tokens and 0 for padding: int32, of the shape of `ids`."""
    return tf.cast(ids != feed.tokenizer.pad_id, tf.int32)


def masked(ids, feed, masking_config, seed) -> dict[str, tf.Tensor]:
    """Returns the features of a masked text; see `masked_pipelines.masked_texts`."""
    return {
        "input_mask": real_tokens(ids, feed),
        **masking.mask_tokens(
            ids, feed.tokenizer, masking_config, seed, feed.static_shapes
        ),
    }


def masked_pair(first, second, feed, masking_config, seed) -> dict[str, tf.Tensor]:
    """Returns the features of two masked texts in one sequence, from strings [n]."""
    tokens = feed.tokenizer.encode_pair(first, second, feed.config.seq_length)
    ids = pad(tokens, first.shape[0], feed)
    return {
        "input_type_ids": feed.tokenizer.segments(ids),
        **masked(ids, feed, masking_config, seed),
    }


def tokens(
    name: str, text: tf.Tensor, feed: Feed, prompt: str = ""
) -> dict[str, tf.Tensor]:
    """Returns ids and mask of one side of an example.

    Args:
        name: the side's name, such as `source`.
        text: string [n].
        feed: the receiver of the batch.
        prompt: a text that precedes every text.
    """
    ids = encode(tf.strings.join([prompt, text]) if prompt else text, feed)
    return {f"{name}_word_ids": ids, f"{name}_mask": real_tokens(ids, feed)}


def side(
    name: str, text: tf.Tensor, feed: Feed, prompt: str = ""
) -> dict[str, tf.Tensor]:
    """Returns the features of one side of contrastive pairs; arguments as `tokens`.

    The hash is that of the text without the prompt: a text that occurs on both sides
    stays the same text.
    """
    found = tokens(name, text, feed, prompt)
    return {**found, f"{name}_hash": streams.hash_of(text)}


def several(
    of: Callable[..., dict[str, tf.Tensor]],
    name: str,
    texts: tf.Tensor,
    feed: Feed,
    prompt: str = "",
) -> dict[str, tf.Tensor]:
    """Returns features with one more axis, from string [n, texts].

    Args:
        of: `tokens` or `side`.
        name, feed, prompt: see there.
        texts: the texts of each example.
    """
    found = {}
    for key, value in of(name, tf.reshape(texts, [-1]), feed, prompt).items():
        shape = tf.concat([tf.shape(texts), tf.shape(value)[1:]], axis=0)
        found[key] = tf.ensure_shape(
            tf.reshape(value, shape), [*texts.shape, *value.shape[1:]]
        )
    return found
