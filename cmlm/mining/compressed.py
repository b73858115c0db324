"""The index of cells with compressed vectors (product quantisation)."""

from __future__ import annotations

import math
import os

import faiss
import numpy as np

from cmlm.common import atomic, progress
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.mining import index, storage
from cmlm.mining.cells import Cells
from cmlm.mining.vectors import ShardedVectors

_SAMPLE = 16_384
_BITS = 4
# Candidates for each neighbour; their cosines are computed exactly.
_CANDIDATES = 8


class Pq(index.Index):
    """The `pq` index: cells of codes, with four bits for about four numbers.

    The cosines of the best candidates are computed again from their vectors.

    Args:
        pool: see `index.Index`.
        cells: the cells.
        directory: the directory for the file of the index.
        memory: see `index.Index`.

    Raises:
        UserError: the codes do not fit into memory, or the pool is too small to learn
            codes from.
    """

    def __init__(self, pool: ShardedVectors, cells: Cells, directory: str, memory: int):
        super().__init__(pool, memory)
        if len(pool) < 2**_BITS:
            raise UserError(
                "--index is pq; allowed: flat or ivf, because the pool has "
                f"{counted(len(pool), 'sentence')} and pq needs {2**_BITS}"
            )
        parts = pool.dim // 4 or 1
        parts = next(count for count in range(parts, 0, -1) if pool.dim % count == 0)
        # A code, and eight bytes for its row number.
        needed = len(pool) * (parts * _BITS / 8 + 8)
        if needed > memory:
            raise UserError(
                f"--max_memory_gb is too small for the codes of {len(pool):,} "
                f"sentences, {needed / 2**30:.1f} GB; allowed: at least "
                f"{math.ceil(needed / 2**30 * 10 + 10) / 10:.1f}, as 1 GB is for the "
                "program"
            )
        path = os.path.join(directory, "index.faiss")
        if not storage.is_whole(path):
            self._write(self._build(cells, parts), path)
        self._index = faiss.read_index(path)
        self._index.nprobe = cells.probes

    @staticmethod
    def _write(codes: faiss.Index, path: str) -> None:
        with atomic.file(path) as temporary:
            try:
                faiss.write_index(codes, temporary)
            except RuntimeError as error:
                raise UserError(f"cannot write {path}: {error}") from error
        storage.seal(path)

    def _build(self, cells: Cells, parts: int) -> faiss.IndexIVFPQFastScan:
        pool = self._pool
        quantizer = faiss.IndexFlatIP(pool.dim)
        quantizer.add(cells.centres)
        codes = faiss.IndexIVFPQFastScan(
            quantizer,
            pool.dim,
            len(cells.centres),
            parts,
            _BITS,
            faiss.METRIC_INNER_PRODUCT,
        )
        # The codes describe the vector itself, not its difference from the centre, so
        # inner products need no table for each pair of query and cell.
        codes.by_residual = False
        codes.pq.cp.min_points_per_centroid = 1
        codes.train(index.spread(pool, min(_SAMPLE, len(pool))))
        with progress.bar(len(pool), "compressing", "vectors") as bar:
            for start in range(0, len(pool), index.ROWS_AT_ONCE):
                block = pool.read(start, start + index.ROWS_AT_ONCE)
                codes.add(block)
                bar.update(len(block))
        return codes

    def query_bytes(self, k: int) -> int:
        # The exact comparison runs in parts within its own limit and is not counted.
        return 4 * self._pool.dim + 12 * _CANDIDATES * k + 24 * k

    def search(self, queries, start, stop, k):
        block = queries.read(start, stop)
        count = min(_CANDIDATES * k, len(self._pool))
        _, candidates = self._index.search(block, count)
        cosines = np.full(candidates.shape, -np.inf, np.float32)
        size = max(self._memory // 8 // (4 * count * self._pool.dim), 1)
        for first in range(0, len(block), size):
            part = slice(first, first + size)
            which, column = np.nonzero(candidates[part] >= 0)
            rows = self._pool.take(candidates[part][which, column])
            products = np.einsum("nd,nd->n", block[part][which], rows)
            cosines[part][which, column] = products
        cosines, rows = index.in_order(cosines, candidates)
        return cosines[:, :k], rows[:, :k]
