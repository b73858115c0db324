"""Stores the scores of each task, and vectors, so that a stopped command resumes.

The path of a file has a hash of all that its content depends on. A changed data set,
model, seed or library therefore finds nothing, and nothing needs to be deleted.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from cmlm.common import atomic, checksums, identity, json_files
from cmlm.errors import UserError

# The entries of a work directory that `Kept` makes, as patterns.
NAMES = ("[0-9a-f]" * 32,)
_ABOUT = "about.json"


class Kept:
    """The scores and vectors of one model in a directory.

    Args:
        directory: the work directory of the command, locked by the caller.
        about: plain values that the scores of all tasks depend on: the model, its
            principal components, the versions of the libraries.
    """

    def __init__(self, directory: str, about: dict[str, Any]):
        about = json.loads(json.dumps(about, default=str))
        self._directory = _same(directory, about) or _begin(directory, about)

    @property
    def vectors(self) -> str:
        """The directory of the model's vectors."""
        return os.path.join(self._directory, "vectors")

    def read(self, name: str, about: Any = None) -> dict[str, Any] | None:
        """Reads an entry; None if it is missing or was cut off."""
        return _read(self._path(name, about))

    def write(self, name: str, about: Any, content: dict[str, Any]) -> dict[str, Any]:
        """Writes an entry and returns it as `read` will."""
        text = json.dumps(content)
        with atomic.text(self._path(name, about)) as file:
            file.write(text)
        return json.loads(text)

    def folder(self, name: str, about: Any) -> str:
        """The directory for the files of an entry."""
        return os.path.join(self._directory, _digest([name, about]))

    def _path(self, name: str, about: Any) -> str:
        return f"{self.folder(name, about)}.json"


def _same(directory: str, about: dict[str, Any]) -> str | None:
    """The directory that holds the scores of a model; None before the first score."""
    pattern = os.path.join(glob.escape(directory), "*", _ABOUT)
    for path in sorted(glob.glob(pattern)):
        there = _read(path)
        if there is not None and not identity.difference(there, about):
            return os.path.dirname(path)
    return None


def _begin(directory: str, about: dict[str, Any]) -> str:
    """Makes the directory for the scores of a model."""
    own = os.path.join(directory, _digest(about))
    os.makedirs(own, exist_ok=True)
    path = os.path.join(own, _ABOUT)
    json_files.write(path, about, indent=1, sort_keys=True)
    return own


def _read(path: str) -> dict[str, Any] | None:
    """Reads a file; None if it is missing or was cut off."""
    try:
        return json_files.read(path)
    except UserError:
        return None


def _digest(about: Any) -> str:
    return checksums.of_values(about, sort_keys=True)[:32]
