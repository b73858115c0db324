"""The distinct lines of a text, on disk: memory stays flat however many there are."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from cmlm.common import files
from cmlm.errors import UserError
from cmlm.mining import storage

_ABOUT = "about.json"
_TEXT = "text.txt"
_OFFSETS = "offsets.npy"
_ROWS = "rows.npy"
# Of a key and its place while equal ones are looked for, sorting included.
_KEY_BYTES = 80
_BLOCK = 1 << 20


def read_lines(paths: Sequence[str]) -> Iterator[str]:
    """The sentences of files, one a line; blank lines are passed over.

    A tab becomes a space, since pairs are written with tabs between them.

    Raises:
        UserError: a file cannot be read, or has a line of more than a million
            characters.
    """
    for path in paths:
        with files.open_text(path) as lines:
            for line in lines:
                line = line.replace("\t", " ").strip()
                if line:
                    yield line


def read_column(paths: Sequence[str], columns: int, column: int) -> Iterator[str]:
    """A column of the good lines of a bitext, which have `columns` with text in each.

    The lines are those that `data.parallel` takes.
    """
    for path in paths:
        with files.open_text(path) as lines:
            for line in lines:
                cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
                if len(cells) == columns and all(cells):
                    yield cells[column]


class Texts:
    """Distinct lines, mapped from disk; made by `gather`.

    Attributes:
        name: what messages call it.
        digest: of all lines, equal ones too.
        lines: how many lines there were.
        rows: int64 [lines], where each line is among the distinct ones.
    """

    def __init__(self, directory: str, name: str):
        about = storage.read_json(os.path.join(directory, _ABOUT))
        self.name = name
        self.digest: str = about["digest"]
        self.lines: int = about["lines"]
        self.rows = storage.load(os.path.join(directory, _ROWS))
        self._offsets = storage.load(os.path.join(directory, _OFFSETS))
        with open(os.path.join(directory, _TEXT), "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def take(self, rows: Iterable[int]) -> list[str]:
        """The texts of some rows."""
        rows = np.asarray(rows, np.int64)
        starts, ends = self._offsets[rows], self._offsets[rows + 1] - 1
        return [
            self._text[start:end].decode()
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def gather(
    lines: Callable[[], Iterable[str]], directory: str, name: str, memory: int
) -> Texts:
    """Writes the distinct lines of a text, in the order of their first appearance.

    Args:
        lines: gives the text from its beginning each time it is called.
        directory: to make. One that holds the same text is used as it is.
        name: of the text, for messages.
        memory: bytes to use.

    Raises:
        UserError: there is no line, the text changes while it is read, or the directory
            holds another one.
    """
    about = storage.read_json(os.path.join(directory, _ABOUT))
    if about is not None:
        digest = hashlib.blake2b()
        count = sum(1 for _ in _hashed(lines(), digest, name, about["lines"]))
        if (count, digest.hexdigest()) != (about["lines"], about["digest"]):
            raise UserError(
                f"{directory} holds another text than {name} has now: name another "
                "--work_dir or delete it"
            )
        return Texts(directory, name)
    with files.atomic_directory(directory) as temporary:
        _write(lines, temporary, name, memory)
    return Texts(directory, name)


def _write(lines, directory: str, name: str, memory: int) -> None:
    keys_path = os.path.join(directory, "keys")
    digest = hashlib.blake2b()
    with open(keys_path, "wb", buffering=1 << 20) as file:
        for key in _hashed(lines(), digest, name, None):
            file.write(key)
        count = file.tell() // 16
    if not count:
        raise UserError(f"{name} has no line with text in it")
    rows = storage.new_map(os.path.join(directory, _ROWS), "<i8", (count,))
    keys = np.memmap(keys_path, "<u8", "r", shape=(count, 2))
    distinct = _number(keys, rows, max(memory // _KEY_BYTES, 1))
    del keys
    os.remove(keys_path)

    # -- the second time for the texts themselves
    offsets = storage.new_map(os.path.join(directory, _OFFSETS), "<i8", (distinct + 1,))
    ends = np.asarray(offsets)  # Without what a memmap adds to every assignment.
    again, offset, seen, whole = hashlib.blake2b(), 0, 0, True
    with (
        storage.bar(count, f"texts of {name}", "lines") as bar,
        open(os.path.join(directory, _TEXT), "wb", buffering=1 << 20) as file,
    ):
        for line, row in itertools.zip_longest(lines(), _each(rows)):
            whole = line is not None and row is not None
            if not whole:
                break
            encoded = line.encode()
            again.update(_key(encoded))
            # Rows are numbered by first appearance.
            if row == seen:
                seen += 1
                offset += file.write(encoded + b"\n")
                ends[seen] = offset
            bar.update()
    if not whole or again.digest() != digest.digest():
        raise UserError(f"{name} changed while it was read")
    rows.flush()
    offsets.flush()
    about = {"lines": count, "digest": digest.hexdigest()}
    storage.write_json(os.path.join(directory, _ABOUT), about)


def _each(rows: np.ndarray) -> Iterator[int]:
    for start in range(0, len(rows), _BLOCK):
        yield from rows[start : start + _BLOCK].tolist()


def _hashed(lines, digest, name: str, total: int | None) -> Iterator[bytes]:
    with storage.bar(total, f"reading {name}", "lines") as bar:
        for line in lines:
            key = _key(line.encode())
            digest.update(key)
            yield key
            bar.update()


def _key(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _number(keys: np.ndarray, rows: np.ndarray, at_once: int) -> int:
    """Numbers equal keys alike, by first appearance.

    Keys are looked at in parts, which are told by the keys themselves: equal ones are
    in one part.

    Args:
        keys: uint64 [n, 2].
        rows: int64 [n], to be filled.
        at_once: keys of a part.

    Returns:
        How many different ones there are.
    """
    parts = -(-len(keys) // at_once)
    blocks = range(0, len(keys), _BLOCK)
    for part in range(parts):
        # Where the first of the equal ones is, for a start.
        own = np.concatenate(
            [
                start + np.flatnonzero(keys[start : start + _BLOCK, 0] % parts == part)
                for start in blocks
            ]
        )
        low, high = keys[own].T
        order = np.lexsort((low, high))
        low, high, own = low[order], high[order], own[order]
        new = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[
            : len(own)
        ]
        rows[own] = own[new][np.cumsum(new) - 1]
    is_first = np.empty(len(keys), bool)
    for start in blocks:
        block = rows[start : start + _BLOCK]
        is_first[start : start + _BLOCK] = block == np.arange(start, start + len(block))
    number = np.cumsum(is_first, dtype=np.int64) - 1
    for start in blocks:
        rows[start : start + _BLOCK] = number[rows[start : start + _BLOCK]]
    return int(number[-1]) + 1
