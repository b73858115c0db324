"""The vectors of a text in shards on disk; a run that was stopped goes on from them."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from cmlm.common import arrays as vectors_lib
from cmlm.common.protocols import DescribedEncoder
from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.texts import Texts

_ABOUT = "about.json"
# A shard is what a killed run loses at most: some minutes of encoding on a CPU.
SHARD_ROWS = 16_384
# Sentences handed to the model at a time: enough for batches of like length, few enough
# for the bar to move.
_AT_ONCE = 4096


class Vectors:
    """Rows of length 1 in files of equal size, `00000.npy` and so on.

    Args:
        directory: where `fill` has put them.

    Attributes:
        about: what they are of.
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
        """Rows from `start` to before `stop`, in memory, float32 [_, dim]."""
        stop = min(stop, len(self))
        rows = np.empty([stop - start, self.dim], np.float32)
        for shard in range(start // self._shard_rows, -(-stop // self._shard_rows)):
            first = shard * self._shard_rows
            low, high = max(start, first), min(stop, first + self._shard_rows)
            part = self._map(shard)[low - first : high - first]
            rows[low - start : high - start] = part
        return rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Any rows, in memory, float32 [len(rows), dim]."""
        taken = np.empty([len(rows), self.dim], np.float32)
        order = np.argsort(rows, kind="stable")
        shards = rows[order] // self._shard_rows
        borders = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for own in np.split(order, borders):
            # Mapped for now only: what stays mapped counts as memory of the process.
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
    """Encodes distinct texts; shards that are there already are used.

    Args:
        texts: what to encode.
        encoder: the model.
        directory: of the shards, made if missing.
        shard_rows: rows of a file.

    Raises:
        UserError: the directory holds vectors of another model or text, or the model
            gives what is no vector.
    """

    def make(start: int, stop: int) -> np.ndarray:
        return _checked(encoder, texts.take(range(start, stop)))

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
    """Makes the shards that are not there.

    Args:
        directory: of the shards, made if missing.
        about: `shape` [n, dim], `shard_rows`, and what else the vectors follow from.
        make: the unit vectors from one row to before another, float32.
        what: is being done, for the progress bar.

    Raises:
        UserError: the directory holds vectors of something else.
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
    with storage.bar(count, what, "sentences") as bar:
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
                    f"{path} is {found.dtype} {list(found.shape)}, not float32 "
                    f"{[stop - start, dim]}: delete it"
                )
            # Not a part of the pace.
            bar.initial += stop - start
            bar.n += stop - start
    return Vectors(directory)


def identity(encoder: DescribedEncoder) -> dict:
    """What decides over a model's vectors, as far as the model can tell."""
    if "fingerprint" in encoder.info:
        length = getattr(encoder, "seq_length", None)
        return {"fingerprint": encoder.info["fingerprint"], "seq_length": length}
    return encoder.info


def _checked(encoder: DescribedEncoder, sentences: list[str]) -> np.ndarray:
    # Scaled here, not by the encoder: what is not finite would be looked for in vain.
    rows = np.asarray(encoder.encode(sentences, progress=False), np.float32)
    if rows.shape != (len(sentences), encoder.dim):
        raise UserError(
            f"the model gave an array of shape {list(rows.shape)} for "
            f"{len(sentences)} sentences; expected {encoder.dim} numbers each"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        text = sentences[int(np.argmin(finite))]
        raise UserError(f"the vector of {text[:60]!r} is not finite")
    return vectors_lib.unit_length(rows)


def _short(value) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
