"""The protocol of everything that encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class SentenceEncoder(Protocol):
    """Encodes sentences. Evaluation and mining know models only by this protocol."""

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Encodes sentences.

        Returns:
            float32 [len(sentences), dim], in the order of `sentences`.
        """


class DescribedEncoder(SentenceEncoder, Protocol):
    """A sentence encoder with a description, so that its vectors can be reused.

    Attributes:
        dim: width of a vector.
        info: the description; vectors of encoders with different `info` are not mixed.
    """

    dim: int
    info: dict

    def encode(self, sentences: Sequence[str], progress: bool = False) -> np.ndarray:
        """As `SentenceEncoder.encode`; `progress` shows a bar."""
