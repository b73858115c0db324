"""Iterators without tf.data's autotuning, which can delay their end by a minute.

tf.data tunes the buffers of each iterator in a thread that sleeps for up to a minute.
When an iterator is destroyed, TensorFlow wakes that thread and waits for it. The thread
often wakes before its stop flag is set, and sleeps again (seen in TensorFlow 2.15): the
end of a run, or a garbage collection, took up to a minute for each iterator. Our
pipelines have one parallel map and are as fast without tuning.
"""

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without tuning; datasets built on it are untuned, too."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def distributed(dataset: tf.distribute.DistributedDataset):
    """Returns an untuned iterator over an untuned distributed dataset.

    TensorFlow adds a small dataset for each device, and the options of the distributed
    dataset do not reach it.
    """
    module, create = multi_device_iterator_ops, "_create_device_dataset"
    tuned = getattr(module, create)
    setattr(module, create, lambda *args: untuned(tuned(*args)))
    try:
        return iter(dataset)
    finally:
        setattr(module, create, tuned)
