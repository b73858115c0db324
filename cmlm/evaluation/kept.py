"""What a killed evaluation leaves for the next one: scores task by task, vectors.

Every file lies under a hash of all that its content depends on. A changed data set,
model, seed or library therefore finds nothing, and nothing needs to be deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from cmlm.common import files
from cmlm.errors import UserError
from cmlm.mining import storage


class Kept:
    """The scores and vectors of one model in a directory.

    Args:
        directory: the work directory of the evaluation, locked by the caller.
        about: plain values that the scores of all tasks depend on: the model, its
            principal components, the versions of the libraries.
    """

    def __init__(self, directory: str, about: dict[str, Any]):
        self._directory = os.path.join(directory, _digest(about))
        os.makedirs(self._directory, exist_ok=True)

    @property
    def vectors(self) -> str:
        """The directory of the model's vectors."""
        return os.path.join(self._directory, "vectors")

    def read(self, name: str, about: Any = None) -> dict[str, Any] | None:
        """Reads an entry; None if it is missing or was cut off."""
        try:
            return storage.read_json(self._path(name, about))
        except UserError:
            return None

    def write(self, name: str, about: Any, content: dict[str, Any]) -> dict[str, Any]:
        """Writes an entry and returns it as `read` will."""
        text = json.dumps(content)
        with files.atomic_text(self._path(name, about)) as file:
            file.write(text)
        return json.loads(text)

    def _path(self, name: str, about: Any) -> str:
        return os.path.join(self._directory, f"{_digest([name, about])}.json")


def identity(encoder) -> dict[str, Any]:
    """Identifies the vectors of an encoder, or of the encoders of several languages.

    This is its description with its fingerprint. An encoder without a fingerprint, such
    as a server, has `marks` instead (see `encoders.external`).
    """
    if isinstance(encoder, Mapping):
        return {name: identity(part) for name, part in encoder.items()}
    marks = getattr(encoder, "marks", {})
    return {**encoder.info, "seq_length": encoder.seq_length, **marks}


def _digest(about: Any) -> str:
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
