"""The distinct lines of a text, in memory-mapped files.

The search for distinct lines takes 9 bytes of memory for each line, and the memory
limit.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from cmlm.common import atomic, checksums, files, json_files, progress, utf8
from cmlm.common.numbered_tasks import Workers
from cmlm.errors import UserError, advised
from cmlm.mining import storage

_TEXT = "text.txt"
_OFFSETS = "offsets.npy"
_ROWS = "rows.npy"
# Memory for one key and its position during the search for equal keys, with the sort.
_KEY_BYTES = 80
_BLOCK = 1 << 20
_LINES_AT_ONCE = 65_536


def read_lines(paths: Sequence[str]) -> Iterator[str]:
    """Reads sentences, one a line; blank lines are skipped.

    A tab becomes a space, because tabs separate the columns of the output.

    Raises:
        UserError: a file cannot be read, a line is longer than a million characters, or
            most lines have a tab between words: the file is a table.
    """
    for path in paths:
        count = cells = 0
        with files.open_text(path) as lines:
            for line in lines:
                line = line.strip(utf8.BLANK)
                if line:
                    count += 1
                    cells += "\t" in line
                    yield line.replace("\t", " ")
        if 2 * cells > count:
            raise UserError(
                f"{path} is a table, {cells:,} of its {count:,} lines have a TAB; "
                "allowed: one sentence a line (`cut -f1 OLD > NEW`)"
            )


def read_column(paths: Sequence[str], columns: int, column: int) -> Iterator[str]:
    """Reads one column of a bitext, from lines with `columns` non-empty cells.

    Training (`data.bitext`) reads the same lines.
    """
    for row in read_rows(paths, columns):
        yield row.split("\t")[column]


def read_rows(paths: Sequence[str], columns: int) -> Iterator[str]:
    """Reads the lines of a bitext that have `columns` non-empty cells.

    Yields:
        The cells, stripped, with tabs between them.
    """
    for path in paths:
        with files.open_text(path) as lines:
            for line in lines:
                cells = line.rstrip("\r\n").split("\t")
                cells = [cell.strip(utf8.BLANK) for cell in cells]
                if len(cells) == columns and all(cells):
                    yield "\t".join(cells)


class Texts:
    """Distinct lines, mapped from disk; `gather` creates them.

    Attributes:
        name: the text's name in messages.
        directory: the directory of its files.
        digest: a hash of all lines, repeated lines included.
        lines: the number of lines before deduplication.
        rows: int64 [lines], the index of each line among the distinct ones.
    """

    def __init__(self, directory: str, name: str):
        known = _known(directory)
        if known is None:
            path = storage.about_path(directory)
            raise UserError(
                f"{directory} holds no text: {path} is missing; allowed: the folder "
                "that cmlm.encode wrote, whole"
            )
        self.name = name
        self.directory = directory
        self.lines, self.digest = known
        with advised(f"delete {directory}"):
            checksums.check(directory, os.path.join(directory, checksums.FILE_NAME))
        # As plain arrays: indexing is faster than that of a memmap.
        self.rows, self._offsets = (
            np.asarray(storage.load(os.path.join(directory, name), directory))
            for name in (_ROWS, _OFFSETS)
        )
        path = os.path.join(directory, _TEXT)
        with open(path, "rb") as file:
            try:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise UserError(
                    f"{path} is damaged: {error}; delete {directory}"
                ) from error

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def opener(self, workers: Workers) -> Callable[[], Texts]:
        """Returns a function that opens the text where the workers are."""
        if workers.are_here:
            return lambda: self
        return functools.partial(Texts, self.directory, self.name)

    def take(self, rows: Iterable[int]) -> list[str]:
        """Returns the texts of the given rows."""
        rows = np.asarray(rows, np.int64)
        starts, ends = self._offsets[rows], self._offsets[rows + 1] - 1
        return [
            self._text[start:end].decode()
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def equal(self, rows: np.ndarray, other: Texts, others: np.ndarray) -> np.ndarray:
        """Compares texts with the texts of another object.

        Args:
            rows: the rows of texts, int64 [n].
            other: the other texts.
            others: rows of `other` for each text, int64 [n, k]; -1: none.

        Returns:
            bool [n, k].
        """
        starts, ends = self._offsets[rows], self._offsets[rows + 1]
        their_starts, their_ends = other._offsets[others], other._offsets[others + 1]
        same_length = (ends - starts)[:, np.newaxis] == their_ends - their_starts
        equal = np.zeros(others.shape, bool)
        for row, column in np.argwhere(same_length & (others >= 0)):
            text = self._text[starts[row] : ends[row]]
            its = slice(their_starts[row, column], their_ends[row, column])
            equal[row, column] = text == other._text[its]
        return equal

    def begins(self, digest: str, distinct: int) -> bool:
        """Whether some first lines have a hash, and a number of distinct lines."""
        own, seen = hashlib.blake2b(), 0
        for start in range(0, self.lines, _LINES_AT_ONCE):
            rows = self.rows[start : start + _LINES_AT_ONCE]
            for row, line in zip(rows.tolist(), self.take(rows), strict=True):
                if row == distinct:
                    return False
                own.update(_key(line.encode()))
                seen = max(seen, row + 1)
                if seen == distinct and own.hexdigest() == digest:
                    return True
        return False


def gather(
    lines: Callable[[], Iterable[str]],
    directory: str,
    name: str,
    memory: int,
    whole: str = "",
) -> Texts:
    """Writes the distinct lines of a text in the order of their first occurrence.

    Args:
        lines: a function that returns the text from its beginning at each call.
        directory: the directory to create; an existing directory of the same text is
            reused.
        name: the text's name in messages.
        memory: the memory limit in bytes.
        whole: the folder that holds the directory and other files of this text, which
            may then have new lines behind those of the directory. It is written anew;
            its distinct lines begin with those of the directory. "": the directory
            stands alone, and its text may not grow.

    Raises:
        UserError: the text is empty or changes while it is read, or the directory
            holds another text.
    """
    known = _known(directory)
    if known is not None:
        digest = hashlib.blake2b()
        keys = _hashed(lines(), digest, name, known[0])
        count = sum(1 for _ in itertools.islice(keys, known[0]))
        same = (count, digest.hexdigest()) == known
        has_more = same and next(keys, None) is not None
        if not same or (has_more and not whole):
            only = ", and lines may only be appended" if whole else ""
            raise UserError(
                f"{whole or directory} holds another text than {name} now{only}: name "
                "another directory, or delete this one"
            )
        if not has_more:
            return Texts(directory, name)
    with atomic.directory(directory, overwrite=known is not None) as temporary:
        _write(lines, temporary, name, memory)
    return Texts(directory, name)


def _known(directory: str) -> tuple[int, str] | None:
    """The number of lines and their hash in a directory; None if it holds no text."""
    about, path = storage.read_about(directory), storage.about_path(directory)
    if about is None:
        return None
    with advised(f"delete {directory}"):
        return (
            json_files.field(about, "lines", int, path, at_least=1),
            json_files.field(about, "digest", str, path),
        )


def _write(lines, directory: str, name: str, memory: int) -> None:
    """Fills a new directory, see `gather`."""
    keys_path = os.path.join(directory, "keys")
    digest = hashlib.blake2b()
    with open(keys_path, "wb", buffering=1 << 20) as file:
        for key in _hashed(lines(), digest, name, None):
            file.write(key)
        count = file.tell() // 16
    if not count:
        raise UserError(f"{name} has no line with text; allowed: at least one")
    rows = storage.new_map(os.path.join(directory, _ROWS), "<i8", (count,))
    keys = np.memmap(keys_path, "<u8", "r", shape=(count, 2))
    distinct = _number(keys, rows, max(memory // _KEY_BYTES, 1))
    del keys
    os.remove(keys_path)
    _write_texts(lines, directory, name, rows, distinct, digest.digest())
    rows.flush()
    about = {"lines": count, "digest": digest.hexdigest()}
    storage.write_about(directory, about)
    checksums.write(
        directory,
        (_TEXT, _OFFSETS, _ROWS),
        os.path.join(directory, checksums.FILE_NAME),
    )


def _write_texts(
    lines, directory: str, name: str, rows: np.ndarray, distinct: int, digest: bytes
) -> None:
    """Writes the distinct lines in a second pass over the text, and their offsets.

    Args:
        lines, directory, name: see `gather`.
        rows: int64 [lines], the number of each line among the distinct ones, which are
            numbered by first occurrence.
        distinct: the number of distinct lines.
        digest: the hash of the first pass.
    """
    offsets = storage.new_map(os.path.join(directory, _OFFSETS), "<i8", (distinct + 1,))
    ends = np.asarray(offsets)  # A plain array: faster assignments than a memmap.
    changed = UserError(f"{name} changed while the command read it; run it again")
    again, offset, seen = hashlib.blake2b(), 0, 0
    with (
        progress.bar(len(rows), f"texts of {name}", "lines") as bar,
        open(os.path.join(directory, _TEXT), "wb", buffering=1 << 20) as file,
    ):
        for line, row in itertools.zip_longest(lines(), _each(rows)):
            if line is None or row is None:
                raise changed
            encoded = line.encode()
            again.update(_key(encoded))
            if row == seen:
                seen += 1
                offset += file.write(encoded + b"\n")
                ends[seen] = offset
            bar.update()
    if again.digest() != digest:
        raise changed
    offsets.flush()


def _each(rows: np.ndarray) -> Iterator[int]:
    for start in range(0, len(rows), _BLOCK):
        yield from rows[start : start + _BLOCK].tolist()


def _hashed(lines, digest, name: str, total: int | None) -> Iterator[bytes]:
    with progress.bar(total, f"reading {name}", "lines") as bar:
        for line in lines:
            key = _key(line.encode())
            digest.update(key)
            yield key
            bar.update()


def _key(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _number(keys: np.ndarray, rows: np.ndarray, at_once: int) -> int:
    """Numbers the distinct keys by first occurrence.

    Keys are processed in parts. The value of a key decides its part, so equal keys are
    in the same part.

    Args:
        keys: uint64 [n, 2].
        rows: int64 [n], receives the number of each key.
        at_once: the number of keys in a part.

    Returns:
        The number of distinct keys.
    """
    parts = -(-len(keys) // at_once)
    blocks = range(0, len(keys), _BLOCK)
    for part in range(parts):
        # At first, `rows` receives the position of the first equal key.
        own = np.concatenate(
            [
                start + np.flatnonzero(keys[start : start + _BLOCK, 0] % parts == part)
                for start in blocks
            ]
        )
        low, high = keys[own].T
        order = np.lexsort((low, high))
        low, high, own = low[order], high[order], own[order]
        new = np.ones(len(own), bool)
        new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        rows[own] = own[new][np.cumsum(new) - 1]
    is_first = np.empty(len(keys), bool)
    for start in blocks:
        block = rows[start : start + _BLOCK]
        is_first[start : start + _BLOCK] = block == np.arange(start, start + len(block))
    number = np.cumsum(is_first, dtype=np.int64)
    number -= 1
    for start in blocks:
        rows[start : start + _BLOCK] = number[rows[start : start + _BLOCK]]
    return int(number[-1]) + 1
