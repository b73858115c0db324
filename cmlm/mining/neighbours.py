"""Finds the nearest neighbours of one text in another text, in blocks on disk."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cmlm.common import json_files
from cmlm.common.numbered_tasks import HERE, Workers
from cmlm.common.protocols import Task
from cmlm.errors import UserError, advised
from cmlm.mining import cells as cells_lib
from cmlm.mining import compressed, storage
from cmlm.mining import index as index_lib
from cmlm.mining.index import SearchSettings
from cmlm.mining.texts import Texts
from cmlm.mining.vectors import ShardedVectors

OTHER = {"source": "target", "target": "source"}
_ENTRY = np.dtype([("cosine", "<f4"), ("row", "<i8")])
# Enough queries for each cell that a block reads, and blocks enough for some workers.
_LONGEST_BLOCK = 1 << 17


def check_size(side: str, rows: int, k: int) -> None:
    """Raises UserError if a side is too small for a search of k neighbours."""
    if k > rows:
        raise UserError(
            f"--neighbours is {k}; allowed: at most {rows}, the distinct sentences of "
            f"the {side} side"
        )


class Means(NamedTuple):
    """The mean cosine of each query with its k neighbours.

    Attributes:
        known: the sum of the found neighbours' cosines, divided by k: float64 [n].
        missing: the share of the k neighbours that the search missed, float32 [n].
    """

    known: np.ndarray
    missing: np.ndarray

    def beside(self, queries: np.ndarray, cosines: np.ndarray) -> np.ndarray:
        """Returns the means of queries for the scores of their pairs.

        A missing neighbour counts as near as the other sentence of the pair. So a
        query without found neighbours has no small mean and no large margin.

        Args:
            queries: the queries, int64 [n, k] or [n, 1].
            cosines: the cosines of their pairs, [n, k].

        Returns:
            float64 [n, k].
        """
        return self.known[queries] + self.missing[queries] * cosines


class NeighbourFiles(storage.RowFiles):
    """The neighbours of all queries in blocks on disk, a row for each query.

    Attributes:
        copies: the number of equal texts that `blocks` left out, see `leave_out_equal`.
    """

    def __init__(self, directory: str, rows: int, file_rows: int):
        super().__init__(directory, rows, file_rows)
        self._texts: tuple[Texts, Texts] | None = None
        self.copies = 0

    def leave_out_equal(self, queries: Texts, pool: Texts) -> None:
        """Makes neighbours with the text of their query missing neighbours."""
        self._texts = queries, pool

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields (first query, cosines float32 [b, k], rows int64 [b, k]).

        Missing neighbours have the cosine -inf and the row -1.
        """
        self.copies = 0
        for number, start in enumerate(range(0, len(self), self._file_rows)):
            entries = storage.load(self.path(number))
            cosines, rows = np.array(entries["cosine"]), np.array(entries["row"])
            if self._texts:
                queries, pool = self._texts
                own = np.arange(start, start + len(rows))
                equal = queries.equal(own, pool, rows)
                cosines[equal], rows[equal] = -np.inf, -1
                self.copies += int(equal.sum())
            yield start, cosines, rows

    def means(self) -> Means:
        """Returns the mean cosine of each query with its neighbours."""
        known, missing = np.empty(len(self)), np.empty(len(self), np.float32)
        for start, cosines, rows in self.blocks():
            own, there = slice(start, start + len(rows)), rows >= 0
            total = np.where(there, cosines, 0).sum(axis=1, dtype=np.float64)
            known[own] = total / rows.shape[1]
            missing[own] = 1 - there.mean(axis=1)
        return Means(known, missing)


