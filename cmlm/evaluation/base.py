"""What a task is, how its files are read, and how tasks share their vectors.

A new task is a subclass of `Task` in a file of its own, or a row in a table of an
existing one, listed in the `families` of `cmlm.evaluate`.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cmlm import files
from cmlm.errors import UserError

# The toolkit's own, so that its folds come out the same.
SEED = 1111


class SentenceEncoder(Protocol):
    """All that an evaluation sees of a model."""

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """float32 [len(sentences), dim]."""


class MissingData(UserError):
    """A data set is not there; the message names the files that were looked for."""


class Vectors:
    """The vectors of sentences; each distinct one is encoded once.

    Args:
        encoder: the model.
    """

    def __init__(self, encoder: SentenceEncoder):
        self._encoder = encoder
        self._rows: dict[str, int] = {}
        self._matrix: np.ndarray | None = None

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences so far."""
        return list(self._rows)

    def add(self, sentences: Iterable[str]) -> None:
        """Encodes those that are new, all at once.

        Raises:
            UserError: the model gives numbers that are not finite, or the wrong shape.
        """
        new = [text for text in dict.fromkeys(sentences) if text not in self._rows]
        if not new:
            return
        vectors = np.asarray(self._encoder.encode(new))
        if vectors.ndim != 2 or len(vectors) != len(new):
            raise UserError(
                f"the model gave an array of shape {vectors.shape} for {len(new)} "
                "sentences"
            )
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise UserError(f"the vector of {new[row][:60]!r} is not finite")
        start = len(self._rows)
        self._rows.update((text, start + row) for row, text in enumerate(new))
        known = [] if self._matrix is None else [self._matrix]
        self._matrix = np.concatenate([*known, vectors])

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """The vectors of sentences, float32 [len(sentences), dim]."""
        self.add(sentences)
        return self._matrix[[self._rows[text] for text in sentences]]


class Task(abc.ABC):
    """One data set and how a model is scored on it.

    Attributes:
        name: as it stands in tables and in --tasks.
        main_metric: the key of `score`'s result that stands for the task.
        protocol: one line for reports: what is measured, and how.
    """

    name: str
    main_metric: str
    protocol: str

    @abc.abstractmethod
    def read(self, data_dir: str) -> Any:
        """Reads the data set.

        Raises:
            MissingData: it is not there.
            UserError: it is there and damaged.
        """

    @abc.abstractmethod
    def sentences(self, data: Any) -> Iterable[str]:
        """Every sentence that `score` is going to ask for."""

    @abc.abstractmethod
    def score(self, data: Any, vectors: Vectors) -> dict[str, float]:
        """Scores a model; deterministic. Names of metrics to numbers."""


# -------------------------------------------------------------------- reading


def find(data_dir: str, *names: str) -> str:
    """The first file that exists, as it is or in SentEval's folder.

    Args:
        data_dir: SentEval's `downstream`, or a folder with it as `senteval`.
        names: paths relative to it, the same file under different names.

    Raises:
        MissingData: none of them is there; `.gz` is looked for too.
    """
    looked_for = [
        os.path.join(folder, name)
        for folder in (data_dir, os.path.join(data_dir, "senteval"))
        for name in names
    ]
    for path in looked_for:
        for candidate in (path, path + ".gz"):
            if os.path.isfile(candidate):
                return candidate
    raise MissingData(f"not there: {', '.join(looked_for)} (nor with .gz)")


def read_lines(path: str, encoding: str = "utf-8-sig") -> list[str]:
    """Lines without their ends.

    Only a line feed ends a line: Python's splitlines() would also break at Latin-1's
    control characters, and some of these files have them inside a sentence.

    Raises:
        UserError: the file is not text of this encoding.
    """
    with files.open_bytes(path) as file:
        content = file.read()
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {encoding} text: {error}") from error
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def read_table(path: str, columns: int, **kwargs) -> list[list[str]]:
    """Tab-separated rows of at least so many columns.

    Raises:
        UserError: a row is shorter.
    """
    rows = [line.split("\t") for line in read_lines(path, **kwargs)]
    for number, row in enumerate(rows, 1):
        if len(row) < columns:
            raise UserError(
                f"{path}, line {number}: {len(row)} columns; at least {columns}"
            )
    return rows


def parse_label(text: str, allowed: Mapping[str, int], where: str) -> int:
    """The class of a label.

    Raises:
        UserError: there is no such label.
    """
    if text not in allowed:
        raise UserError(f"{where}: label {text!r}; allowed: {', '.join(allowed)}")
    return allowed[text]


def parse_score(text: str, lowest: float, highest: float, where: str) -> float:
    """A gold score.

    Raises:
        UserError: it is no number, or outside its range.
    """
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not lowest <= score <= highest:
        raise UserError(f"{where}: score {text!r}; allowed: {lowest:g} to {highest:g}")
    return score
