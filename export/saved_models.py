"""Writes the three SavedModels of an export and compares them with their source."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, checksums, json_files, scratch, versions
from cmlm.encoders import fingerprints, warm_up
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.signatures import SIGNATURES, of_prompts
from cmlm.modeling import export_layout, inference_graph
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.base import Tokenizer
from export import encoder, preprocessor, server_files, serving

_SERVED = (*export_layout.OF_SAVED_MODEL, export_layout.PROVENANCE)

# Allowed differences: float32 sums in another order, and the 8 bits of bfloat16 after
# some layers. If the largest entry of a vector exceeds 1, it scales the tolerance.
TOLERANCE = 1e-5
TOLERANCES = {"float32": TOLERANCE, "bfloat16": 5e-2}
_CHECKED_SENTENCES = (
    "",
    "A sentence.",
    "The cat sat on the mat, and nobody asked why it had come in at all.",
    "Größe, naïve, 日本語, \ufffd",
    "A long one goes on, and on, and on. " * 40,
)


def write(
    opened: OpenedWeights,
    directory: str,
    seq_length: int,
    components: PrincipalComponents | None = None,
    precision: str = "float32",
    version: int = 1,
) -> None:
    """Writes preprocessor, encoder, serving, export.json and checksums.

    Args:
        opened: the encoder to export.
        directory: an empty directory.
        seq_length: the longest sentence in tokens.
        components: principal components of this model, to serve PCR.
        precision: the precision of the layers in serving, one of
            `choices.PRECISIONS`.
        version: the name of the folder in serving.
    """
    version_folder = os.path.join(export_layout.SERVING, str(version))
    with scratch.directory() as folder:
        # TensorFlow leaves an asset out if its file is gone when the graph is saved.
        vocabulary = vocabulary_file.copy(opened.vocab_file, folder)
        rules_lib.write(vocabulary, opened.tokenizer.rules)
        lean = inference_graph.build(opened.encoder, opened.config.model, precision)
        graph = SentenceGraph(opened.tokenizer, lean, seq_length)
        built = preprocessor.build(opened.tokenizer, seq_length)
        _save(built, directory, export_layout.PREPROCESSOR)
        exported, signatures = encoder.build(
            opened.encoder,
            vocabulary,
            opened.tokenizer.rules.lower_case,
            rules_lib.path_of(vocabulary),
        )
        with encoder.fixed_weights_marked(opened.encoder):
            _save(exported, directory, export_layout.ENCODER, signatures)
    served, signatures = serving.build(graph, opened.config.model, components)
    _save(served, directory, version_folder, signatures)
    server_files.write_configuration(os.path.join(directory, export_layout.SERVING))
    warm_up.write(
        os.path.join(directory, version_folder),
        signatures,
        warm_up.example_inputs(graph, components),
    )
    provenance = {
        **fingerprints.describe(opened, seq_length),
        "trained_by_run": opened.trained_seq_length is not None,
        "signatures": sorted(signatures),
        "precision": precision,
        "pcr": serving.describe_components(components),
        "versions": versions.installed(),
        "config": opened.config.as_dict(),
    }
    # Written twice: for people, and inside the version folder, which may be moved
    # alone.
    for path in (
        export_layout.DESCRIPTION,
        os.path.join(version_folder, export_layout.PROVENANCE),
    ):
        json_files.write(os.path.join(directory, path), provenance, indent=2)
    # Without the warm-up requests and the model card, which users may change.
    for folder, path, names in (
        (os.path.join(directory, version_folder), export_layout.CHECKSUMS, _SERVED),
        (
            directory,
            checksums.FILE_NAME,
            (
                export_layout.DESCRIPTION,
                export_layout.PREPROCESSOR,
                export_layout.ENCODER,
            ),
        ),
    ):
        checksums.write(folder, names, os.path.join(folder, path))


def _save(trackable, directory: str, name: str, signatures=None) -> None:
    print(f"writing {name}", file=sys.stderr)
    tf.saved_model.save(trackable, os.path.join(directory, name), signatures)


def compare(
    opened: OpenedWeights,
    directory: str,
    seq_length: int,
    components: PrincipalComponents | None = None,
    precision: str = "float32",
    version: int = 1,
) -> float:
    """Loads the export and compares its vectors with the checkpoint's.

    TensorFlow rewrites a graph before it serves it; one version changed layer norm's
    epsilon that way.

    Args:
        opened, directory, seq_length, components, precision, version: as for `write`.

    Returns:
        The largest absolute difference over some sentences. The checkpoint encodes them
        one at a time, the SavedModels in one batch.

    Raises:
        UserError: a vector is not finite, or the difference is more than rounding.
    """
    text = tf.constant(_CHECKED_SENTENCES)
    expected = _expected(opened, text, seq_length)
    tensors = _load(directory, export_layout.PREPROCESSOR)(text)
    vectors = _load(directory, export_layout.ENCODER)(tensors)["default"]
    two = {
        f"{export_layout.PREPROCESSOR} and {export_layout.ENCODER}": arrays.difference(
            vectors, expected
        )
    }
    serving_folder = os.path.join(export_layout.SERVING, str(version))
    loaded = _load(directory, serving_folder).signatures
    served = _differences_of_serving(
        loaded, serving_folder, {"text": text, **tensors}, expected, components
    )
    for name, row in of_prompts(opened.prompts).items():
        prompted = opened.tokenizer.prompted(opened.prompts[name])
        served[f"{serving_folder}, {name}"] = arrays.difference(
            loaded[name](text=text)[row.output],
            _expected(opened, text, seq_length, prompted),
        )
    for differences, tolerance in (
        (two, TOLERANCE),
        (served, TOLERANCES[precision]),
    ):
        for name, found in differences.items():
            message = f"the vectors of {name} differ from those of {opened.checkpoint}"
            arrays.check_difference(found, tolerance, message, "; nothing was exported")
    return max(difference for difference, _ in (*two.values(), *served.values()))


def _load(directory: str, name: str):
    return tf.saved_model.load(os.path.join(directory, name))


def _expected(
    opened: OpenedWeights,
    text: tf.Tensor,
    seq_length: int,
    tokenizer: Tokenizer | None = None,
) -> np.ndarray:
    """The checkpoint's vectors, float32 [n, dim], of sentences one at a time."""
    vectors = []
    for row in (tokenizer or opened.tokenizer).encode(text, seq_length):
        ids = row[tf.newaxis]
        inputs = {"input_word_ids": ids, "input_mask": tf.ones_like(ids)}
        vectors.append(opened.encoder(inputs, training=False)["default"][0])
    return arrays.checked(vectors, _CHECKED_SENTENCES, opened.checkpoint)


def _differences_of_serving(
    served: Mapping[str, Callable],
    folder: str,
    inputs: dict[str, tf.Tensor],
    expected: np.ndarray,
    components: PrincipalComponents | None,
) -> dict[str, tuple[float, float]]:
    """The `arrays.difference` of each of `SIGNATURES`, by its name and language.

    Args:
        served: the signatures of the serving model.
        folder: the place of the model, for messages.
        inputs: the text and the three tensors.
        expected: the vectors before any change by a signature, float32 [n, dim].
        components: as for `write`.
    """
    fitted = list(components.languages.items()) if components else []
    differences = {}
    for name, row in SIGNATURES.items():
        if name not in served:
            continue
        # Once for each language, or once without any.
        for number, (language, found) in enumerate(
            fitted if row.with_components else [("", None)]
        ):
            every = {
                **inputs,
                "language": tf.repeat(language, len(expected)),
                "language_index": tf.repeat(number, len(expected)),
            }
            vectors = served[name](**{key: every[key] for key in row.inputs})
            reference = serving.OUTPUTS[row.output].reference(
                expected, None if found is None else found.components
            )
            key = f"{folder}, {name} {language}".rstrip()
            differences[key] = arrays.difference(vectors[row.output], reference)
    return differences
