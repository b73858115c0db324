"""The mode of the training step that is built now: its changes to plain layers.

The trainer sets the mode while it traces its step, and layers ask for it. Exports,
validation and inference are built without it and hold plain operations.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator

import tensorflow as tf

from cmlm.common import native_log

logger = logging.getLogger(__name__)

CHOICES = ("auto", "always", "never")
# XLA compiles every piece anew for each shape of a batch, in about half a second for
# all of them. A narrower model is done before that pays.
LEAST_WIDTH = 128


class _OfStep:
    """What holds for all replicas, whose threads build one step."""

    # None outside of a training step.
    fusing: bool | None = None


class _OfReplica(threading.local):
    """What a replica sets within its step, while other replicas build theirs."""

    recomputing = False
    unpadding = False


_step, _replica = _OfStep(), _OfReplica()


def wants_fusing(choice: str, width: int, on_cpu: bool) -> bool:
    """Whether a run uses the compiled pieces of `fused`.

    Args:
        choice: one of `CHOICES`. `auto` takes them on processors, for layers of at
            least `LEAST_WIDTH`.
        width: the model's hidden size.
        on_cpu: whether the replicas are processors.
    """
    if choice == "never" or (choice == "auto" and (width < LEAST_WIDTH or not on_cpu)):
        return False
    return _compiler_works()


@functools.cache
def _compiler_works() -> bool:
    try:
        double = tf.function(lambda x: x + x, jit_compile=True)
        # XLA says that it compiles, once in a process.
        with native_log.dropped():
            return bool(double(tf.constant(1.0)).numpy() == 2.0)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        logger.warning(
            "XLA does not work here, so the step uses plain operations: %s",
            str(error).split("\n")[0],
        )
        return False


def fusing(enabled: bool = True) -> contextlib.AbstractContextManager[None]:
    """Within the body, a training step is built, of compiled pieces if enabled."""
    return _within(_step, "fusing", enabled)


def recomputing() -> contextlib.AbstractContextManager[None]:
    """Within the body, steps are built that take less memory and a little more time."""
    return _within(_replica, "recomputing", True)


def unpadding(enabled: bool = True) -> contextlib.AbstractContextManager[None]:
    """Within the body, encoders of a training step leave out most of the padding."""
    return _within(_replica, "unpadding", enabled)


@contextlib.contextmanager
def _within(state: object, name: str, value: bool) -> Iterator[None]:
    before = getattr(state, name)
    setattr(state, name, value)
    try:
        yield
    finally:
        setattr(state, name, before)


def fuses() -> bool:
    """Whether the step that is built now uses the compiled pieces."""
    return bool(_step.fusing)


def sums_biases(dtype: str | tf.DType) -> bool:
    """Whether layers that are built now add their biases by `fused.add_bias`.

    Plain steps do so in bfloat16, whose sums TensorFlow's own gradient gets wrong.

    Args:
        dtype: the type that the layer computes in.
    """
    in_step = _step.fusing is not None
    return fuses() or (in_step and tf.as_dtype(dtype) == tf.bfloat16)


def recomputes() -> bool:
    """Whether the step that is built now takes less memory and more time."""
    return _replica.recomputing


def unpads() -> bool:
    """Whether encoders that are built now leave out most of the padding."""
    return _replica.unpadding
