"""OUT/preprocessor: strings to the encoder's inputs, by the TF Hub text API.

    preprocessor = hub.load("OUT/preprocessor")
    preprocessor(["a sentence"])  # dict of int32 [batch, seq_length]
    tokens = preprocessor.tokenize(["a sentence"])  # int32 [batch, (tokens)]
    preprocessor.tokenize.get_special_tokens_dict()
    preprocessor.bert_pack_inputs([tokens, more_tokens], seq_length=64)

With a default prompt, `tokenize` puts it before every text, so both segments of a pair
begin with it.

Reference: https://www.tensorflow.org/hub/common_saved_model_apis/text,
"Transformer Encoders".
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cmlm.tokenization.base import Tokenizer, trim


def build(tokenizer: Tokenizer, seq_length: int) -> tf.train.Checkpoint:
    """Makes the object to save.

    Args:
        tokenizer: the encoder's tokenizer.
        seq_length: the width of the result, unless a call gives another width.

    Returns:
        A trackable object with the functions above.
    """
    # tf.train.Checkpoint, because a saved function must belong to a trackable object,
    # and a Keras model would fix the number of segments.
    preprocessor = tf.train.Checkpoint()
    preprocessor.tokenize = tf.train.Checkpoint()
    preprocessor.bert_pack_inputs = tf.train.Checkpoint()
    # SentencePiece's model is a resource, which a saved object must own.
    preprocessor.tokenizer = tokenizer
    special_tokens = {
        "vocab_size": tokenizer.vocab_size,
        "start_of_sequence_id": tokenizer.cls_id,
        "end_of_segment_id": tokenizer.sep_id,
        "padding_id": tokenizer.pad_id,
        "mask_id": tokenizer.mask_id,
    }
    strings = [tf.TensorSpec([None], tf.string, name="sentences")]

    @tf.function(autograph=False)
    def pack(segments, seq_length=seq_length):
        return pack_segments(segments, seq_length, tokenizer)

    for ragged_rank in (1, 2):
        for num_segments in (1, 2):
            spec = tf.RaggedTensorSpec([None] * (ragged_rank + 1), tf.int32)
            pack.get_concrete_function(
                [spec] * num_segments, seq_length=tf.TensorSpec([], tf.int32)
            )

    preprocessor.__call__ = tf.function(
        lambda sentences: pack_segments(
            [tokenizer.tokenize(sentences)], seq_length, tokenizer
        ),
        input_signature=strings,
        autograph=False,
    )
    preprocessor.tokenize.__call__ = tf.function(
        tokenizer.tokenize, input_signature=strings, autograph=False
    )
    preprocessor.tokenize.get_special_tokens_dict = tf.function(
        lambda: {name: tf.constant(value) for name, value in special_tokens.items()},
        input_signature=[],
        autograph=False,
    )
    preprocessor.bert_pack_inputs.__call__ = pack
    # Reusable SavedModels need these attributes; nothing is trainable.
    preprocessor.variables = []
    preprocessor.trainable_variables = []
    preprocessor.regularization_losses = []
    return preprocessor


def pack_segments(
    segments: Sequence[tf.RaggedTensor],
    seq_length: int | tf.Tensor,
    tokenizer: Tokenizer,
) -> dict[str, tf.Tensor]:
    """Joins one or two segments as `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Args:
        segments: int32 [batch, (tokens)] or [batch, (words), (tokens)], one or two.
            Some tokenizers put two separators between two segments.
        seq_length: the width of the result. `tokenization.base.trim` shortens longer
            segments; special tokens always stay.
        tokenizer: defines the special tokens.

    Returns:
        `input_word_ids`, `input_mask`, `input_type_ids`, int32 [batch, seq_length].
    """
    segments = [
        segment.merge_dims(1, -1) if segment.shape.rank > 2 else segment
        for segment in segments
    ]
    between = tokenizer.pair_separators - 1 if len(segments) > 1 else 0
    special = len(segments) + 1 + between
    if tf.is_tensor(seq_length):
        # Only `bert_pack_inputs` takes a width. Other assertions add many operations.
        check = tf.raw_ops.Assert(
            condition=seq_length >= special,
            data=["seq_length is", seq_length, f"; allowed: at least {special}"],
        )
        with tf.control_dependencies([check]):
            seq_length = tf.identity(seq_length)
    segments = trim(segments, seq_length - special)
    # Ragged concatenation needs twice as many operations, each of them traced.
    place = tf.range(seq_length)[tf.newaxis]
    word_ids = tf.where(place == 0, tokenizer.cls_id, tokenizer.pad_id)
    begin = tf.ones([segments[0].nrows(tf.int32), 1], tf.int32)
    separators = [1 + between, 1] if len(segments) > 1 else [1]
    ends = []
    for segment, count in zip(segments, separators, strict=True):
        end = begin + tf.cast(segment.row_lengths(), tf.int32)[:, tf.newaxis]
        starts = tf.cast(segment.row_starts(), tf.int32)[:, tf.newaxis]
        # One more value, for rows without tokens.
        values = tf.pad(segment.values, [[0, 1]])
        own = tf.clip_by_value(starts + place - begin, 0, tf.size(values) - 1)
        is_own = (place >= begin) & (place < end)
        word_ids = tf.where(is_own, tf.gather(values, own), word_ids)
        begin = end + count
        is_separator = (place >= end) & (place < begin)
        word_ids = tf.where(is_separator, tokenizer.sep_id, word_ids)
        ends.append(end)
    mask = place < begin
    # As `Tokenizer.segments` marks them. Without a second segment these are padding.
    type_ids = mask & (place >= ends[0] + separators[0])
    return {
        "input_word_ids": word_ids,
        "input_mask": tf.cast(mask, tf.int32),
        "input_type_ids": tf.cast(type_ids, tf.int32),
    }
