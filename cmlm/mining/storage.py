"""Arrays and JSON on disk, written atomically and read through memory maps."""

from __future__ import annotations

import json
import os

import numpy as np

from cmlm.common import arrays, files, json_files
from cmlm.errors import UserError


def save(path: str, array: np.ndarray) -> None:
    """Writes an .npy file atomically.

    Raises:
        OSError: the file cannot be written. The error has the system's message, which
            `numpy.save` drops.
    """
    with files.atomic_file(path) as temporary, open(temporary, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(array).data.cast("B"))


def load(path: str) -> np.ndarray:
    """Maps an .npy file into memory for reading.

    Raises:
        UserError: the file is damaged or not an .npy file.
    """
    try:
        return arrays.map_any_npy(path)
    except UserError as error:
        raise UserError(f"{error}; delete it") from error


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


def read_json(path: str) -> dict | None:
    """Reads a JSON object; returns None if the file does not exist.

    Raises:
        UserError: the file is damaged.
    """
    if not os.path.exists(path):
        return None
    try:
        return json_files.read(path)
    except UserError as error:
        raise UserError(f"{error}; delete it") from error


def write_json(path: str, content: dict) -> None:
    """Writes a JSON file atomically."""
    with files.atomic_file(path) as temporary, open(temporary, "w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
