"""The one place that picks Keras: `from cmlm.common.keras import keras`.

Model Garden and TF Hub need Keras 2. Below TensorFlow 2.16 it is `tf.keras`. From 2.16
on, `tf.keras` is Keras 3, and the package `tf_keras` is Keras 2. Layers of the two do
not mix, so no other module imports either.
"""

import tensorflow as tf

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    keras = tf.keras
else:
    import tf_keras as keras

__all__ = ["keras"]
