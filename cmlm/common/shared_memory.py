"""Arrays and tensors in the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# TensorFlow's kernels expect tensors that start at a multiple of so many bytes.
_ALIGNMENT = 64


def empty_array(shape: Sequence[int]) -> np.ndarray:
    """Makes a float32 array whose memory `as_tensor` can share."""
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(np.float32).reshape(shape)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Makes a tensor of an array, in the same memory if TensorFlow can share it.

    `Variable.assign` copies an array three times, but this tensor at most once. Without
    a copy, the variable keeps the memory, so the caller must not change the array.
    """
    flags = array.flags
    if array.ctypes.data % _ALIGNMENT or not (flags.c_contiguous and flags.writeable):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def as_array(variable: tf.Variable) -> np.ndarray:
    """Makes a read-only array of a variable's present value, with at most one copy.

    A later assignment does not change the array.
    """
    return np.asarray(memoryview(variable.read_value()))
