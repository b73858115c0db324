"""Our Keras is the Keras of Model Garden and of TF Hub: their layers can be mixed."""

import tensorflow_hub as hub
from official.modeling import optimization
from official.nlp import modeling

from cmlm.common.keras import keras


def test_layers_of_tf_hub_are_ours():
    assert issubclass(hub.KerasLayer, keras.layers.Layer)


def test_layers_and_schedules_of_model_garden_are_ours():
    assert issubclass(modeling.layers.TransformerEncoderBlock, keras.layers.Layer)
    assert issubclass(modeling.networks.BertEncoderV2, keras.layers.Layer)
    assert issubclass(
        optimization.lr_schedule.LinearWarmup,
        keras.optimizers.schedules.LearningRateSchedule,
    )
