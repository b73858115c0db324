"""The one module that chooses Keras: `from cmlm.common.keras import keras`.

Model Garden and TF Hub need Keras 2. Before TensorFlow 2.16, `tf.keras` is Keras 2.
From 2.16 on, `tf.keras` is Keras 3, and the package `tf_keras` is Keras 2. Layers of
Keras 2 and Keras 3 do not mix, so no other module imports either package directly.
"""

import tensorflow as tf

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    keras = tf.keras
else:
    import tf_keras as keras

__all__ = ["keras"]
