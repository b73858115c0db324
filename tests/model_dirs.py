"""A model_dir as training leaves it, made in a second."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import toys

from cmlm import model_dir
from cmlm.modeling.model import SentenceModel

VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *"the cat sat on a mat dog ran far away ##s ##ing un ##able . , ! ? \ufffd".split(),
]
SENTENCES = [
    "The cat sat on the mat.",
    "",
    "A dog ran far away, far away!",
    "dogs",
    "The cat sat on the mat.",
    "unable? " * 30,
    "\u65e5\u672c the \ufffd cat",
]
# Positions 40, views 3: what the command may be asked for ends at 37.
SEQ_LENGTH = 37


def write(directory: Path, step: int = 3, **settings) -> str:
    """Makes a model_dir; `settings` override the configuration.

    Returns:
        Its path. Weights are seeded, biases and norms are not zeros and ones.
    """
    config = toys.run_config(
        "corpus.txt",
        **{
            "vocabulary.size": 200,
            "model.vocab_size": len(VOCAB),
            "model.num_layers": 2,
            **settings,
        },
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / model_dir.VOCABULARY).write_text("\n".join(VOCAB) + "\n")
    model_dir.write_config(str(directory), config)
    model = SentenceModel(config.model)
    random = np.random.default_rng(5)
    for variable in model.encoder.variables:
        centre = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(random.normal(centre, 0.3, variable.shape).astype(np.float32))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(directory), max_to_keep=1
    )
    manager.save(checkpoint_number=step)
    return str(directory)


def assert_same(actual, expected, tolerance: float = 1e-6) -> None:
    """Vectors equal but for rounding, measured on the scale of the largest entry."""
    expected = np.asarray(expected)
    atol = tolerance * max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
