"""Temporary directories in TMPDIR that do not outlive a kill for long."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator

from cmlm.common import locks

logger = logging.getLogger(__name__)

_PREFIX = "cmlm-scratch-"


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """Yields a new directory, which goes at the end of the block.

    After a kill it stays. The next process that makes one finds it by its lock, which
    has ended, and removes it.
    """
    for left in _abandoned(tempfile.gettempdir()):
        # Another process may remove it at the same time.
        shutil.rmtree(left, ignore_errors=True)
        logger.warning("removed %s, left by a run that was killed", left)
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        handle = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have taken it for abandoned before it was locked.
        if os.path.isdir(path):
            break
        os.close(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _abandoned(parent: str) -> list[str]:
    """The directories of killed processes of this user."""
    found = []
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(FileNotFoundError):
            is_own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_own and is_directory and locks.is_abandoned(entry.path):
                found.append(entry.path)
    return sorted(found)
