"""BERT's masking, vectorised; a seed determines the masks."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.tokenization.base import Tokenizer


@dataclasses.dataclass
class MaskingConfig(hyperparams.Config):
    """Settings of the masking: the number of tokens to predict, and their replacements.

    Attributes:
        rate: share of a text's tokens to predict, counting [CLS] and [SEP]. CMLM
            (section 3) masks 80 of 256 tokens, a rate of 0.3125, and compares 40, 60,
            80 and 100 of 256 (appendix B): the rates 0.15625, 0.234375, 0.3125 and
            0.390625.
        max_predictions: upper limit for the tokens to predict in one text. LaBSE
            (section 3.4) masks 20 % of 512 tokens but at most 80. 0: no limit.
        mask_token_share: share of the predicted tokens that become [MASK].
        random_token_share: share of the predicted tokens that become a random token;
            the others stay.
        whole_word: mask either all pieces of a word or no piece.
    """

    rate: float = fields.ranged(80 / 256, above=0, at_most=1)
    max_predictions: int = fields.ranged(0, at_least=1, also=(0, "no limit"))
    mask_token_share: float = fields.ranged(0.8, at_least=0, at_most=1)
    random_token_share: float = fields.ranged(0.1, at_least=0, at_most=1)
    whole_word: bool = False

    def check_together(self, prefix: str) -> None:
        """Raises UserError if the two shares sum to more than 1."""
        rest = 1 - self.mask_token_share
        if self.random_token_share > rest + 1e-9:
            raise fields.refused(
                f"{prefix}random_token_share",
                self.random_token_share,
                f"at most {rest:g}, as mask_token_share is {self.mask_token_share}",
            )

    def predictions(self, seq_length: int) -> int:
        """Returns the number of masked tokens of a text of `seq_length` tokens."""
        number = max(1, int(np.round(np.float32(self.rate) * np.float32(seq_length))))
        return min(number, self.max_predictions or number)


def mask_tokens(
    ids: tf.Tensor,
    tokenizer: Tokenizer,
    config: MaskingConfig,
    seed: tf.Tensor,
    static_predictions: bool = False,
) -> dict[str, tf.Tensor]:
    """Masks random tokens of each row.

    A row gets `budget` masks; a row with fewer ordinary tokens has all of them masked.
    With `whole_word`, the words are drawn in random order, and a word that exceeds the
    remaining budget is skipped. If no word fits, a part of the first one is masked.

    Args:
        ids: int32 [batch, length], padded with `tokenizer.pad_id`.
        tokenizer: knows the special ids and the ids that continue a word.
        config: rates, see `MaskingConfig`.
        seed: int [2], seed of the random numbers.
        static_predictions: give the masked_lm_* tensors one column for each mask of a
            row without padding; False: one for each mask of the batch's fullest row.

    Returns:
        `input_word_ids` int32 [batch, length], the masked rows; and
        `masked_lm_positions` int32, `masked_lm_ids` int32, `masked_lm_weights` float32,
        each [batch, predictions]. Positions ascend; unused columns are 0 and have
        weight 0.

    Reference:
        Devlin et al., arXiv:1810.04805, section 3.1; CMLM, arXiv:2012.14388, section 2.
    """
    choice_seed, action_seed, token_seed = tf.unstack(
        tf.random.experimental.stateless_split(seed, 3)
    )
    chosen = _choose(
        ids, tokenizer, budget(ids, tokenizer, config), config.whole_word, choice_seed
    )
    masked = tf.where(
        chosen, replacements(ids, tokenizer, config, action_seed, token_seed), ids
    )
    if static_predictions:
        columns = config.predictions(ids.shape[1])
    else:
        n_chosen = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        columns = tf.maximum(tf.reduce_max(n_chosen), 1)
    positions, used = _positions(chosen, columns)
    labels = tf.where(used, tf.gather(ids, positions, batch_dims=1), 0)
    return {
        "input_word_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": tf.cast(used, tf.float32),
    }


def _positions(
    chosen: tf.Tensor, columns: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Lists the positions of the chosen tokens, in ascending order.

    Args:
        chosen: bool [batch, length].
        columns: their number, at least the number of chosen tokens of each row.

    Returns:
        int32 [batch, columns], 0 in unused columns; and bool [batch, columns], whether
        a column is used.
    """
    length = tf.shape(chosen)[1]
    # The largest values of (length - position) are the first positions, in order.
    backwards = tf.where(chosen, length - tf.range(length), 0)
    values, _ = tf.math.top_k(backwards, columns)
    used = values > 0
    return tf.where(used, length - values, 0), used


