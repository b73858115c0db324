"""The vectors of a text in shards on disk, from which a stopped run resumes."""

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
# A killed run loses at most one shard: some minutes of encoding on a CPU.
SHARD_ROWS = 16_384
# Sentences per call of the model: enough for batches of similar length, few enough for
# the bar to move.
_AT_ONCE = 4096


class Vectors:
    """Unit vectors in files of equal size, `00000.npy` and so on.

    Args:
        directory: filled by `fill`.

    Attributes:
        about: model, text and shape.
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
        """Reads any rows, float32 [len(rows), dim]."""
        taken = np.empty([len(rows), self.dim], np.float32)
        order = np.argsort(rows, kind="stable")
        shards = rows[order] // self._shard_rows
        borders = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for own in np.split(order, borders):
            # Mapped only for this read: a lasting map counts as memory of the process.
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
        texts: to encode.
        encoder: the model.
        directory: of the shards, created if missing.
        shard_rows: rows per file.

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
        directory: of the shards, created if missing.
        about: `shape` [n, dim], `shard_rows`, and everything that the vectors depend
            on.
        make: (start, stop) to the unit vectors of these rows, float32.
        what: the description of the progress bar.

    Raises:
        UserError: the directory holds other vectors.
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
            # Reused rows do not count for the pace.
            bar.initial += stop - start
            bar.n += stop - start
    return Vectors(directory)


def identity(encoder: DescribedEncoder) -> dict:
    """What identifies the vectors of a model, as far as the model knows."""
    if "fingerprint" in encoder.info:
        length = getattr(encoder, "seq_length", None)
        return {"fingerprint": encoder.info["fingerprint"], "seq_length": length}
    return encoder.info


def checked(encoder: DescribedEncoder, sentences: list[str]) -> np.ndarray:
    """Encodes sentences to unit vectors, float32 [n, dim], and checks the result.

    Raises:
        UserError: the encoder returns a wrong shape or a non-finite number.
    """
    # Scaled here and not by the encoder, so that non-finite numbers are still visible.
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
