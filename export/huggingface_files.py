"""Writes the files of a folder for Hugging Face's libraries."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import numpy as np
import safetensors.numpy

from cmlm.common import json_files


def write_json(directory: str, name: str, values: Any) -> None:
    """Writes a JSON file of the folder."""
    path = os.path.join(directory, name)
    json_files.write(path, values, indent=2, ensure_ascii=False)


def write_tensors(arrays: dict[str, np.ndarray], path: str) -> None:
    """Writes a .safetensors file.

    Raises:
        OSError: the file cannot be written.
    """
    # safetensors lets only the owner read a file; other files of a folder follow umask.
    with open(path, "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    try:
        # `transformers` refuses a file without this entry.
        safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
        os.chmod(path, mode)
    except safetensors.SafetensorError as error:
        code = re.search(r"os error (\d+)|code: (\d+)", str(error))
        if not code:
            raise
        number = int(code[1] or code[2])
        raise OSError(number, os.strerror(number), path) from error
