"""Nearest neighbours with FAISS: exact, in cells, or among compressed vectors.

    flat    every query with every row: exact
    ivf     rows lie in cells, and a query looks into the cells nearest to it
    pq      the same, with rows of half a byte for four numbers in memory; the best of
            them are compared anew with their vectors on disk

All of them see a block of queries at a time, and read the pool from disk. Cosines are
exact in all, what `ivf` and `pq` lose are neighbours. Of `ivf` a cell is compared with
all queries that look into it in one matrix product, which on a CPU is several times
faster than query by query, as FAISS' own index goes.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import faiss
import numpy as np

from cmlm.common import files
from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.vectors import Vectors

KINDS = ("flat", "ivf", "pq")
# Beyond this many cosines `flat` takes minutes on a few cores.
_FLAT_COSINES = 10**10
_ROWS_PER_CELL = 32
_ITERATIONS = 10
_SEED = 20
_PQ_SAMPLE = 16_384
_PQ_BITS = 4
# Candidates for each neighbour that is asked for, to be compared anew.
_PQ_CANDIDATES = 8
_ROWS_AT_ONCE = 16_384


def choose(rows: Sequence[int], dim: int, memory: int) -> str:
    """The kind of index for a search both ways.

    Args:
        rows: of the two sides.
        dim: of the vectors.
        memory: bytes to use.
    """
    if rows[0] * rows[1] <= _FLAT_COSINES:
        return "flat"
    # A cell is read once for a block of queries: with many blocks codes are better.
    return "ivf" if 4 * dim * max(rows) <= 2 * memory else "pq"


class Index(abc.ABC):
    """A pool that can be searched.

    Args:
        pool: unit vectors.
        memory: bytes to use.
    """

    def __init__(self, pool: Vectors, memory: int):
        self._pool = pool
        self._memory = memory

    @abc.abstractmethod
    def query_bytes(self, k: int) -> int:
        """Memory that one query takes while it is searched."""

    @abc.abstractmethod
    def search(
        self, queries: Vectors, start: int, stop: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest rows of the pool for queries from `start` to before `stop`.

        Returns:
            Cosines float32 [stop - start, k], the largest first, of equal ones the
            first row; rows int64 of the same shape, -1 (and -inf) where fewer than k
            were found.
        """


