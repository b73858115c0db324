"""An encoder for each language, for tasks that know the languages of their sentences.

languages:en=MODEL,fr=MODEL
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cmlm.encoders import opening
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError

_PREFIX = "languages:"


def models(name: str) -> dict[str, str]:
    """The models of a name by language; a model of all languages has the language "".

    Raises:
        UserError: the list of models by language is malformed, or has a language twice.
    """
    if not name.startswith(_PREFIX):
        return {"": name}
    found = {}
    for part in name.removeprefix(_PREFIX).split(","):
        language, equals, model = part.partition("=")
        if not (language and equals and model):
            raise UserError(
                f"--model has {name!r}; allowed: {_PREFIX}LANGUAGE=MODEL,..."
            )
        if language in found:
            raise UserError(
                f"--model has {name!r}; allowed: one model of {language}, not two"
            )
        found[language] = model
    return found


def open_encoders(name: str, reading: Reading = AS_TRAINED):
    """Opens an encoder, or one encoder for each language.

    Args:
        name: a model that `opening.open_encoder` opens, or a list by language.
        reading: the reading of vectors; by default it keeps the settings of each model.

    Returns:
        An encoder, or a dict of encoders by language.

    Raises:
        UserError: there is no such model, or the widths of the vectors differ.
    """
    encoders = {
        language: opening.open_encoder(model, reading)
        for language, model in models(name).items()
    }
    if "" in encoders:
        return encoders[""]
    widths = {language: encoder.dim for language, encoder in encoders.items()}
    if len(set(widths.values())) > 1:
        raise UserError(f"--model={name} has vectors of widths {widths}; allowed: one")
    return encoders


def describe(encoder) -> dict[str, Any]:
    """Describes what `open_encoders` returned, in plain values."""
    if isinstance(encoder, dict):
        return {"languages": {name: part.info for name, part in encoder.items()}}
    return {**encoder.info, "seq_length": encoder.seq_length}


def truncated(encoder, sentences: Sequence[str]) -> int | None:
    """The number of sentences that an encoder cuts; None if it is unknown."""
    if isinstance(encoder, dict) or encoder.seq_length is None:
        return None
    return int((encoder.lengths(sentences) > encoder.seq_length).sum())
