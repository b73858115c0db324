"""Pieces of a training step, each one compiled function with a gradient of its own.

TensorFlow runs GELU, layer norm or the softmax of attention as some ten operations, and
each of them passes over memory. Here XLA compiles each piece to one or two loops, once
for its values and once for its gradient, and the gradient keeps no more than it needs.
Values are computed in float32, whatever the precision of inputs and outputs.

The pieces stand in for Keras' layers only within `step_mode.fusing`. `add_bias` needs
no compiler, and does so in every step in bfloat16.
"""

from __future__ import annotations

import atexit
import functools
import math
from collections.abc import Callable
from typing import Optional

import tensorflow as tf

from cmlm.modeling import step_mode


def read(variable: tf.Variable) -> tf.Tensor:
    """The float32 value; in mixed precision Keras' own variable would round it."""
    return tf.convert_to_tensor(getattr(variable, "_variable", variable))


@functools.cache
def _compiled(function: Callable) -> Callable:
    """The function, compiled once for all layers and steps."""
    return tf.function(function, jit_compile=True, autograph=False)


@atexit.register
def _release() -> None:
    """Frees the compiled functions while TensorFlow can still do so."""
    _compiled.cache_clear()


# ----------------------------------------------------------------------- bias


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """x + bias, with the gradient of `column_sums`.

    TensorFlow's own gradient adds up bfloat16 in bfloat16: with thousands of rows the
    sum stops growing, and little of it is right.

    Args:
        x: float [rows, width].
        bias: float32 [width].

    Returns:
        [rows, width], in the type of x.
    """

    def gradient(upstream):
        return upstream, column_sums(upstream)

    return tf.nn.bias_add(x, tf.cast(bias, x.dtype)), gradient


def dense(layer, x: tf.Tensor) -> tf.Tensor:
    """The output of a Keras layer; see `step_mode.sums_biases` for its bias.

    Args:
        layer: a Dense layer, or an EinsumDense layer of the last axis.
        x: float [..., width].

    Returns:
        [..., units].
    """
    if not step_mode.sums_biases(layer.compute_dtype):
        return layer(x)
    rows = tf.reshape(tf.cast(x, layer.compute_dtype), [-1, x.shape[-1]])
    y = tf.matmul(rows, tf.cast(read(layer.kernel), rows.dtype))
    y = layer.activation(add_bias(y, read(layer.bias)))
    return tf.reshape(y, [*tf.unstack(tf.shape(x))[:-1], y.shape[-1]])


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """The sums over the rows of [rows, width], float32 [width].

    A matrix product with ones adds up in float32 and is several times faster than a
    reduction, which walks through memory in steps of a row. In bfloat16 its result is
    rounded once, like the gradient of a kernel.
    """
    ones = tf.ones([1, tf.shape(x)[0]], x.dtype)
    return tf.cast(tf.matmul(ones, x)[0], tf.float32)


# ----------------------------------------------------------------------- GELU


