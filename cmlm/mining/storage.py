"""Arrays on disk: whole or not there at all, and read in parts."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tqdm

from cmlm.common import files
from cmlm.errors import UserError


def save(path: str, array: np.ndarray) -> None:
    """Writes an .npy file; it exists when it is complete.

    Raises:
        OSError: with the system's own words, which `numpy.save` loses.
    """
    with files.atomic_file(path) as temporary, open(temporary, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(array).data.cast("B"))


def load(path: str) -> np.ndarray:
    """Maps an .npy file into memory, to be read.

    Raises:
        UserError: it is no such file, or cut short.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged, delete it: {error}") from error


def new_map(path: str, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Makes an .npy file and maps it into memory, to be written.

    Its blocks are reserved on the disk: a full one would otherwise show itself at some
    later assignment, as a signal that kills the process.

    Raises:
        OSError: there is no room for it.
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
    """The content of a JSON file, None where there is no file.

    Raises:
        UserError: it is damaged.
    """
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged, delete it: {error}") from error


def write_json(path: str, content: dict) -> None:
    """Writes a JSON file; it exists when it is complete."""
    with files.atomic_file(path) as temporary, open(temporary, "w") as file:
        json.dump(content, file, indent=1, sort_keys=True)


def bar(total: int, what: str, unit: str, disable: bool = False) -> tqdm.tqdm:
    """A bar on stderr that is short in a log file."""
    return tqdm.tqdm(
        total=total,
        desc=what,
        unit=f" {unit}",
        disable=disable,
        leave=False,
        delay=1,
        mininterval=0.1 if sys.stderr.isatty() else 10,
    )
