"""A text with its vectors in one folder: `cmlm.encode` writes it, `cmlm.mine` reads it.

texts/text.txt      the distinct lines, blank ones left out, in their first order
texts/rows.npy      int64 [lines], the number of each line among the distinct ones
vectors/about.json  the model, the shape and the rows of a shard
vectors/00000.npy   [rows, dim], unit vectors of the first distinct lines, float32 or
                    float16
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from cmlm.common import json_files, locks, path_names
from cmlm.common.counts import counted
from cmlm.common.numbered_tasks import HERE, Workers
from cmlm.errors import UserError
from cmlm.mining import storage, texts, vectors
from cmlm.mining.texts import Texts
from cmlm.mining.vectors import Reader, ShardedVectors

NAMES = _TEXTS, _VECTORS = "texts", "vectors"


def is_folder(path: str) -> bool:
    """Whether a path is such a folder, whole or not."""
    return os.path.isdir(os.path.join(path, _TEXTS))


def refuse_others(directory: str) -> None:
    """Raises UserError if a locked directory holds anything but such a folder.

    The leftovers of a killed run may lie there.
    """
    for entry in sorted(os.listdir(directory)):
        if path_names.final(entry) not in (*NAMES, locks.FILE_NAME):
            raise UserError(
                f"{directory} holds {entry}; allowed: a new folder or an earlier output"
            )


def write(
    directory: str,
    paths: Sequence[str],
    name: str,
    reader: Reader,
    memory: int,
    workers: Workers = HERE,
    dtype: str = "float32",
) -> tuple[Texts, ShardedVectors]:
    """Writes what is missing of a folder.

    Args:
        directory: the folder, created if missing; a folder of another text or model is
            refused. The text may have new lines behind those of the folder.
        paths: the files of the text, one sentence a line.
        name: the text's name in messages.
        reader: the model.
        memory: the memory limit of the search for equal lines, in bytes.
        workers, dtype: see `vectors.encode`.

    Raises:
        UserError: the folder holds another text or vectors of another model.
    """
    # Vectors of another model or type must not get the text to grow.
    inside = os.path.join(directory, _VECTORS)
    vectors.check_kind(inside, reader.encoder, dtype)
    found = texts.gather(
        functools.partial(texts.read_lines, paths),
        os.path.join(directory, _TEXTS),
        name,
        memory,
        whole=directory,
    )
    return found, vectors.encode(found, reader, inside, workers, dtype)


def read(directory: str, name: str) -> tuple[Texts, ShardedVectors]:
    """Opens a whole folder.

    Args:
        directory: the folder.
        name: the text's name in messages.

    Raises:
        UserError: a file is missing or damaged, or the vectors are of another text.
    """
    found = Texts(os.path.join(directory, _TEXTS), name)
    encoded = ShardedVectors(os.path.join(directory, _VECTORS))
    path = storage.about_path(os.path.join(directory, _VECTORS))
    json_files.field(encoded.about, "model", dict, path)
    if json_files.field(encoded.about, "texts", str, path) != found.digest:
        raise UserError(
            f"{directory} holds vectors of another text than its {_TEXTS}; run the "
            f"cmlm.encode command that wrote it again, or delete {directory}"
        )
    if len(encoded) != len(found):
        raise UserError(
            f"{path} has shape={list(encoded.shape)}; allowed: "
            f"[{len(found)}, {encoded.dim}], a vector for each distinct line"
        )
    missing = encoded.missing()
    if missing:
        raise UserError(
            f"{directory} lacks {counted(len(missing), 'shard')} of vectors; run the "
            "cmlm.encode command that wrote it again, which resumes"
        )
    return found, encoded
