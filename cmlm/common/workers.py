"""Communication between the workers of a training run.

A worker is one of several processes that train together; the same command starts each
of them. Worker 0, the chief, prepares text and vocabulary, keeps the checkpoints and
reports. The other workers wait for the chief and read its files. The
`numbered_tasks.Workers` are other processes: they encode and search.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from cmlm.errors import UserError

# Text that marks a lost worker, not a disk error.
_LOST = ("Collective ops is aborted", "GRPC error")


def cluster(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns this worker's index, counted from 0, and the number of workers."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    chiefs = len(tasks.get("chief", []))
    before = chiefs if resolver.task_type == "worker" else 0
    return before + resolver.task_id, chiefs + len(tasks.get("worker", []))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether this process is worker 0, which keeps the files and reports."""
    return cluster(strategy)[0] == 0


def exchange(strategy: tf.distribute.Strategy, value) -> list:
    """Sends the value of each worker to all workers.

    Every worker must call this function, which waits for the other workers.

    Args:
        strategy: the run's strategy.
        value: this worker's value; anything that JSON can hold.

    Returns:
        The values of all workers, in the order of the workers.

    Raises:
        UserError: a worker is lost.
    """
    index, workers = cluster(strategy)
    if workers == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.zeros(workers, np.int32)
    lengths[index] = len(data)
    with lost_workers(strategy):
        lengths = _sum_over_workers(strategy, lengths)
        table = np.zeros([workers, max(lengths)], np.int32)
        table[index, : len(data)] = data
        table = _sum_over_workers(strategy, table).astype(np.uint8)
    return [
        json.loads(row[:length].tobytes())
        for row, length in zip(table, lengths, strict=True)
    ]


def _sum_over_workers(strategy, values: np.ndarray) -> np.ndarray:
    _, workers = cluster(strategy)
    per_worker = strategy.num_replicas_in_sync // workers

    def local(context):
        # The first replica of a worker contributes the worker's values.
        speaks = context.replica_id_in_sync_group % per_worker == 0
        return tf.constant(values if speaks else np.zeros_like(values))

    distributed = strategy.experimental_distribute_values_from_function(local)
    with interruptible():
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, distributed, axis=None)
        return total.numpy()


def on_chief(strategy: tf.distribute.Strategy, function: Callable[[], object]):
    """Calls a function on worker 0 only, and returns its result on every worker.

    The other workers wait for worker 0. If worker 0 ends, `lost_workers` reports it.

    Args:
        strategy: the run's strategy.
        function: returns anything that JSON can hold.

    Raises:
        UserError: `function` raised it; every worker raises it then.
    """
    index, workers = cluster(strategy)
    if workers == 1:
        return function()
    answer = {}
    if index == 0:
        try:
            answer = {"value": function()}
        except UserError as error:
            answer = {"error": str(error)}
    answer = exchange(strategy, answer)[0]
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["value"]


@contextlib.contextmanager
def lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's error about a lost worker into one line.

    TensorFlow's workers send each other heartbeats. When a worker is silent for about
    ten seconds, every operation that waits for it fails.

    Raises:
        UserError: another worker is lost.
    """
    index, workers = cluster(strategy)
    try:
        yield
    except tf.errors.OpError as error:
        if workers == 1 or not any(text in str(error) for text in _LOST):
            raise
        tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", str(error))
        me = strategy.cluster_resolver.task_type, str(strategy.cluster_resolver.task_id)
        others = [f"{job} {task}" for job, task in tasks if (job, task) != me]
        lost = others[0] if others else "another worker"
        raise UserError(
            f"worker {index} of {workers} lost {lost}: "
            "it ended (its own output says why) or cannot be reached. Run the same "
            "command on every worker again to resume from the last checkpoint"
        ) from error


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C end the process while C++ code waits and Python gets no signal.

    If other code has installed a handler for Ctrl-C, that handler stays.
    """
    is_plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_plain or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
