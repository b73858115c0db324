"""Files for blocks of bytes that wait to be grouped by key.

Beam's local runner keeps grouped data in the memory of its process and sends each
worker its part as one message of at most 2 GB. `Spill` before a grouping writes the
blocks to files, and the runner moves only the paths. Cluster runners group on disk
themselves, so with them the blocks stay in the pipeline.

    grouped = blocks | Spill(directory) | beam.GroupByKey()
    # ... and in the next DoFn
    for block in spilling.read(values): ...
"""

from __future__ import annotations

import collections
import os
import struct
import uuid
from collections.abc import Iterable, Iterator

import apache_beam as beam

from cmlm.common import atomic

# A value of a key: a block, or the path of a file of blocks.
Value = bytes | str

# A worker writes its blocks when they reach this size, over all keys.
_GATHERED = 16 << 20
# The length that precedes each block in a file.
_LENGTH = struct.Struct("<I")
# The number of a block, at the beginning of an ordered block.
_NUMBER = struct.Struct(">Q")


class Spill(beam.PTransform):
    """(int key, block) to (key, path of a file of blocks), or unchanged.

    Args:
        directory: a directory on this machine; None leaves the blocks to the runner.
    """

    def __init__(self, directory: str | None):
        super().__init__()
        self._directory = directory

    def expand(self, blocks):
        if self._directory is None:
            return blocks
        return blocks | beam.ParDo(_Append(self._directory))


class _Append(beam.DoFn):
    """Appends the blocks of each key to a file, one file for each bundle and key.

    The number of files does not grow with the length of a bundle, and a repeated bundle
    writes new files beside the files of its first attempt.
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
        for item in self._paths.items():
            yield beam.window.GlobalWindows.windowed_value(item)

    def _write(self) -> None:
        for key, gathered in self._gathered.items():
            path = os.path.join(self._directory, f"{key:x}-{self._bundle}")
            with atomic.naming(path), open(path, "ab") as file:
                file.write(gathered)
            self._paths[key] = path
        self._gathered.clear()
        self._size = 0


def read(values: Iterable[Value]) -> Iterator[bytes]:
    """Yields the blocks of a group, in any order, one at a time."""
    for value in values:
        if isinstance(value, bytes):
            yield value
            continue
        with open(value, "rb") as file:
            while header := file.read(_LENGTH.size):
                (size,) = _LENGTH.unpack(header)
                yield file.read(size)


def numbered(number: int, content: bytes) -> bytes:
    """Makes a block for `read_in_order`."""
    return _NUMBER.pack(number) + content


def read_in_order(values: Iterable[Value]) -> Iterator[tuple[int, bytes]]:
    """Yields the blocks of a group in the order of their numbers, one at a time.

    Args:
        values: a group of blocks made by `numbered`.

    Yields:
        (number, content), numbers ascending.
    """
    values = list(values)
    places = []
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            (number,) = _NUMBER.unpack_from(value)
            places.append((number, index, 0, len(value)))
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
