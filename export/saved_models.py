"""Writes the three SavedModels of an export and compares them with their source."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Export:
    """The preprocessor, encoder and serving model of one encoder.

    Attributes:
        opened: the encoder to export.
        directory: an empty directory.
        seq_length: the longest sentence in tokens.
        components: principal components of this model, to serve PCR.
        precision: the precision of the layers in serving, one of
            `choices.PRECISIONS`.
        version: the name of the folder in serving.
    """

    opened: OpenedWeights
    directory: str
    seq_length: int
    components: PrincipalComponents | None = None
    precision: str = "float32"
    version: int = 1

    @property
    def _version_folder(self) -> str:
        return os.path.join(export_layout.SERVING, str(self.version))

    def write(self) -> None:
        """Writes the three SavedModels, export.json and checksums."""
        opened, directory = self.opened, self.directory
        with scratch.directory() as folder:
            # TensorFlow leaves an asset out if its file is gone when the graph is
            # saved.
            vocabulary = vocabulary_file.copy(opened.vocab_file, folder)
            rules_lib.write(vocabulary, opened.tokenizer.rules)
            lean = inference_graph.build(
                opened.encoder, opened.config.model, self.precision
            )
            graph = SentenceGraph(opened.tokenizer, lean, self.seq_length)
            built = preprocessor.build(opened.tokenizer, self.seq_length)
            _save(built, directory, export_layout.PREPROCESSOR)
            exported, signatures = encoder.build(
                opened.encoder,
                vocabulary,
                opened.tokenizer.rules.lower_case,
                rules_lib.path_of(vocabulary),
            )
            with encoder.fixed_weights_marked(opened.encoder):
                _save(exported, directory, export_layout.ENCODER, signatures)
        served, signatures = serving.build(graph, opened.config.model, self.components)
        _save(served, directory, self._version_folder, signatures)
        server_files.write_configuration(os.path.join(directory, export_layout.SERVING))
        warm_up.write(
            os.path.join(directory, self._version_folder),
            signatures,
            warm_up.example_inputs(graph, self.components),
        )
        provenance = {
            **fingerprints.describe(opened, self.seq_length),
            "trained_by_run": opened.trained_seq_length is not None,
            "signatures": sorted(signatures),
            "precision": self.precision,
            "pcr": serving.describe_components(self.components),
            "versions": versions.installed(),
            "config": opened.config.as_dict(),
        }
        # Written twice: for people, and inside the version folder, which may be moved
        # alone.
        for path in (
            export_layout.DESCRIPTION,
            os.path.join(self._version_folder, export_layout.PROVENANCE),
        ):
            json_files.write(os.path.join(directory, path), provenance, indent=2)
        # Without the warm-up requests and the model card, which users may change.
        for folder, path, names in (
            (
                os.path.join(directory, self._version_folder),
                export_layout.CHECKSUMS,
                _SERVED,
            ),
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

    def compare(self) -> float:
        """Loads the export and compares its vectors with the checkpoint's.

        TensorFlow rewrites a graph before it serves it; one version changed layer
        norm's epsilon that way.

        Returns:
            The largest absolute difference over some sentences. The checkpoint encodes
            them one at a time, the SavedModels in one batch.

        Raises:
            UserError: a vector is not finite, or the difference is more than rounding.
        """
        opened, directory = self.opened, self.directory
        text = tf.constant(_CHECKED_SENTENCES)
        expected = self._expected(text, opened.tokenizer)
        tensors = _load(directory, export_layout.PREPROCESSOR)(text)
        vectors = _load(directory, export_layout.ENCODER)(tensors)["default"]
        both = f"{export_layout.PREPROCESSOR} and {export_layout.ENCODER}"
        two = {both: arrays.difference(vectors, expected)}
        loaded = _load(directory, self._version_folder).signatures
        served = self._differences_of_serving(
            loaded, {"text": text, **tensors}, expected
        )
        for name, row in of_prompts(opened.prompts).items():
            prompted = opened.tokenizer.prompted(opened.prompts[name])
            served[f"{self._version_folder}, {name}"] = arrays.difference(
                loaded[name](text=text)[row.output], self._expected(text, prompted)
            )
        for differences, tolerance in (
            (two, TOLERANCE),
            (served, TOLERANCES[self.precision]),
        ):
            for name, found in differences.items():
                message = (
                    f"the vectors of {name} differ from those of {opened.checkpoint}"
                )
                arrays.check_difference(
                    found, tolerance, message, "; nothing was exported"
                )
        return max(difference for difference, _ in (*two.values(), *served.values()))

    def _expected(self, text: tf.Tensor, tokenizer: Tokenizer) -> np.ndarray:
        """The checkpoint's vectors, float32 [n, dim], of sentences one at a time."""
        vectors = []
        for row in tokenizer.encode(text, self.seq_length):
            ids = row[tf.newaxis]
            inputs = {"input_word_ids": ids, "input_mask": tf.ones_like(ids)}
            vectors.append(self.opened.encoder(inputs, training=False)["default"][0])
        return arrays.checked(vectors, _CHECKED_SENTENCES, self.opened.checkpoint)

    def _differences_of_serving(
        self,
        served: Mapping[str, Callable],
        inputs: dict[str, tf.Tensor],
        expected: np.ndarray,
    ) -> dict[str, tuple[float, float]]:
        """The `arrays.difference` of each of `SIGNATURES`, by its name and language.

        Args:
            served: the signatures of the serving model.
            inputs: the text and the three tensors.
            expected: the vectors before any change by a signature, float32 [n, dim].
        """
        fitted = list(self.components.languages.items()) if self.components else []
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
                key = f"{self._version_folder}, {name} {language}".rstrip()
                differences[key] = arrays.difference(vectors[row.output], reference)
        return differences


def _save(trackable, directory: str, name: str, signatures=None) -> None:
    print(f"writing {name}", file=sys.stderr)
    tf.saved_model.save(trackable, os.path.join(directory, name), signatures)


def _load(directory: str, name: str):
    return tf.saved_model.load(os.path.join(directory, name))
