"""The arrays of a folder, from safetensors files; pickles are refused."""

from __future__ import annotations

import math
import os

import ml_dtypes
import numpy as np
import safetensors
import tensorflow as tf

from cmlm.common import folders, json_files, shared_memory
from cmlm.errors import UserError, one_line

FILE_NAME = "model.safetensors"
# The weights of transformers' models in TensorFlow.
_OF_TENSORFLOW = "tf_model.h5"
_FLOATS = ("F32", "F16", "BF16", "F64")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
# The most numbers that are copied at once.
_BLOCK = 2**22


class Tensors:
    """The arrays of a folder's safetensors file, or of the files its index names."""

    def __init__(self, folder: str):
        index = os.path.join(folder, f"{FILE_NAME}.index.json")
        if tf.io.gfile.exists(os.path.join(folder, FILE_NAME)):
            paths = [os.path.join(folder, FILE_NAME)]
        elif tf.io.gfile.exists(index):
            files = json_files.field(json_files.read(index), "weight_map", dict, index)
            # Base names only: an index must not name files outside the folder.
            chosen = {os.path.basename(str(name)) for name in files.values()}
            paths = [os.path.join(folder, name) for name in sorted(chosen)]
        else:
            refuse_pickle(folder)
            remedy = ""
            if tf.io.gfile.exists(os.path.join(folder, _OF_TENSORFLOW)):
                remedy = (
                    "; transformers 4 writes it: AutoModel.from_pretrained(DIR, "
                    "from_tf=True).save_pretrained(DIR)"
                )
            raise UserError(f"{folder} has no {FILE_NAME}{remedy}")
        self._written = {path: _identity(path) for path in paths}
        self._files = {path: _open(path) for path in paths}
        self._path = {
            name: path
            for path, file in self._files.items()
            for name in file.keys()  # noqa: SIM118  (not a mapping)
        }

    def __iter__(self):
        return iter(self._path)

    def shape(self, name: str) -> list[int]:
        """The shape of an array."""
        file = self._files[self._path[name]]
        return list(file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """Reads an array as float32."""
        path = self._path[name]
        kind = self._files[path].get_slice(name).get_dtype()
        if kind not in _FLOATS:
            raise UserError(
                f"{path} has {name} as {kind}; allowed: {', '.join(_FLOATS)}"
            )
        shape = self.shape(name)
        # The pages of a file stay in memory as long as it is open, so each reading
        # opens it anew.
        if math.prod(shape) <= _BLOCK:
            array = np.asarray(self._open_again(path).get_tensor(name))
            return array.astype(np.float32, copy=False)
        array = shared_memory.empty_array(shape)
        rows = max(1, _BLOCK // math.prod(shape[1:]))
        for start in range(0, len(array), rows):
            stop = min(start + rows, len(array))
            array[start:stop] = self._open_again(path).get_slice(name)[start:stop]
        return array

    def _open_again(self, path: str):
        file = _open(path)
        if _identity(path) != self._written[path]:
            raise UserError(f"{path} was replaced while it was read; try again")
        return file


def _identity(path: str) -> tuple[int, ...]:
    """Numbers that change if another program replaces or rewrites a file."""
    if "://" in path:
        raise UserError(f"{path} is not a local file; allowed: a copy on this machine")
    try:
        found = os.stat(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: str):
    # The library maps a local file; the format cannot contain code.
    assert ml_dtypes.bfloat16  # registers bfloat16 with numpy, which it needs
    try:
        return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a complete safetensors file: {one_line(error)}"
        ) from error


def refuse_pickle(folder: str) -> None:
    """Raises UserError if a folder has its weights in a pickle."""
    for name in sorted(folders.entries(folder)):
        refuse_pickle_file(os.path.join(folder, name))


def refuse_pickle_file(path: str) -> None:
    """Raises UserError for a file with a pickle's name."""
    if path.endswith(_PICKLES):
        raise UserError(
            f"{path} is a pickle, which can run any program when it is read; allowed: "
            f"{FILE_NAME}; if you trust the file, SentenceTransformer(DIR).save(NEW) "
            "converts a folder with modules.json, and "
            "AutoModel.from_pretrained(DIR).save_pretrained(DIR) any other"
        )
