"""A teacher's vectors of texts: written once, read from memory-mapped files by batches.

A directory holds the unit vectors of one teacher:

    teacher.json    the identity of the teacher, and the width of its vectors
    vectors         float16 [n, dim], a row for each distinct text
    keys            int64 [n], a hash of each text
    sorted-N.keys   the first N keys in ascending order
    sorted-N.rows   int64 [N], the row of each sorted key
    directions-N    float32 [dim, dim], the principal directions of N vectors
    checksums-N.json  the checksums of all these files when they had N rows
    texts.json      the corpora whose texts are all here, each with its N; by the states
                    of their files, and by their content

Rows are only appended, each vector before its key. A killed run therefore leaves a
usable directory, and several runs may read while another one appends. Vectors that
differ from their checksums are refused, for readers and before rows are appended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, atomic, checksums, identity, json_files, locks
from cmlm.data import streams
from cmlm.errors import UserError, advised

_ABOUT, _VECTORS, _KEYS, _TEXTS = "teacher.json", "vectors", "keys", "texts.json"
# Rows that are read at a time for the principal directions.
_ROWS_AT_ONCE = 65_536


@dataclasses.dataclass(frozen=True)
class TeacherVectors:
    """The vectors that a finished preparation left in a directory.

    Attributes:
        directory: see the module.
        rows: N, the number of vectors.
        dim: the width of a vector.
        basis: the file of the principal directions: those of the N vectors, or those
            that a run has kept.
    """

    directory: str
    rows: int
    dim: int
    basis: str

    def lookup(self, text: tf.Tensor) -> tf.Tensor:
        """Reads the vectors of texts; TensorFlow maps the files for this call only.

        Args:
            text: string [n]; every text must be in the directory.

        Returns:
            float32 [n, dim], of length 1 to within float16.
        """
        names = _computed(self.rows)
        keys = self._map(names.keys, tf.int64, [self.rows])
        rows = self._map(names.rows, tf.int64, [self.rows])
        wanted = streams.hash_of(text)
        place = tf.minimum(tf.searchsorted(keys, wanted), self.rows - 1)
        found = tf.equal(tf.gather(keys, place), wanted)
        message = f"{self.directory} lacks a text: the text changed during the run"
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(found), [message])]
        ):
            row = tf.gather(rows, place)
        vectors = self._map(_VECTORS, tf.float16, [self.rows, self.dim])
        return tf.cast(tf.gather(vectors, row), tf.float32)

    def _map(self, name: str, dtype: tf.DType, shape: list[int]) -> tf.Tensor:
        path = os.path.join(self.directory, name)
        return tf.raw_ops.ImmutableConst(
            dtype=dtype, shape=shape, memory_region_name=path
        )

    def directions(self) -> np.ndarray:
        """Returns the principal directions, the strongest first: float32 [dim, dim].

        The columns are eigenvectors of the mean of v v^T over all vectors v. The
        vectors are not centred, so projections keep inner products as well as possible.
        A run may have turned the first columns, see `cmlm.training.alignment`; it then
        has as many columns as its encoder is wide, if that is more.
        """
        # A model_dir, which may keep them, may be remote.
        with tf.io.gfile.GFile(self.basis, "rb") as file:
            return np.frombuffer(file.read(), "<f4").reshape([self.dim, -1])

    def files(self) -> dict[str, int]:
        """The files that readers open, each with its least number of bytes."""
        names = _computed(self.rows)
        sizes = {
            _VECTORS: 2 * self.rows * self.dim,
            names.keys: 8 * self.rows,
            names.rows: 8 * self.rows,
        }
        found = {
            os.path.join(self.directory, name): size for name, size in sizes.items()
        }
        return found | {self.basis: 4 * self.dim**2}


class Writer:
    """Appends vectors to a directory; `opened` creates it."""

    def __init__(self, directory: str, dim: int):
        self._directory, self._dim = directory, dim
        self._texts = _texts(directory)
        # Damage must not become part of the next checksums.
        _check(directory, max(self._texts.values(), default=0))
        # The stored keys, then those of each batch.
        self._keys = [self._load()]
        self._known = set(self._keys[0].tolist())

    def __contains__(self, key: int) -> bool:
        return key in self._known

    def append(self, keys: list[int], vectors: np.ndarray) -> None:
        """Appends the vectors of new texts.

        Args:
            keys: distinct keys that the directory lacks.
            vectors: float32 [len(keys), dim], unit vectors.
        """
        arrays.append(self._path(_VECTORS), vectors.astype("<f2").tobytes())
        arrays.append(self._path(_KEYS), np.array(keys, "<i8").tobytes())
        self._keys.append(np.array(keys, np.int64))
        self._known.update(keys)

    def finish(self, texts: Iterable[str]) -> TeacherVectors:
        """Sorts the keys, and notes that all texts of a corpus are here.

        Args:
            texts: the identities of the corpus.
        """
        keys = np.concatenate(self._keys)
        rows = len(keys)
        sums = self._path(_checksums(rows))
        if rows not in self._texts.values() or not os.path.exists(sums):
            self._write_computed(keys)
            names = (_KEYS, _VECTORS, *_computed(rows))
            checksums.write(self._directory, names, sums)
        _note(self._directory, texts, rows)
        return _finished(self._directory, rows, self._dim)

    def _write_computed(self, keys: np.ndarray) -> None:
        names, order = _computed(len(keys)), np.argsort(keys, kind="stable")
        for name, values in (
            (names.keys, keys[order].astype("<i8")),
            (names.rows, order.astype("<i8")),
            (names.directions, self._directions(len(keys)).astype("<f4")),
        ):
            with atomic.file(self._path(name)) as temporary:
                values.tofile(temporary)

    def _directions(self, rows: int) -> np.ndarray:
        """Computes `TeacherVectors.directions`."""
        shape = (rows, self._dim)
        vectors = np.memmap(self._path(_VECTORS), "<f2", "r", shape=shape)
        total = np.zeros([self._dim, self._dim])
        for start in range(0, len(vectors), _ROWS_AT_ONCE):
            some = np.array(vectors[start : start + _ROWS_AT_ONCE], np.float32)
            total += some.T @ some
        return np.linalg.eigh(total)[1][:, ::-1]

    def _load(self) -> np.ndarray:
        """Reads the keys of the rows that are complete."""
        arrays.cut_incomplete_rows(
            {self._path(_KEYS): 8, self._path(_VECTORS): 2 * self._dim}
        )
        return np.fromfile(self._path(_KEYS), "<i8").astype(np.int64)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def find(directory: str, model: str, texts: Iterable[str]) -> TeacherVectors | None:
    """Finds the complete vectors of a corpus, without opening the teacher.

    Args:
        directory: see the module.
        model: the name that the teacher was opened by.
        texts: the identities of the corpus, of which one is enough. Those before it
            are noted, so that the next run finds the vectors by the first one.

    Returns:
        None if the directory lacks some of the vectors.

    Raises:
        UserError: the directory is damaged.
    """
    known, about = _texts(directory), _about(directory)
    if not known or not about or about["teacher"]["model"] != model:
        return None
    unknown = []
    for name in texts:
        if name in known:
            break
        unknown.append(name)
    else:
        return None
    rows = known[name]
    _check(directory, rows)
    if unknown:
        # Another run may add vectors, or the directory be read-only.
        with contextlib.suppress(UserError, OSError, tf.errors.OpError):
            with locks.held(directory):
                _note(directory, unknown, rows)
    return _finished(directory, rows, about["dim"])


def _note(directory: str, texts: Iterable[str], rows: int) -> None:
    """Notes that all texts of a corpus are among the first N rows."""
    noted = _texts(directory) | dict.fromkeys(texts, rows)
    json_files.write(os.path.join(directory, _TEXTS), noted)


def _finished(directory: str, rows: int, dim: int) -> TeacherVectors:
    basis = os.path.join(directory, _computed(rows).directions)
    return TeacherVectors(directory, rows, dim, basis)


def _about(directory: str) -> dict:
    """Reads the teacher's identity and the width; empty before a teacher is stored."""
    path = os.path.join(directory, _ABOUT)
    with advised(f"delete {directory}"):
        if found := json_files.optional(path):
            json_files.field(found, "dim", int, path, at_least=1)
            teacher = json_files.field(found, "teacher", dict, path)
            json_files.field(teacher, "model", str, path)
            json_files.field(teacher, "vectors", dict, path)
    return found


