"""The losses, as functions of tensors: no layers, no configuration.

Each returns sums, not means. The trainer divides by the count over all replicas and
micro-batches, so the split of a batch never changes a gradient.
"""

from __future__ import annotations

import tensorflow as tf

from cmlm.modeling import fused, step_mode

# The forms of the loss `misad`.
MISAD_FORMS = ("paper", "released")
# The forms of the loss `mirror`.
MIRROR_FORMS = ("released", "paper")


def masked_lm(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy of masked words, -sum_t w_t log p(y_t), in nats.

    Args:
        logits: float [masked, vocab_size].
        labels: int32 [masked], the original words.
        weights: float [masked], 1 for a masked token and 0 for padding.

    Returns:
        The summed loss and the number of correct predictions, float32 scalars.
    """
    if step_mode.fuses():
        loss, right = fused.cross_entropy(logits, labels)
    else:
        logits = tf.cast(logits, tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        largest = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        right = tf.cast(tf.equal(largest, labels), tf.float32)
    return tf.reduce_sum(loss * weights), tf.reduce_sum(right * weights)


def additive_margin_softmax(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    positives: tf.Tensor,
    excluded: tf.Tensor,
    margin: float,
    scale: float,
    with_positive: bool = True,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Additive margin softmax: ranks one candidate above all others, one direction.

    With s(q, c) = scale <q, c>, which is the scaled cosine for unit vectors,

        loss_i = -log  exp(s(q_i, c_p) - scale margin)
                      ----------------------------------------------------------
                       exp(s(q_i, c_p) - scale margin) + sum_j exp(s(q_i, c_j))

    where p is i's positive and j runs over the candidates that are neither the
    positive nor excluded (LaBSE, https://arxiv.org/abs/2007.01852, section 2.1).

    Args:
        queries: float [n, dim].
        candidates: float [m, dim], the texts of every replica.
        positives: int32 [n], each query's row among the candidates.
        excluded: bool [n, m], pairs that do not count as negatives; a positive always
            counts.
        margin: subtracted from the similarity of the positive.
        scale: factor of all similarities.
        with_positive: whether the denominator has the term of the positive. Without it,
            the loss may be below 0; it is 0 for a query without negatives.

    Returns:
        The loss of every query, float32 [n], in nats, and the similarities, float32
        [n, m], without margin and scale.
    """
    similarities = tf.matmul(
        tf.cast(queries, tf.float32), tf.cast(candidates, tf.float32), transpose_b=True
    )
    is_positive = tf.one_hot(
        positives, tf.shape(candidates)[0], on_value=True, off_value=False
    )
    logits = scale * (similarities - margin * tf.cast(is_positive, tf.float32))
    # The lowest number stands for -inf, whose product with a zero gradient is NaN.
    logits = tf.where(excluded & ~is_positive, logits.dtype.min, logits)
    if with_positive:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(positives, logits)
        return loss, similarities
    own = tf.gather(logits, positives, batch_dims=1)
    negatives = tf.where(is_positive, logits.dtype.min, logits)
    loss = tf.reduce_logsumexp(negatives, axis=1) - own
    has_negatives = tf.reduce_any(~(excluded | is_positive), axis=1)
    return tf.where(has_negatives, loss, 0.0), similarities


def misad(
    part: tf.Tensor, rest: tf.Tensor, whole: tf.Tensor, form: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """MiSAD: the distance between the whole and the sum of a part and the rest.

    All three vectors are normalised to unit length first. Then

        loss_i = 1/dim || E_w + E_R - E_S ||^2                               (paper)
        loss_i = 1/dim || (E_w + E_R) / ||E_w + E_R|| - E_S ||^2     (released code)

    (Li & Zhao, 2021, https://arxiv.org/abs/2105.14478, section 3.2).

    Args:
        part, rest, whole: float [n, dim], E_w, E_R and E_S.
        form: one of `MISAD_FORMS`.

    Returns:
        The loss of every row, float32 [n], and the cosine of E_w + E_R and E_S.

    Raises:
        ValueError: the form does not exist.
    """
    if form not in MISAD_FORMS:
        raise ValueError(f"form is {form!r}; allowed: {', '.join(MISAD_FORMS)}")
    part, rest, whole = map(_unit, (part, rest, whole))
    total = part + rest
    direction = _unit(total)
    if form == "released":
        total = direction
    loss = tf.reduce_mean(tf.math.squared_difference(total, whole), axis=-1)
    return loss, tf.reduce_sum(direction * whole, axis=-1)


def cosines(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns the cosine of corresponding rows, float [n, dim]: float32 [n]."""
    return tf.reduce_sum(_unit(first) * _unit(second), axis=-1)


def cosine_distance(vectors: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns 1 - cos(vector, target) of each row: float32 [n].

    It is half of the squared distance between the two at unit length.

    Args:
        vectors, targets: float [n, dim].
    """
    return 1.0 - cosines(vectors, targets)


def cosent(cosines: tf.Tensor, scores: tf.Tensor, scale: float) -> tf.Tensor:
    """CoSENT: the pair with the higher score has the higher cosine.

        loss = log(1 + sum_{i, j: score_i > score_j} exp(scale (cos_j - cos_i)))

    (Su, 2022, https://kexue.fm/archives/8847).

    Args:
        cosines: float32 [n], the cosine of each pair of sentences.
        scores: float32 [n].
        scale: factor of the cosines.

    Returns:
        The loss of the batch, float32 scalar.
    """
    higher = scores[:, tf.newaxis] > scores[tf.newaxis, :]
    exponents = scale * (cosines[tf.newaxis, :] - cosines[:, tf.newaxis])
    # The lowest number stands for -inf, whose product with a zero gradient is NaN.
    exponents = tf.where(higher, exponents, exponents.dtype.min)
    return tf.reduce_logsumexp(tf.pad(tf.reshape(exponents, [-1]), [[1, 0]]))


def similarity_error(
    own: tf.Tensor, all_own: tf.Tensor, targets: tf.Tensor, all_targets: tf.Tensor
) -> tf.Tensor:
    """Compares the cosines between vectors with the cosines between their targets.

        error_i = 1/m sum_j (cos(v_i, v_j) - cos(t_i, t_j))^2

    Args:
        own: float [n, dim], the vectors of this replica's rows.
        all_own: float [m, dim], the vectors of every replica's rows.
        targets: float [n, width]; `all_targets`: float [m, width].

    Returns:
        float32 [n].
    """
    found = tf.matmul(_unit(own), _unit(all_own), transpose_b=True)
    wanted = tf.matmul(_unit(targets), _unit(all_targets), transpose_b=True)
    return tf.reduce_mean(tf.math.squared_difference(found, wanted), axis=1)


def _unit(vectors: tf.Tensor) -> tf.Tensor:
    return tf.math.l2_normalize(tf.cast(vectors, tf.float32), axis=-1)
