"""Mirror-BERT's masking: one [MASK] replaces a random span; a seed determines it."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.tokenization.base import Tokenizer


@dataclasses.dataclass
class SpanConfig(hyperparams.Config):
    """The span of a text that Mirror-BERT replaces with one [MASK] (section 2.2).

    Attributes:
        length: length of the span in units; 0 masks no span.
        unit: `characters`, as in the released code, or `tokens`.
        shortest: texts of fewer units stay unchanged. The default suits characters.
            With `unit=tokens`, few sentences are as long: set it to a few tokens.
    """

    length: int = fields.ranged(5, at_least=0)
    unit: str = fields.one_of("characters", ("characters", "tokens"))
    shortest: int = 30

    def check_together(self, prefix: str) -> None:
        """Raises UserError if a span could cover a whole text."""
        if self.length and self.shortest <= self.length:
            raise fields.refused(
                f"{prefix}shortest",
                self.shortest,
                f"above {prefix}length, {self.length}",
            )


def mask_span(
    text: tf.Tensor,
    tokens: tf.RaggedTensor,
    tokenizer: Tokenizer,
    config: SpanConfig,
    seed: tf.Tensor,
) -> tf.RaggedTensor:
    """Returns the tokens of texts after replacing a random span of each with [MASK].

    Args:
        text: string [n].
        tokens: int32 [n, (tokens)], the tokens of the texts as they are.
        tokenizer: the model's tokenizer.
        config: length and unit of the span.
        seed: int [2].

    Returns:
        int32 [n, (tokens)], without [CLS] and [SEP].

    Reference:
        Mirror-BERT, arXiv:2104.08027, section 2.2, random span masking.
    """
    if not config.length:
        return tokens
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    in_tokens = config.unit == "tokens"
    if in_tokens:
        n_units = tf.cast(tokens.row_lengths(), tf.int32)
    else:
        n_units = tf.strings.length(text, unit="UTF8_CHAR")
    last = tf.maximum(n_units - config.length, 0)
    share = tf.random.stateless_uniform(tf.shape(text), seed)
    start = tf.minimum(tf.cast(share * tf.cast(last + 1, tf.float32), tf.int32), last)
    end = tf.minimum(start + config.length, n_units)
    if in_tokens:
        position = tf.ragged.range(n_units)
        before = tf.ragged.boolean_mask(tokens, position < start[:, tf.newaxis])
        after = tf.ragged.boolean_mask(tokens, position >= end[:, tf.newaxis])
    else:
        unit = "UTF8_CHAR"
        before = tf.strings.substr(text, tf.zeros_like(start), start, unit=unit)
        # [MASK] takes the white space before it, as RoBERTa's <mask> does.
        before = tokenizer.tokenize(tf.strings.regex_replace(before, r"\s+$", ""))
        after = tokenizer.tokenize(
            tf.strings.substr(text, end, n_units - end, unit=unit)
        )
    mask = tf.fill([tokens.nrows(), 1], tokenizer.mask_id)
    masked = tf.concat([before, mask, after], axis=1)
    is_short = n_units < max(config.shortest, 1)
    # Each row of the result comes from one of the two; the other is empty in that row.
    kept = tf.ragged.boolean_mask(masked, _rows(masked, ~is_short))
    whole = tf.ragged.boolean_mask(tokens, _rows(tokens, is_short))
    return tf.concat([kept, whole], axis=1)


def _rows(ragged: tf.RaggedTensor, chosen: tf.Tensor) -> tf.RaggedTensor:
    """Repeats a row's flag for each of its values."""
    return ragged.with_values(tf.repeat(chosen, ragged.row_lengths()))
