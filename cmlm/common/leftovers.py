"""Leftovers of killed runs: found beside outputs, named in the log, removed."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from cmlm.common import folders, locks, path_names

logger = logging.getLogger(__name__)

# What `set_aside` moves has this name before `.tmp-*`.
_REMOVED = "removed"


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


def tidy_within(directory: str, names: Sequence[str]) -> None:
    """Removes the leftovers of a killed run from a locked local directory.

    Args:
        directory: the directory, which may hold other files of the user.
        names: the command's own entries there, as patterns.
    """
    for entry in sorted(os.listdir(directory)):
        path, own = os.path.join(directory, entry), path_names.final(entry)
        if not _is_own(entry, names) and not (own == _REMOVED != entry):
            continue
        if own != entry:
            remove([path])
            continue
        for folder, inner, files in os.walk(path):
            left = [name for name in [*inner, *files] if path_names.leftover(name)]
            remove(os.path.join(folder, name) for name in left)
            inner[:] = [name for name in inner if name not in left]


def _leftovers(path: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The unfinished and the replaced outputs beside a path.

    Each unfinished one comes with the file or directory that its process marks.
    """
    directory, name = os.path.split(path)
    unfinished, replaced = [], []
    where = directory or "."
    entries = folders.entries(where) if tf.io.gfile.isdir(where) else ()
    for entry in sorted(entries):
        found = path_names.leftover(entry.rstrip("/"))
        if not found or found["output"] != name:
            continue
        left = os.path.join(directory, found[0])
        marked = os.path.join(directory, found["marked"])
        if found["kind"] == "old":
            # A command sets only directories aside; a file of this name is the user's.
            if tf.io.gfile.isdir(left):
                replaced.append(left)
        elif left != f"{marked}{locks.MARK}" or not tf.io.gfile.exists(marked):
            # A mark goes with its directory.
            unfinished.append((left, marked if tf.io.gfile.exists(marked) else left))
    return unfinished, replaced


def work_path(output: str | None) -> str | None:
    """The work directory beside an output, for files that outlive a killed run."""
    return output and f"{output}.work"


@contextlib.contextmanager
def work_directory(
    path: str | None,
    names: Sequence[str],
    stays: Callable[[str, BaseException | None], bool] = lambda _, error: (
        error is not None
    ),
) -> Iterator[str | None]:
    """Locks a directory whose files the next run of a killed command finds again.

    Args:
        path: the directory, created if missing. None or a remote path gives None.
        names: the command's own entries there, as patterns.
        stays: whether the directory stays after an error of the block, or after its
            success (None); otherwise it goes, see `set_aside`.
    """
    if not path or not path_names.is_local(path):
        yield None
        return
    tidy(path)
    with contextlib.ExitStack() as unlocked, locks.held(path):
        tidy_within(path, ())
        error = None
        try:
            yield path
        except BaseException as raised:
            error = raised
            raise
        finally:
            if not stays(path, error):
                unlocked.callback(remove_aside, set_aside(path, names))


def set_aside(directory: str, names: Sequence[str]) -> str:
    """Renames a locked local directory, or moves a command's own entries out of it.

    The directory stays if the user keeps other files there, or if it is a link. After a
    kill, `tidy` and `tidy_within` remove the rest.

    Args:
        directory: the directory.
        names: the command's own entries there, as patterns.

    Returns:
        The directory to remove when the lock has ended: over NFS, a directory with an
        open file, such as that of the lock, cannot be removed.
    """
    directory = directory.rstrip("/")
    entries = [entry for entry in os.listdir(directory) if entry != locks.FILE_NAME]
    others = sorted(entry for entry in entries if not _is_own(entry, names))
    if not others and not os.path.islink(directory):
        removed = path_names.temporary(directory)
        os.rename(directory, removed)
        return removed
    removed = path_names.temporary(os.path.join(directory, _REMOVED))
    os.mkdir(removed)
    for entry in entries:
        if entry not in others:
            os.rename(os.path.join(directory, entry), os.path.join(removed, entry))
    if others:
        kind = "file or folder" if len(others) == 1 else "files or folders"
        what = f"{len(others):,} {kind} of your own, such as {others[0]}"
        logger.warning("%s stays, because it has %s", directory, what)
    return removed


def remove_aside(directory: str) -> None:
    """Removes what `set_aside` returns, unless another process does."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _is_own(entry: str, names: Iterable[str]) -> bool:
    """Whether patterns of names match an entry of a directory, or what it will be."""
    own = path_names.final(entry)
    return any(fnmatch.fnmatchcase(own, name) for name in names)


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
