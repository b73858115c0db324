"""Requests that a model server answers before it reports that it is ready.

    SAVED_MODEL/assets.extra/tf_serving_warmup_requests

So the first user does not wait while TensorFlow optimises the graph of a signature.

Reference: https://www.tensorflow.org/tfx/serving/saved_model_warmup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from cmlm.encoders.model_server import DEFAULT_MODEL
from cmlm.modeling import export_layout

# The first one is the first request.
SENTENCES = (
    "Where is the nearest station, please?",
    "",
    "Hello.",
    "The committee said on Friday that it would publish its report early next year, "
    "after three months in which nobody outside had been told what was in it.",
)


def example_inputs(graph, components) -> dict[str, tf.Tensor]:
    """Returns example values of every input of the signatures, by name.

    Args:
        graph: the SentenceGraph that is served.
        components: PrincipalComponents or None.
    """
    text = tf.constant(SENTENCES)
    tokens = graph.tokenizer.encode(text, graph.seq_length)
    ids = tokens.to_tensor(graph.tokenizer.pad_id)
    languages = list(components.languages) if components else [""]
    return {
        "text": text,
        "input_word_ids": ids,
        "input_mask": tf.ones_like(tokens).to_tensor(),
        "input_type_ids": tf.zeros_like(ids),
        "language": tf.repeat(tf.constant(languages[:1]), len(SENTENCES)),
        "language_index": tf.zeros([len(SENTENCES)], tf.int32),
    }


def write(directory: str, signatures: Mapping, inputs: Mapping) -> None:
    """Writes two requests for every signature: one sentence, and several sentences.

    Args:
        directory: the directory of the SavedModel.
        signatures: tf.functions by name, each with an input signature.
        inputs: example values, [n, ...], of every input of any signature, by name.
    """
    path = os.path.join(directory, export_layout.WARM_UP)
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for name, function in signatures.items():
            # If oneDNN keeps weights packed, the first request decides their layout. In
            # float32 that of about ten tokens answers short requests in half the time,
            # that of four tokens or of a hundred slows them down.
            for rows in (slice(1), slice(None)):
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = DEFAULT_MODEL
                request.model_spec.signature_name = name
                for spec in function.input_signature:
                    value = tf.convert_to_tensor(inputs[spec.name])[rows]
                    request.inputs[spec.name].CopyFrom(tf.make_tensor_proto(value))
                writer.write(log.SerializeToString())
