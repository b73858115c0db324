"""A dictionary of numbers that may be larger than memory."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import sqlite3
from collections.abc import Iterable, Iterator

from cmlm.common import scratch

# SQLite runs this many of its instructions between two looks at Ctrl-C.
_INSTRUCTIONS = 100_000


class SortedCounts:
    """A dictionary whose entries move to an SQLite table; use it in a `with` statement.

    Args:
        joined: the function that makes one value of several for one key: sum or max.
        max_entries: most keys in memory; at this number they move to disk.
    """

    def __init__(self, joined: str, max_entries: int):
        self._combine = {"sum": operator.add, "max": max}[joined]
        self._max_entries = max_entries
        self._entries: dict[str, float] = {}
        self._joined = f"SELECT key, {joined}(value) FROM counts GROUP BY key"

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        directory = self._stack.enter_context(scratch.directory())
        self._path = os.path.join(directory, "counts.sqlite")
        self._disk = sqlite3.connect(self._path, isolation_level=None)
        self._stack.callback(self._disk.close)
        self._disk.set_progress_handler(lambda: None, _INSTRUCTIONS)
        # The file goes with this process, so it needs no protection.
        self._run(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; "
            "CREATE TABLE counts (key TEXT, value)"
        )
        return self

    def __exit__(self, *error):
        self._stack.close()

    def update(self, values: Iterable[tuple[str, float]]) -> None:
        """Adds values; none after `settle`."""
        entries = self._entries
        for key, value in values:
            before = entries.get(key)
            entries[key] = value if before is None else self._combine(before, value)
            if len(entries) >= self._max_entries:
                self._spill()

    def items(self) -> Iterator[tuple[str, float]]:
        """Yields the keys in sorted order, each once, with their values."""
        self._spill()
        with self._errors():
            yield from self._disk.execute(f"{self._joined} ORDER BY key")

    def settle(self) -> None:
        """Joins the values of each key on disk, for repeated reading."""
        self._spill()
        self._run(
            "CREATE TABLE settled (key TEXT PRIMARY KEY, value) WITHOUT ROWID; "
            f"INSERT INTO settled {self._joined} ORDER BY key; "
            "DROP TABLE counts; ALTER TABLE settled RENAME TO counts"
        )

    def _spill(self) -> None:
        with self._errors():
            self._disk.execute("BEGIN")
            entries = self._entries.items()
            self._disk.executemany("INSERT INTO counts VALUES (?, ?)", entries)
            self._disk.execute("COMMIT")
        self._entries.clear()

    def _run(self, statements: str) -> None:
        with self._errors():
            self._disk.executescript(statements)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises the errors of SQLite as those of the system, and Ctrl-C."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from error
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            number = errno.ENOSPC if is_full else errno.EIO
            raise OSError(number, os.strerror(number), self._path) from error
