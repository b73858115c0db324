"""Finds the latest whole checkpoint of a directory, also after kills and lost files."""

from __future__ import annotations

import logging
import os
import re
import time

import tensorflow as tf

from cmlm.common import files, locks
from cmlm.errors import UserError

logger = logging.getLogger(__name__)

# TensorFlow's file that names the latest checkpoint, and the files of a checkpoint.
_STATE = "checkpoint"
# The directory of the checkpoint with the best validation, in that of a run.
BEST = "best"
_FILE = re.compile(r"(ckpt-(\d{1,18}))\.(?:index|data-\d{5}-of-\d{5})")


def find(directory: str) -> str | None:
    """Finds the latest checkpoint of a directory.

    TensorFlow's file `checkpoint` names it. If that file is missing, is damaged, or
    names a checkpoint that is not there whole, the newest whole checkpoint is taken and
    the log says so.

    Returns:
        The path, or None if no checkpoint was ever complete.

    Raises:
        UserError: the directory held checkpoints, and none of them is whole.
    """
    path, fault = _find(directory)
    if fault:
        logger.warning("%s; %s is the newest whole checkpoint", fault, path)
    return path


def step(directory: str) -> int:
    """Returns the step of the latest checkpoint of a run; 0 if it has none."""
    named = re.fullmatch(r"ckpt-(\d+)", os.path.basename(find(directory) or ""))
    return int(named[1]) if named else 0


def repair(directory: str) -> None:
    """Writes the file `checkpoint` anew if `find` cannot rely on it, and says so.

    It also gives the checkpoints other times if TensorFlow would never delete them,
    because the clock was set back.
    """
    path = find(directory)
    if not path:
        return
    if _find(directory)[1] or _names_others(directory):
        listed = _whole(directory)
    elif _would_stay(directory):
        listed = _state(directory).all_model_checkpoint_paths
    else:
        return
    name = os.path.basename(path)
    names = [os.path.basename(each) for each in listed]
    names = [*(each for each in names if each != name), name]
    prefix = "" if os.path.isabs(directory) else directory
    tf.compat.v1.train.update_checkpoint_state(
        directory,
        os.path.join(prefix, name),
        [os.path.join(prefix, each) for each in names],
        # TensorFlow deletes only checkpoints newer than the last preserved one.
        all_model_checkpoint_timestamps=[float(n) for n in range(1, len(names) + 1)],
        last_preserved_timestamp=0.0,
    )


def _find(directory: str) -> tuple[str | None, str]:
    """The latest checkpoint, and the fault of the file `checkpoint` or ""."""
    state_path = os.path.join(directory, _STATE)
    if not tf.io.gfile.exists(state_path):
        whole = _whole(directory)
        if whole:
            return _readable(whole), f"{state_path} is missing"
        parts = list(_parts_of_checkpoints(directory).values())
        if _were_whole(parts, directory):
            raise UserError(
                f"{directory} held checkpoints, and none of them is whole: put their "
                "files back, or use another --model_dir"
            )
        return None, ""
    named = _named_in(directory)
    if named and _is_whole(named):
        return named, ""
    fault = f"{state_path} is damaged"
    if named:
        fault = f"{state_path} names {os.path.basename(named)}, which is not whole"
    whole = _whole(directory)
    if not whole:
        raise UserError(
            f"{fault}, and {directory} holds no whole checkpoint: put its files back, "
            "or use another --model_dir"
        )
    return _readable(whole), fault


def _state(directory: str):
    try:
        return tf.train.get_checkpoint_state(directory)
    except (ValueError, TypeError, tf.errors.OpError):
        # Not UTF-8 text.
        return None


def _named_in(directory: str) -> str | None:
    """The path that the file `checkpoint` names; None if the file is damaged.

    Checkpoints move with their directory, so only the last part of the name counts.
    """
    state = _state(directory)
    name = os.path.basename(state.model_checkpoint_path) if state else ""
    return os.path.join(directory, name) if name else None


def _names_others(directory: str) -> bool:
    """Whether the file `checkpoint` lists checkpoints outside of its directory.

    TensorFlow deletes the oldest checkpoints of the list.
    """
    state = _state(directory)
    return state is not None and any(
        _folder(os.path.dirname(path)) != _folder(directory)
        for path in state.all_model_checkpoint_paths
    )


def _would_stay(directory: str) -> bool:
    """Whether TensorFlow would forget checkpoints of the list instead of deleting them.

    It forgets those that are not newer than the last preserved one, and at first that
    is the time at which the run began.
    """
    state = _state(directory)
    times = state.all_model_checkpoint_timestamps
    return min([*times, time.time()]) <= state.last_preserved_timestamp


def _folder(path: str) -> str:
    return os.path.abspath(path) if locks.is_local(path) else path.rstrip("/")


def _is_whole(path: str) -> bool:
    """Whether a checkpoint has its index, which is written last, and its data."""
    # The old format of TensorFlow 1 is one file.
    if tf.io.gfile.exists(path):
        return True
    return tf.io.gfile.exists(f"{path}.index") and bool(
        tf.io.gfile.glob(f"{files.escaped(path)}.data-?????-of-?????")
    )


def _whole(directory: str) -> list[str]:
    """The whole checkpoints of a run, the oldest first."""
    return [
        path
        for _, path in sorted(_parts_of_checkpoints(directory).items())
        if tf.io.gfile.exists(f"{path}.index") and _is_whole(path)
    ]


def _parts_of_checkpoints(directory: str) -> dict[int, str]:
    """The checkpoints of a run, whole or not: step to path."""
    if not tf.io.gfile.isdir(directory):
        return {}
    found = map(_FILE.fullmatch, tf.io.gfile.listdir(directory))
    return {
        int(match[2]): os.path.join(directory, match[1]) for match in found if match
    }


def _were_whole(parts: list[str], directory: str) -> bool:
    """Whether a run saved one of its checkpoints, none of which is whole.

    A run that was killed in its first save leaves data without an index, and beside
    them the directory `ckpt-N_temp`, which TensorFlow removes after it has written the
    index.
    """
    if len(parts) != 1:
        return bool(parts)
    saving = tf.io.gfile.exists(f"{parts[0]}_temp")
    return not saving and bool(_whole(os.path.join(directory, BEST)))


def _readable(whole: list[str]) -> str:
    """The newest of some checkpoints whose tensors can all be read.

    Raises:
        UserError: all of them are damaged.
    """
    for path in reversed(whole):
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, IndexError, RuntimeError):
            continue
        return path
    raise UserError(f"{', '.join(whole)}: damaged, and no other checkpoint is there")
