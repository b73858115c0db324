"""Writes the three SavedModels of an export and compares them with their source."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys

import numpy as np
import tensorflow as tf

from cmlm import __version__, encoding, files
from cmlm.errors import UserError
from cmlm.model_dir import TrainedEncoder
from export import encoder, preprocessor, serving

PREPROCESSOR = "preprocessor"
ENCODER = "encoder"
SERVING = os.path.join("serving", "1")
PROVENANCE = "export.json"

# What float32 may differ by when the same numbers are added in another order; for
# vectors with entries above 1, times the largest.
TOLERANCE = 1e-5
_CHECKED_SENTENCES = (
    "",
    "A sentence.",
    "The cat sat on the mat, and nobody asked why it had come in at all.",
    "Größe, naïve, 日本語, \ufffd",
    "A long one goes on, and on, and on. " * 40,
)


def write(trained: TrainedEncoder, directory: str, seq_length: int) -> None:
    """Writes preprocessor, encoder, serving/1 and export.json.

    Args:
        trained: what is exported.
        directory: an empty one.
        seq_length: longest sentence in tokens.
    """
    provenance = {
        **encoding.describe(trained, seq_length),
        "versions": versions(),
        "config": trained.config.as_dict(),
    }
    graph = encoding.SentenceGraph(trained.tokenizer, trained.encoder, seq_length)
    _save(preprocessor.build(trained.tokenizer, seq_length), directory, PREPROCESSOR)
    exported, signatures = encoder.build(
        trained.encoder, trained.vocab_file, trained.tokenizer.lower_case
    )
    _save(exported, directory, ENCODER, signatures)
    served, signatures = serving.build(graph)
    _save(served, directory, SERVING, signatures)
    # Twice: for people, and where a server's version folder keeps it when moved.
    for path in (PROVENANCE, os.path.join(SERVING, encoding.PROVENANCE)):
        with files.atomic_text(os.path.join(directory, path)) as file:
            json.dump(provenance, file, indent=2)
            file.write("\n")


def _save(trackable, directory: str, name: str, signatures=None) -> None:
    print(f"writing {name}", file=sys.stderr)
    tf.saved_model.save(trackable, os.path.join(directory, name), signatures)


def compare(trained: TrainedEncoder, directory: str, seq_length: int) -> float:
    """Loads what was written and compares its vectors with the checkpoint's.

    The graph as it is served is not the graph as it was traced: TensorFlow rewrites
    it, and has been seen to change layer norm's epsilon on the way.

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
    allowed = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    difference = 0.0
    for name, vectors in {
        SERVING: signatures["serving_default"](text=text)["default"],
        f"{PREPROCESSOR} and {ENCODER}": encode(prepare(text))["default"],
    }.items():
        difference = max(difference, float(np.abs(vectors - expected).max()))
        # Not `>`: a NaN must not pass.
        if not difference <= allowed:
            raise UserError(
                f"{name} differs from {trained.checkpoint} by {difference:.1e}; at "
                f"most {allowed:.0e} is rounding. Nothing was exported"
            )
    return difference


def versions() -> dict[str, str]:
    """Versions of what decides how an export computes."""
    packages = ("tensorflow", "tensorflow-text", "tf-models-official")
    return {
        "cmlm": __version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }
