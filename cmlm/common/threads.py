"""Threads of a processor: many operations side by side, each on one thread.

TensorFlow splits an operation over all threads by default. The products of a sentence
encoder are small, so their threads wait for each other. A program that only encodes is
faster with one thread an operation and a batch for each core.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from cmlm.common import machine

T, R = TypeVar("T"), TypeVar("R")
_side_by_side = False


def one_for_each_operation() -> None:
    """Gives each operation one thread, unless the user has chosen a number.

    Call it before the first operation. `TF_NUM_INTRAOP_THREADS` and `tf.config` are the
    user's ways to choose.

    Only a process that runs optimised graphs may call it. An inference graph computes
    layer norm by FusedBatchNorm, whose oneDNN kernel writes over foreign memory if two
    threads call it. TensorFlow's optimiser puts a safe kernel in its place.
    """
    global _side_by_side
    settings = tf.config.threading
    chosen = settings.get_intra_op_parallelism_threads()
    if not chosen and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        settings.set_intra_op_parallelism_threads(1)
        _side_by_side = True


def each(compute: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Applies a function to items: side by side after `one_for_each_operation`.

    Args:
        compute: must be safe in several threads.
        items: its arguments.

    Yields:
        The results, in the order of the items.
    """
    items = list(items)
    count = min(machine.processors(), len(items))
    if count <= 1 or not _side_by_side or tf.config.functions_run_eagerly():
        yield from map(compute, items)
        return
    pool = concurrent.futures.ThreadPoolExecutor(count)
    try:
        yield from pool.map(compute, items)
    finally:
        # An error or an interrupt must not wait for the items to come.
        pool.shutdown(cancel_futures=True)
