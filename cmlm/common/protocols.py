"""The protocols of sentence encoders and of numbered tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np


class SentenceEncoder(Protocol):
    """A sentence encoder. Evaluation needs nothing else of a model.

    Reports also show its `info`, `seq_length` and `lengths`, if it has them. A model
    with `prompts`, texts by name, takes `encode(sentences, prompt_name=)`, too, as
    those of sentence-transformers do.
    """

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Encodes sentences.

        Returns:
            float32 [len(sentences), dim], in the order of `sentences`.
        """


def name_of(encoder: SentenceEncoder) -> str:
    """The name of an encoder in messages: its attribute `name`, if it has one."""
    return getattr(encoder, "name", "the model")


class DescribedEncoder(SentenceEncoder, Protocol):
    """A sentence encoder with a description, so that mining can reuse its vectors.

    Attributes:
        dim: the width of a vector.
        info: the description; mining does not mix vectors of different models.
    """

    dim: int
    info: dict

    def encode(self, sentences: Sequence[str], progress: bool = False) -> np.ndarray:
        """Encodes as `SentenceEncoder.encode` does; `progress` shows a bar."""


class Task(Protocol):
    """A task of `numbered_tasks.Workers`."""

    def __call__(self, number: int, report: Callable[[int], object]) -> None:
        """Does the task of a number; reports finished sentences, some at a time."""