class Searcher:
    """Searches each of two sides in the other side; both directions share the cells.

    Args:
        source, target: unit vectors of the two sides.
        directory: the directory for indexes and results. Results of other settings are
            deleted.
        settings: the settings of the search.
        workers: the processes that search; each has the memory of `settings`.
    """

    def __init__(
        self,
        source: ShardedVectors,
        target: ShardedVectors,
        directory: str,
        settings: SearchSettings,
        workers: Workers = HERE,
    ):
        self._workers = workers
        self._sides = {"source": source, "target": target}
        self._directory = directory
        self._settings = settings
        rows = (len(source), len(target))
        self.kind = settings.kind
        if self.kind == "auto":
            self.kind = index_lib.choose(rows, source.dim, settings.memory)
        about = {
            "kind": self.kind,
            "cells": settings.cells,
            "probes": settings.probes,
            "vectors": [side.about for side in self._sides.values()],
        }
        if storage.read_about(directory) != about:
            shutil.rmtree(directory, ignore_errors=True)
            for side in self._sides:
                os.makedirs(os.path.join(directory, side))
            storage.write_about(directory, about)
        self._cells: cells_lib.Cells | None = None

    def find(self, side: str, k: int) -> NeighbourFiles:
        """Finds the k nearest rows of the other side for each row of one side.

        Args:
            side: `source` or `target`, the side of the queries.
            k: the number of neighbours.

        Raises:
            UserError: the other side has fewer than k rows.
        """
        queries = self._sides[side]
        check_size(OTHER[side], len(self._sides[OTHER[side]]), k)
        # The index is opened only if a block is missing.
        index = None
        directory = os.path.join(self._directory, f"{side}-{k}")
        about = storage.read_about(directory)
        if about is None:
            index = self._open(side)
            room = self._settings.memory // 2 // index.query_bytes(k)
            about = {"block_rows": int(np.clip(room, 1024, _LONGEST_BLOCK))}
            os.makedirs(directory, exist_ok=True)
            storage.write_about(directory, about)
        path = storage.about_path(directory)
        with advised(f"delete {directory}"):
            size = json_files.field(about, "block_rows", int, path, at_least=1)
        found = NeighbourFiles(directory, len(queries), size)
        missing = found.missing()
        if missing and index is None:
            index = self._open(side)
        if self._workers.are_here:
            start = functools.partial(_searching, lambda: index, queries, found, k)
        else:
            # The files of the index are there now: each process opens them.
            index = None
            given = (*self._sides.values(), self._directory, self._settings)
            reopen = functools.partial(_reopen, *given, side)
            start = functools.partial(_searching, reopen, queries, found, k)
        what = f"neighbours of the {side}, {self.kind}"
        left = found.count(missing)
        self._workers.run(start, missing, what, len(queries), left)
        return found

    def _open(self, side: str) -> index_lib.Index:
        """Opens the index of the rows that the queries of a side search."""
        settings, other = self._settings, OTHER[side]
        pool = self._sides[other]
        if self.kind == "flat":
            return index_lib.Flat(pool, settings.memory)
        if self._cells is None:
            sides = list(self._sides.values())
            self._cells = cells_lib.Cells(sides, self._directory, settings)
        own = {name: os.path.join(self._directory, name) for name in self._sides}
        if self.kind == "pq":
            return compressed.Pq(pool, self._cells, own[other], settings.memory)
        nearest = {
            name: self._cells.nearest(vectors, own[name])
            for name, vectors in self._sides.items()
        }
        return cells_lib.Ivf(
            pool,
            nearest[other],
            nearest[side],
            len(self._cells.centres),
            own[other],
            settings.memory,
        )


def _reopen(
    source: ShardedVectors,
    target: ShardedVectors,
    directory: str,
    settings: SearchSettings,
    side: str,
) -> index_lib.Index:
    return Searcher(source, target, directory, settings)._open(side)


def _searching(
    open_index: Callable[[], index_lib.Index],
    queries: ShardedVectors,
    found: NeighbourFiles,
    k: int,
) -> Task:
    index = open_index()

    def search_block(number: int, report: Callable[[int], object]) -> None:
        start, stop = found.rows_of(number)
        cosines, rows = index.search(queries, start, stop, k)
        entries = np.empty(rows.shape, _ENTRY)
        entries["cosine"], entries["row"] = cosines, rows
        storage.save(found.path(number), entries)
        report(stop - start)

    return search_block
