"""BERT's masking, vectorised and stateless: the same seed gives the same masks."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError


@dataclasses.dataclass
class MaskingConfig(hyperparams.Config):
    """Which tokens are masked and what stands in their place.

    Attributes:
        rate: share of a sentence's tokens, [CLS] and [SEP] included, to predict. CMLM
            masks 80 of 256.
        max_predictions: the most tokens of one sentence to predict.
        mask_token_share: share of those that become [MASK].
        random_token_share: share of those that become a random token; what is left
            stays as it is.
        whole_word: mask all pieces of a word or none.
    """

    rate: float = 80 / 256
    max_predictions: int = 80
    mask_token_share: float = 0.8
    random_token_share: float = 0.1
    whole_word: bool = False

    def validate(self) -> None:
        """Raises UserError where a value makes no sense."""
        if not 0 < self.rate <= 1:
            raise UserError(f"masking rate={self.rate}: allowed is 0 < rate <= 1")
        if self.max_predictions < 1:
            raise UserError(
                f"masking max_predictions={self.max_predictions}: allowed is 1 or more"
            )
        shares = (self.mask_token_share, self.random_token_share)
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise UserError(
                f"masking mask_token_share={shares[0]}, random_token_share={shares[1]}:"
                " allowed are shares of 0 or more whose sum is at most 1"
            )


@dataclasses.dataclass
class SpanConfig(hyperparams.Config):
    """The span of a text that Mirror-BERT replaces by one [MASK].

    Attributes:
        length: of the span, in units; 0 masks none.
        unit: `characters`, as the published code does, or `tokens`.
        shortest: a text of fewer units stays as it is.
    """

    length: int = 5
    unit: str = "characters"
    shortest: int = 30

    def validate(self) -> None:
        """Raises UserError where a value makes no sense."""
        if self.length < 0:
            raise UserError(f"span length={self.length}: allowed is 0 or more")
        if self.unit not in ("characters", "tokens"):
            raise UserError(f"span unit={self.unit!r}: allowed: characters, tokens")
        if self.length and self.shortest <= self.length:
            raise UserError(
                f"span shortest={self.shortest}: allowed is more than its length, "
                f"{self.length}: of a text that is all mask nothing is left to encode"
            )


def mask_span(
    text: tf.Tensor, tokenizer: Tokenizer, config: SpanConfig, seed: tf.Tensor
) -> tf.RaggedTensor:
    """Tokenises texts with one random span of each replaced by [MASK].

    Args:
        text: string [n].
        tokenizer: strings to ids.
        config: length and unit of the span.
        seed: int [2].

    Returns:
        int32 [n, (tokens)], without [CLS] and [SEP].
    """
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    if not config.length:
        return tokenizer.tokenize(text)
    in_tokens = config.unit == "tokens"
    tokens = tokenizer.tokenize(text)
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
        before = tokenizer.tokenize(
            tf.strings.substr(text, tf.zeros_like(start), start, unit=unit)
        )
        after = tokenizer.tokenize(
            tf.strings.substr(text, end, n_units - end, unit=unit)
        )
    mask = tf.fill([tokens.nrows(), 1], tokenizer.mask_id)
    masked = tf.concat([before, mask, after], axis=1)
    is_short = n_units < max(config.shortest, 1)
    # Of every row one of the two is empty.
    kept = tf.ragged.boolean_mask(masked, _rows(masked, ~is_short))
    whole = tf.ragged.boolean_mask(tokens, _rows(tokens, is_short))
    return tf.concat([kept, whole], axis=1)


def _rows(ragged: tf.RaggedTensor, chosen: tf.Tensor) -> tf.RaggedTensor:
    """Says for every value whether its row is chosen."""
    return ragged.with_values(tf.repeat(chosen, ragged.row_lengths()))


def mask_tokens(
    ids: tf.Tensor,
    tokenizer: Tokenizer,
    config: MaskingConfig,
    seed: tf.Tensor,
    static_predictions: bool = False,
) -> dict[str, tf.Tensor]:
    """Masks tokens of each row at random.

    A row of n tokens, special ones included, gets
    min(max_predictions, max(1, round(rate * n))) masks, or as many as it has tokens
    that are not special. With `whole_word`, words are taken in random order, each one
    that still fits into that budget; if the budget is too small for any word, a part
    of the first is masked.

    Args:
        ids: int32 [batch, length], padded with `tokenizer.pad_id`.
        tokenizer: says which ids are special and which continue a word.
        config: rates, see `MaskingConfig`.
        seed: int [2], the state of the random numbers.
        static_predictions: give the masked_lm_* tensors `config.max_predictions`
            columns instead of as many as the batch needs.

    Returns:
        `input_word_ids` int32 [batch, length], the masked rows, and
        `masked_lm_positions` int32, `masked_lm_ids` int32 and `masked_lm_weights`
        float32, each [batch, predictions]; positions ascend, unused columns are 0 with
        weight 0.

    Reference:
        Devlin et al., arXiv:1810.04805, section 3.1; CMLM, arXiv:2012.14388, section 2.
    """
    shape = tf.shape(ids)
    length = shape[1]
    choice_seed, action_seed, token_seed = tf.unstack(
        tf.random.experimental.stateless_split(seed, 3)
    )
    n_tokens = tf.reduce_sum(tf.cast(ids != tokenizer.pad_id, tf.float32), axis=1)
    budget = tf.cast(tf.round(config.rate * n_tokens), tf.int32)
    budget = tf.clip_by_value(budget, 1, config.max_predictions)
    chosen = _choose(ids, tokenizer, budget, config.whole_word, choice_seed)

    action = tf.random.stateless_uniform(shape, action_seed)
    replacement = tf.gather(
        tf.constant(tokenizer.ordinary_ids),
        tf.random.stateless_uniform(
            shape, token_seed, 0, len(tokenizer.ordinary_ids), tf.int32
        ),
    )
    to_mask = action < config.mask_token_share
    to_random = action < config.mask_token_share + config.random_token_share
    masked = tf.where(to_random, replacement, ids)
    masked = tf.where(to_mask, tokenizer.mask_id, masked)
    masked = tf.where(chosen, masked, ids)

    n_chosen = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
    # The largest of (length - position) are the first chosen positions, in order.
    backwards = tf.where(chosen, length - tf.range(length), 0)
    if static_predictions:
        short = tf.maximum(config.max_predictions - length, 0)
        backwards = tf.pad(backwards, [[0, 0], [0, short]])
        n_predictions = config.max_predictions
    else:
        n_predictions = tf.maximum(tf.reduce_max(n_chosen), 1)
    values, _ = tf.math.top_k(backwards, n_predictions)
    used = values > 0
    positions = tf.where(used, length - values, 0)
    labels = tf.where(used, tf.gather(ids, positions, batch_dims=1), 0)
    return {
        "input_word_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": tf.cast(used, tf.float32),
    }


def _choose(
    ids: tf.Tensor,
    tokenizer: Tokenizer,
    budget: tf.Tensor,
    whole_word: bool,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Chooses at most `budget` tokens of each row, none of them special.

    Args:
        ids: int32 [batch, length].
        tokenizer: says which ids are special and which continue a word.
        budget: int32 [batch], at least 1.
        whole_word: choose words instead of tokens.
        seed: int [2].

    Returns:
        bool [batch, length].
    """
    maskable = ~tf.gather(tf.constant(tokenizer.is_special), ids)
    score = tf.random.stateless_uniform(tf.shape(ids), seed)
    if not whole_word:
        order = tf.argsort(tf.where(maskable, score, 2.0), axis=1, stable=True)
        rank = tf.argsort(order, axis=1)
        return maskable & (rank < budget[:, tf.newaxis])

    continues = tf.gather(tf.constant(tokenizer.is_continuation), ids)
    word = tf.cumsum(tf.cast(~continues, tf.int32), axis=1) - 1
    # The pieces of a word share one score, so that a stable sort keeps them together.
    score = tf.gather(score, tf.maximum(word, 0), batch_dims=1)
    order = tf.argsort(tf.where(maskable, score, 2.0), axis=1, stable=True)
    rank = tf.argsort(order, axis=1)
    in_order = tf.gather(word, order, batch_dims=1)
    available = tf.gather(maskable, order, batch_dims=1)
    same_word = in_order[:, :, tf.newaxis] == in_order[:, tf.newaxis, :]
    word_length = tf.reduce_sum(tf.cast(same_word, tf.int32), axis=2)
    word_rank = tf.reduce_sum(  # pieces of the same word up to this one
        tf.cast(tf.linalg.band_part(same_word, -1, 0), tf.int32), axis=2
    )

    # One round takes the longest run of words that fits, and rules out for good what
    # the rest of the budget cannot hold: rounds to the end equal BERT's loop, which
    # takes one word after the other and skips what does not fit.
    def fitting(taken):
        left = budget - tf.reduce_sum(tf.cast(taken, tf.int32), axis=1)
        return available & ~taken & (word_length <= left[:, tf.newaxis]), left

    def one_round(taken):
        candidates, left = fitting(taken)
        used = tf.cumsum(tf.cast(candidates, tf.int32), axis=1)
        used_after_word = used + word_length - word_rank
        return taken | (candidates & (used_after_word <= left[:, tf.newaxis]))

    (taken,) = tf.while_loop(
        lambda taken: tf.reduce_any(fitting(taken)[0]),
        lambda taken: (one_round(taken),),
        (tf.zeros_like(available),),
    )
    first_cut = available & (tf.range(tf.shape(ids)[1]) < budget[:, tf.newaxis])
    none_taken = ~tf.reduce_any(taken, axis=1, keepdims=True)
    taken |= none_taken & first_cut
    return tf.gather(taken, rank, batch_dims=1)
