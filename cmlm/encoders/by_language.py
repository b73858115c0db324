"""An encoder for each language, for tasks that know the languages of their sentences.

languages:en=MODEL,fr=MODEL
"""

from __future__ import annotations

from typing import Any

from cmlm.common import identity
from cmlm.encoders import external, opening
from cmlm.encoders.encoder import Encoder
from cmlm.encoders.exported_graph import ExportDescription
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError

_PREFIX = "languages:"


class ByLanguage(dict[str, Encoder | external.ExternalEncoder]):
    """Encoders by language, described like one encoder.

    Attributes:
        seq_length: None, because each encoder has its own.
    """

    seq_length = None

    @property
    def info(self) -> dict[str, Any]:
        """The description of each encoder, for reports."""
        return {"languages": {name: part.info for name, part in self.items()}}

    @property
    def marks(self) -> dict[str, Any]:
        """The identity of each encoder; see `common.identity`."""
        return {"languages": {name: identity.of(part) for name, part in self.items()}}


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


def open_encoders(
    name: str, reading: Reading = AS_TRAINED, only_described: bool = False
) -> Encoder | external.ExternalEncoder | ExportDescription | ByLanguage:
    """Opens an encoder, or one encoder for each language.

    Args:
        name: a model that `opening.open_encoder` opens, or a list by language.
        reading: the reading of vectors; by default it keeps the settings of each model.
        only_described: take `opening.described`, for checks before the use. Of an
            export, the result is a description then, which encodes nothing.

    Raises:
        UserError: a model does not exist, or the widths of the vectors differ.
    """
    open_encoder = opening.described if only_described else opening.open_encoder
    encoders = ByLanguage(
        (language, open_encoder(model, reading))
        for language, model in models(name).items()
    )
    if "" in encoders:
        return encoders[""]
    widths = {language: encoder.dim for language, encoder in encoders.items()}
    if len(set(widths.values())) > 1:
        raise UserError(f"--model={name} has vectors of widths {widths}; allowed: one")
    return encoders
