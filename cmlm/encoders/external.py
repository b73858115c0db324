"""Vectors that are not made here: by a model server, or by any other program before.

    http://HOST:PORT/v1/models/NAME[/versions/N]    a server's REST interface
    grpc://HOST:PORT/v1/models/NAME[/versions/N]    its gRPC interface
    vectors:SENTENCES.txt:VECTORS.npy               a row for each line

The last scores encoders that this project cannot open: `cmlm.evaluate --sentences=FILE`
writes down what its tasks ask for, one sentence a line, and whatever can encode lines
writes the .npy.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence

import numpy as np

from cmlm.common import arrays, files
from cmlm.encoders import model_server
from cmlm.errors import UserError

PREFIXES = ("http://", "https://", "grpc://", "vectors:")
_MODEL = re.compile(r"(.+?)/v1/models/([^/:]+)(?:/versions/(\d+))?")


class ExternalEncoder(abc.ABC):
    """The face of `Encoder`, as far as one can see from outside.

    Attributes:
        dim: width of a vector.
        seq_length: None: where sentences are cut is not known.
        info: what the encoder is, for reports.
    """

    dim: int
    seq_length = None
    info: dict

    def encode(
        self,
        sentences: Sequence[str],
        normalize: bool = False,
        progress: bool | None = None,
    ) -> np.ndarray:
        """float32 [len(sentences), dim], in the order of `sentences`.

        Args:
            sentences: any number of them.
            normalize: scale every vector to length 1.
            progress: as in `Encoder`; nothing is shown here.
        """
        del progress
        if not sentences:
            return np.zeros([0, self.dim], np.float32)
        encoded = self._encode(sentences)
        return arrays.unit_length(encoded) if normalize else encoded

    @abc.abstractmethod
    def _encode(self, sentences: Sequence[str]) -> np.ndarray:
        """float32 [n, dim] of at least one sentence."""


class ServedEncoder(ExternalEncoder):
    """A model of a running server.

    Args:
        address: as above.
    """

    def __init__(self, address: str):
        match = _MODEL.fullmatch(address.removesuffix("/"))
        if not match:
            raise UserError(
                f"--model={address}; allowed: {address.split('/')[0]}//HOST:PORT/v1/"
                "models/NAME, after it /versions/N or nothing"
            )
        host, name, version = match.groups()
        self._server = model_server.connect(
            host, name, None if version is None else int(version)
        )
        self.dim = self._encode([""]).shape[1]
        self.info = {"server": address, "dim": self.dim}

    def _encode(self, sentences: Sequence[str]) -> np.ndarray:
        return self._server.encode(sentences)


class StoredVectors(ExternalEncoder):
    """Rows of an .npy file, found by their sentence.

    Args:
        text: a file of sentences, one a line.
        npy: float [lines, dim].

    Raises:
        UserError: a file is missing or damaged, or they are of different length.
    """

    def __init__(self, text: str, npy: str):
        lines = [line for part in arrays.windows(files.expand(text)) for line in part]
        try:
            self._matrix = np.load(npy, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"cannot read {npy} as .npy: {error}") from error
        shape = self._matrix.shape
        if len(shape) != 2 or len(lines) != shape[0]:
            raise UserError(f"{text} has {len(lines)} lines, {npy} the shape {shape}")
        if self._matrix.dtype.kind != "f":
            raise UserError(f"{npy} has {self._matrix.dtype}; allowed: float")
        self._text = text
        self._rows = {line: row for row, line in enumerate(lines)}
        self.dim = shape[1]
        self.info = {"vectors": npy, "dim": self.dim}

    def _encode(self, sentences: Sequence[str]) -> np.ndarray:
        missing = [text for text in sentences if text not in self._rows]
        if missing:
            raise UserError(
                f"{self._text} has no line {missing[0][:60]!r}, nor {len(missing) - 1} "
                "others: write it with --sentences"
            )
        rows = [self._rows[text] for text in sentences]
        return np.asarray(self._matrix[rows], np.float32)


def open_encoder(model: str) -> ExternalEncoder:
    """Opens what `model` names, which begins with one of `PREFIXES`.

    Raises:
        UserError: there is no such thing.
    """
    if not model.startswith("vectors:"):
        return ServedEncoder(model)
    text, _, npy = model.removeprefix("vectors:").partition(":")
    if not text or not npy:
        raise UserError(f"--model={model}; allowed: vectors:SENTENCES.txt:VECTORS.npy")
    return StoredVectors(text, npy)
