"""The vectors of a text in shards on disk; a stopped run resumes from its shards."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cmlm.common import arrays, choices, identity, json_files
from cmlm.common.numbered_tasks import HERE, Workers
from cmlm.common.protocols import DescribedEncoder, Task, name_of
from cmlm.errors import UserError, shown
from cmlm.mining import storage
from cmlm.mining.texts import Texts

# A killed run loses at most one shard, or some minutes of encoding on a CPU.
SHARD_ROWS = 16_384
# Sentences in a call of the model: enough for batches of similar length, and few enough
# for a smooth progress bar.
_AT_ONCE = 4096

# Opens a model; pickle can send it to another process.
Open = Callable[[], DescribedEncoder]
# Computes the rows [start, stop), float32 [rows, dim].
Make = Callable[[int, int], np.ndarray]


class Reader(NamedTuple):
    """A model that reads texts.

    Attributes:
        encoder: the model.
        reopen: opens the model again in each process of Beam.
    """

    encoder: DescribedEncoder
    reopen: Open | None = None

    def opener(self, workers: Workers) -> Open:
        """Returns a function that opens the model where the workers are.

        It raises UserError if it opens another model: a server may have loaded a new
        version meanwhile.
        """
        if workers.are_here:
            return lambda: self.encoder
        return functools.partial(_reopened, self.reopen, identity.of(self.encoder))


def _reopened(reopen: Open, expected: dict) -> DescribedEncoder:
    encoder = reopen()
    changed = identity.difference(expected, identity.of(encoder))
    if changed:
        raise UserError(
            f"{name_of(encoder)} changed while its vectors were computed ({changed}); "
            "allowed: the same model in every process"
        )
    return encoder


class ShardedVectors(storage.RowFiles):
    """Rows of numbers, such as unit vectors, in shards with a description.

    Args:
        directory: a directory that `fill` has filled.

    Attributes:
        about: the description of the vectors: model, text and shape.
        shape: [n, dim].
        dtype: the type of the numbers in the files, one of `choices.DTYPES`.

    Raises:
        UserError: the directory has no description, or a damaged one.
    """

    def __init__(self, directory: str):
        path = storage.about_path(directory)
        self.about = storage.read_about(directory)
        if self.about is None:
            raise UserError(
                f"{directory} holds no vectors: {path} is missing; allowed: the folder "
                "that cmlm.encode wrote, whole"
            )
        shape = json_files.field(self.about, "shape", list, path)
        if [type(size) for size in shape] != [int, int]:
            raise UserError(f"{path} has shape={shown(shape)}; allowed: [n, dim]")
        self.shape = tuple(shape)
        size = json_files.field(self.about, "shard_rows", int, path, at_least=1)
        super().__init__(directory, self.shape[0], size)
        self.dtype = json_files.field(self.about, "dtype", str, path, "float32")
        if self.dtype not in choices.DTYPES:
            raise UserError(
                f"{path} has dtype={shown(self.dtype)}; allowed: "
                f"{' or '.join(choices.DTYPES)}"
            )

    @property
    def dim(self) -> int:
        return self.shape[1]

    def _is_there(self, shard: int) -> bool:
        """Whether a shard is on disk; raises UserError if it has a wrong shape, too."""
        if not super()._is_there(shard):
            return False
        path = self.path(shard)
        start, stop = self.rows_of(shard)
        found, shape = storage.load(path), (stop - start, self.dim)
        if found.shape != shape or found.dtype != self.dtype:
            raise UserError(
                f"{path} holds {found.dtype} {list(found.shape)}, expected "
                f"{self.dtype} {list(shape)}; delete {path}"
            )
        return True

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the rows [start, stop), float32 [rows, dim]."""
        stop = min(stop, len(self))
        rows = np.empty([stop - start, self.dim], np.float32)
        for shard in range(start // self._file_rows, -(-stop // self._file_rows)):
            first, end = self.rows_of(shard)
            low, high = max(start, first), min(stop, end)
            part = storage.load(self.path(shard))[low - first : high - first]
            rows[low - start : high - start] = part
        return rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Reads rows in any order, float32 [len(rows), dim]."""
        taken = np.empty([len(rows), self.dim], np.float32)
        order = np.argsort(rows, kind="stable")
        shards = rows[order] // self._file_rows
        borders = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for own in np.split(order, borders):
            # Each read maps its shard: a lasting map counts as memory of the process.
            if len(own):
                shard = int(rows[own[0]]) // self._file_rows
                first, _ = self.rows_of(shard)
                taken[own] = storage.load(self.path(shard))[rows[own] - first]
        return taken


def encode(
    texts: Texts,
    reader: Reader,
    directory: str,
    workers: Workers = HERE,
    dtype: str = "float32",
) -> ShardedVectors:
    """Encodes distinct texts; existing shards are reused.

    They may be shards of the text's first lines. The vectors then equal vectors that
    are all encoded at once.

    Args:
        texts: the texts to encode.
        reader: the model.
        directory: the directory of the shards, created if missing.
        workers: the processes that encode.
        dtype: the type of the numbers on disk, one of `choices.DTYPES`.

    Raises:
        UserError: the directory holds vectors of another model, text or type, or the
            model returns a wrong shape or a non-finite number.
    """
    about = describe(texts, reader.encoder, reader.encoder.dim)
    # Folders of earlier versions do not name float32.
    about |= {"dtype": dtype} if dtype != "float32" else {}
    start = functools.partial(_encoding, texts.opener(workers), reader.opener(workers))
    _grow(directory, about, texts)
    return fill(directory, about, start, f"encoding {texts.name}", workers)


def check_kind(directory: str, encoder: DescribedEncoder, dtype: str) -> None:
    """Raises UserError if a directory holds vectors of another model or type."""
    there = storage.read_about(directory)
    if there is None:
        return
    _refuse_others(directory, there, {**there, "model": identity.of(encoder)})
    before = there.get("dtype", "float32")
    if before != dtype:
        raise UserError(
            f"{directory} holds vectors in {before}; allowed: --dtype={before}, or "
            "another directory"
        )


def _grow(directory: str, about: dict, texts: Texts) -> None:
    """Makes shards of a text's first lines into shards of the text.

    The model encodes the rows of a shard together, so a last shard that was not full
    goes.

    Args:
        directory: the directory of the shards, which may be missing.
        about: the description of the text's vectors.
        texts: the text.
    """
    if storage.read_about(directory) is None:
        return
    first = ShardedVectors(directory)
    grown = {**first.about, "texts": about["texts"], "shape": [len(texts), first.dim]}
    before = first.about.get("texts")
    if before == about["texts"] or identity.difference(grown, about):
        return
    if not texts.begins(before, len(first)):
        return
    if len(first) < len(texts):
        storage.remove(first.path(len(first) // about["shard_rows"]))
    storage.write_about(directory, grown)


def describe(texts: Texts, encoder: DescribedEncoder, width: int) -> dict:
    """Describes rows of numbers that an encoder gives for texts, see `fill`."""
    return {
        "model": identity.of(encoder),
        "texts": texts.digest,
        "shape": [len(texts), width],
        "shard_rows": SHARD_ROWS,
    }


def _encoding(open_texts: Callable[[], Texts], open_encoder: Open) -> Make:
    texts, encoder = open_texts(), open_encoder()
    return lambda start, stop: checked(encoder, texts.take(range(start, stop)))


def fill(
    directory: str,
    about: dict,
    start: Callable[[], Make],
    what: str,
    workers: Workers = HERE,
) -> ShardedVectors:
    """Creates the missing shards.

    Args:
        directory: the directory of the shards, created if missing.
        about: the description of the vectors: `shape` [n, dim], `shard_rows`, and all
            facts that the vectors depend on.
        start: returns, once in each process, a function that computes the rows
            [start, stop), float32 [rows, dim].
        what: the description of the progress bar.
        workers: the processes that compute.

    Raises:
        UserError: the directory holds other vectors, or a shard is damaged.
    """
    there = storage.read_about(directory)
    changed = "" if there is None else _refuse_others(directory, there, about)
    # Only a run that was stopped before its first shard leaves a description alone.
    if there is None or changed:
        os.makedirs(directory, exist_ok=True)
        storage.write_about(directory, about)
    filled = ShardedVectors(directory)
    missing = filled.missing()
    task = functools.partial(_filling, filled, start)
    workers.run(task, missing, what, len(filled), filled.count(missing))
    return filled


def _refuse_others(directory: str, there: dict, about: dict) -> str:
    """Refuses shards of another description.

    Returns:
        The difference of the descriptions, where the directory has no shard.
    """
    changed = identity.difference(there, about)
    if changed and any(name.endswith(".npy") for name in os.listdir(directory)):
        raise UserError(
            f"{directory} holds vectors of another run ({changed}): name another "
            "directory, or delete this one"
        )
    return changed


def _filling(vectors: ShardedVectors, start: Callable[[], Make]) -> Task:
    make = start()

    def fill_shard(shard: int, report: Callable[[int], object]) -> None:
        first, stop = vectors.rows_of(shard)
        parts = []
        # Calls of the model do not depend on the process, so neither do the vectors.
        for low in range(first, stop, _AT_ONCE):
            parts.append(make(low, min(low + _AT_ONCE, stop)))
            report(len(parts[-1]))
        rows = arrays.rounded(np.concatenate(parts), vectors.dtype)
        storage.save(vectors.path(shard), rows)

    return fill_shard


def checked(encoder: DescribedEncoder, sentences: list[str]) -> np.ndarray:
    """Encodes sentences to unit vectors, float32 [n, dim], and checks the result.

    Raises:
        UserError: the encoder returns a wrong shape or a non-finite number.
    """
    # The encoder's own scaling could hide non-finite numbers, so the rows are scaled
    # here.
    rows = encoder.encode(sentences, progress=False)
    rows = arrays.checked(rows, sentences, name_of(encoder), encoder.dim)
    return arrays.unit_length(rows)