class Flat(Index):
    """Exact, a part of the pool at a time."""

    def query_bytes(self, k: int) -> int:
        return 4 * self._pool.dim + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        found = faiss.ResultHeap(len(block), k, keep_max=True)
        size = max(self._memory // 4 // (4 * self._pool.dim), _ROWS_AT_ONCE)
        for first in range(0, len(self._pool), size):
            part = self._pool.read(first, first + size)
            cosines, rows = _knn(block, part, min(k, len(part)))
            found.add_result(cosines, rows + first)
        found.finalize()
        return _in_order(found.D, found.I)


class Cells:
    """Where vectors lie: centres of spherical k-means, and each row's nearest ones.

    Both sides of a search are in the same cells.

    Args:
        sides: what is to be parted, a sample of it trains the centres.
        directory: for the centres.
        cells: how many; 0 takes four times the root of the longer side.
        probes: cells that a query looks into.
        memory: bytes to use.
    """

    def __init__(
        self,
        sides: Sequence[Vectors],
        directory: str,
        cells: int,
        probes: int,
        memory: int,
    ):
        self._memory = memory
        total = sum(map(len, sides))
        if cells > total:
            raise UserError(f"--cells={cells}; allowed: up to {total}, the sentences")
        cells = cells or min(int(4 * max(map(len, sides)) ** 0.5), -(-total // 8))
        self.probes = min(probes, cells)
        path = os.path.join(directory, "centres.npy")
        if not os.path.exists(path):
            storage.save(path, self._train(sides, cells))
        self.centres = np.array(storage.load(path))

    def _train(self, sides: Sequence[Vectors], cells: int) -> np.ndarray:
        dim, total = sides[0].dim, sum(map(len, sides))
        room = max(self._memory // 3 // (4 * dim), cells)
        size = min(_ROWS_PER_CELL * cells, room, total)
        sample = np.concatenate(
            [_spread(side, size * len(side) // total) for side in sides]
        )
        cells = min(cells, len(sample))
        means = faiss.Kmeans(
            dim,
            cells,
            niter=_ITERATIONS,
            seed=_SEED,
            spherical=True,
            min_points_per_centroid=1,
            max_points_per_centroid=len(sample),
        )
        means.train(sample)
        return means.centroids

    def nearest(self, side: Vectors, directory: str) -> np.ndarray:
        """The cells nearest to each row, the first of all first: int32 [n, probes]."""
        path = os.path.join(directory, "cells.npy")
        if os.path.exists(path):
            return storage.load(path)
        with files.atomic_file(path) as temporary:
            cells = storage.new_map(temporary, "<i4", (len(side), self.probes))
            with storage.bar(len(side), "finding cells", "vectors") as bar:
                for start in range(0, len(side), _ROWS_AT_ONCE):
                    block = side.read(start, start + _ROWS_AT_ONCE)
                    cells[start : start + len(block)] = _knn(
                        block, self.centres, self.probes
                    )[1]
                    bar.update(len(block))
            cells.flush()
        return storage.load(path)


class Ivf(Index):
    """Rows sorted by cell, in a file.

    Args:
        pool: see `Index`.
        pool_cells: int32 [rows of the pool, probes].
        query_cells: int32 [queries, probes].
        cells: how many there are.
        directory: for the file.
        memory: see `Index`.
    """

    def __init__(
        self,
        pool: Vectors,
        pool_cells: np.ndarray,
        query_cells: np.ndarray,
        cells: int,
        directory: str,
        memory: int,
    ):
        super().__init__(pool, memory)
        self._query_cells = query_cells
        own = np.array(pool_cells[:, 0])
        self._rows = np.argsort(own, kind="stable")
        self._limits = np.searchsorted(own[self._rows], np.arange(cells + 1))
        self._path = os.path.join(directory, "cells.f32")
        if not os.path.exists(self._path):
            self._write()

    def _write(self) -> None:
        size = max(self._memory // 4 // (4 * self._pool.dim), _ROWS_AT_ONCE)
        with (
            files.atomic_file(self._path) as temporary,
            open(temporary, "wb") as file,
            storage.bar(len(self._rows), "sorting by cell", "vectors") as bar,
        ):
            for start in range(0, len(self._rows), size):
                rows = self._rows[start : start + size]
                file.write(self._pool.take(rows).data.cast("B"))
                bar.update(len(rows))

    def query_bytes(self, k: int) -> int:
        probes = self._query_cells.shape[1]
        # Its vector, its cells as they are and sorted, its neighbours; a cell's queries
        # are a copy, few beside the block.
        return 6 * self._pool.dim + 12 * probes + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        sorted_cells = np.array(self._query_cells[start:stop])
        cells = len(self._limits) - 1
        limits = faiss.matrix_bucket_sort_inplace(sorted_cells, nbucket=cells)
        by_cell = sorted_cells.ravel()  # Queries now, cell by cell.
        dim = self._pool.dim

        def look_into(cell: int):
            low, high = (int(limit) for limit in self._limits[cell : cell + 2])
            asking = by_cell[limits[cell] : limits[cell + 1]].astype(np.int64)
            if low == high or not len(asking):
                return None
            rows = np.fromfile(
                self._path, "<f4", (high - low) * dim, offset=4 * low * dim
            )
            cosines, places = _knn(
                block[asking], rows.reshape(-1, dim), min(k, high - low)
            )
            return asking, cosines, self._rows[low:high][places]

        found = faiss.ResultHeap(len(block), k, keep_max=True)
        for result in filter(None, _in_parallel(look_into, range(cells))):
            found.add_result_subset(*result)
        found.finalize()
        return _in_order(found.D, found.I)


class Pq(Index):
    """Codes of four bits for four numbers, in cells; the best of them looked at anew.

    Args:
        pool: see `Index`.
        cells: the cells.
        directory: for the index.
        memory: see `Index`.

    Raises:
        UserError: the codes do not fit into the memory, or the pool is too small to
            learn them.
    """

    def __init__(self, pool: Vectors, cells: Cells, directory: str, memory: int):
        super().__init__(pool, memory)
        if len(pool) < 2**_PQ_BITS:
            raise UserError(
                f"--index=pq needs {2**_PQ_BITS} sentences or more, there are "
                f"{len(pool)}: use --index=flat"
            )
        parts = pool.dim // 4 or 1
        parts = next(count for count in range(parts, 0, -1) if pool.dim % count == 0)
        # A code, and eight bytes for its row.
        needed = len(pool) * (parts * _PQ_BITS / 8 + 8)
        if needed > memory:
            raise UserError(
                f"the codes of {len(pool):,} sentences take {needed / 2**30:.1f} GB, "
                "more than --max_memory_gb leaves"
            )
        path = os.path.join(directory, "index.faiss")
        if not os.path.exists(path):
            self._write(self._build(cells, parts), path)
        self._index = faiss.read_index(path)
        self._index.nprobe = cells.probes

    @staticmethod
    def _write(index: faiss.Index, path: str) -> None:
        with files.atomic_file(path) as temporary:
            try:
                faiss.write_index(index, temporary)
            except RuntimeError as error:
                raise UserError(f"cannot write {path}: {error}") from error

    def _build(self, cells: Cells, parts: int) -> faiss.IndexIVFPQFastScan:
        pool = self._pool
        quantizer = faiss.IndexFlatIP(pool.dim)
        quantizer.add(cells.centres)
        index = faiss.IndexIVFPQFastScan(
            quantizer,
            pool.dim,
            len(cells.centres),
            parts,
            _PQ_BITS,
            faiss.METRIC_INNER_PRODUCT,
        )
        # Of a vector, not of its distance from the centre: with inner products that
        # needs no table for each pair of query and cell.
        index.by_residual = False
        index.pq.cp.min_points_per_centroid = 1
        index.train(_spread(pool, min(_PQ_SAMPLE, len(pool))))
        with storage.bar(len(pool), "compressing", "vectors") as bar:
            for start in range(0, len(pool), _ROWS_AT_ONCE):
                block = pool.read(start, start + _ROWS_AT_ONCE)
                index.add(block)
                bar.update(len(block))
        return index

    def query_bytes(self, k: int) -> int:
        # What is compared anew is taken in parts.
        return 4 * self._pool.dim + 12 * _PQ_CANDIDATES * k + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        count = min(_PQ_CANDIDATES * k, len(self._pool))
        _, candidates = self._index.search(block, count)
        cosines = np.full(candidates.shape, -np.inf, np.float32)
        size = max(self._memory // 8 // (4 * count * self._pool.dim), 1)
        for first in range(0, len(block), size):
            part = slice(first, first + size)
            which, column = np.nonzero(candidates[part] >= 0)
            rows = self._pool.take(candidates[part][which, column])
            products = np.einsum("nd,nd->n", block[part][which], rows)
            cosines[part][which, column] = products
        cosines, rows = _in_order(cosines, candidates)
        return cosines[:, :k], rows[:, :k]


def _in_parallel(function: Callable, items: Iterable) -> Iterator:
    """Yields a function's results in the order of the items.

    A thread for each item: threads within one would wait for each other at every small
    step. Results do not pile up where the reader is slow.
    """
    threads = faiss.omp_get_max_threads()
    with concurrent.futures.ThreadPoolExecutor(
        threads, initializer=lambda: faiss.omp_set_num_threads(1)
    ) as pool:
        waiting = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _knn(queries: np.ndarray, pool: np.ndarray, k: int):
    return faiss.knn(queries, pool, int(k), metric=faiss.METRIC_INNER_PRODUCT)


def _spread(side: Vectors, count: int) -> np.ndarray:
    """Rows at equal distances."""
    return side.take(np.arange(count) * len(side) // max(count, 1))


def _in_order(cosines: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts neighbours by cosine, equal ones by row; missing ones are -inf."""
    cosines = np.where(rows < 0, np.float32(-np.inf), cosines)
    order = np.lexsort((rows, -cosines), axis=1)
    return np.take_along_axis(cosines, order, 1), np.take_along_axis(rows, order, 1)
