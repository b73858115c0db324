"""Case and accents by graph ops, where tf-text's BERT normaliser lacks the choice.

tf-text lower-cases and strips accents, or does neither. The other rules come before it:

    text --prepare--> normalised, lower-cased or stripped --tf-text--> words

`tf.strings.lower` asks the machine's locale: under a Turkish one, it makes ı of I.
Lower-casing by a table gives the same ids on every machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.tokenization.rules import Rules

# The only letter whose lower case is two characters: i and a combining dot.
_CAPITAL_DOTTED_I, _LOWER_DOTTED_I = "\u0130", "i\u0307"
_DOTLESS_I = "\u0131"
# Unicode has no letter with two cases from this code on.
_BEYOND_CASE = 0x20000
# Control and format characters and U+FFFD, which BERT's code drops, in RE2's syntax.
_DROPPED = r"(?:[^\P{C}\t\n\r]|\x{fffd})+"


def left_to_tf_text(rules: Rules) -> bool:
    """Whether tf-text lower-cases and strips accents, both in one pass."""
    return rules.lower_case and rules.strip_accents and rules.style == "tf-text"


def prepare(text: tf.Tensor, rules: Rules) -> tf.Tensor:
    """Follows the parts of these rules that tf-text's normaliser lacks.

    The result is the text itself if tf-text does everything, as for BERT's own models.
    A second pass may join a letter that has become lower case and its accent, so each
    text takes one.

    Args:
        text: valid UTF-8, string [n].
        rules: the rules of the vocabulary.

    Returns:
        string [n].
    """
    if rules.style == "hugging-face":
        text = tf.strings.regex_replace(text, _DROPPED, "")
    if rules.normalization:
        text = tf_text.normalize_utf8(text, rules.normalization.upper())
    if rules.dotless_i:
        # In decomposed text, the dot of a capital is a character of its own.
        text = tf.strings.regex_replace(text, "I\u0307", "i")
        text = tf.strings.regex_replace(text, _CAPITAL_DOTTED_I, "i")
        text = tf.strings.regex_replace(text, "I", _DOTLESS_I)
    if left_to_tf_text(rules):
        return text
    if rules.strip_accents:
        text = tf_text.normalize_utf8(text, "NFD")
        text = tf.strings.regex_replace(text, r"\p{Mn}+", "")
    if rules.lower_case:
        text = _lower(text)
    return text


def follow(text: tf.Tensor, steps: Iterable[tuple[str, ...]]) -> tf.Tensor:
    """Normalises as Hugging Face's `tokenizers` does, step by step.

    Args:
        text: valid UTF-8, string [n].
        steps: `("NFC",)`, `("NFD",)`, `("NFKC",)` or `("NFKD",)`; `("StripAccents",)`;
            `("Lowercase",)`; or `("Replace", before, after)`.

    Returns:
        string [n].
    """
    for kind, *values in steps:
        if kind == "Replace":
            before, after = re.escape(values[0]), values[1].replace("\\", r"\\")
            text = tf.strings.regex_replace(text, before, after)
        elif kind == "StripAccents":
            text = tf.strings.regex_replace(text, r"\p{M}+", "")
        elif kind == "Lowercase":
            text = _lower(text)
        else:
            text = tf_text.normalize_utf8(text, kind)
    return text


def _lower(text: tf.Tensor) -> tf.Tensor:
    """Lower-cases each character by itself, string [n] to string [n]."""
    text = tf.strings.regex_replace(text, _CAPITAL_DOTTED_I, _LOWER_DOTTED_I)
    table = tf.constant(_lower_table())
    codes = tf.strings.unicode_decode(tf.reshape(text, [-1]), "UTF-8")
    values = codes.flat_values
    last = tf.size(table) - 1
    lower = tf.where(values < last, tf.gather(table, tf.minimum(values, last)), values)
    return tf.strings.unicode_encode(codes.with_flat_values(lower), "UTF-8")


@functools.cache
def _lower_table() -> np.ndarray:
    """The code of the lower case of each code, int32 [largest code with case + 2]."""
    lower = np.arange(_BEYOND_CASE, dtype=np.int32)
    for code in range(len(lower)):
        letter = chr(code).lower()
        if len(letter) == 1:
            lower[code] = ord(letter)
    return lower[: np.flatnonzero(lower != np.arange(len(lower)))[-1] + 2]
