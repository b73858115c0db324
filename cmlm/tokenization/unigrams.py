"""SentencePiece's unigram model, as in XLM-R and ALBERT, by tf-text's op.

The op takes SentencePiece's own model file. This module writes one whose ids are those
of a tokenizer.json, in which XLM-R's ids are shifted by its special tokens.

Reference: Kudo, arXiv:1804.10959; Kudo and Richardson, arXiv:1808.06226.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops import sentencepiece_tokenizer

from cmlm.tokenization import letters, tokenizer_file
from cmlm.tokenization.base import Tokenizer, word_borders

# Stands for a space in pieces.
SPACE = "\u2581"


# tf-text's own wrapper of these ops leaves the model without a name, see `_Model`.
_OPS = sentencepiece_tokenizer.gen_sentencepiece_tokenizer


class _Model(tf.saved_model.experimental.TrackableResource):
    """SentencePiece's model in TensorFlow's memory, a part of every export.

    A model without a name belongs to the kernel that read it, and seeding TensorFlow
    deletes all eager kernels. A named model stays until the process ends.

    Args:
        content: the model file.
    """

    def __init__(self, content: bytes):
        super().__init__()
        self._content = content
        self._name = hashlib.sha256(content).hexdigest()
        # Here, because a resource that a tf.function makes stays in it.
        _ = self.resource_handle

    def _create_resource(self) -> tf.Tensor:
        return _OPS.sentencepiece_op(model=self._content, shared_name=self._name)


class Unigrams(Tokenizer):
    """A SentencePiece unigram tokenizer with the ids of a tokenizer.json.

    Attributes:
        scores: float32 [vocab_size], the log probability of each token.

    Args:
        vocab_file: a `tokenizer.json` with a Unigram model.
        found: the contents of that file.
    """

    title = "SentencePiece"

    def __init__(self, vocab_file: str, found: tokenizer_file.TokenizerFile):
        super().__init__(vocab_file, found, found.rules)
        self._model = _Model(_model(found))
        self._steps = found.steps
        self.scores = np.array(found.scores, np.float32)
        texts = [token.replace(SPACE, " ") for token in found.tokens]
        self._word_borders = word_borders(texts, self.is_special)

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        values, splits = _OPS.sentencepiece_tokenize_op(
            self._model.resource_handle,
            letters.follow(tf.reshape(text, [-1]), self._steps),
            nbest_size=0,
            alpha=1.0,
            add_bos=False,
            add_eos=False,
            reverse=False,
            out_type=tf.int32,
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# Numbers of fields and values in SentencePiece's sentencepiece_model.proto. Its own
# module for that file needs a newer protobuf than TensorFlow 2.15 allows.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_UNIGRAM = 1


def _model(found: tokenizer_file.TokenizerFile) -> bytes:
    """Writes SentencePiece's model file with the tokens in the order of their ids."""
    reserved = {*found.special.values(), *found.reserved}
    message = []
    for token, score in zip(found.tokens, found.scores, strict=True):
        kind = _CONTROL if token in reserved else _NORMAL
        if token == found.special["unk"]:
            kind = _UNKNOWN
        piece = _field(1, token) + _field(2, score) + _field(3, kind)
        message.append(_field(_PIECES, piece))
    unknown = found.special["unk"]
    number = found.tokens.index(unknown)
    message.append(
        _field(
            _TRAINER,
            _field(3, _UNIGRAM) + _field(40, number) + _field(45, unknown),
        )
    )
    # add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces.
    rules = b"".join(_field(rule, 1) for rule in (3, 4, 5))
    message.append(_field(_NORMALIZER, _field(2, found.charsmap) + rules))
    return b"".join(message)


def _field(number: int, value: bytes | str | int | float) -> bytes:
    """Encodes a field of a protocol buffer message."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encodes a number, seven bits a byte, the lowest first."""
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
