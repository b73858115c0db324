"""OUT/serving/1: strings to vectors in one graph, for TensorFlow Serving and others.

| signature         | input             | output                                  |
|-------------------|-------------------|-----------------------------------------|
| `serving_default` | `text` string [n] | `default` float32 [n, dim], as trained  |
| `normalized`      | `text` string [n] | `normalized` float32 [n, dim], length 1 |

n is free, 0 included. A request is padded to its own longest sentence and cut at
the length that the export was made with. Loaded in Python, the model has two more
functions: `model(text)`, which is `default`, and `model.lengths(text)`, int32 [n],
the tokens of each sentence before any cut.
"""

from __future__ import annotations

import tensorflow as tf

from cmlm.encoding import SentenceGraph


def build(
    graph: SentenceGraph,
) -> tuple[tf.train.Checkpoint, dict[str, tf.types.experimental.ConcreteFunction]]:
    """Makes the object to save.

    Args:
        graph: what is served.

    Returns:
        A trackable object and the signatures to save it with.
    """
    served = tf.train.Checkpoint()
    served.__call__ = graph.vectors
    served.lengths = graph.lengths
    # Only variables, not the Keras model: saving that would store a function for
    # every layer.
    served.variables = list(graph.vectors.get_concrete_function().graph.variables)

    @tf.function(input_signature=[graph.TEXT])
    def serving_default(text):
        return {"default": graph.vectors(text)}

    @tf.function(input_signature=[graph.TEXT])
    def normalized(text):
        return {"normalized": tf.math.l2_normalize(graph.vectors(text), axis=-1)}

    return served, {"serving_default": serving_default, "normalized": normalized}
