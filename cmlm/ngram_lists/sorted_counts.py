"""A dictionary of numbers that may be larger than memory."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from cmlm.common import atomic, scratch

# Runs of a level on disk at a time; at this number, they become one run of the next
# level. So an entry is written once for each level.
_MAX_RUNS = 64


class SortedCounts:
    """A dictionary with sorted runs on disk; use it in a `with` statement.

    Args:
        combine: joins two values of one key, for example as their sum; associative.
        max_entries: most keys in memory; at this number they move to disk as a sorted
            run.
    """

    def __init__(self, combine: Callable[[float, float], float], max_entries: int):
        self._combine = combine
        self._max_entries = max_entries
        self._entries: dict[str, float] = {}
        self._levels: list[list[str]] = []
        self._number = itertools.count()

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._directory = self._stack.enter_context(scratch.directory())
        return self

    def __exit__(self, *error):
        self._stack.close()

    def update(self, values: Iterable[tuple[str, float]]) -> None:
        """Adds values; a key must not contain a tab or a line feed."""
        entries = self._entries
        for key, value in values:
            before = entries.get(key)
            entries[key] = value if before is None else self._combine(before, value)
            if len(entries) >= self._max_entries:
                self._spill()

    def items(self) -> Iterator[tuple[str, float]]:
        """Yields the keys in sorted order, each once, with their values."""
        runs = [self._read(run) for run in itertools.chain(*self._levels)]
        if self._entries:
            runs.append(iter(sorted(self._entries.items())))
        return self._merge(runs)

    def settle(self) -> None:
        """Merges everything into one run on disk, for repeated reading."""
        if self._levels:
            self._spill()
            self._levels = [[self._join([*itertools.chain(*self._levels)])]]

    def _spill(self) -> None:
        run = self._write(sorted(self._entries.items()))
        self._entries.clear()
        for level in itertools.count():
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(run)
            if len(self._levels[level]) < _MAX_RUNS:
                return
            run = self._join(self._levels[level])
            self._levels[level] = []

    def _join(self, runs: list[str]) -> str:
        """Merges runs into a new one, and removes them."""
        joined = self._write(self._merge(map(self._read, runs)))
        for run in runs:
            os.remove(run)
        return joined

    def _merge(self, runs) -> Iterator[tuple[str, float]]:
        runs = list(runs)
        if len(runs) == 1:
            yield from runs[0]
            return
        merged = heapq.merge(*runs, key=lambda entry: entry[0])
        for key, entries in itertools.groupby(merged, key=lambda entry: entry[0]):
            yield key, functools.reduce(self._combine, (value for _, value in entries))

    def _write(self, entries) -> str:
        path = os.path.join(self._directory, f"{next(self._number)}.tsv")
        with (
            atomic.naming(path),
            open(path, "w", encoding="utf-8", newline="\n") as file,
        ):
            # repr writes a float without loss.
            file.writelines(f"{key}\t{value!r}\n" for key, value in entries)
        return path

    @staticmethod
    def _read(path: str) -> Iterator[tuple[str, float]]:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                key, _, value = line.rstrip("\n").rpartition("\t")
                yield key, float(value) if "." in value or "e" in value else int(value)