def _texts(directory: str) -> dict[str, int]:
    """Reads the corpora that the directory holds, each with its rows."""
    path = os.path.join(directory, _TEXTS)
    with advised(f"delete {directory}"):
        found = json_files.optional(path)
        for name in found:
            json_files.field(found, name, int, path, at_least=0)
    return found


class _Computed(NamedTuple):
    """The names of the files that are computed from the rows."""

    keys: str
    rows: str
    directions: str


def _computed(rows: int) -> _Computed:
    return _Computed(f"sorted-{rows}.keys", f"sorted-{rows}.rows", f"directions-{rows}")


def _checksums(rows: int) -> str:
    return f"checksums-{rows}.json"


def _check(directory: str, rows: int) -> None:
    """Raises UserError if a file differs from the checksum of its first N rows."""
    path = os.path.join(directory, _checksums(rows))
    with advised(f"delete {directory}"):
        checksums.check(directory, path, grows=(_KEYS, _VECTORS))


@contextlib.contextmanager
def opened(directory: str, teacher: dict, dim: int) -> Iterator[Writer]:
    """Opens a directory for a teacher, and creates it if it is missing.

    Args:
        directory: a local directory.
        teacher: values of JSON; `model` is the teacher's name, `vectors` the identity
            of its vectors (see `common.identity`).
        dim: the width of its vectors.

    Raises:
        UserError: the directory belongs to another teacher, is damaged, or another run
            appends to it.
    """
    with locks.held(directory):
        if not _about(directory):
            about = {"teacher": teacher, "dim": dim}
            json_files.write(os.path.join(directory, _ABOUT), about)
        refuse_other(directory, teacher, dim)
        yield Writer(directory, dim)


def teacher_of(directory: str) -> dict:
    """Returns what `opened` got about the teacher; {} before the first one.

    Raises:
        UserError: the directory is damaged.
    """
    _texts(directory)
    return _about(directory).get("teacher", {})


def fingerprint(directory: str) -> str:
    """Returns a hash of the teacher of a directory, the same wherever that lies.

    Length limit and precision hardly change the directions of its vectors.
    """
    vectors = _identity(_about(directory))
    for reading in ("seq_length", "precision"):
        vectors.pop(reading, None)
    return checksums.of_values(vectors, sort_keys=True)


def refuse_other(directory: str, teacher: dict, dim: int) -> None:
    """Raises UserError if a directory holds other vectors than those of a teacher.

    A server or a file may hold another model than when the directory began, and two
    exports of one model may differ in precision or length.

    Args:
        directory, teacher, dim: see `opened`.
    """
    found = _about(directory)
    there, now = map(_identity, (found, {"teacher": teacher, "dim": dim}))
    if difference := identity.difference(there, now):
        raise UserError(
            f"{directory} holds vectors of {found['teacher']['model']} ({difference}); "
            "allowed: another --teacher_cache"
        )


def _identity(about: dict) -> dict:
    """What two openings of one teacher share; its path may differ."""
    return {"dim": about["dim"], **about["teacher"]["vectors"]}
