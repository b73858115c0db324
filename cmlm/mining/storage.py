"""Arrays on disk, read through memory maps, and the descriptions of directories.

A file has its checksum beside it, in `NAME.checksums.json`. A run that resumes compares
each file that it finds. Directories of version 0.1.0 have no checksums.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import numpy as np

from cmlm.common import arrays, atomic, checksums, json_files
from cmlm.errors import advised

_ABOUT = "about.json"


class RowFiles:
    """Rows of numbers in files of equal size, `00000.npy` etc.

    Args:
        directory: the directory of the files.
        rows: the number of rows.
        file_rows: the number of rows in a file; the last file may have fewer.
    """

    def __init__(self, directory: str, rows: int, file_rows: int):
        self._directory = directory
        self._rows = rows
        self._file_rows = file_rows

    def __len__(self) -> int:
        return self._rows

    def path(self, number: int) -> str:
        """Returns the path of a file."""
        return os.path.join(self._directory, f"{number:05d}.npy")

    def rows_of(self, number: int) -> tuple[int, int]:
        """Returns the rows [start, stop) of a file."""
        start = number * self._file_rows
        return start, min(start + self._file_rows, len(self))

    def missing(self) -> list[int]:
        """Returns the numbers of the files that are not on disk.

        Raises:
            UserError: a file is damaged.
        """
        files = range(-(-len(self) // self._file_rows))
        return [number for number in files if not self._is_there(number)]

    def _is_there(self, number: int) -> bool:
        return is_whole(self.path(number))

    def count(self, numbers: Iterable[int]) -> int:
        """Returns the number of rows in some of the files."""
        return sum(stop - start for start, stop in map(self.rows_of, numbers))


def save(path: str, array: np.ndarray) -> None:
    """Writes an .npy file atomically, and its checksum.

    Raises:
        OSError: the file cannot be written. The error has the system's message, which
            `numpy.save` drops.
    """
    array = np.ascontiguousarray(array)
    with atomic.file(path) as temporary, open(temporary, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data.cast("B"))
    seal(path)


def seal(path: str) -> None:
    """Writes the checksum of a finished file."""
    directory, name = os.path.split(path)
    checksums.write(directory, [name], _sums(path))


def is_whole(path: str, delete: str = "") -> bool:
    """Whether a file is there and equals its checksum.

    Args:
        path: the file.
        delete: the path that the message tells the user to delete; "": the file itself.

    Returns:
        False if the file is missing.

    Raises:
        UserError: the file differs from its checksum.
    """
    if not os.path.exists(path):
        return False
    with advised(f"delete {delete or path}"):
        checksums.check(os.path.dirname(path), _sums(path))
    return True


def remove(path: str) -> None:
    """Removes a file, if it is there, and its checksum."""
    # After a kill in between, a file without its checksum is whole. The checksum alone
    # would refuse the next file of this name.
    for each in (_sums(path), path):
        with contextlib.suppress(FileNotFoundError):
            os.remove(each)


def _sums(path: str) -> str:
    return f"{path}.{checksums.FILE_NAME}"


def load(path: str, delete: str = "") -> np.ndarray:
    """Maps an .npy file into memory for reading.

    Args:
        path: the file.
        delete: see `is_whole`.

    Raises:
        UserError: the file is damaged or not an .npy file.
    """
    with advised(f"delete {delete or path}"):
        return arrays.map_any_npy(path)


def new_map(path: str, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Creates an .npy file and maps it into memory for writing.

    The function reserves the file's blocks on the disk. Otherwise a full disk would
    kill the process with a signal at a later assignment.

    Raises:
        OSError: the disk has too little space.
    """
    kind = np.dtype(dtype)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": kind.str, "fortran_order": False, "shape": shape}
        )
        size = kind.itemsize * int(np.prod(shape))
        if size:
            os.posix_fallocate(file.fileno(), file.tell(), size)
    return np.load(path, mmap_mode="r+")


def about_path(directory: str) -> str:
    """The file that describes a directory."""
    return os.path.join(directory, _ABOUT)


def read_about(directory: str) -> dict | None:
    """Reads the description of a directory; returns None if it does not exist.

    Raises:
        UserError: the file is damaged. The message names the directory to delete, as
            its other files mean nothing without their description.
    """
    path = about_path(directory)
    if not os.path.exists(path):
        return None
    with advised(f"delete {directory}"):
        return json_files.read(path)


def write_about(directory: str, content: dict) -> None:
    """Writes the description of a directory."""
    json_files.write(about_path(directory), content, indent=1, sort_keys=True)
