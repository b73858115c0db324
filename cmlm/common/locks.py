"""Locks that end with their process, even by kill -9: `flock` on local files.

Over NFS, they hold between hosts if its lock service runs. Remote paths (`gs://`) and
some network file systems have no locks. There the program goes on without one and says
so.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import logging
import os
import socket
from collections.abc import Iterator

from cmlm.common import own_files, path_names
from cmlm.errors import UserError

logger = logging.getLogger(__name__)

FILE_NAME = "lock"
# The ending of the file beside a directory that marks it as in use: over NFS, the lock
# of a directory itself holds on its own host only.
MARK = ".lock"


@contextlib.contextmanager
def held(directory: str) -> Iterator[None]:
    """Holds the lock of a directory, which is created if missing.

    A directory that was created here and stays empty is removed again. The file `lock`
    in the directory names the host and the process. It goes when the block ends; after
    a kill it stays, and the next process takes it over.

    Raises:
        UserError: another process holds the lock, or its file is a link.
    """
    if not path_names.is_local(directory):
        logger.info(
            "%s is not locked, as its file system has no locks: let one run at a time "
            "write there",
            directory,
        )
        yield
        return
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, FILE_NAME)
    handle = _acquire(directory, path)
    try:
        os.ftruncate(handle, 0)
        now = datetime.datetime.now().isoformat(" ", "seconds")
        owner = f"process {os.getpid()} on {socket.gethostname()} since {now}\n"
        # A full disk stops the run at its first output, which has a name to report.
        with contextlib.suppress(OSError):
            os.write(handle, owner.encode())
        yield
    finally:
        # Its directory may have moved, and another process may have a new one here.
        is_own = False
        with contextlib.suppress(OSError):
            is_own = _is_at(handle, path)
            if is_own:
                os.unlink(path)
        # Over NFS, an open file keeps its directory.
        os.close(handle)
        if is_own and is_new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _acquire(directory: str, path: str) -> int:
    """Opens and locks the lock file of a directory."""
    while True:
        with contextlib.ExitStack() as stack:
            try:
                handle = own_files.opener(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                # The last holder has just removed the directory that it had made.
                os.makedirs(directory, exist_ok=True)
                continue
            stack.callback(os.close, handle)
            if not _lock(handle, path):
                raise UserError(
                    f"{directory} is in use by {_owner(handle)}; wait until it ends, "
                    "or name another directory"
                )
            # The last holder may have deleted the file between the two calls.
            if _is_at(handle, path):
                stack.pop_all()
                return handle


def _owner(handle: int) -> str:
    return os.pread(handle, 200, 0).decode(errors="replace").strip() or "another run"


def _lock(handle: int, path: str) -> bool:
    """Locks an open file; False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s cannot be locked: %s", path, error.strerror)
    return True


@contextlib.contextmanager
def in_work(
    path: str, is_directory: bool = False, is_private: bool = False
) -> Iterator[None]:
    """Creates a temporary file or directory, and marks it as one in use.

    Args:
        path: a new path; a remote one is left to its writer.
        is_directory: whether to create a directory.
        is_private: whether only this user can open the path.

    Raises:
        OSError: the path cannot be created.
    """
    if not path_names.is_local(path):
        yield
        return
    mask = 0o700 if is_private else 0o777
    mark = f"{path}{MARK}" if is_directory else path
    handle = None
    while handle is None:
        handle = _create(mark, 0o666 & mask)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        if is_directory:
            stack.callback(_unlink, mark)
            os.mkdir(path, 0o777 & mask)
            # For programs that clean old files, and if the mark gets lost.
            own = os.open(path, os.O_RDONLY)
            stack.callback(os.close, own)
            with contextlib.suppress(OSError):
                fcntl.flock(own, fcntl.LOCK_EX)
        yield


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _create(path: str, mode: int) -> int | None:
    """A new locked file; None if another process has removed it again."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    # Another process may have found the path in the moment without a lock: it holds
    # one while it removes the path.
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    if _is_at(handle, path):
        return handle
    os.close(handle)
    return None


@contextlib.contextmanager
def abandoned(path: str) -> Iterator[bool]:
    """Yields whether no process marks a path by `in_work`; False if this is unknown.

    While the block runs, nothing else can mark or remove the path.
    """
    mark, handle = f"{path}{MARK}", None
    if not os.path.lexists(mark):
        # A file marks itself; a directory has a lock of its own, too.
        mark = path
    if path_names.is_local(path):
        # Over NFS, the lock needs a file that is open for writing.
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                # Another user's pipe would wait for a writer.
                handle = os.open(mark, flags | os.O_NONBLOCK)
                break
    is_free = handle is not None and _is_free(handle) and _is_at(handle, mark)
    try:
        yield is_free
    finally:
        if is_free and mark != path and not os.path.lexists(path):
            _unlink(mark)
        if handle is not None:
            os.close(handle)


def _is_at(handle: int, path: str) -> bool:
    """Whether an open file is still the one at its path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(handle))
    return False


def _is_free(handle: int) -> bool:
    """Locks an open file; False if another process has locked it or locks fail."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
