"""Cells of spherical k-means, and the index that searches only the nearest cells."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import faiss
import numpy as np

from cmlm.common import atomic, progress
from cmlm.errors import UserError
from cmlm.mining import index, storage
from cmlm.mining.vectors import ShardedVectors

_ROWS_PER_CELL = 32
_ITERATIONS = 10
_SEED = 20


def check_number(cells: int, sentences: int) -> None:
    """Raises UserError if there are more cells than sentences of both sides."""
    if cells > sentences:
        raise UserError(
            f"--cells is {cells}; allowed: up to {sentences}, the number of sentences"
        )


class Cells:
    """The cells that both sides of a search share: centres of spherical k-means.

    Args:
        sides: the vectors of both sides; a sample of them trains the centres.
        directory: the directory for the file of centres.
        settings: the settings of the search. If they leave the number of cells open, it
            is four times the square root of the longer side's length, but at most an
            eighth of all vectors, and so few that the probed cells hold at least
            `index.PROBED_ROWS` vectors of the shorter side.
    """

    def __init__(
        self,
        sides: Sequence[ShardedVectors],
        directory: str,
        settings: index.SearchSettings,
    ):
        self._memory, probes = settings.memory, settings.probes
        total = sum(map(len, sides))
        check_number(settings.cells, total)
        shorter, longer = sorted(map(len, sides))
        # With as many cells as probes, the search is exact.
        most = max(probes * shorter // index.PROBED_ROWS, probes)
        cells = settings.cells or min(int(4 * longer**0.5), -(-total // 8), most)
        path = os.path.join(directory, "centres.npy")
        if not storage.is_whole(path, directory):
            storage.save(path, self._train(sides, cells))
        self.centres = np.array(storage.load(path, directory))
        # The training may lower the number of cells.
        self.probes = min(probes, len(self.centres))

    def _train(self, sides: Sequence[ShardedVectors], cells: int) -> np.ndarray:
        dim, total = sides[0].dim, sum(map(len, sides))
        room = max(self._memory // 3 // (4 * dim), cells)
        size = min(_ROWS_PER_CELL * cells, room, total)
        sample = np.concatenate(
            [index.spread(side, size * len(side) // total) for side in sides]
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

    def nearest(self, side: ShardedVectors, directory: str) -> np.ndarray:
        """Returns the nearest cells of each row, nearest first: int32 [n, probes].

        Args:
            side: the vectors.
            directory: the directory for the result, which a later call reads.
        """
        path = os.path.join(directory, "cells.npy")
        if storage.is_whole(path):
            return storage.load(path)
        with atomic.file(path) as temporary:
            cells = storage.new_map(temporary, "<i4", (len(side), self.probes))
            with progress.bar(len(side), "finding cells", "vectors") as bar:
                for start in range(0, len(side), index.ROWS_AT_ONCE):
                    block = side.read(start, start + index.ROWS_AT_ONCE)
                    cells[start : start + len(block)] = index.knn(
                        block, self.centres, self.probes
                    )[1]
                    bar.update(len(block))
            cells.flush()
        storage.seal(path)
        return storage.load(path)


class Ivf(index.Index):
    """The `ivf` index: a file with the rows of the pool, sorted by cell.

    Args:
        pool: see `index.Index`.
        pool_cells: int32 [rows of the pool, probes], from `Cells.nearest`.
        query_cells: int32 [queries, probes], from `Cells.nearest`.
        cells: the number of cells.
        directory: the directory for the file.
        memory: see `index.Index`.
    """

    def __init__(
        self,
        pool: ShardedVectors,
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
        if not storage.is_whole(self._path):
            self._write()

    def _write(self) -> None:
        size = max(self._memory // 4 // (4 * self._pool.dim), index.ROWS_AT_ONCE)
        with (
            atomic.file(self._path) as temporary,
            open(temporary, "wb") as file,
            progress.bar(len(self._rows), "sorting by cell", "vectors") as bar,
        ):
            for start in range(0, len(self._rows), size):
                rows = self._rows[start : start + size]
                file.write(self._pool.take(rows).data.cast("B"))
                bar.update(len(rows))
        storage.seal(self._path)

    def query_bytes(self, k: int) -> int:
        probes = self._query_cells.shape[1]
        # The part of the queries that each thread copies for its cell.
        copied = faiss.omp_get_max_threads() * probes / (len(self._limits) - 1)
        # A query's vector with room for copies, its cells before and after sorting, and
        # its neighbours.
        vectors = int(4 * self._pool.dim * (1 + max(copied, 0.5)))
        return vectors + 12 * probes + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        sorted_cells = np.array(self._query_cells[start:stop])
        cells = len(self._limits) - 1
        limits = faiss.matrix_bucket_sort_inplace(sorted_cells, nbucket=cells)
        by_cell = sorted_cells.ravel()  # The queries' numbers, cell by cell.
        dim = self._pool.dim
        # With few cells, a cell of a long pool is too large for each thread.
        at_once = self._memory // 4 // (4 * dim) // faiss.omp_get_max_threads()
        # FAISS computes blocks of 1,024 rows. With whole blocks, the cosines have the
        # same bits for any number of threads.
        at_once = max(at_once // 1024 * 1024, index.ROWS_AT_ONCE)

        def search_part(cell: int, low: int, high: int):
            asking = by_cell[limits[cell] : limits[cell + 1]].astype(np.int64)
            if not len(asking):
                return None
            rows = np.fromfile(
                self._path, "<f4", (high - low) * dim, offset=4 * low * dim
            )
            cosines, places = index.knn(
                block[asking], rows.reshape(-1, dim), min(k, high - low)
            )
            return asking, cosines, self._rows[low:high][places]

        parts = (
            (cell, low, min(low + at_once, high))
            for cell, (low, high) in enumerate(
                itertools.pairwise(self._limits.tolist())
            )
            for low in range(low, high, at_once)
        )
        found = faiss.ResultHeap(len(block), k, keep_max=True)
        for result in filter(None, _in_parallel(search_part, parts)):
            found.add_result_subset(*result)
        found.finalize()
        return index.in_order(found.D, found.I)


def _in_parallel(function: Callable, items: Iterable) -> Iterator:
    """Yields the results of a function in the order of the items, its arguments.

    Each item gets one thread: several threads for one item would wait for each other at
    every small step. A bounded queue limits the number of results in memory.
    """
    threads = faiss.omp_get_max_threads()
    with concurrent.futures.ThreadPoolExecutor(
        threads, initializer=lambda: faiss.omp_set_num_threads(1)
    ) as pool:
        waiting = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, *item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
