"""Pooling and P(v) against numpy, and that padding never counts."""

import numpy as np
import pytest
import tensorflow as tf
import toys
from oracles import pool, project_views

from cmlm.common.keras import keras
from cmlm.modeling import pooling
from cmlm.modeling.layers import Classifier, ViewProjection

MODES = [mode for mode, row in pooling.POOLINGS.items() if not row.through_pooler]


@pytest.mark.parametrize("mode", MODES)
def test_pooling_is_that_of_the_real_tokens(mode):
    tokens = np.random.default_rng(1).normal(size=[3, 5, 4]).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    got = pooling.pool(mode, tokens, mask)
    np.testing.assert_allclose(got, pool(tokens, mask, mode), atol=1e-6)


def test_mean_by_hand():
    tokens = tf.constant([[[1.0, 2.0], [3.0, 4.0], [99.0, 99.0]]])
    got = pooling.pool("mean", tokens, tf.constant([[1, 1, 0]]))
    np.testing.assert_array_equal(got, [[2.0, 3.0]])


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_a_row_without_tokens_pools_to_zeros(mode):
    got = pooling.pool(mode, tf.ones([1, 3, 2]), tf.zeros([1, 3], tf.int32))
    np.testing.assert_array_equal(got, [[0.0, 0.0]])


def test_pooling_adds_up_in_float32():
    tokens = tf.cast(tf.fill([1, 1000, 1], 1.0), tf.bfloat16)
    got = pooling.pool("mean", tokens, tf.ones([1, 1000], tf.int32))
    assert got.dtype == tf.bfloat16 and float(got[0, 0]) == 1.0


def test_the_pooler_reads_the_first_token():
    tokens = tf.constant([[[1.0, 2.0], [3.0, 4.0]]])
    got = pooling.pool("pooler", tokens, tf.ones([1, 2]), lambda vectors: -vectors)
    np.testing.assert_array_equal(got, [[-1.0, -2.0]])


def test_views_are_the_identity_and_three_layer_networks():
    layer = ViewProjection(4)
    vectors = np.random.default_rng(2).normal(size=[5, 6]).astype(np.float32)
    got = layer(vectors)
    assert got.shape == [5, 4, 6]
    # kernel, bias, kernel, bias, ... of one network after the other
    weights = [weight.numpy() for weight in layer.weights]
    assert [w.shape for w in weights[:6:2]] == [(6, 12), (12, 12), (12, 6)]
    networks = [
        list(zip(weights[i : i + 6 : 2], weights[i + 1 : i + 6 : 2]))
        for i in range(0, len(weights), 6)
    ]
    assert len(networks) == 3
    np.testing.assert_allclose(got, project_views(networks, vectors), atol=1e-5)
    np.testing.assert_array_equal(got[:, 0], vectors)


def test_views_are_of_the_precision_of_their_layer():
    vectors = tf.constant([[1 / 3, 2 / 3]])
    layer = ViewProjection(2, dtype="mixed_bfloat16")
    assert layer(vectors).dtype == tf.bfloat16
    exact = ViewProjection(2, dtype="float32")
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    assert exact(vectors).dtype == tf.float32


def test_the_classifier_is_that_of_model_garden():
    layer = Classifier(inner_dim=5, num_classes=3, cls_token_idx=2)
    inputs = tf.random.normal([2, 3, 4])
    got = layer(inputs)
    np.testing.assert_allclose(got, super(Classifier, layer).call(inputs), atol=1e-6)


def test_one_view_has_no_weights():
    layer = ViewProjection(1)
    assert layer(tf.ones([2, 3])).shape == [2, 1, 3]
    assert not layer.weights


def test_view_kernels_do_not_start_equal():
    layer = toys.model().projection()
    kernels = [w.numpy() for w in layer.weights if len(w.shape) == 2]
    assert not np.allclose(kernels[0], kernels[3])
