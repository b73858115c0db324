"""Prunes the vocabulary of an encoder to the tokens that a text needs.

    pruned = pruning.prune("model_dir", lambda: files.windows(paths), "new_model_dir")

The vectors of the text stay the same, with and without the prompts of the model. In
multilingual models most weights are word embeddings, and two out of a hundred
languages need only a few of these embeddings.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, atomic, path_names
from cmlm.config import model_dir
from cmlm.encoders import locating, opening, pretrained
from cmlm.errors import UserError
from cmlm.modeling import foreign, pruning, restoring
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.tokenization import rules, tokenizer_file, vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.vocabulary import pieces

# The number of lines whose vectors are compared before and after pruning.
_COMPARED_LINES = 256
_TOLERANCE = 1e-5
# The checkpoint of weights that no run of this project has trained.
_UNTRAINED = "ckpt-0"


@dataclasses.dataclass(frozen=True)
class Pruned:
    """The sizes of a model; each pair is (before, after).

    Attributes:
        checkpoint: the path of the checkpoint, or of the weights of another program,
            that were pruned.
        tokens: the number of tokens in the vocabulary.
        weights: the number of scalar weights of the model, heads included.
        bytes: the size of the weights on disk; the size of a checkpoint before pruning
            includes the state of the optimizer.
        difference: the largest absolute difference between entries of the vectors, over
            some lines of the text.
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
    """Writes a model_dir with the tokens that a text needs (see `vocabulary.pieces`).

    Every line of the text has the same vector as in the original model. The new
    model_dir has no optimizer state; a run starts from it by `init_checkpoint`. From
    weights of another program, it has no objective either.

    Args:
        model: a model_dir, or `best:` and a model_dir for its best checkpoint; a
            checkpoint in a model_dir; or weights of another program (see
            `foreign.ACCEPTED`). Nothing of them is executed.
        read: a function that returns the lines of the text in windows; it is called
            twice.
        output: the model_dir to write, whole or not at all.
        overwrite: replace an existing `output`.

    Raises:
        UserError: the model cannot be read, its vocabulary is byte-level BPE, the text
            is empty, or `output` exists or is the model itself.
    """
    place = locating.locate(model, exports=False)
    if place.kind == "external" or place.prefix not in ("", model_dir.BEST):
        raise UserError(
            f"--prune_model={model}; allowed: {foreign.ACCEPTED}, or best:MODEL_DIR"
        )
    if path_names.real(place.path) == path_names.real(output):
        raise UserError(f"--output={output} is the model itself; allowed: another path")
    source = None if place.kind == "run" else locating.find_foreign(model)
    if source is not None:
        config, tokenizer = pretrained.settings(source)
        checkpoint, name = source.path, _UNTRAINED
    else:
        run, checkpoint = _find(place)
        config = model_dir.read_config(run)
        tokenizer = config.vocabulary.tokenizer(vocabulary_file.find(run))
        name = os.path.basename(checkpoint)
    size = _size(checkpoint)
    with atomic.directory(output, overwrite) as new:
        kept = pieces.needed(tokenizer, _with_prompts(config.model, read()))
        tokens = list(itertools.compress(tokenizer.vocab, kept))
        _write_vocabulary(tokenizer, tokens, new, {"pruned_from": place.path})
        config.model.vocab_size = len(tokens)
        # The original vocabulary file has more tokens than the pruned model.
        config.vocabulary.file = ""
        target = os.path.join(new, name)
        if source is not None:
            weights = pruning.prune_foreign(
                source, target, kept, config.model, config.trainer.seed
            )
        else:
            weights = pruning.prune(checkpoint, target, kept)
            _copy_records(run, new)
        # The directory is renamed later, so the path is relative. TensorFlow accepts a
        # relative path in an absolute directory only, and gs:// is not absolute to it.
        path = name if os.path.isabs(new) else target
        tf.compat.v1.train.update_checkpoint_state(new, path, [path])
        model_dir.write_config(new, config)
        difference = _compare(model, new, read())
        written = _size(target)
    return Pruned(
        checkpoint=checkpoint,
        tokens=(len(kept), len(tokens)),
        weights=weights,
        bytes=(size, written),
        difference=difference,
    )


