"""The one place that picks Keras: `from cmlm.common.keras import keras`.

Model Garden and TF Hub stand on Keras 2. Below TensorFlow 2.16 that is `tf.keras`;
from there on `tf.keras` is Keras 3, and Keras 2 lives in the package `tf_keras`.
Layers of the two do not mix, so no other module names either.
"""

import tensorflow as tf

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    keras = tf.keras
else:
    import tf_keras as keras

__all__ = ["keras"]
