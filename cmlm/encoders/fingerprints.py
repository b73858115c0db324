"""The fingerprint of an encoder, and its description in reports."""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np

from cmlm.encoders.trained import TrainedEncoder
from cmlm.errors import UserError
from cmlm.tokenization.rules import Rules

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def fingerprint(trained: TrainedEncoder) -> str:
    """Hashes everything that vectors depend on: weights, vocabulary and settings.

    A checkpoint and its exports have the same fingerprint in every TensorFlow version.

    Returns:
        64 hexadecimal digits.
    """
    # The hashes are sorted and have no names, because Keras chooses names and order. A
    # pooler that vectors do not depend on is not trainable, so it is left out.
    weights = []
    for variable in trained.encoder.trainable_variables:
        array = np.ascontiguousarray(variable.numpy(), "<f4")
        content = hashlib.sha256(array).hexdigest()
        weights.append(f"{list(array.shape)} {content}")
    config = trained.config.model
    settings = [
        config.pooling,
        config.sentence_vector,
        config.hidden_activation,
        config.num_attention_heads,
        config.layer_norm_epsilon,
        trained.tokenizer.rules.lower_case,
    ]
    settings += _other_rules(trained.tokenizer.rules)
    parts = [sorted(weights), settings, trained.tokenizer.vocab]
    if trained.tokenizer.contents:
        parts.append(trained.tokenizer.contents)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_fingerprint(value: object, path: str) -> None:
    """Refuses a fingerprint that this project did not write.

    Args:
        value: the fingerprint that a file names; names of files follow from it.
        path: the path of that file.

    Raises:
        UserError: the value is not 64 hexadecimal digits.
    """
    if not isinstance(value, str) or not _FINGERPRINT.fullmatch(value):
        raise UserError(
            f"{path} has the fingerprint {str(value)[:80]!r}; allowed: 64 hexadecimal "
            "digits"
        )


def describe(trained: TrainedEncoder, seq_length: int) -> dict:
    """Describes an encoder in plain values, for reports and export.json."""
    return {
        "fingerprint": fingerprint(trained),
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "dim": trained.config.model.hidden_size,
        "pooling": trained.config.model.pooling,
        "sentence_vector": trained.config.model.sentence_vector,
        "seq_length": seq_length,
        "trained_seq_length": trained.seq_length,
        "vocab_size": trained.tokenizer.vocab_size,
        **trained.tokenizer.rules.as_dict(),
    }


def _other_rules(rules: Rules) -> list:
    """The rules that BERT's own vocabularies lack; [] for those, as it always was."""
    usual = Rules(rules.lower_case)
    names = ("strip_accents", "dotless_i", "normalization", "style")
    found = []
    for group in (names, ("max_word_bytes", "max_word_characters")):
        if any(getattr(rules, name) != getattr(usual, name) for name in group):
            found += [getattr(rules, name) for name in group]
    return found
