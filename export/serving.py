"""OUT/serving/N: strings to vectors in one graph, for TensorFlow Serving and others.

`cmlm/encoders/signatures.py` lists the signatures with their inputs and outputs.

Text is padded to the longest sentence of its batch and cut at the export's length.
Invalid UTF-8 bytes count as U+FFFD. The vector of an empty string is the vector of
[CLS] [SEP].

The three tensors are cut at the encoder's number of positions minus model.num_views. A
word id outside of the vocabulary counts as [UNK], an unknown type as 0.

`pcr` and `pcr_tensors` exist if the export was made with --pcr. They remove the
principal components of a string's language (see cmlm/common/components.py). Languages
are compared in lower case. A language without components has the index -1 and **keeps
its vector unchanged**: an error would fail all requests that the server has batched
with this one. The same holds for an index or an id out of range.

Loaded in Python, the model has two more functions: `model(text)`, which is `default`,
and `model.lengths(text)`, int32 [n], the number of tokens of each sentence before any
cut. With a default prompt and others, `model.plain_lengths` counts without a prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from cmlm.common import arrays
from cmlm.common.components import remove
from cmlm.encoders import batching
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.signatures import SIGNATURES, Signature, of_prompts
from cmlm.modeling.encoder_config import EncoderConfig

_INDEX = "language_index"


@dataclasses.dataclass(frozen=True)
class Output:
    """The two forms of an output: in the served graph, and in numpy to check it.

    Attributes:
        compute: maps vectors, float32 [n, dim], the other inputs by name, and the
            principal components or None to the outputs by name.
        reference: maps vectors, float [n, dim], and the components of their language,
            float [k, dim] or None, to float [n, dim].
    """

    compute: Callable[
        [tf.Tensor, Mapping[str, tf.Tensor], PrincipalComponents | None],
        dict[str, tf.Tensor],
    ]
    reference: Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def build(
    graph: SentenceGraph,
    config: EncoderConfig,
    components: PrincipalComponents | None = None,
) -> tuple[tf.train.Checkpoint, dict[str, tf.types.experimental.ConcreteFunction]]:
    """Makes the object to save.

    Args:
        graph: the graph to serve.
        config: the configuration of its encoder.
        components: the components that the signatures of PCR remove; None leaves these
            signatures out.

    Returns:
        A trackable object and the signatures to save it with.
    """
    compute = graph.token_vectors.get_concrete_function()
    text_vectors = _of_text(graph, compute)
    named = config.named_prompts
    tensor_vectors = _of_tensors(graph, compute, config)
    specs = {spec.name: spec for spec in (graph.TEXT, *graph.TOKENS, *_LANGUAGE)}

    def signature(row: Signature, text_vectors: Callable[[tf.Tensor], tf.Tensor]):
        @tf.function(
            input_signature=[specs[name] for name in row.inputs], autograph=False
        )
        def serve(*tensors):
            given = dict(zip(row.inputs, tensors, strict=True))
            if row.takes_text:
                vectors = text_vectors(given["text"])
            else:
                vectors = tensor_vectors(*(given[spec.name] for spec in graph.TOKENS))
            return OUTPUTS[row.output].compute(vectors, given, components)

        return serve

    served = tf.train.Checkpoint()
    served.__call__ = text_vectors
    served.lengths = graph.lengths
    # Keeps only the variables: saving the Keras model would store a function for every
    # layer.
    served.variables = list(compute.graph.variables)
    # SentencePiece's model is a resource, which a saved object must own.
    served.tokenizer = graph.tokenizer
    signatures = {
        name: signature(row, text_vectors)
        for name, row in SIGNATURES.items()
        if components is not None or not row.with_components
    }
    plain = text_vectors
    if named and graph.tokenizer.prompt:
        without = graph.prompted("")
        plain = _of_text(without, compute)
        served.plain_lengths = without.lengths
    for name, row in of_prompts(named).items():
        signatures[name] = signature(row, _after(named[name], plain))
    return served, signatures


def _after(prompt: str, plain: Callable[[tf.Tensor], tf.Tensor]):
    """The vectors of texts behind a prompt, from the function without a prompt.

    A function for each prompt would hold the vocabulary again.
    """
    return lambda text: plain(tf.strings.join([prompt, text]))


def _of_text(graph: SentenceGraph, compute) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the function from text, string [n], to vectors, float32 [n, dim].

    Args:
        graph: the graph to serve.
        compute: its concrete function from the three tensors to vectors.
    """

    @tf.function(input_signature=[graph.TEXT], autograph=False)
    def text_vectors(text):
        tokens = graph.tokenizer.encode(text, graph.seq_length)

        def batch(rows, width):
            ids, mask = batching.padded(tokens, rows, width, graph.tokenizer.pad_id)
            return compute(ids, mask, tf.zeros_like(ids))

        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        return batching.map_in_batches(batch, lengths, _dim(compute))

    return text_vectors


