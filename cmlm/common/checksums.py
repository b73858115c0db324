"""Checksums of a folder's files, so that damage is noticed before a file is used.

`checksums.json` maps each path in the folder to its size in bytes and its CRC-32. The
checksum finds damage, such as a flipped bit or a file of another export; it does not
protect against an attacker.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from cmlm.common import json_files
from cmlm.errors import UserError, one_line

FILE_NAME = "checksums.json"
_CHUNK_BYTES = 8 << 20


def write(directory: str, names: Iterable[str], path: str) -> None:
    """Writes the checksums of files.

    Args:
        directory: the folder.
        names: files and folders in it, relative to it.
        path: the file to write.
    """
    found = {name: of_file(path) for name, path in _walk(directory, names)}
    json_files.write(path, found, indent=1, sort_keys=True)


def check(
    directory: str,
    path: str,
    under: tuple[str, ...] = ("",),
    grows: tuple[str, ...] = (),
) -> dict[str, int]:
    """Compares files with their checksums.

    Args:
        directory: the folder.
        path: a file of `write`. If it is missing, nothing is compared: exports of
            version 0.1.0 have no checksums.
        under: compares only the files whose names begin with one of these.
        grows: files that may have become longer since; the bytes behind are not
            compared.

    Returns:
        The bytes of each file that are summed, by name; empty if `path` is missing.

    Raises:
        UserError: a file is missing or differs, or `path` is damaged.
    """
    if not tf.io.gfile.exists(path):
        return {}
    try:
        with tf.io.gfile.GFile(path) as file:
            expected = json.loads(file.read())
        rows = [
            (str(name), [int(size), str(crc)]) for name, (size, crc) in expected.items()
        ]
    except (
        tf.errors.OpError,
        ValueError,
        RecursionError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from error
    for name, row in rows:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise UserError(f"{path} names {name!r}; allowed: paths inside the folder")
        if name.startswith(under):
            own = os.path.join(directory, name)
            try:
                same = of_file(own, row[0] if name in grows else math.inf) == row
            except tf.errors.OpError as error:
                raise UserError(f"{own} cannot be read: {error.message}") from error
            if not same:
                raise UserError(f"{own} is damaged: it differs from its checksum")
    return {name: size for name, (size, _) in rows}


def _walk(directory: str, names: Iterable[str]):
    for name in names:
        path = os.path.join(directory, name)
        if not tf.io.gfile.isdir(path):
            yield name, path
            continue
        for folder, _, found in tf.io.gfile.walk(path):
            for each in found:
                own = os.path.join(folder, each)
                yield os.path.relpath(own, directory), own


def of_file(path: str, at_most: float = math.inf) -> list:
    """Returns [bytes, CRC-32 as 8 hexadecimal digits] of a file, or of its beginning.

    Args:
        path: the file.
        at_most: the number of bytes to read.
    """
    size = crc = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(min(_CHUNK_BYTES, max(at_most - size, 0))):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, f"{crc:08x}"]


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file, which tells files apart; a packed one as it is."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def of_values(values: Any, **options: Any) -> str:
    """Returns the SHA-256 of values as JSON.

    Args:
        values: what JSON can hold.
        **options: of `json.dumps`.
    """
    return hashlib.sha256(json.dumps(values, **options).encode()).hexdigest()
