"""Writes the three SavedModels of an export and compares them with their source."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tensorflow as tf

from cmlm.common import files, versions
from cmlm.encoders import identity, opening, pcr
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.model_dir import TrainedEncoder
from cmlm.encoders.pcr import PrincipalComponents
from cmlm.errors import UserError
from cmlm.modeling import inference_graph
from export import encoder, preprocessor, server_files, serving

PREPROCESSOR = "preprocessor"
ENCODER = "encoder"
SERVING = os.path.join("serving", "1")
PROVENANCE = "export.json"

# What float32 may differ by when the same numbers are added in another order, and what
# the 8 bits of bfloat16 lose on the way through some layers; for vectors with entries
# above 1, times the largest.
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
    trained: TrainedEncoder,
    directory: str,
    seq_length: int,
    components: PrincipalComponents | None = None,
    precision: str = "float32",
) -> None:
    """Writes preprocessor, encoder, serving and export.json.

    Args:
        trained: what is exported.
        directory: an empty one.
        seq_length: longest sentence in tokens.
        components: of this model, to serve PCR.
        precision: of the layers in serving, one of `inference.PRECISIONS`.

    Raises:
        UserError: something cannot be written, for example on a full disk.
    """
    try:
        _write(trained, directory, seq_length, components, precision)
    except (tf.errors.OpError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"cannot write the export: {reason}") from error


def _write(trained, directory, seq_length, components, precision) -> None:
    lean = inference_graph.build(trained.encoder, trained.config.model, precision)
    graph = SentenceGraph(trained.tokenizer, lean, seq_length)
    _save(preprocessor.build(trained.tokenizer, seq_length), directory, PREPROCESSOR)
    exported, signatures = encoder.build(
        trained.encoder, trained.vocab_file, trained.tokenizer.lower_case
    )
    _save(exported, directory, ENCODER, signatures)
    served, signatures = serving.build(graph, components)
    _save(served, directory, SERVING, signatures)
    server_files.write_configuration(os.path.dirname(os.path.join(directory, SERVING)))
    server_files.write_warm_up(
        os.path.join(directory, SERVING),
        signatures,
        server_files.warm_up_inputs(graph, components),
    )
    provenance = {
        **identity.describe(trained, seq_length),
        "signatures": sorted(signatures),
        "precision": precision,
        "pcr": None if components is None else _describe(components),
        "versions": versions.installed(),
        "config": trained.config.as_dict(),
    }
    # Twice: for people, and where a server's version folder keeps it when moved.
    for path in (PROVENANCE, os.path.join(SERVING, opening.PROVENANCE)):
        with files.atomic_text(os.path.join(directory, path)) as file:
            json.dump(provenance, file, indent=2)
            file.write("\n")


def _save(trackable, directory: str, name: str, signatures=None) -> None:
    print(f"writing {name}", file=sys.stderr)
    tf.saved_model.save(trackable, os.path.join(directory, name), signatures)


def _describe(components: PrincipalComponents) -> dict:
    """What a client needs to know: the languages, in the order of `language_index`."""
    return {
        "languages": list(components.languages),
        "components": components.table.shape[1],
        "unknown_language": "language_index -1, the vector as it is",
    }


def compare(
    trained: TrainedEncoder,
    directory: str,
    seq_length: int,
    components: PrincipalComponents | None = None,
    precision: str = "float32",
) -> float:
    """Loads what was written and compares its vectors with the checkpoint's.

    The graph as it is served is not the graph as it was traced: TensorFlow rewrites
    it, and has been seen to change layer norm's epsilon on the way.

    Args:
        trained, directory, seq_length, components, precision: as `write`.

    Returns:
        The largest absolute difference over some sentences, one at a time from the
        checkpoint, in one batch from the SavedModels.

    Raises:
        UserError: it is more than rounding.
    """
    text = tf.constant(_CHECKED_SENTENCES)
    expected = []
    for row in trained.tokenizer.encode(text, seq_length):
        ids = row[tf.newaxis]
        inputs = {"input_word_ids": ids, "input_mask": tf.ones_like(ids)}
        expected.append(trained.encoder(inputs, training=False)["default"][0])
    expected = np.array(expected)

    def load(name):
        return tf.saved_model.load(os.path.join(directory, name))

    signatures = load(SERVING).signatures
    prepare, encode = load(PREPROCESSOR), load(ENCODER)
    inputs = prepare(text)
    found = {
        SERVING: signatures["serving_default"](text=text)["default"],
        f"{SERVING}, tensors": signatures["tensors"](**inputs)["default"],
        f"{PREPROCESSOR} and {ENCODER}": encode(inputs)["default"],
    }
    scale = max(1.0, float(np.abs(expected).max()))
    differences = {
        name: float(np.abs(vectors - expected).max()) for name, vectors in found.items()
    }
    for language, fitted in (components.languages if components else {}).items():
        vectors = signatures["pcr"](
            text=text, language=tf.repeat(language, len(_CHECKED_SENTENCES))
        )["pcr"]
        removed = pcr.remove(expected, fitted.components)
        name = f"{SERVING}, pcr of {language}"
        differences[name] = float(np.abs(vectors - removed).max())
    for name, difference in differences.items():
        served = name.startswith(SERVING)
        allowed = scale * (TOLERANCES[precision] if served else TOLERANCE)
        # Not `>`: a NaN must not pass.
        if not difference <= allowed:
            raise UserError(
                f"{name} differs from {trained.checkpoint} by {difference:.1e}; at "
                f"most {allowed:.0e} is rounding. Nothing was exported"
            )
    return max(differences.values())
