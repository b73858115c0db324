"""Principal component removal from the vectors of an opened model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cmlm.common import checksums
from cmlm.encoders import components_file
from cmlm.errors import UserError


class Removal:
    """Removes the principal components of a file from the vectors of a model.

    A language without components keeps its vectors.

    Args:
        path: the file of `cmlm.pcr`.
        encoder: the model, as `by_language.open_encoders` opened it.
        name: the name of the model, for the message.

    Attributes:
        about: the file and its languages, for results.json.

    Raises:
        UserError: the file was fitted with another model, or the model has no
            fingerprint.
    """

    def __init__(self, path: str, encoder, name: str):
        if not encoder.info.get("fingerprint"):
            raise UserError(
                f"--pcr is {path} with --model={name}, whose weights are unknown; "
                "allowed: with an export, a model_dir or weights, not with a server, "
                "stored vectors or languages:"
            )
        self._fitted = components_file.load(path)
        self._fitted.check_model(encoder.info["fingerprint"], encoder.dim, path)
        self.about = {
            "path": path,
            "languages": list(self._fitted.languages),
            "sha256": checksums.sha256(path),
        }

    def __call__(self, vectors: np.ndarray, language: str) -> np.ndarray:
        """The vectors [n, dim] of a language without its components."""
        return self._fitted.remove_from(vectors, language)

    def unchanged(self, languages: Iterable[str]) -> list[str]:
        """The languages without components among `languages`, in lower case, sorted."""
        return sorted({name.lower() for name in languages} - {*self._fitted.languages})

    def changed(self, languages: Iterable[str]) -> list[str]:
        """The languages with components among `languages`, in lower case, sorted."""
        return sorted({name.lower() for name in languages} & {*self._fitted.languages})
