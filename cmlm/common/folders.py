"""What folders contain, local or remote, also beside names that are not UTF-8."""

from __future__ import annotations

import os

import tensorflow as tf

from cmlm.common import path_names
from cmlm.errors import UserError


def entries(folder: str) -> list[str]:
    """The names in a folder, without names that TensorFlow cannot open."""
    if not path_names.is_local(folder):
        return tf.io.gfile.listdir(folder)
    return [name for name in os.listdir(folder) if _is_utf8(name)]


def _is_utf8(name: str) -> bool:
    return os.fsencode(name).decode(errors="ignore") == name


def matching(pattern: str) -> list[str]:
    """The files that a glob of TensorFlow matches, sorted.

    Directories, and unfinished files of this project's commands, do not count.

    Raises:
        UserError: it matches a name that is not UTF-8.
    """
    try:
        found = tf.io.gfile.glob(pattern)
    except UnicodeDecodeError as error:
        name = error.object.decode(errors="backslashreplace")
        raise UserError(
            f"{pattern} matches {name}; allowed: files whose names are UTF-8 (rename "
            "this file, or write a narrower pattern)"
        ) from error
    return sorted(
        path for path in found if not (tf.io.gfile.isdir(path) or _is_unfinished(path))
    )


def _is_unfinished(path: str) -> bool:
    name = path_names.leftover(os.path.basename(path))
    return name is not None and name["kind"] == "tmp"
