"""Finds the latest whole checkpoint of a directory, also after kills and lost files."""

from __future__ import annotations

import logging
import os
import re

import tensorflow as tf

from cmlm.common import files, folders, path_names
from cmlm.errors import UserError

logger = logging.getLogger(__name__)

# TensorFlow's file that names checkpoints, and the files of a checkpoint.
_STATE = "checkpoint"
# The directory of the checkpoint with the best validation, in that of a run.
BEST = "best"
_FILE = re.compile(r"(ckpt-(\d{1,18}))\.(?:index|data-\d{5}-of-\d{5})")


def find(directory: str) -> str | None:
    """Finds the latest checkpoint of a directory: the whole one of the highest step.

    Returns:
        The path, or None if no checkpoint was ever complete.

    Raises:
        UserError: the directory held checkpoints, and none of them is whole.
    """
    if newest := newest_whole(directory):
        return newest
    if tf.io.gfile.exists(os.path.join(directory, _STATE)) or _were_whole(directory):
        raise UserError(
            f"{directory} held checkpoints, and none of them is whole: put their "
            "files back, or use another --model_dir"
        )
    return None


def newest_whole(directory: str) -> str | None:
    """Returns what `find` returns; None also where `find` tells of lost checkpoints."""
    parts = _parts_of_checkpoints(directory)
    if parts:
        path_names.refuse_pattern(directory)
    whole = [path for path in parts if _is_whole(path)]
    if not whole:
        return None
    if parts[-1] != whole[-1]:
        message = "%s is not whole; %s is the newest whole checkpoint"
        logger.warning(message, parts[-1], whole[-1])
    return whole[-1]


def before(path: str) -> str | None:
    """Returns the newest whole checkpoint older than another one of its directory."""
    older = []
    for each in _parts_of_checkpoints(os.path.dirname(path)):
        if os.path.basename(each) == os.path.basename(path):
            break
        older.append(each)
    return next(filter(_is_whole, reversed(older)), None)


def named(directory: str) -> str | None:
    """Returns the whole checkpoint of a directory that its file `checkpoint` names.

    Checkpoints move with their directory, so only the last part of the name counts.

    Returns:
        The path, or None if the file is missing or damaged, or the checkpoint is not
        there whole.
    """
    try:
        state = tf.train.get_checkpoint_state(directory)
    except (ValueError, TypeError, tf.errors.OpError):
        # Not UTF-8 text.
        return None
    name = os.path.basename(state.model_checkpoint_path) if state else ""
    path = os.path.join(directory, name)
    # TensorFlow would follow the file `checkpoint` of a directory.
    if not name or tf.io.gfile.isdir(path):
        return None
    # The old format of TensorFlow 1 is one file.
    return path if tf.io.gfile.exists(path) or _is_whole(path) else None


def step(directory: str) -> int:
    """Returns the step of the latest checkpoint of a run; 0 before the first one."""
    match = re.fullmatch(r"ckpt-(\d+)", os.path.basename(find(directory) or ""))
    return int(match[1]) if match else 0


def repair(directory: str) -> None:
    """Writes the file `checkpoint` anew, for TensorFlow's `CheckpointManager`.

    It lists the whole checkpoints of the directory and nothing else, because
    TensorFlow deletes the oldest of the list wherever they lie.

    Raises:
        UserError: see `find`.
    """
    if find(directory) is None:
        return
    parts = _parts_of_checkpoints(directory)
    names = [os.path.basename(path) for path in parts if _is_whole(path)]
    prefix = "" if os.path.isabs(directory) else directory
    tf.compat.v1.train.update_checkpoint_state(
        directory,
        os.path.join(prefix, names[-1]),
        [os.path.join(prefix, each) for each in names],
        # TensorFlow deletes only checkpoints newer than the last preserved one, so
        # times of another clock would keep them.
        all_model_checkpoint_timestamps=[float(n) for n in range(1, len(names) + 1)],
        last_preserved_timestamp=0.0,
    )


def _is_whole(path: str) -> bool:
    """Whether a checkpoint has its data and all of its index, which is written last.

    It does not read the data, whose checksums are those of the index.
    """
    if not tf.io.gfile.glob(f"{files.escaped(path)}.data-?????-of-?????"):
        return False
    try:
        # A kill or a full disk may cut off the index.
        tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError):
        return False
    return True


def _parts_of_checkpoints(directory: str) -> list[str]:
    """The checkpoints of a run, whole or not, the oldest first."""
    if not tf.io.gfile.isdir(directory):
        return []
    found = map(_FILE.fullmatch, folders.entries(directory))
    steps = {int(match[2]): match[1] for match in found if match}
    return [os.path.join(directory, name) for _, name in sorted(steps.items())]


def _were_whole(directory: str) -> bool:
    """Whether a run saved one of its checkpoints, none of which is whole.

    A run that was killed in its first save leaves data without an index, and beside
    them the directory `ckpt-N_temp`, which TensorFlow removes after it has written the
    index.
    """
    parts = _parts_of_checkpoints(directory)
    if len(parts) != 1:
        return bool(parts)
    best = _parts_of_checkpoints(os.path.join(directory, BEST))
    saving = tf.io.gfile.exists(f"{parts[0]}_temp")
    return not saving and any(map(_is_whole, best))
