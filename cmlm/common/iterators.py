"""Iterators that end when their reader does.

tf.data tunes the buffers of every iterator in a thread of its own, which sleeps for
longer and longer, up to a minute. To destroy the iterator, TensorFlow tells that thread
to stop and waits for it; the thread, woken before the flag is set that it looks at,
often goes back to sleep (seen in TensorFlow 2.15). A run ended, and a garbage
collection lasted, up to a minute for each iterator. The tuning bought nothing:
the pipelines have one parallel map, which is as fast without.
"""

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without tuning; all that is built upon it is without, too."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def distributed(dataset: tf.distribute.DistributedDataset):
    """Returns an iterator over a distributed dataset that is untuned itself.

    It ends in a small dataset of its own for each device, which no option of the user's
    reaches.
    """
    module, create = multi_device_iterator_ops, "_create_device_dataset"
    tuned = getattr(module, create)
    setattr(module, create, lambda *args: untuned(tuned(*args)))
    try:
        return iter(dataset)
    finally:
        setattr(module, create, tuned)
