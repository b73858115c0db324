"""The common form that every reader of foreign weights produces."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from cmlm.common import fields
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.modeling import weights
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import vocabulary_file

logger = logging.getLogger(__name__)


class Fitted(NamedTuple):
    """A layer of an export of ours that text determined, see `layers.FITTED`.

    Attributes:
        sentences: the number of sentences of the text.
        load: reads the arrays of the layer.
    """

    sentences: int
    load: Callable[[], list[np.ndarray]]


@dataclasses.dataclass
class Source:
    """An encoder that another program wrote.

    Attributes:
        path: the path that the user gave.
        kind: the format, for messages.
        model: fields of EncoderConfig that the source states. Its
            `max_position_embeddings` counts the rows of the source's table. `pooling`
            is None if the graph of a SavedModel hides it.
        load: reads the weights under the names of `cmlm.modeling.weights`.
        vocab: the tokens by id; None if the source has no vocabulary.
        vocab_name: the file of the vocabulary.
        tokenizer: the contents of a tokenizer.json; None for BERT's WordPiece, which
            tokens and rules describe.
        rules: the rules of its tokenizer by name, see `tokenization.rules.Rules`; a
            rule that the source does not state is missing.
        seq_length: the longest sentence in tokens; None if the source does not say.
        trained_seq_length: the length limit of the run of this project that trained an
            export, see `OpenedWeights`; None for any other source.
        own_positions: whether the position table has rows for CMLM's conditions.
        normalized: whether its last module scales the vectors to length 1.
        prompts: texts that may precede a text, by name; no name has a `=`.
        prompt: the text that precedes every text by default, or "".
        fitted: the layers that text determined, by their names in `layers.FITTED`.
        unused: names of known weights that this project ignores.
        notes: assumptions, one sentence each.
        warnings: settings that change vectors and that the user decides on, likewise.
    """

    path: str
    kind: str
    model: dict[str, Any]
    load: Callable[[], dict[str, np.ndarray]]
    vocab: Optional[list[str]] = None
    vocab_name: str = ""
    tokenizer: Optional[dict[str, Any]] = None
    rules: dict[str, Any] = dataclasses.field(default_factory=dict)
    seq_length: Optional[int] = None
    trained_seq_length: Optional[int] = None
    own_positions: bool = False
    normalized: bool = False
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    prompt: str = ""
    fitted: dict[str, Fitted] = dataclasses.field(default_factory=dict)
    unused: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


_LEFT_OUT = {
    "sif": "its word weights are left out; an export adds them with --sif",
    "whitening": "its whitening is left out; an export adds it with --whitening",
}


def warn_left_out(path: str, names: Iterable[str]) -> None:
    """Warns that an encoder loses layers that text determined.

    Args:
        path: the encoder.
        names: the names of the layers in `layers.FITTED`.
    """
    for name in names:
        logger.warning("%s: %s", path, _LEFT_OUT[name])


def with_layers(source: Source, layers: Sequence[int]) -> Source:
    """Returns a source that has some of the layers of another one.

    Args:
        source: an encoder.
        layers: the numbers of its layers, from 0 and in ascending order; none: all.

    Raises:
        UserError: the source lacks a layer, or the order is another one.
    """
    if not layers:
        return source
    check_layers(layers, source.model["num_layers"], source.path)
    return dataclasses.replace(
        source,
        model={**source.model, "num_layers": len(layers)},
        load=lambda: weights.with_layers(source.load(), layers),
    )


def check_layers(layers: Sequence[int], count: int, path: str) -> None:
    """Checks `ExperimentConfig.init_layers` against the weights at a path.

    Raises:
        UserError: see `with_layers`.
    """
    if sorted({*layers}) != [*layers] or layers[-1] >= count:
        raise fields.refused(
            "init_layers",
            tuple(layers),
            f"numbers from 0 to {count - 1} in ascending order, as {path} has "
            f"{counted(count, 'layer')}",
        )


def rename(
    names: Iterable[str],
    translate: Callable[[str], Optional[str]],
    unused: re.Pattern,
    path: str,
) -> tuple[dict[str, str], list[str]]:
    """Sorts the names of a source into used and unused ones.

    Args:
        names: names of the source.
        translate: returns our name, or None.
        unused: pattern of the names that `translate` may leave untranslated.
        path: the source, for messages.

    Returns:
        The source's names by our names, and the unused names.

    Raises:
        UserError: an unknown name, or two names for one weight.
    """
    found: dict[str, str] = {}
    left: list[str] = []
    unknown: list[str] = []
    for name in sorted(names):
        here = translate(name)
        if here is None and unused.search(name):
            left.append(name)
        elif here is None:
            unknown.append(name)
        elif here in found:
            raise UserError(f"{path}: {found[here]} and {name} name one weight, {here}")
        else:
            found[here] = name
    if unknown:
        raise UserError(f"{path} has unknown weights: {weights.listed(unknown)}")
    return found, left


def read_vocab(path: str) -> Optional[list[str]]:
    """Reads a vocabulary file; None if it does not exist."""
    if not tf.io.gfile.exists(path):
        return None
    return vocabulary_file.load(path)


def vocabulary_rules(path: str, tokens: list[str], notes: list[str]) -> dict[str, Any]:
    """Returns the rules beside a vocabulary, or the case that its tokens show.

    Args:
        path: the vocabulary's file.
        tokens: its tokens.
        notes: receives a sentence if the case is assumed.
    """
    record = rules_lib.read(path)
    if record is not None:
        return dict(record.rules)
    notes.append("lower case is assumed unless the vocabulary has capitals")
    return {"lower_case": rules_lib.looks_lower_case(tokens)}
