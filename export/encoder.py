"""OUT/encoder: token ids to vectors, ready to be fine-tuned, by the TF Hub text API.

    encoder = hub.load("OUT/encoder")
    encoder(preprocessor(["a sentence"]))["default"]  # float32 [batch, dim]
    hub.KerasLayer("OUT/encoder", trainable=True)

Reference: https://www.tensorflow.org/hub/common_saved_model_apis/text,
"Transformer Encoders", and .../reusable_saved_models for the attributes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from cmlm.encoders.signatures import TENSORS
from cmlm.modeling.encoder import EncoderNetwork


def build(
    encoder: EncoderNetwork, vocab_file: str, lower_case: bool, rules_file: str
) -> tuple[tf.train.Checkpoint, dict[str, tf.types.experimental.ConcreteFunction]]:
    """Makes the object to save.

    Args:
        encoder: the network, in float32.
        vocab_file: the vocabulary, which is copied into the SavedModel's assets.
        lower_case: whether text is lower-cased for this vocabulary.
        rules_file: all rules of the vocabulary, copied beside it.

    Returns:
        A trackable object, callable with a dict of int32 [batch, seq] and
        `training=True` or `False`, and the signatures to save it with.
        `serving_default` has the same inputs and gives `default`, `pooled_output` and
        `sequence_output`. Both refuse more tokens than `encoder.token_positions`.
    """
    # This is not the Keras model itself, which would store a function for every layer
    # and Keras' description of it. Only one version of Keras can read that description.
    exported = tf.train.Checkpoint()

    @tf.function(autograph=False)
    def call(inputs, training=False):
        ids = inputs["input_word_ids"]
        most = encoder.token_positions
        # Later positions are those of CMLM's conditions; padding may have them, too.
        # Other assertions add many operations.
        is_longer = tf.reduce_any(inputs["input_mask"][:, most:] != 0)
        check = tf.raw_ops.Assert(
            condition=~is_longer & (tf.shape(ids)[1] <= encoder.positions),
            data=[
                f"the tensors have too many tokens; allowed: at most {most}, and "
                f"{encoder.positions} with padding"
            ],
        )
        with tf.control_dependencies([check]):
            ids = tf.identity(ids)
        return encoder({**inputs, "input_word_ids": ids}, training=training)

    inputs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in TENSORS}
    traced = [call.get_concrete_function(inputs, training=on) for on in (True, False)]

    @tf.function(input_signature=[inputs[name] for name in TENSORS], autograph=False)
    def serving_default(*tensors):
        outputs = call(dict(zip(TENSORS, tensors, strict=True)), training=False)
        return {
            name: outputs[name]
            for name in ("default", "pooled_output", "sequence_output")
        }

    exported.__call__ = call
    # A checkpoint names a variable by the first way to it, so readers know these.
    for name, layer in encoder.fitted.items():
        setattr(exported, name, layer.variables)
    exported.trainable_variables = list(encoder.trainable_variables)
    exported.variables = list(encoder.variables)
    exported.regularization_losses = []
    known = {variable.ref() for variable in encoder.variables}
    # After training in the same process, dropout has variables that Keras does not
    # list.
    exported.dropout_state = [
        variable
        for variable in traced[0].graph.variables
        if variable.ref() not in known
    ]
    exported.vocab_file = tf.saved_model.Asset(vocab_file)
    exported.vocab_rules_file = tf.saved_model.Asset(rules_file)
    exported.do_lower_case = tf.Variable(lower_case, trainable=False)
    return exported, {"serving_default": serving_default}


@contextlib.contextmanager
def fixed_weights_marked(encoder: EncoderNetwork) -> Iterator[None]:
    """Marks weights outside of `trainable_variables` as fixed while they are saved.

    Keras marks layers, not variables, but a loaded Keras model with a `hub.KerasLayer`
    trains each variable that is not marked.
    """
    trained = {variable.ref() for variable in encoder.trainable_variables}
    fixed = [
        variable for variable in encoder.variables if variable.ref() not in trained
    ]
    marks = [variable._trainable for variable in fixed]
    try:
        for variable in fixed:
            variable._trainable = False
        yield
    finally:
        for variable, mark in zip(fixed, marks, strict=True):
            variable._trainable = mark
