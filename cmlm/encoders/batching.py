"""Batches of sentences of similar length, which need little padding.

The same rule has two forms: `length_batches` for numpy, `map_in_batches` in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

# Tokens of a batch, padding included. On a CPU, batches of 1024 to 4096 tokens are
# equally fast and larger batches slower, and each batch costs as much as 25 to 125
# additional tokens. So a batch holds up to MOST_TOKENS tokens of sentences with nearly
# the same length, and up to LEAST_TOKENS tokens otherwise. Padding costs time in
# attention alone. With twice LEAST_TOKENS, one thread would be faster, but a small
# request would have no batches for the other cores.
MOST_TOKENS, LEAST_TOKENS = 2048, 512
# Sentences with at least this many tenths of the longest length have nearly its length.
NEARLY = 8
# Batches of a request that a served graph may compute side by side.
LANES = 8


def length_batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Groups rows of similar length into batches.

    Args:
        lengths: the lengths of the rows in tokens, int [n]; a row of more than
            MOST_TOKENS forms its own batch.

    Yields:
        Indices into `lengths`, every row once. The longest rows come first: if they do
        not fit into memory, the program fails at once.
    """
    order = np.argsort(-lengths, kind="stable")
    ascending = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(-int(ascending[start]), 1)
        near = np.searchsorted(ascending, -NEARLY * longest / 10, "right") - start
        size = max(min(near, MOST_TOKENS // longest), LEAST_TOKENS // longest, 1)
        yield order[start : start + size]
        start += size


def map_in_batches(
    compute: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], lengths: tf.Tensor, dim: int
) -> tf.Tensor:
    """Computes vectors in batches of similar length with a bounded number of tokens.

    The batches are those of `length_batches`. Up to LANES batches run side by side,
    where TensorFlow has the threads. Apart from the result, memory does not grow with
    the request.

    Args:
        compute: a function of rows, int32 [m], and their width in tokens, int32 [],
            that returns vectors, float32 [m, dim].
        lengths: the lengths of the rows in tokens, int32 [n].
        dim: the width of a vector.

    Returns:
        The vectors, float32 [n, dim].
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    descending = tf.gather(lengths, order)
    starts = _batch_starts(descending)
    n_batches = tf.size(starts)
    ends = tf.concat([starts[1:], [tf.size(order)]], axis=0)

    def batch(i):
        # The encoder reads position 0 even of a row without tokens.
        width = tf.maximum(descending[starts[i]], 1)
        vectors = compute(order[starts[i] : ends[i]], width)
        return tf.ensure_shape(vectors, [None, dim])

    # A loop for each lane: the iterations of one loop would wait for each other, since
    # `compute` calls a stateful function.
    def lane(first):
        """The vectors of every LANES-th batch, one batch after the other."""
        found = tf.TensorArray(
            tf.float32,
            size=0,
            dynamic_size=True,
            infer_shape=False,
            element_shape=[None, dim],
        )
        _, found = tf.while_loop(
            lambda i, _: i < n_batches,
            lambda i, found: (i + LANES, found.write(i // LANES, batch(i))),
            [tf.constant(first), found],
            parallel_iterations=1,
        )
        return found.concat()

    def in_lanes():
        vectors = tf.concat([lane(first) for first in range(LANES)], axis=0)
        position = tf.range(tf.size(order))
        lane_of = (tf.searchsorted(starts, position, side="right") - 1) % LANES
        computed = tf.gather(order, tf.argsort(lane_of, stable=True))
        return tf.gather(vectors, tf.math.invert_permutation(computed))

    def at_once():
        return tf.gather(batch(0), tf.math.invert_permutation(order))

    vectors = tf.cond(n_batches == 1, at_once, in_lanes)
    return tf.ensure_shape(vectors, [None, dim])


def padded(
    tokens: tf.RaggedTensor, rows: tf.Tensor, width: tf.Tensor, pad_id: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids and the mask of a batch of `map_in_batches`, int32 [m, width].

    Args:
        tokens: the token ids of all rows, int32 [n, (length)].
        rows, width: what `map_in_batches` calls its function with.
        pad_id: the id of the padding.
    """
    chosen = tf.gather(tokens, rows)
    mask = tf.sequence_mask(chosen.row_lengths(), width, dtype=tf.int32)
    return chosen.to_tensor(pad_id), mask


def _batch_starts(descending: tf.Tensor) -> tf.Tensor:
    """Where the batches begin among rows of falling lengths, int32 [n]: int32 [b]."""
    count = tf.size(descending)
    ascending = -descending[tf.newaxis]

    def next_start(start, i, starts):
        width = tf.maximum(descending[start], 1)
        shortest = (NEARLY * width + 9) // 10
        end = tf.raw_ops.UpperBound(sorted_inputs=ascending, values=[[-shortest]])
        near = end[0, 0] - start
        size = tf.minimum(near, MOST_TOKENS // width)
        size = tf.maximum(size, tf.maximum(LEAST_TOKENS // width, 1))
        return start + size, i + 1, starts.write(i, start)

    starts = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[])
    *_, starts = tf.while_loop(
        lambda start, *_: start < count,
        next_start,
        [tf.constant(0), tf.constant(0), starts],
        parallel_iterations=1,
    )
    return starts.stack()
