"""Files on Beam's filesystems, for pipelines and their workers, without TensorFlow."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from apache_beam.io import filesystem, filesystems

from cmlm.common import packing, path_names


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """Opens a file on any Beam filesystem for streaming, without unpacking it."""
    raw = filesystems.FileSystems.open(
        path, compression_type=filesystem.CompressionTypes.UNCOMPRESSED
    )
    with raw:
        yield raw


@contextlib.contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """Like `atomic.text`, on Beam's filesystems and without TensorFlow.

    A worker that dies leaves `PATH.tmp-...`. The worker that repeats its bundle writes
    a new temporary file, and the last rename wins.
    """
    temporary = path_names.temporary(path)
    uncompressed = filesystem.CompressionTypes.UNCOMPRESSED
    try:
        with (
            filesystems.FileSystems.create(
                temporary, compression_type=uncompressed
            ) as stream,
            packing.text_writer(stream, path) as text,
        ):
            yield text
        filesystems.FileSystems.rename([temporary], [path])
    except BaseException:
        if filesystems.FileSystems.exists(temporary):
            filesystems.FileSystems.delete([_only(temporary)])
        raise


def make_directory(path: str) -> None:
    """Creates a directory and its parents; several workers may do so at once."""
    if not filesystems.FileSystems.exists(path):
        try:
            filesystems.FileSystems.mkdirs(path)
        except OSError:
            if not filesystems.FileSystems.exists(path):
                raise


def _only(path: str) -> str:
    """Returns the glob that matches nothing but a path."""
    # Beam lists the folder above the first special character: a path needs one.
    return glob.escape(path_names.absolute(path))


def match(path: str, pattern: str = "") -> list[filesystem.FileMetadata]:
    """Finds the files of a path, of which no character is special, and a glob."""
    return filesystems.FileSystems.match([_only(path) + pattern])[0].metadata_list


def tidy(directory: str, *paths: str) -> None:
    """Deletes the given files and the temporary files of dead workers."""
    found = [file.path for file in match(directory, "/**")]
    left = [path for path in found if path_names.is_temporary(path)]
    filesystems.FileSystems.delete([_only(path) for path in (*paths, *left)])
