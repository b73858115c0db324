"""OUT/serving/1: strings to vectors in one graph, for TensorFlow Serving and others.

| signature         | inputs                              | outputs                 |
|-------------------|-------------------------------------|-------------------------|
| `serving_default` | `text`                              | `default`, as trained   |
| `normalized`      | `text`                              | `normalized`, length 1  |
| `tensors`         | the three tensors                   | `default`               |
| `pcr`             | `text`, `language`                  | `pcr`, `language_index` |
| `pcr_tensors`     | the three tensors, `language_index` | `pcr`, `language_index` |

`text` and `language` are strings [n]; the three tensors are `input_word_ids`,
`input_mask` and `input_type_ids`, int32 [n, seq], as the preprocessor makes them;
`language_index` is int32 [n]; vectors are float32 [n, dim]. n is free, 0 included.

Text is padded to the longest sentence it is computed with and cut at the length that
the export was made with. Bytes that are not UTF-8 count as U+FFFD. An empty string has
a vector too, that of [CLS] [SEP].

`pcr` and `pcr_tensors` are there if the export was made with --pcr: the principal
components of a string's language are removed, see cmlm/encoders/pcr.py.
Languages are compared in lower case. What is not among those fitted gets the index -1
and **keeps its vector as it is**: a server that batches requests would fail all of them
for one unknown language. So does an index out of range.

Loaded in Python, the model has two more functions: `model(text)`, which is `default`,
and `model.lengths(text)`, int32 [n], the tokens of each sentence before any cut.
"""

from __future__ import annotations

import tensorflow as tf

from cmlm.encoders import batching
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.pcr import PrincipalComponents

_INDEX = "language_index"


def build(
    graph: SentenceGraph, components: PrincipalComponents | None = None
) -> tuple[tf.train.Checkpoint, dict[str, tf.types.experimental.ConcreteFunction]]:
    """Makes the object to save.

    Args:
        graph: what is served.
        components: what the signatures of PCR remove; None leaves them out.

    Returns:
        A trackable object and the signatures to save it with.
    """
    compute = graph.token_vectors.get_concrete_function()
    dim = compute.structured_outputs.shape[-1]

    @tf.function(input_signature=[graph.TEXT], autograph=False)
    def text_vectors(text):
        tokens = graph.tokenizer.encode(text, graph.seq_length)

        def batch(rows, width):
            chosen = tf.gather(tokens, rows)
            ids = chosen.to_tensor(graph.tokenizer.pad_id)
            mask = tf.sequence_mask(chosen.row_lengths(), width, dtype=tf.int32)
            return compute(ids, mask, tf.zeros_like(ids))

        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        return batching.map_in_batches(batch, lengths, dim)

    @tf.function(input_signature=graph.TOKENS, autograph=False)
    def tensor_vectors(*tensors):
        def batch(rows, width):
            return compute(*(tf.gather(tensor, rows)[:, :width] for tensor in tensors))

        return batching.map_in_batches(batch, _used_width(tensors[1]), dim)

    @tf.function(input_signature=[graph.TEXT], autograph=False)
    def serving_default(text):
        return {"default": text_vectors(text)}

    @tf.function(input_signature=[graph.TEXT], autograph=False)
    def normalized(text):
        return {"normalized": tf.math.l2_normalize(text_vectors(text), axis=-1)}

    @tf.function(input_signature=graph.TOKENS, autograph=False)
    def tensors(input_word_ids, input_mask, input_type_ids):
        return {"default": tensor_vectors(input_word_ids, input_mask, input_type_ids)}

    served = tf.train.Checkpoint()
    served.__call__ = text_vectors
    served.lengths = graph.lengths
    # Only variables, not the Keras model: saving that would store a function for
    # every layer.
    served.variables = list(compute.graph.variables)
    signatures = {
        "serving_default": serving_default,
        "normalized": normalized,
        "tensors": tensors,
    }
    if components is not None:
        signatures |= _without_components(
            graph, components, text_vectors, tensor_vectors
        )
    return served, signatures


def _without_components(graph, components, text_vectors, tensor_vectors):
    """The signatures that remove principal components."""
    languages = list(components.languages)
    table = components.table

    def remove(vectors, index):
        known = (index >= 0) & (index < len(languages))
        index = tf.where(known, index, -1)
        # Made here, so that it is a constant of this graph. The last row, zeros, is for
        # what is not known: subtracting it leaves every bit of a vector.
        rows = tf.concat([table, tf.zeros_like(table[:1])], axis=0)
        chosen = tf.gather(rows, tf.where(known, index, len(languages)))
        along = tf.einsum("nd,nkd->nk", vectors, chosen)
        removed = vectors - tf.einsum("nk,nkd->nd", along, chosen)
        return {"pcr": removed, _INDEX: index}

    def checked(vectors, language):
        # One language would otherwise be spread over all texts.
        assertion = tf.debugging.assert_equal(
            tf.size(language), tf.shape(vectors)[0], "one language for each text"
        )
        with tf.control_dependencies([assertion]):
            return tf.identity(vectors)

    @tf.function(
        input_signature=[graph.TEXT, tf.TensorSpec([None], tf.string, "language")],
        autograph=False,
    )
    def pcr(text, language):
        vectors = checked(text_vectors(text), language)
        same = tf.strings.lower(language)[:, tf.newaxis] == tf.constant(languages)
        index = tf.argmax(same, axis=1, output_type=tf.int32)
        index = tf.where(tf.reduce_any(same, axis=1), index, -1)
        return remove(vectors, index)

    @tf.function(
        input_signature=[*graph.TOKENS, tf.TensorSpec([None], tf.int32, _INDEX)],
        autograph=False,
    )
    def pcr_tensors(input_word_ids, input_mask, input_type_ids, language_index):
        vectors = tensor_vectors(input_word_ids, input_mask, input_type_ids)
        return remove(checked(vectors, language_index), language_index)

    return {"pcr": pcr, "pcr_tensors": pcr_tensors}


def _used_width(mask: tf.Tensor) -> tf.Tensor:
    """Position after the last real token of each row: int32 [n, seq] to int32 [n]."""
    positions = tf.range(1, tf.shape(mask)[1] + 1)
    # A leading 0, since there may be no position at all.
    used = tf.pad(tf.where(mask != 0, positions, 0), [[0, 0], [1, 0]])
    return tf.reduce_max(used, axis=1)
