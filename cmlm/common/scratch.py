"""Temporary directories in TMPDIR; after a kill, the next process removes them."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
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
    parent = tempfile.gettempdir()
    _remove_abandoned(parent)
    path = os.path.join(parent, f"{_PREFIX}{uuid.uuid4().hex[:8]}")
    with locks.in_work(path, is_directory=True, is_private=True):
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: str) -> None:
    """Removes the directories of killed processes of this user, and their marks."""
    for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(FileNotFoundError):
            is_own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            is_directory = entry.is_dir(follow_symlinks=False)
            is_mark = entry.name.endswith(locks.MARK) and not os.path.lexists(
                entry.path.removesuffix(locks.MARK)
            )
            if not is_own or not (is_directory or is_mark):
                continue
            with locks.abandoned(entry.path) as is_abandoned:
                if is_abandoned and is_mark:
                    os.unlink(entry.path)
                elif is_abandoned:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    logger.warning(
                        "removed %s, left by a run that was killed", entry.path
                    )
