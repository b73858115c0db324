"""Reads the files of a corpus side by side, so that they end together.

A corpus often has a large file and several small ones. If each file gave the same
number of lines, the small ones would end early, and the rest of each pass would train
on the largest one alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from cmlm.common import iterators
from cmlm.data import line_files

# Files that are open at the same time. A lane reads its files one after the other.
_LANES = 8
# A cycle of draws from the lanes: the shares of the lanes are multiples of its inverse.
_DRAWS = 4096


def read_together(
    paths: Sequence[str],
    read: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
    seed: int | None,
) -> tf.data.Dataset:
    """Reads files in lanes. Each lane gives examples in proportion to its bytes.

    Args:
        paths: the files.
        read: from the tensors of a file, see `line_files.named`, to its examples.
        seed: seed of the order of the files within a lane, which is new in each pass;
            None keeps the order of `paths`.
    """
    sizes = line_files.estimated_sizes(paths)
    lanes = divide(sizes, _LANES)
    examples = []
    for lane in lanes:
        files = iterators.untuned(line_files.named([paths[i] for i in lane]))
        if seed is not None and len(lane) > 1:
            files = files.shuffle(len(lane), seed, reshuffle_each_iteration=True)
        examples.append(files.flat_map(read))
    if len(lanes) == 1:
        return examples[0]
    order = draws([sum(sizes[i] for i in lane) for lane in lanes], _DRAWS)
    choices = iterators.untuned(tf.data.Dataset.from_tensor_slices(order))
    return tf.data.Dataset.choose_from_datasets(
        examples, choices.repeat(), stop_on_empty_dataset=False
    )


def divide(sizes: Sequence[float], most: int) -> list[list[int]]:
    """Divides files into lanes of nearly equal size, the largest file first.

    Args:
        sizes: the size of each file.
        most: the number of lanes, if there are as many files.

    Returns:
        The positions of the files of each lane, ascending.
    """
    lanes: list[list[int]] = [[] for _ in range(min(most, len(sizes)))]
    least = [(0.0, 0, number) for number in range(len(lanes))]
    for file in sorted(range(len(sizes)), key=lambda file: -sizes[file]):
        # Empty files are spread, too: the second key counts them.
        size, count, number = heapq.heappop(least)
        lanes[number].append(file)
        heapq.heappush(least, (size + sizes[file], count + 1, number))
    return [sorted(lane) for lane in lanes]


def draws(sizes: Sequence[float], most: int) -> np.ndarray:
    """Returns a cycle of lanes to draw from, int64 [about `most`].

    The draws of each lane are spread evenly over the cycle.

    Args:
        sizes: the size of each lane. Even a small lane is drawn once.
        most: the length of the cycle, up to rounding.
    """
    shares = np.asarray(sizes, float) + 1e-9
    counts = np.maximum(1, np.round(shares / shares.sum() * most)).astype(int)
    lanes = np.repeat(np.arange(len(counts)), counts)
    # Draw k of n comes at (k + 1/2) / n of the cycle.
    times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return lanes[np.argsort(times, kind="stable")].astype(np.int64)
