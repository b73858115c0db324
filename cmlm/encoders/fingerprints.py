"""The fingerprint of an encoder, and its description in reports."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from cmlm.common import checksums, prompts, shared_memory
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.errors import UserError
from cmlm.tokenization.rules import Rules

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def fingerprint(opened: OpenedWeights) -> str:
    """Hashes everything that vectors depend on: weights, vocabulary and settings.

    A checkpoint and its exports have the same fingerprint in every TensorFlow version.

    Returns:
        64 hexadecimal digits.
    """
    return prompts.fingerprint(_without_prompt(opened), opened.tokenizer.prompt)


def _without_prompt(opened: OpenedWeights) -> str:
    """The fingerprint that the encoder has without its default prompt."""
    # The hashes are sorted and have no names, because Keras chooses names and order. A
    # pooler that vectors do not depend on is not trainable, so it is left out.
    weights, variables = [], list(opened.encoder.trainable_variables)
    for layer in opened.encoder.fitted.values():
        variables += layer.variables
    for variable in variables:
        array = np.ascontiguousarray(shared_memory.as_array(variable), "<f4")
        content = hashlib.sha256(array).hexdigest()
        weights.append(f"{list(array.shape)} {content}")
    config = opened.config.model
    settings = [
        config.pooling,
        config.sentence_vector,
        config.hidden_activation,
        config.num_attention_heads,
        config.layer_norm_epsilon,
        opened.tokenizer.rules.lower_case,
    ]
    settings += _other_rules(opened.tokenizer.rules)
    if config.dimensions:
        settings.append({"dimensions": config.dimensions})
    parts = [sorted(weights), settings, opened.tokenizer.vocab]
    if opened.tokenizer.contents:
        parts.append(opened.tokenizer.contents)
    return checksums.of_values(parts)


def describe_fitted(opened: OpenedWeights) -> dict[str, dict[str, int]]:
    """Describes the layers that text determined, by the name of their flag.

    Returns:
        The number of sentences that each one was fitted on, `{"sentences": N}`.
    """
    return {
        name: {"sentences": layer.sentences}
        for name, layer in opened.encoder.fitted.items()
    }


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


def describe(opened: OpenedWeights, seq_length: int) -> dict:
    """Describes an encoder in plain values, for reports and export.json.

    An encoder without a prompt has no `prompt`, one without named prompts has no
    `prompts`, one that keeps all components of a vector has no `dimensions`, and one
    without SIF or whitening has no `sif` or `whitening`.
    """
    config = opened.config.model
    prompt, named = opened.tokenizer.prompt, opened.prompts
    plain = _without_prompt(opened)
    return {
        "fingerprint": prompts.fingerprint(plain, prompt),
        "checkpoint": opened.checkpoint,
        "step": opened.step,
        "dim": config.vector_width,
        "pooling": config.pooling,
        "sentence_vector": config.sentence_vector,
        "seq_length": seq_length,
        "trained_seq_length": opened.trained_seq_length or opened.seq_length,
        "vocab_size": opened.tokenizer.vocab_size,
        **opened.tokenizer.rules.as_dict(),
        **({"dimensions": config.dimensions} if config.dimensions else {}),
        **describe_fitted(opened),
        **({"prompt": prompt, prompts.PLAIN: plain} if prompt else {}),
        **({"prompts": named} if named else {}),
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