def _find(place: locating.Location) -> tuple[str, str]:
    """Returns the model_dir of weights of this project, and their checkpoint."""
    if place.kind == "run":
        return place.path, restoring.find(os.path.join(place.path, place.prefix))
    path = place.path.removesuffix(".index")
    return locating.run_of(path), restoring.find(path)


def _with_prompts(
    config: EncoderConfig, windows: Iterable[list[str]]
) -> Iterator[list[str]]:
    """Yields the windows of a text, and its lines after each prompt of a model."""
    prompts = {config.prompt, *config.named_prompts.values()} - {""}
    # Such a prompt has the same tokens before every line, as no piece spans a space.
    apart = {prompt for prompt in prompts if prompt.endswith(" ")}
    if apart:
        yield [*apart]
    for lines in windows:
        yield lines
        for prompt in prompts - apart:
            yield [prompt + line for line in lines]


def _write_vocabulary(
    tokenizer: Tokenizer, tokens: list[str], folder: str, origin: dict[str, str]
) -> None:
    """Writes the tokens that stay, as a file of the kind that the tokenizer has."""
    if vocabulary_file.is_json(tokenizer.vocab_file):
        values = tokenizer_file.load(tokenizer.vocab_file)
        vocabulary_file.write_json(tokenizer_file.pruned(values, tokens), folder)
    else:
        path = os.path.join(folder, vocabulary_file.FILE_NAME)
        vocabulary_file.write(tokens, path)
        rules.write(path, tokenizer.rules, origin)


def _copy_records(source: str, new: str) -> None:
    """Copies the logs of the run, and the directions of its teachers' vectors."""
    bases = os.path.join(source, model_dir.BASES)
    names = [model_dir.METRICS, model_dir.STARTS]
    if tf.io.gfile.isdir(bases):
        tf.io.gfile.makedirs(os.path.join(new, model_dir.BASES))
        names += [
            os.path.join(model_dir.BASES, name) for name in tf.io.gfile.listdir(bases)
        ]
    for name in names:
        if tf.io.gfile.exists(os.path.join(source, name)):
            tf.io.gfile.copy(os.path.join(source, name), os.path.join(new, name))


def _compare(model: str, pruned: str, windows: Iterable[list[str]]) -> float:
    """Returns the largest difference between the two models' vectors of some lines."""
    lines = (line for window in windows for line in window if line.strip())
    some = list(itertools.islice(lines, _COMPARED_LINES))
    if not some:
        raise UserError("--input has no line with a word; allowed: at least one")
    expected, vectors = (_encode(name, some) for name in (model, pruned))
    found = arrays.difference(vectors, expected)
    message = f"pruning changes the vectors of {model}"
    arrays.check_difference(found, _TOLERANCE, message, "; nothing is written")
    return found[0]


def _encode(model: str, lines: list[str]) -> np.ndarray:
    """Encodes lines with the weights of a model; the graph of an export never runs.

    Returns:
        float32 [n, dim]: all lines, and for each prompt by name its share of the lines.
    """
    opened = opening.open_weights(model)
    # A run holds no layers that text determined.
    opened.leave_out()
    encoder = opening.from_weights(opened, name=model)
    share = -(-len(lines) // max(len(encoder.prompts), 1))
    return np.concatenate(
        [encoder.encode(lines, progress=False)]
        + [
            encoder.encode(lines[:share], progress=False, prompt_name=name)
            for name in encoder.prompts
        ]
    )


def _size(checkpoint: str) -> int:
    """Returns the size of weights in bytes."""
    return sum(
        tf.io.gfile.stat(path).length for path in locating.weight_files(checkpoint)
    )
