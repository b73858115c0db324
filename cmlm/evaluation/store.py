"""The vectors of a run's sentences: each distinct one encoded once, kept in a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence

import numpy as np

from cmlm.common import files
from cmlm.common.progress import bar as progress_bar
from cmlm.common.protocols import SentenceEncoder
from cmlm.errors import UserError

_KEY_BYTES = 16
# Sentences handed to the model at a time, of like length: enough for it to make good
# batches, few enough for the bar to move and for memory to stay flat.
_AT_ONCE = 2048


class Store:
    """Sentences to vectors, in a file: memory does not grow with it.

    Two files lie in `directory`: `keys`, 16 bytes for each sentence (a hash of it), and
    `vectors`, a float32 row for each. Rows are only ever appended, the vector before
    its key, so a run that was killed leaves a store that can be used.

    Args:
        encoder: the model.
        directory: where to keep the vectors for the next run, made if missing. It must
            be the model's own. By default they are forgotten when the store is closed.
        progress: show a bar on stderr while encoding.

    Raises:
        UserError: another run uses the directory, or it is damaged.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        directory: str | None = None,
        progress: bool = False,
    ):
        self._encoder = encoder
        self._progress = progress
        self._rows: dict[bytes, int] = {}
        self._dim = 0
        self.encoded = 0
        with contextlib.ExitStack() as stack:
            if directory is None:
                directory = stack.enter_context(tempfile.TemporaryDirectory())
            self._directory = directory
            stack.enter_context(files.locked(directory))
            self._load()
            self._stack = stack.pop_all()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sentences: Iterable[str]) -> None:
        """Encodes those that are new, sorted by length.

        Raises:
            UserError: the model gives numbers that are not finite, or the wrong shape.
        """
        new = {}
        for text in sentences:
            key = _key(text)
            if key not in self._rows:
                new[key] = text
        # The longest first: what does not fit into memory fails at once.
        order = sorted(new, key=lambda key: -len(new[key]))
        with progress_bar(len(order), disable=not self._progress) as bar:
            for start in range(0, len(order), _AT_ONCE):
                keys = order[start : start + _AT_ONCE]
                self._append(keys, [new[key] for key in keys])
                bar.update(len(keys))

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """The vectors of sentences, float32 [len(sentences), dim]."""
        self.add(sentences)
        if not len(sentences):
            return np.zeros([0, self._dim], np.float32)
        shape = (len(self._rows), self._dim)
        stored = np.memmap(self._path("vectors"), "<f4", "r", shape=shape)
        rows = np.array([self._rows[_key(text)] for text in sentences])
        # In the file's order, which reads it once from front to back.
        order = np.argsort(rows, kind="stable")
        vectors = np.empty([len(rows), self._dim], np.float32)
        vectors[order] = stored[rows[order]]
        return vectors

    def _append(self, keys: list[bytes], texts: list[str]) -> None:
        vectors = np.asarray(self._encoder.encode(texts), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise UserError(
                f"the model gave an array of shape {vectors.shape} for {len(texts)} "
                "sentences"
            )
        if self._dim and vectors.shape[1] != self._dim:
            raise UserError(
                f"the model gave vectors of {vectors.shape[1]} numbers, before they "
                f"had {self._dim}"
            )
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise UserError(f"the vector of {texts[row][:60]!r} is not finite")
        if not self._dim:
            self._dim = vectors.shape[1]
            with open(self._path("shape.json"), "w") as file:
                json.dump({"dim": self._dim}, file)
        start = len(self._rows)
        with open(self._path("vectors"), "ab") as file:
            file.write(vectors.astype("<f4").tobytes())
        with open(self._path("keys"), "ab") as file:
            file.write(b"".join(keys))
        self._rows.update((key, start + row) for row, key in enumerate(keys))
        self.encoded += len(keys)

    def _load(self) -> None:
        """Reads the keys, and cuts off what a killed run did not finish."""
        if not os.path.exists(self._path("keys")):
            for name in ("vectors", "shape.json"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._path(name))
            return
        try:
            with open(self._path("shape.json")) as file:
                self._dim = int(json.load(file)["dim"])
            row_bytes = 4 * self._dim
            complete = min(
                os.path.getsize(self._path("keys")) // _KEY_BYTES,
                os.path.getsize(self._path("vectors")) // row_bytes,
            )
            os.truncate(self._path("keys"), complete * _KEY_BYTES)
            os.truncate(self._path("vectors"), complete * row_bytes)
            with open(self._path("keys"), "rb") as file:
                keys = file.read()
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise UserError(
                f"{self._directory} is damaged, delete it: {error}"
            ) from error
        starts = range(0, len(keys), _KEY_BYTES)
        self._rows = {
            keys[start : start + _KEY_BYTES]: row for row, start in enumerate(starts)
        }

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _key(text: str) -> bytes:
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES
    ).digest()
