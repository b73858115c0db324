"""Stops a run at the first loss, gradient or weight that is not a finite number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import tensorflow as tf

# Marks the assertion that a step raises; the name of the value follows.
_MARK = "non-finite:"


class NonFiniteError(Exception):
    """A loss, a gradient or a weight is not finite. No checkpoint holds it."""


def assert_finite(values: Mapping[str, tf.Tensor]) -> tf.Operation:
    """Fails if a value is not finite, and names the first such value.

    Args:
        values: all-reduced scalars by name. Every replica holds the same values, so no
            replica waits for another.
    """
    finite = tf.math.is_finite(tf.stack(list(values.values())))
    first = tf.argmin(tf.cast(finite, tf.int32))
    return tf.debugging.Assert(
        tf.reduce_all(finite), [_MARK + tf.gather(list(values), first) + ":"]
    )


def failed_name(error: tf.errors.InvalidArgumentError) -> str | None:
    """Returns the name in an error of `assert_finite`, or None for any other error."""
    _, found, rest = error.message.partition(_MARK)
    return rest.partition(":")[0] if found else None


def refuse_totals(totals: Mapping[str, list], first: int, last: int) -> None:
    """Checks the metrics of a compiled program, which cannot stop within a step.

    The weights are already spoilt, but no checkpoint holds them.

    Args:
        totals: (sum, count) of each metric.
        first, last: the steps that the program took.

    Raises:
        NonFiniteError: a loss or a gradient norm is not finite.
    """
    for key, (total, _) in totals.items():
        if key.endswith(("/loss", "gradient_norm")) and not math.isfinite(total):
            raise NonFiniteError(f"{key} is not finite in steps {first} to {last}")


def refuse_variables(variables: Iterable[tf.Variable], step: int) -> None:
    """Raises NonFiniteError if a variable holds a number that is not finite.

    With a huge learning rate, even a finite gradient can make a weight non-finite.

    Args:
        variables: the variables to save.
        step: updates done so far, for the message.
    """
    for variable in variables:
        if not variable.dtype.is_floating:
            continue
        finite = tf.math.is_finite(tf.convert_to_tensor(variable))
        if not tf.reduce_all(finite):
            raise NonFiniteError(f"{variable.name} is not finite after step {step}")
