"""A trained model with the words that a text needs: same vectors, smaller table.

pruned = pruning.prune("model_dir", lambda: vectors.windows(paths), "new_model_dir")

In multilingual models most weights are word embeddings; one who encodes two languages
out of a hundred needs few of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from cmlm.common import files
from cmlm.data import vocabulary_file
from cmlm.data.tokenization import Tokenizer
from cmlm.encoders import model_dir, opening
from cmlm.errors import UserError
from cmlm.modeling import checkpoints, pruning
from cmlm.vocabulary import pieces

# Of the text, to compare the vectors of before and after.
_COMPARED_LINES = 256
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Pruned:
    """What became of a model; each pair is before and after.

    Attributes:
        checkpoint: path of the one that was pruned.
        tokens: of the vocabulary.
        weights: of the model, heads included.
        bytes: of the checkpoint, which had an optimizer's state before.
        difference: largest absolute difference of a vector, over some lines of the
            text.
    """

    checkpoint: str
    tokens: tuple[int, int]
    weights: tuple[int, int]
    bytes: tuple[int, int]
    difference: float


def prune(
    model: str,
    read: Callable[[], Iterable[list[str]]],
    output: str,
    overwrite: bool = False,
) -> Pruned:
    """Writes a model_dir whose vocabulary has what a text needs, see `data.pieces`.

    For every line of the text its vectors are those of the whole model. What trains on
    it starts from it as from any model_dir, by `init_checkpoint`: the optimizer's state
    is left out.

    Args:
        model: a model_dir, or `best:` and a model_dir for its best checkpoint.
        read: gives the lines of the text, some at a time; it is called twice.
        output: the model_dir to write, whole or not at all.
        overwrite: replace what is there.

    Raises:
        UserError: the model cannot be read, the text is empty, or `output` exists or
            is the model itself.
    """
    prefix, _, source = model.rpartition(":")
    if prefix not in ("", "best"):
        raise UserError(f"{model}: allowed is a model_dir, maybe with best: in front")
    if os.path.realpath(source) == os.path.realpath(output):
        raise UserError(f"--output={output} is the model itself: name another one")
    config = model_dir.read_config(source)
    folder = os.path.join(source, model_dir.BEST) if prefix else source
    checkpoint = checkpoints.find(folder)
    tokenizer = Tokenizer(
        os.path.join(source, vocabulary_file.FILE_NAME), config.vocabulary.lower_case
    )
    with files.atomic_directory(output, overwrite) as new:
        kept = pieces.needed(tokenizer, read())
        tokens = [
            token for token, stays in zip(tokenizer.vocab, kept, strict=True) if stays
        ]
        vocabulary_file.write(tokens, os.path.join(new, vocabulary_file.FILE_NAME))
        name = os.path.basename(checkpoint)
        weights = pruning.prune(checkpoint, os.path.join(new, name), kept)
        # To be read from wherever the directory is renamed to. TensorFlow takes a path
        # relative to a relative directory, to which gs:// counts, but no other.
        path = name if os.path.isabs(new) else os.path.join(new, name)
        tf.compat.v1.train.update_checkpoint_state(new, path, [path])
        config.model.vocab_size = len(tokens)
        # The file has more tokens than the model now.
        config.vocabulary.file = ""
        model_dir.write_config(new, config)
        metrics = os.path.join(source, model_dir.METRICS)
        if tf.io.gfile.exists(metrics):
            tf.io.gfile.copy(metrics, os.path.join(new, model_dir.METRICS))
        difference = _compare(model, new, read())
        written = _size(os.path.join(new, name))
    return Pruned(
        checkpoint=checkpoint,
        tokens=(len(kept), len(tokens)),
        weights=weights,
        bytes=(_size(checkpoint), written),
        difference=difference,
    )


def _compare(model: str, pruned: str, windows: Iterable[list[str]]) -> float:
    """The largest difference of any number in the vectors of some lines."""
    lines = (line for window in windows for line in window if line.strip())
    some = list(itertools.islice(lines, _COMPARED_LINES))
    if not some:
        raise UserError("the text to prune for has no line in it")
    expected = opening.open_encoder(model).encode(some, progress=False)
    vectors = opening.open_encoder(pruned).encode(some, progress=False)
    difference = float(np.abs(vectors - expected).max())
    if difference > _TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise UserError(
            f"pruned, {model} gives other vectors, by up to {difference:.1e}: nothing "
            "is written"
        )
    return difference


def _size(checkpoint: str) -> int:
    """Bytes of the files of a checkpoint."""
    return sum(
        tf.io.gfile.stat(path).length for path in tf.io.gfile.glob(f"{checkpoint}.*")
    )
