"""Blocks of bytes by key, and where they wait until all of a key have come together.

Beam's local runner keeps whatever it regroups in the memory of its process, and hands
every worker its part as one message, which cannot have more than 2 GB. With `Spill` in
front of a grouping the blocks wait in files, and the runner moves only their paths.
Runners of clusters regroup on disk themselves: there blocks travel as they are.

    grouped = blocks | Spill(directory) | beam.GroupByKey()
    # ... and in the DoFn behind it
    for block in spilling.read(values): ...
"""

from __future__ import annotations

import collections
import os
import struct
import uuid
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.utils import windowed_value

# What came of one key: a block, or the path of a file of blocks.
Value = bytes | str

# A worker writes when it has gathered so many bytes, over all keys.
_GATHERED = 16 << 20
# Stands before each block in a file: its length.
_LENGTH = struct.Struct("<I")
# Stands first in blocks that have an order.
_NUMBER = struct.Struct(">Q")


class Spill(beam.PTransform):
    """(int key, block) to (key, path of what a bundle has of it), or to itself."""

    def __init__(self, directory: str | None):
        """Takes a directory of this machine; None leaves the blocks to the runner."""
        super().__init__()
        self._directory = directory

    def expand(self, blocks):
        if self._directory is None:
            return blocks
        return blocks | beam.ParDo(_Append(self._directory))


class _Append(beam.DoFn):
    """Appends the blocks of each key to a file: one for every bundle and key.

    So the number of files and paths does not grow with the length of a bundle, and a
    bundle that is repeated does not add to what its first try has left.
    """

    def __init__(self, directory: str):
        self._directory = directory

    def start_bundle(self):
        self._bundle = uuid.uuid4().hex
        self._gathered: dict[int, bytearray] = collections.defaultdict(bytearray)
        self._size = 0
        self._paths: dict[int, str] = {}

    def process(self, element: tuple[int, bytes]):
        key, block = element
        self._gathered[key] += _LENGTH.pack(len(block)) + block
        self._size += len(block)
        if self._size > _GATHERED:
            self._write()

    def finish_bundle(self):
        self._write()
        window = [beam.window.GlobalWindow()]
        for item in self._paths.items():
            yield windowed_value.WindowedValue(item, 0, window)

    def _write(self) -> None:
        for key, gathered in self._gathered.items():
            path = os.path.join(self._directory, f"{key:x}-{self._bundle}")
            with open(path, "ab") as file:
                file.write(gathered)
            self._paths[key] = path
        self._gathered.clear()
        self._size = 0


def read(values: Iterable[Value]) -> Iterator[bytes]:
    """The blocks of a group, in any order; of a file, one at a time."""
    for value in values:
        if isinstance(value, bytes):
            yield value
            continue
        with open(value, "rb") as file:
            while header := file.read(_LENGTH.size):
                yield file.read(*_LENGTH.unpack(header))


def numbered(number: int, content: bytes) -> bytes:
    """A block for `read_in_order`."""
    return _NUMBER.pack(number) + content


def read_in_order(values: Iterable[Value]) -> Iterator[tuple[int, bytes]]:
    """The blocks of a group by their numbers; files are read a block at a time.

    Args:
        values: of a group of blocks by `numbered`.

    Yields:
        (number, content), numbers ascending.
    """
    values = list(values)
    places = []
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            places.append((*_NUMBER.unpack_from(value), index, 0, len(value)))
            continue
        with open(value, "rb") as file:
            while header := file.read(_LENGTH.size):
                start, (size,) = file.tell(), _LENGTH.unpack(header)
                (number,) = _NUMBER.unpack(file.read(_NUMBER.size))
                places.append((number, index, start, size))
                file.seek(start + size)
    for number, index, start, size in sorted(places):
        block = values[index]
        if isinstance(block, str):
            with open(block, "rb") as file:
                file.seek(start)
                block = file.read(size)
        yield number, block[_NUMBER.size :]
