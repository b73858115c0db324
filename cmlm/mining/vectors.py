"""The vectors of a text in shards on disk; a stopped run resumes from its shards."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from cmlm.common import arrays, progress
from cmlm.common.protocols import DescribedEncoder
from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.texts import Texts

_ABOUT = "about.json"
# A killed run loses at most one shard, or some minutes of encoding on a CPU.
SHARD_ROWS = 16_384
# Sentences in a call of the model: enough for batches of similar length, and few enough
# for a smooth progress bar.
_AT_ONCE = 4096


class Vectors:
    """Unit vectors in files of equal size, `00000.npy` and so on.

    Args:
        directory: a directory that `fill` has filled.

    Attributes:
        about: the description of the vectors: model, text and shape.
        shape: [n, dim].
    """

    def __init__(self, directory: str):
        self._directory = directory
        self.about = storage.read_json(os.path.join(directory, _ABOUT))
        self.shape = tuple(self.about["shape"])
        self._shard_rows = self.about["shard_rows"]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the rows [start, stop), float32 [rows, dim]."""
        stop = min(stop, len(self))
        rows = np.empty([stop - start, self.dim], np.float32)
        for shard in range(start // self._shard_rows, -(-stop // self._shard_rows)):
            first = shard * self._shard_rows
            low, high = max(start, first), min(stop, first + self._shard_rows)
            part = self._map(shard)[low - first : high - first]
            rows[low - start : high - start] = part
        return rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Reads rows in any order, float32 [len(rows), dim]."""
        taken = np.empty([len(rows), self.dim], np.float32)
        order = np.argsort(rows, kind="stable")
        shards = rows[order] // self._shard_rows
        borders = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for own in np.split(order, borders):
            # Each read maps its shard: a lasting map counts as memory of the process.
            if len(own):
                shard = int(rows[own[0]]) // self._shard_rows
                taken[own] = self._map(shard)[rows[own] - shard * self._shard_rows]
        return taken

    def _map(self, shard: int) -> np.ndarray:
        return storage.load(shard_path(self._directory, shard))


def shard_path(directory: str, shard: int) -> str:
    return os.path.join(directory, f"{shard:05d}.npy")


def encode(
    texts: Texts,
    encoder: DescribedEncoder,
    directory: str,
    shard_rows: int = SHARD_ROWS,
) -> Vectors:
    """Encodes distinct texts; existing shards are reused.

    Args:
        texts: the texts to encode.
        encoder: the model.
        directory: the directory of the shards, created if missing.
        shard_rows: the number of rows in a file.

    Raises:
        UserError: the directory holds vectors of another model or text, or the model
            returns a wrong shape or a non-finite number.
    """

    def make(start: int, stop: int) -> np.ndarray:
        return checked(encoder, texts.take(range(start, stop)))

    about = {
        "model": identity(encoder),
        "texts": texts.digest,
        "shape": [len(texts), encoder.dim],
        "shard_rows": shard_rows,
    }
    return fill(directory, about, make, f"encoding {texts.name}")


def fill(
    directory: str,
    about: dict,
    make: Callable[[int, int], np.ndarray],
    what: str,
) -> Vectors:
    """Creates the missing shards.

    Args:
        directory: the directory of the shards, created if missing.
        about: the description of the vectors: `shape` [n, dim], `shard_rows`, and all
            facts that the vectors depend on.
        make: a function that computes the rows [start, stop), float32 [rows, dim].
        what: the description of the progress bar.

    Raises:
        UserError: the directory holds other vectors, or a shard has a wrong shape.
    """
    path = os.path.join(directory, _ABOUT)
    there = storage.read_json(path)
    if there is None:
        os.makedirs(directory, exist_ok=True)
        storage.write_json(path, about)
    elif there != about:
        key = next(key for key in about if there.get(key) != about[key])
        raise UserError(
            f"{directory} holds vectors of another run ({key} {_short(there.get(key))},"
            f" now {_short(about[key])}): name another --work_dir or delete it"
        )
    (count, dim), shard_rows = about["shape"], about["shard_rows"]
    with progress.bar(count, what) as bar:
        for shard, start in enumerate(range(0, count, shard_rows)):
            stop = min(start + shard_rows, count)
            path = shard_path(directory, shard)
            if not os.path.exists(path):
                parts = []
                for low in range(start, stop, _AT_ONCE):
                    parts.append(make(low, min(low + _AT_ONCE, stop)))
                    bar.update(len(parts[-1]))
                storage.save(path, np.concatenate(parts))
                continue
            found = storage.load(path)
            if found.shape != (stop - start, dim) or found.dtype != np.float32:
                raise UserError(
                    f"{path} holds {found.dtype} {list(found.shape)}, expected float32 "
                    f"{[stop - start, dim]}: delete it"
                )
            # Reused rows do not count for the displayed pace.
            bar.initial += stop - start
            bar.n += stop - start
    return Vectors(directory)


def identity(encoder: DescribedEncoder) -> dict:
    """Returns the part of an encoder's description that identifies its vectors.

    This is the fingerprint with the sequence length and any precision below float32,
    or the whole description of an encoder without a fingerprint.
    """
    if "fingerprint" in encoder.info:
        length = getattr(encoder, "seq_length", None)
        found = {"fingerprint": encoder.info["fingerprint"], "seq_length": length}
        if encoder.info.get("precision") == "bfloat16":
            found["precision"] = "bfloat16"
        return found
    return encoder.info


def checked(encoder: DescribedEncoder, sentences: list[str]) -> np.ndarray:
    """Encodes sentences to unit vectors, float32 [n, dim], and checks the result.

    Raises:
        UserError: the encoder returns a wrong shape or a non-finite number.
    """
    # The encoder's own scaling could hide non-finite numbers, so the rows are scaled
    # here.
    rows = np.asarray(encoder.encode(sentences, progress=False), np.float32)
    if rows.shape != (len(sentences), encoder.dim):
        raise UserError(
            f"the model returned an array of shape {list(rows.shape)}; expected "
            f"{[len(sentences), encoder.dim]}"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        text = sentences[int(np.argmin(finite))]
        raise UserError(f"the vector of {text[:60]!r} is not finite")
    return arrays.unit_length(rows)


def _short(value) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