def _of_tensors(
    graph: SentenceGraph, compute, config: EncoderConfig
) -> Callable[..., tf.Tensor]:
    """Makes the function from the three tensors to vectors; see `_of_text`."""
    tokenizer = graph.tokenizer

    @tf.function(input_signature=graph.TOKENS, autograph=False)
    def tensor_vectors(*tensors):
        # The mask alone would decide about the rows and columns to compute.
        assertions = [
            tf.debugging.assert_equal(
                tf.shape(tensor), tf.shape(tensors[0]), "one shape for the tensors"
            )
            for tensor in tensors[1:]
        ]
        with tf.control_dependencies(assertions):
            tensors = [tf.identity(tensor) for tensor in tensors]

        def batch(rows, width):
            ids, mask, types = (tf.gather(each, rows)[:, :width] for each in tensors)
            ids = _within(ids, tokenizer.vocab_size, tokenizer.unk_id)
            return compute(ids, mask, _within(types, config.type_vocab_size, 0))

        lengths = tf.minimum(_used_width(tensors[1]), config.token_positions)
        return batching.map_in_batches(batch, lengths, _dim(compute))

    return tensor_vectors


def _within(ids: tf.Tensor, size: int, default: int) -> tf.Tensor:
    """The ids from 0 to below a size; the default in the place of others."""
    return tf.where((ids >= 0) & (ids < size), ids, default)


def _dim(compute) -> int:
    return compute.structured_outputs.shape[-1]


_LANGUAGE = (
    tf.TensorSpec([None], tf.string, "language"),
    tf.TensorSpec([None], tf.int32, _INDEX),
)


def _without_components(vectors, given, components) -> dict[str, tf.Tensor]:
    """Removes the principal components of each vector's language."""
    languages = list(components.languages)
    table = components.table
    if "language" in given:
        lower = tf.strings.lower(given["language"])
        same = lower[:, tf.newaxis] == tf.constant(languages)
        index = tf.argmax(same, axis=1, output_type=tf.int32)
        index = tf.where(tf.reduce_any(same, axis=1), index, -1)
    else:
        index = given[_INDEX]
    # TensorFlow would otherwise broadcast one language to all texts.
    assertion = tf.debugging.assert_equal(
        tf.size(index), tf.shape(vectors)[0], "one language for each text"
    )
    with tf.control_dependencies([assertion]):
        vectors = tf.identity(vectors)
    known = (index >= 0) & (index < len(languages))
    index = tf.where(known, index, -1)
    # The last row, zeros, belongs to unknown languages: subtracting it leaves every bit
    # of a vector unchanged.
    rows = tf.concat([table, tf.zeros_like(table[:1])], axis=0)
    chosen = tf.gather(rows, tf.where(known, index, len(languages)))
    along = tf.einsum("nd,nkd->nk", vectors, chosen)
    removed = vectors - tf.einsum("nk,nkd->nd", along, chosen)
    return {"pcr": removed, _INDEX: index}


# The outputs by the name of their vectors.
OUTPUTS = {
    "default": Output(
        lambda vectors, given, components: {"default": vectors},
        lambda vectors, components: vectors,
    ),
    "normalized": Output(
        lambda vectors, given, components: {
            # Its default leaves vectors shorter than 1e-6 shorter than 1.
            "normalized": tf.math.l2_normalize(vectors, -1, np.finfo(np.float32).tiny)
        },
        lambda vectors, components: arrays.unit_length(vectors),
    ),
    "pcr": Output(_without_components, remove),
}


def _used_width(mask: tf.Tensor) -> tf.Tensor:
    """Finds the end of each row's real tokens: int32 [n, seq] to int32 [n]."""
    positions = tf.range(1, tf.shape(mask)[1] + 1)
    # The leading 0 covers a mask without columns.
    used = tf.pad(tf.where(mask != 0, positions, 0), [[0, 0], [1, 0]])
    return tf.reduce_max(used, axis=1)


def describe_components(components: PrincipalComponents | None) -> dict | None:
    """Describes PCR for clients: the languages in the order of `language_index`."""
    if components is None:
        return None
    return {
        "languages": list(components.languages),
        "components": components.table.shape[1],
        "unknown_language": "language_index -1, the vector as it is",
    }
