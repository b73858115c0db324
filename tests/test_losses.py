"""Losses by hand."""

import numpy as np
import tensorflow as tf

from cmlm import losses


def test_masked_lm_by_hand():
    # p(label) is 0.75 and 0.5; the third prediction is padding.
    logits = tf.math.log([[[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]]])
    labels = tf.constant([[0, 1, 0]])
    weights = tf.constant([[1.0, 1.0, 0.0]])
    loss, right = losses.masked_lm(logits, labels, weights)
    np.testing.assert_allclose(loss, -np.log(0.75) - np.log(0.5), rtol=1e-6)
    assert float(right) == 1.0


def test_masked_lm_of_nothing_is_zero():
    loss, right = losses.masked_lm(
        tf.zeros([0, 3, 5]), tf.zeros([0, 3], tf.int32), tf.zeros([0, 3])
    )
    assert float(loss) == 0.0 and float(right) == 0.0