def budget(ids: tf.Tensor, tokenizer: Tokenizer, config: MaskingConfig) -> tf.Tensor:
    """Returns the number of tokens to mask in each row.

    A row of n tokens, special ones included, gets max(1, round(rate * n)) masks, but
    at most `max_predictions`.

    Args:
        ids: int32 [batch, length], padded with `tokenizer.pad_id`.
        tokenizer: knows the id of the padding.
        config: `rate` and `max_predictions`.

    Returns:
        int32 [batch].
    """
    n_tokens = tf.reduce_sum(tf.cast(ids != tokenizer.pad_id, tf.float32), axis=1)
    number = tf.maximum(tf.cast(tf.round(config.rate * n_tokens), tf.int32), 1)
    if config.max_predictions:
        number = tf.minimum(number, config.max_predictions)
    return number


def replacements(
    ids: tf.Tensor,
    tokenizer: Tokenizer,
    config: MaskingConfig,
    action_seed: tf.Tensor,
    token_seed: tf.Tensor,
) -> tf.Tensor:
    """Draws each token's replacement: [MASK], a random token, or the token itself.

    Args:
        ids: int32 of any shape.
        tokenizer: knows the ids of [MASK] and of the ordinary tokens.
        config: shares of the three cases (BERT: 80, 10 and 10 %).
        action_seed: int [2], seed of the cases.
        token_seed: int [2], seed of the random tokens.

    Returns:
        int32 of the same shape.
    """
    action = tf.random.stateless_uniform(tf.shape(ids), action_seed)
    random_tokens = tf.gather(
        tf.constant(tokenizer.ordinary_ids),
        tf.random.stateless_uniform(
            tf.shape(ids), token_seed, 0, len(tokenizer.ordinary_ids), tf.int32
        ),
    )
    to_random = action < config.mask_token_share + config.random_token_share
    replaced = tf.where(to_random, random_tokens, ids)
    return tf.where(action < config.mask_token_share, tokenizer.mask_id, replaced)


def _choose(
    ids: tf.Tensor,
    tokenizer: Tokenizer,
    budget: tf.Tensor,
    whole_word: bool,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Chooses at most `budget` ordinary tokens of each row.

    Args:
        ids: int32 [batch, length].
        tokenizer: knows the special ids and the ids that continue a word.
        budget: int32 [batch], at least 1.
        whole_word: choose words instead of tokens.
        seed: int [2].

    Returns:
        bool [batch, length].
    """
    maskable = tokenizer.ordinary(ids)
    score = tf.random.stateless_uniform(tf.shape(ids), seed)
    if whole_word:
        return _choose_words(maskable, score, tokenizer.continues(ids), budget)
    order = tf.argsort(tf.where(maskable, score, 2.0), axis=1, stable=True)
    rank = tf.argsort(order, axis=1)
    return maskable & (rank < budget[:, tf.newaxis])


def _choose_words(
    maskable: tf.Tensor, score: tf.Tensor, continues: tf.Tensor, budget: tf.Tensor
) -> tf.Tensor:
    """Chooses words whose pieces are together at most `budget`.

    Args:
        maskable: bool [batch, length], the ordinary tokens.
        score: float32 [batch, length]; the words with the lowest scores come first.
        continues: bool [batch, length], the tokens that continue a word.
        budget: int32 [batch], at least 1.

    Returns:
        bool [batch, length].
    """
    word = tf.maximum(tf.cumsum(tf.cast(~continues, tf.int32), axis=1) - 1, 0)
    # The pieces of a word share one score, so that a stable sort keeps them together.
    score = tf.gather(score, word, batch_dims=1)
    order = tf.argsort(tf.where(maskable, score, 2.0), axis=1, stable=True)
    rank = tf.argsort(order, axis=1)
    in_order = tf.gather(word, order, batch_dims=1)
    available = tf.gather(maskable, order, batch_dims=1)
    batch, length = tf.unstack(tf.shape(word))
    numbers = in_order + length * tf.range(batch)[:, tf.newaxis]
    places = tf.tile(tf.range(length)[tf.newaxis], [batch, 1])
    lengths = tf.math.unsorted_segment_sum(
        tf.ones_like(places), numbers, batch * length
    )
    starts = tf.math.unsorted_segment_min(places, numbers, batch * length)
    word_length = tf.gather(lengths, numbers)
    word_rank = places - tf.gather(starts, numbers) + 1  # its pieces up to this one

    # A round takes the longest run of words that fits and excludes all words that no
    # longer fit. Repeated until no word fits, the rounds give the result of BERT's
    # loop, which takes one word after the other and skips words that do not fit.
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
    first_cut = available & (tf.range(tf.shape(word)[1]) < budget[:, tf.newaxis])
    none_taken = ~tf.reduce_any(taken, axis=1, keepdims=True)
    taken |= none_taken & first_cut
    return tf.gather(taken, rank, batch_dims=1)