@tf.custom_gradient
def gelu(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Exact GELU of x + bias, 0.5 y (1 + erf(y / sqrt 2)).

    The gradient keeps x and no other large tensor.

    Args:
        x: float [rows, width].
        bias: float32 [width].

    Returns:
        [rows, width], in the type of x.
    """

    def gradient(upstream):
        dx = _compiled(_gelu_gradient)(x, bias, upstream)
        return dx, column_sums(dx)

    return _compiled(_gelu_value)(x, bias), gradient


def gelu_product(x: tf.Tensor, bias: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """gelu(x + bias) @ kernel.

    The gradient of the kernel needs the value of GELU. Within `step_mode.recomputing`
    it is computed again, in the pass that differentiates it: of a block's activations,
    a fifth is not kept.

    Args:
        x: float [rows, width].
        bias: float32 [width].
        kernel: float [width, units], in the type of x.

    Returns:
        [rows, units], in the type of x.
    """
    if step_mode.recomputes():
        return _gelu_product(x, bias, kernel)
    return tf.matmul(gelu(x, bias), kernel)


@tf.custom_gradient
def _gelu_product(x, bias, kernel):
    def gradient(upstream):
        upstream_of_gelu = tf.matmul(upstream, kernel, transpose_b=True)
        dx, value = _compiled(_gelu_gradient_and_value)(x, bias, upstream_of_gelu)
        return dx, column_sums(dx), tf.matmul(value, upstream, transpose_a=True)

    return tf.matmul(_compiled(_gelu_value)(x, bias), kernel), gradient


def _gelu_gradient_and_value(x, bias, upstream):
    # XLA computes erf once for both.
    return _gelu_gradient(x, bias, upstream), _gelu_value(x, bias)


def _gelu_value(x, bias):
    y = tf.cast(x, tf.float32) + bias
    return tf.cast(0.5 * y * (1.0 + tf.math.erf(y * math.sqrt(0.5))), x.dtype)


def _gelu_gradient(x, bias, upstream):
    y = tf.cast(x, tf.float32) + bias
    normal = 0.5 * (1.0 + tf.math.erf(y * math.sqrt(0.5)))
    density = tf.exp(-0.5 * y * y) / math.sqrt(2.0 * math.pi)
    return tf.cast(tf.cast(upstream, tf.float32) * (normal + y * density), x.dtype)


# ------------------------------------------------------------------ layer norm


def residual_norm(
    x: tf.Tensor,
    y: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    kept: Optional[tf.Tensor],
    rate: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Layer norm of x + dropout(y + bias).

    Args:
        x: float32 [rows, width], the residual.
        y: float [rows, width], the output of a sub-layer before its bias.
        bias, gamma, beta: float32 [width].
        epsilon: added to the variance.
        kept: bool [rows, width], the elements that dropout leaves; None: all.
        rate: the rate of dropout that `kept` was drawn for.

    Returns:
        The norm twice: float32 [rows, width] for the next residual, and the same in the
        type of y for the next product. The gradients of both are added in one pass.
    """

    @tf.custom_gradient
    def norm(x, y, bias, gamma, beta):
        result, normed, inverse, *narrow = _compiled(_residual_norm_value)(
            x, y, bias, gamma, beta, epsilon, kept, rate
        )

        def gradient(upstream, of_product):
            return _compiled(_residual_norm_gradient)(
                upstream, of_product, normed, inverse, gamma, kept, rate
            )

        for_product = narrow[0] if narrow else result
        return (result, for_product), gradient

    return norm(x, y, bias, gamma, beta)


def _residual_norm_value(x, y, bias, gamma, beta, epsilon, kept, rate):
    total = x + _drop(tf.cast(y, tf.float32) + bias, kept, rate)
    normed, inverse = _normed(total, epsilon)
    result = normed * gamma + beta
    # In float32 a second output would be a second copy.
    narrow = [] if y.dtype == tf.float32 else [tf.cast(result, y.dtype)]
    return result, normed, inverse, *narrow


def _residual_norm_gradient(upstream, of_product, normed, inverse, gamma, kept, rate):
    upstream += tf.cast(of_product, tf.float32)
    dx = _norm_gradient(upstream * gamma, normed, inverse)
    dy = _drop(dx, kept, rate)
    return (
        dx,
        tf.cast(dy, of_product.dtype),
        tf.reduce_sum(dy, axis=0),
        tf.reduce_sum(upstream * normed, axis=0),
        tf.reduce_sum(upstream, axis=0),
    )


def norm_dropout(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    kept: Optional[tf.Tensor],
    rate: float,
) -> tf.Tensor:
    """dropout(layer norm of x).

    Args:
        x: float32 [rows, width].
        gamma, beta: float32 [width].
        epsilon: added to the variance.
        kept: bool [rows, width], the elements that dropout leaves; None: all.
        rate: the rate of dropout that `kept` was drawn for.

    Returns:
        float32 [rows, width].
    """

    @tf.custom_gradient
    def norm(x, gamma, beta):
        result, normed, inverse = _compiled(_norm_dropout_value)(
            x, gamma, beta, epsilon, kept, rate
        )

        def gradient(upstream):
            return _compiled(_norm_dropout_gradient)(
                upstream, normed, inverse, gamma, kept, rate
            )

        return result, gradient

    return norm(x, gamma, beta)


def _norm_dropout_value(x, gamma, beta, epsilon, kept, rate):
    normed, inverse = _normed(x, epsilon)
    return _drop(normed * gamma + beta, kept, rate), normed, inverse


def _norm_dropout_gradient(upstream, normed, inverse, gamma, kept, rate):
    upstream = _drop(upstream, kept, rate)
    return (
        _norm_gradient(upstream * gamma, normed, inverse),
        tf.reduce_sum(upstream * normed, axis=0),
        tf.reduce_sum(upstream, axis=0),
    )


def _normed(x, epsilon):
    """The rows at mean 0 and variance 1, and the factors that scale them so."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return centred * inverse, inverse


def _norm_gradient(upstream, normed, inverse):
    """The gradient of `_normed`."""
    mean = tf.reduce_mean(upstream, axis=-1, keepdims=True)
    along = tf.reduce_mean(upstream * normed, axis=-1, keepdims=True)
    return inverse * (upstream - mean - normed * along)


# ------------------------------------------------------------------ attention


def attention_probabilities(
    scores: tf.Tensor,
    mask: tf.Tensor,
    scale: float,
    kept: Optional[tf.Tensor],
    rate: float,
) -> tf.Tensor:
    """dropout(softmax(scale * scores + mask)).

    Args:
        scores: float [batch, heads, queries, keys].
        mask: float32 [batch, 1, 1, keys], 0 or a large negative number.
        scale: factor of the scores.
        kept: bool, in the shape of the scores; None: no dropout.
        rate: the rate of dropout that `kept` was drawn for.
    """

    @tf.custom_gradient
    def probabilities(scores):
        result, found = _compiled(_probabilities_value)(scores, mask, scale, kept, rate)

        def gradient(upstream):
            return _compiled(_probabilities_gradient)(
                upstream, found, scale, kept, rate
            )

        return result, gradient

    return probabilities(scores)


def _probabilities_value(scores, mask, scale, kept, rate):
    """The probabilities after dropout and before it, in the type of the scores."""
    found = tf.nn.softmax(tf.cast(scores, tf.float32) * scale + mask)
    dropped = tf.cast(_drop(found, kept, rate), scores.dtype)
    return dropped, tf.cast(found, scores.dtype)


def _probabilities_gradient(upstream, found, scale, kept, rate):
    upstream = _drop(tf.cast(upstream, tf.float32), kept, rate)
    wide = tf.cast(found, tf.float32)
    mean = tf.reduce_sum(upstream * wide, axis=-1, keepdims=True)
    return tf.cast(scale * wide * (upstream - mean), found.dtype)


# -------------------------------------------------------------------- dropout

# Random bits of one draw.
_BITS = 16


def _drop(values: tf.Tensor, kept: Optional[tf.Tensor], rate: float) -> tf.Tensor:
    """Dropout that leaves the elements `kept`; None: all."""
    if kept is None:
        return values
    return tf.where(kept, values / (1.0 - exact_rate(rate)), 0.0)


def exact_rate(rate: float) -> float:
    """The rate of `kept`: the nearest one that `_BITS` random bits can draw."""
    return _dropped_draws(rate) / 2**_BITS


def _dropped_draws(rate: float) -> int:
    """The draws that drop an element, of 2**_BITS; one at least keeps it."""
    return min(round(rate * 2**_BITS), 2**_BITS - 1)


def kept(generator, shape: tf.Tensor, rate: float) -> Optional[tf.Tensor]:
    """Draws the elements that dropout keeps: bool, or None if the rate is 0.

    Args:
        generator: tf.random.Generator of the layer, whose state the trainer sets.
        shape: int32 [axes].
        rate: the share to leave out; `exact_rate` says the one that is drawn.
    """
    if not rate:
        return None
    count = tf.reduce_prod(shape)
    # Two draws from each 32 bits: half of the time goes into making bits.
    bits = generator.uniform_full_int([(count + 1) // 2], tf.int32)
    bits = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:count]
    lowest = _dropped_draws(rate) - 2 ** (_BITS - 1)
    return tf.reshape(bits >= tf.constant(lowest, tf.int16), shape)


# -------------------------------------------------------------- cross-entropy


@tf.custom_gradient
def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy, and whether the label is the first word with the largest logit.

    Logits of bfloat16 are not copied to float32.

    Args:
        logits: float [rows, words].
        labels: int32 [rows].

    Returns:
        The loss in nats and 1 or 0, float32 [rows] each.
    """
    loss, right, total = _compiled(_cross_entropy_value)(logits, labels)

    def gradient(upstream, _):
        return _compiled(_cross_entropy_gradient)(logits, labels, total, upstream), None

    return (loss, right), gradient


def _cross_entropy_value(logits, labels):
    wide = tf.cast(logits, tf.float32)
    words = tf.range(tf.shape(logits)[1])[tf.newaxis]
    largest = tf.reduce_max(wide, axis=-1, keepdims=True)
    first = tf.reduce_min(
        tf.where(wide >= largest, words, tf.shape(logits)[1]), axis=-1
    )
    total = tf.reduce_sum(tf.exp(wide - largest), axis=-1, keepdims=True)
    total = tf.math.log(total) + largest
    of_label = tf.cast(tf.gather(logits, labels, batch_dims=1), tf.float32)
    right = tf.cast(first == labels, tf.float32)
    return total[:, 0] - of_label, right, total


def _cross_entropy_gradient(logits, labels, total, upstream):
    words = tf.range(tf.shape(logits)[1])[tf.newaxis]
    of_label = tf.cast(words == labels[:, tf.newaxis], tf.float32)
    shares = tf.exp(tf.cast(logits, tf.float32) - total)
    return tf.cast((shares - of_label) * upstream[:, tf.newaxis], logits.dtype)
