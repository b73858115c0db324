"""Our Keras is the Keras of Model Garden and of TF Hub: their layers can be mixed."""

import random

import numpy as np
import tensorflow as tf
import tensorflow_hub as hub
from official.modeling import optimization
from official.nlp import modeling

from cmlm.common.keras import building, keras, undrawn


def test_layers_of_tf_hub_are_ours():
    assert issubclass(hub.KerasLayer, keras.layers.Layer)


def test_layers_and_schedules_of_model_garden_are_ours():
    assert issubclass(modeling.layers.TransformerEncoderBlock, keras.layers.Layer)
    assert issubclass(modeling.networks.BertEncoderV2, keras.layers.Layer)
    assert issubclass(
        optimization.lr_schedule.LinearWarmup,
        keras.optimizers.schedules.LearningRateSchedule,
    )


def test_a_seed_for_some_layers_leaves_the_random_states_alone():
    def drawn():
        weights = keras.layers.Dense(3)
        weights.build((None, 2))
        numbers = [random.random(), np.random.rand(), tf.random.uniform([])]
        return np.array([*weights.kernel.numpy().ravel(), *numbers])

    keras.utils.set_random_seed(7)
    want = drawn()
    keras.utils.set_random_seed(5)
    others = drawn()
    keras.utils.set_random_seed(5)
    with building(7):
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
    np.testing.assert_array_equal(layer.kernel.numpy().ravel(), want[:6])
    np.testing.assert_array_equal(drawn(), others)


def test_layers_of_an_opened_encoder_are_float32_under_any_policy():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with building(7):
        assert keras.layers.Dense(3).compute_dtype == "float32"
    assert keras.layers.Dense(3).compute_dtype == "bfloat16"


def _three_layers():
    start = keras.initializers.TruncatedNormal(stddev=0.02)
    layers = [keras.layers.Embedding(5, 3, embeddings_initializer=start)]
    layers += [keras.layers.Dense(3, use_bias=False), keras.layers.LayerNormalization()]
    for layer in layers:
        layer.build((None, 3))
    return [layer.weights[0] for layer in layers]


def test_undrawn_weights_are_zero_until_they_are_drawn():
    with building(7):
        want = [variable.numpy() for variable in _three_layers()]
    with building(7), undrawn() as draw:
        variables = _three_layers()
        assert not any(variable.numpy().any() for variable in variables)
        for variable in reversed(variables):
            draw(variable)
    for variable, array in zip(variables, want, strict=True):
        np.testing.assert_array_equal(variable.numpy(), array)


def test_variables_without_a_drawn_value_keep_theirs():
    with undrawn():
        assert tf.Variable([1.0, 2.0]).numpy().tolist() == [1, 2]
        assert tf.Variable(lambda: tf.ones([2])).numpy().tolist() == [1, 1]
