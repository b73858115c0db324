"""What killed runs left: found beside outputs, named in the log, removed."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import shutil
from collections.abc import Iterable, Iterator

import tensorflow as tf

from cmlm.common import locks, path_names

logger = logging.getLogger(__name__)


def tidy(path: str) -> None:
    """Removes the leftovers of killed runs beside an output: `PATH.{tmp,old}-*`.

    If a run was killed while it replaced a directory, the old one gets its name back.
    What another process is writing stays, and so does everything on remote storage,
    which has no locks; the log names it.
    """
    path = path.rstrip("/")
    unfinished, replaced = _leftovers(path)
    with contextlib.ExitStack() as stack:
        is_abandoned = {
            owner: stack.enter_context(locks.abandoned(owner))
            for owner in sorted({owner for _, owner in unfinished})
        }
        # An output that has ended since then has left no file.
        unfinished = [each for each in unfinished if tf.io.gfile.exists(each[0])]
        living = [left for left, owner in unfinished if not is_abandoned[owner]]
        for left in living:
            logger.warning("%s is unfinished: delete it if no run is writing it", left)
        remove(left for left, _ in unfinished if left not in living)
    if living or not replaced:
        return
    if not tf.io.gfile.exists(path):
        newest = max(replaced, key=lambda left: tf.io.gfile.stat(left).mtime_nsec)
        tf.io.gfile.rename(newest, path)
        replaced.remove(newest)
        logger.warning(
            "%s is restored: a run was killed while it replaced this output", path
        )
    remove(replaced)


def tidy_within(directory: str, names: Iterable[str]) -> None:
    """Removes the leftovers of a killed run from a locked local directory.

    Args:
        directory: the directory, which may hold other files of the user.
        names: the command's own entries there, as patterns.
    """
    for entry in sorted(os.listdir(directory)):
        path, own = os.path.join(directory, entry), path_names.final(entry)
        if not any(fnmatch.fnmatchcase(own, name) for name in names):
            continue
        if own != entry:
            remove([path])
            continue
        for folder, folders, files in os.walk(path):
            left = [name for name in [*folders, *files] if path_names.leftover(name)]
            remove(os.path.join(folder, name) for name in left)
            folders[:] = [name for name in folders if name not in left]


def _leftovers(path: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The unfinished and the replaced outputs beside a path.

    Each unfinished one comes with the file or directory that its process marks.
    """
    directory, name = os.path.split(path)
    unfinished, replaced = [], []
    where = directory or "."
    entries = tf.io.gfile.listdir(where) if tf.io.gfile.isdir(where) else ()
    for entry in sorted(entries):
        found = path_names.leftover(entry.rstrip("/"))
        if not found or found["output"] != name:
            continue
        left = os.path.join(directory, found[0])
        marked = os.path.join(directory, found["marked"])
        if found["kind"] == "old":
            # Only directories are replaced so.
            if tf.io.gfile.isdir(left):
                replaced.append(left)
        else:
            unfinished.append((left, marked if tf.io.gfile.exists(marked) else left))
    return unfinished, replaced


def work_path(output: str | None) -> str | None:
    """The work directory beside an output, for files that outlive a killed run."""
    return output and f"{output}.work"


@contextlib.contextmanager
def work_directory(path: str | None) -> Iterator[str | None]:
    """Locks a directory whose files the next run of a killed command finds again.

    The directory goes when the block succeeds, and stays when it fails.

    Args:
        path: the directory, created if missing. None or a remote path gives None.
    """
    if not path or not path_names.is_local(path):
        yield None
        return
    tidy(path)
    with locks.held(path):
        yield path
        discard(path)


def discard(directory: str) -> None:
    """Removes a local directory; `tidy` removes the rest of it after a kill."""
    removed = path_names.temporary(directory.rstrip("/"))
    os.rename(directory, removed)
    shutil.rmtree(removed)


def remove_directory(path: str) -> None:
    """Removes a directory and the links in it, but nothing that they lead to."""
    if path_names.is_local(path):
        # TensorFlow's rmtree empties the directories that links lead to.
        shutil.rmtree(path)
    else:
        tf.io.gfile.rmtree(path)


def remove(left: Iterable[str]) -> None:
    """Removes files and directories that a killed run left, and names them."""
    for path in left:
        if tf.io.gfile.isdir(path) and path_names.followed(path) == path:
            remove_directory(path)
        else:
            tf.io.gfile.remove(path)
        logger.warning("removed %s, left by a run that was killed", path)
