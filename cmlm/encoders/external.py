"""Vectors from other programs: from a running model server or from a file.

    http://HOST:PORT/v1/models/NAME[/versions/N]    the REST interface of a server
    grpc://HOST:PORT/v1/models/NAME[/versions/N]    the gRPC interface of a server
    https://... and grpcs://...                     the same with TLS
    vectors:SENTENCES.txt:VECTORS.npy               stored vectors, a row for each line

With stored vectors, cmlm.evaluate scores encoders that this project cannot open:
`cmlm.evaluate --sentences=FILE` writes the sentences of its tasks, one a line, and the
other program writes their vectors to the .npy file.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cmlm.common import checksums, files, prompts
from cmlm.common.counts import counted
from cmlm.encoders import model_server, vector_files
from cmlm.encoders.comparing import Comparing
from cmlm.encoders.signatures import DEFAULT
from cmlm.errors import UserError, naming

PREFIXES = ("http://", "https://", "grpc://", "grpcs://", "vectors:")
FORMS = (
    "http://HOST:PORT/v1/models/NAME, grpc://HOST:PORT/v1/models/NAME, "
    "vectors:SENTENCES.txt:VECTORS.npy"
)
# Some numbers of some vectors tell the models of a server apart.
_PROBES = ("A red house.", "Where is the station?", "Das ist gut.", "2 + 2 = 4")
_PROBE_NUMBERS = 16
# For one answer of a server.
_SECONDS = 600


class ExternalEncoder(Comparing):
    """An encoder outside this project: the interface of `Encoder` without `lengths`.

    Attributes:
        dim, name: see `Comparing`.
        seq_length: None, because the length limit is unknown.
        info: a description for reports.
    """

    seq_length = None
    info: dict

    def tokens(self, sentences: Sequence[str]) -> list[list[str]]:
        """Raises UserError: a server and a file give vectors alone."""
        raise UserError(
            f"{self.name} gives vectors and not tokens; allowed: the export, run or "
            "folder of its encoder"
        )

    @functools.cached_property
    @abc.abstractmethod
    def marks(self) -> dict[str, Any]:
        """Values of JSON that differ between models with the same `info`.

        See `common.identity`.
        """


class ServedEncoder(ExternalEncoder):
    """A model of a running server.

    Args:
        address: an address in a form that the module's docstring lists.
        prompt_name: the prompt that precedes every text; None for the model's default.
        server: a client of the address; None makes one.
    """

    def __init__(
        self,
        address: str,
        prompt_name: str | None = None,
        server: model_server.ServedModel | None = None,
    ):
        if model_server.parse_address(address).model is None:
            raise UserError(
                f"the model is {address}; allowed: {address.split('/')[0]}//HOST:PORT/"
                "v1/models/NAME[/versions/N]"
            )
        # A slow server may take long for the longest texts.
        self._server = server or model_server.connect(address, timeout=_SECONDS)
        # A prompt's name is that of a signature.
        self._signature = prompt_name or DEFAULT
        self.name = address
        self.dim = self._encode([""]).shape[1]
        self.info = {"server": address, "dim": self.dim}
        if prompt_name:
            self.info = prompts.describe(self.info, prompt_name, None)

    @functools.cached_property
    def prompts(self):
        names = self._server.prompt_names()
        if not names:
            # Else a version that is gone would seem to be one without prompts.
            self._encode([""])
        return dict.fromkeys(names)

    def _prompted(self, prompt_name: str) -> ServedEncoder:
        # The same client stays with one version of the model.
        return ServedEncoder(self.name, prompt_name, self._server)

    @functools.cached_property
    def marks(self):
        vectors = self.encode(_PROBES, normalize=True)[:, :_PROBE_NUMBERS]
        return {"probe": vectors.astype(float).round(6).tolist()}

    def _encode(
        self, sentences: Sequence[str], progress: bool | None = None
    ) -> np.ndarray:
        return self._server.encode(sentences, self._signature)


class StoredVectors(ExternalEncoder):
    """Rows of an .npy file, looked up by sentence.

    Args:
        text: a file of sentences, one a line.
        npy: a file of vectors, float [lines, dim].

    Raises:
        UserError: a file is missing or damaged, the lengths of the files differ, or
            the vectors have another shape than their description.
    """

    def __init__(self, text: str, npy: str):
        self.name = f"vectors:{text}:{npy}"
        *texts, _ = paths(self.name)
        lines = [line for part in files.windows(texts) for line in part]
        self._matrix = vector_files.map_described(npy)
        shape = self._matrix.shape
        if len(lines) != shape[0]:
            raise UserError(
                f"{text} has {counted(len(lines), 'line')}, {npy} has "
                f"{counted(shape[0], 'vector')}; allowed: a vector for each line"
            )
        self._text = text
        self._rows = {line: row for row, line in enumerate(lines)}
        self.dim = shape[1]
        self.info = {"vectors": npy, "dim": self.dim}

    @functools.cached_property
    def marks(self):
        return {"checksums": [checksums.of_file(path) for path in paths(self.name)]}

    def _encode(
        self, sentences: Sequence[str], progress: bool | None = None
    ) -> np.ndarray:
        missing = [text for text in sentences if text not in self._rows]
        if missing:
            raise UserError(
                f"{self._text} lacks {len(missing)} of {len(sentences)} sentences, "
                f"such as {missing[0][:60]!r}; allowed: a file with all sentences "
                "(cmlm.evaluate --sentences writes those of its tasks)"
            )
        rows = [self._rows[text] for text in sentences]
        return self._matrix[rows]


def check(model: str) -> None:
    """Asks the server for a vector, or looks for the files, without reading the text.

    Args:
        model: as for `open_encoder`.

    Raises:
        UserError: the server or file does not exist.
    """
    if _stored(model) is None:
        ServedEncoder(model)
        return
    *_, npy = paths(model)
    vector_files.map_described(npy)


def open_encoder(model: str) -> ExternalEncoder:
    """Opens a model whose name begins with one of `PREFIXES`.

    Raises:
        UserError: the server or file does not exist.
    """
    stored = _stored(model)
    return ServedEncoder(model) if stored is None else StoredVectors(*stored)


def paths(model: str) -> list[str]:
    """The files of stored vectors; [] for a server.

    Raises:
        UserError: the file of sentences does not exist.
    """
    stored = _stored(model)
    if stored is None:
        return []
    text, npy = stored
    with naming(model):
        return [*files.expand(text), npy]


def _stored(model: str) -> tuple[str, str] | None:
    """The file of sentences and the file of vectors; None for a server."""
    if not model.startswith("vectors:"):
        return None
    # A path of text may have a colon, as `gs://` has.
    text, _, npy = model.removeprefix("vectors:").rpartition(":")
    if not text or not npy or text.endswith(".npy"):
        raise UserError(
            f"the model is {model}; allowed: vectors:SENTENCES.txt:VECTORS.npy"
        )
    return text, npy
