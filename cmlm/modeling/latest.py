"""Finds the latest whole checkpoint of a directory, also after kills and lost files."""

from __future__ import annotations

import logging
import os
import re
import time

import tensorflow as tf

from cmlm.common import files, path_names
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
    path, _ = _find(directory)
    return path


def named(directory: str) -> str | None:
    """Returns the whole checkpoint of a directory that its file `checkpoint` names.

    Checkpoints move with their directory, so only the last part of the name counts.

    Returns:
        The path, or None if the file is missing or damaged, or the checkpoint is not
        there whole.
    """
    path = _named_in(directory)
    # TensorFlow would follow the file `checkpoint` of a directory.
    if not path or tf.io.gfile.isdir(path):
        return None
    # The old format of TensorFlow 1 is one file.
    return path if tf.io.gfile.exists(path) or _is_whole(path) else None


def step(directory: str) -> int:
    """Returns the step of the latest checkpoint of a run; 0 if it has none."""
    match = re.fullmatch(r"ckpt-(\d+)", os.path.basename(find(directory) or ""))
    return int(match[1]) if match else 0


def repair(directory: str) -> None:
    """Writes the file `checkpoint` anew if `find` cannot rely on it, and says so.

    It also gives the checkpoints other times if TensorFlow would never delete them,
    because the clock was set back.
    """
    path, is_named = _find(directory)
    if not path:
        return
    state = _state(directory)
    if not is_named or _names_others(state, directory):
        listed = _whole(directory)
    elif _would_stay(state):
        listed = state.all_model_checkpoint_paths
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


def _find(directory: str) -> tuple[str | None, bool]:
    """The latest checkpoint, and whether the file `checkpoint` names it; see `find`."""
    state_path = os.path.join(directory, _STATE)
    has_state = tf.io.gfile.exists(state_path)
    fault = f"{state_path} is missing"
    if has_state:
        if path := named(directory):
            return path, True
        fault = f"{state_path} is damaged"
        if path := _named_in(directory):
            fault = f"{state_path} names {os.path.basename(path)}, which is not whole"
    whole = _whole(directory)
    if whole:
        path = _readable(whole)
        logger.warning("%s; %s is the newest whole checkpoint", fault, path)
        return path, False
    if has_state:
        raise UserError(
            f"{fault}, and {directory} holds no whole checkpoint: put its files back, "
            "or use another --model_dir"
        )
    if _were_whole(directory):
        raise UserError(
            f"{directory} held checkpoints, and none of them is whole: put their "
            "files back, or use another --model_dir"
        )
    return None, False


def _state(directory: str):
    """The content of the file `checkpoint`; None if it is damaged or missing."""
    try:
        return tf.train.get_checkpoint_state(directory)
    except (ValueError, TypeError, tf.errors.OpError):
        # Not UTF-8 text.
        return None


def _named_in(directory: str) -> str | None:
    """The path that the file `checkpoint` names; None if the file is damaged."""
    state = _state(directory)
    name = os.path.basename(state.model_checkpoint_path) if state else ""
    return os.path.join(directory, name) if name else None


def _names_others(state, directory: str) -> bool:
    """Whether the file `checkpoint` lists checkpoints outside of its directory.

    TensorFlow deletes the oldest checkpoints of the list.
    """
    return any(
        _folder(os.path.dirname(path)) != _folder(directory)
        for path in state.all_model_checkpoint_paths
    )


def _would_stay(state) -> bool:
    """Whether TensorFlow would forget checkpoints of the list instead of deleting them.

    It forgets those that are not newer than the last preserved one, and at first that
    is the time at which the run began.
    """
    times = state.all_model_checkpoint_timestamps
    return min([*times, time.time()]) <= state.last_preserved_timestamp


def _folder(path: str) -> str:
    return os.path.abspath(path) if path_names.is_local(path) else path.rstrip("/")


def _is_whole(path: str) -> bool:
    """Whether a checkpoint has its index, which is written last, and its data."""
    return tf.io.gfile.exists(f"{path}.index") and bool(
        tf.io.gfile.glob(f"{files.escaped(path)}.data-?????-of-?????")
    )


def _whole(directory: str) -> list[str]:
    """The whole checkpoints of a run, the oldest first."""
    return [
        path
        for _, path in sorted(_parts_of_checkpoints(directory).items())
        if _is_whole(path)
    ]


def _parts_of_checkpoints(directory: str) -> dict[int, str]:
    """The checkpoints of a run, whole or not: step to path."""
    if not tf.io.gfile.isdir(directory):
        return {}
    found = map(_FILE.fullmatch, tf.io.gfile.listdir(directory))
    return {
        int(match[2]): os.path.join(directory, match[1]) for match in found if match
    }


def _were_whole(directory: str) -> bool:
    """Whether a run saved one of its checkpoints, none of which is whole.

    A run that was killed in its first save leaves data without an index, and beside
    them the directory `ckpt-N_temp`, which TensorFlow removes after it has written the
    index.
    """
    parts = list(_parts_of_checkpoints(directory).values())
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
