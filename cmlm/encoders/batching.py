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
# the same length, and up to LEAST_TOKENS tokens otherwise: with more, the padding would
# cost more than a further batch.
MOST_TOKENS, LEAST_TOKENS = 2048, 512
# Sentences with at least this many tenths of the longest length have nearly its length.
NEARLY = 8


def length_batches(
    lengths: np.ndarray, most: int = MOST_TOKENS, least: int = LEAST_TOKENS
) -> Iterator[np.ndarray]:
    """Groups rows of similar length into batches.

    Args:
        lengths: the lengths of the rows in tokens, int [n].
        most: the largest number of tokens in a batch, padding included; a longer row
            forms its own batch.
        least: rows of any lengths share a batch up to this number of tokens.

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
        size = max(min(near, most // longest), least // longest, 1)
        yield order[start : start + size]
        start += size


def map_in_batches(
    compute: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], lengths: tf.Tensor, dim: int
) -> tf.Tensor:
    """Computes vectors in batches of similar length with a bounded number of tokens.

    The batches are the same as in `length_batches`, so padding is limited. Apart from
    the result, memory does not grow with the request.

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

    def body(start, vectors):
        # The encoder reads position 0 even of a row without tokens.
        width = tf.maximum(descending[start], 1)
        near = tf.math.count_nonzero(10 * descending >= NEARLY * width, dtype=tf.int32)
        size = tf.minimum(near - start, MOST_TOKENS // width)
        size = tf.maximum(size, tf.maximum(LEAST_TOKENS // width, 1))
        rows = order[start : start + size]
        computed = tf.ensure_shape(compute(rows, width), [None, dim])
        vectors = tf.tensor_scatter_nd_update(vectors, rows[:, tf.newaxis], computed)
        return start + tf.size(rows), vectors

    count = tf.size(lengths)
    _, vectors = tf.while_loop(
        lambda start, _: start < count,
        body,
        [tf.constant(0), tf.zeros([count, dim])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, dim])],
        parallel_iterations=1,
    )
    return vectors
