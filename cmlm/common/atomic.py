"""Output files and directories, which appear whole or not at all.

A file or directory that is being written gets its final name when it is complete. All
paths go through `tf.io.gfile`, so `gs://` paths work like local ones.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from typing import TextIO

import tensorflow as tf

from cmlm.common import leftovers, locks, outputs, packing, path_names
from cmlm.errors import UserError


@contextlib.contextmanager
def file(path: str) -> Iterator[str]:
    """Yields a temporary path; the file there moves to `path` when the block succeeds.

    The temporary file is in the same directory, so the last step is a rename. A missing
    directory is created. If the block fails, the temporary file is removed, and an
    older file at `path` stays unchanged; else the new one gets its permissions.

    Raises:
        OSError: the file cannot be written; the error names a path.
    """
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    temporary, older = path_names.temporary(path), _older(path)
    try:
        with locks.in_work(temporary, is_private=older is not None):
            yield temporary
            if older is not None:
                _give_access(temporary, older)
            tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException as error:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        _name(error, path)
        raise


def _older(path: str) -> os.stat_result | None:
    """The state of a local regular file; None for a link and any other path."""
    if path_names.is_local(path):
        with contextlib.suppress(FileNotFoundError):
            state = os.lstat(path)
            return state if stat.S_ISREG(state.st_mode) else None
    return None


def _give_access(path: str, older: os.stat_result) -> None:
    """Gives a new file the permissions, group and, if possible, owner of an older one.

    Its owner may write: logs grow.
    """
    own = os.stat(path)
    mode = older.st_mode & 0o777 | stat.S_IWUSR
    # Some file systems have no permissions to change.
    with contextlib.suppress(OSError):
        if own.st_gid != older.st_gid:
            try:
                os.chown(path, -1, older.st_gid)
            except OSError:
                # Another group may do no more than everyone.
                mode &= ~0o070 | (mode & 0o007) << 3
        os.chmod(path, mode)
        if own.st_uid != older.st_uid:
            os.chown(path, older.st_uid, -1)


@contextlib.contextmanager
def working_path(path: str) -> Iterator[str]:
    """Yields a prefix for temporary files beside `path`, as `leftovers.tidy` knows."""
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    prefix = path_names.temporary(path)
    with locks.in_work(prefix):
        try:
            yield prefix
        finally:
            if path_names.is_local(prefix):
                os.remove(prefix)


class _GFileWriter(io.RawIOBase):
    """A new GFile as a standard raw stream, for gzip and text wrappers."""

    def __init__(self, path: str):
        super().__init__()
        self._file = tf.io.gfile.GFile(path, "wb")
        # A GFile creates its file at the first write, even a write of no bytes.
        self._file.write(b"")

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._file.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._file.close()
        finally:
            # A second attempt would hide the error of the first.
            super().close()


@contextlib.contextmanager
def text(path: str) -> Iterator[TextIO]:
    """Yields a UTF-8 text stream; the file appears at `path` when the block succeeds.

    If `path` ends in `.gz`, the text is packed, see `packing.text_writer`.
    """
    with (
        file(path) as temporary,
        _GFileWriter(temporary) as raw,
        io.BufferedWriter(raw, buffer_size=1 << 20) as stream,
        packing.text_writer(stream, path) as written,
    ):
        yield written


@contextlib.contextmanager
def directory(path: str, overwrite: bool = False) -> Iterator[str]:
    """Yields a new directory to fill; it moves to `path` when the block succeeds.

    A process that is killed between the last two renames leaves the old directory as
    `PATH.old-*`; `leftovers.tidy` gives it its name back.

    Args:
        path: the directory to create; an empty directory may exist there. If it is a
            link, the directory that it leads to is created or replaced.
        overwrite: whether to replace an existing directory, which stays until the new
            one is complete.

    Raises:
        UserError: `path` exists and `overwrite` is not set, or `path` cannot be
            created. If another process wrote `path` meanwhile, the message names the
            place of the new directory.
    """
    path = path_names.followed(path.rstrip("/"))
    temporary, replaced = path_names.temporary(path), path_names.temporary(path, "old")
    if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
        raise UserError(f"{path} is a file: name a directory to write")
    outputs.refuse_existing(path, overwrite)
    with contextlib.ExitStack() as stack:
        try:
            tf.io.gfile.makedirs(os.path.dirname(path) or ".")
            stack.enter_context(locks.in_work(temporary, is_directory=True))
            tf.io.gfile.makedirs(temporary)
        except tf.errors.OpError as error:
            raise UserError(f"cannot write {path}: {error.message}") from error
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        try:
            yield temporary
            _refuse_meanwhile(path, temporary, overwrite)
            if tf.io.gfile.exists(path):
                tf.io.gfile.rename(path, replaced)
            tf.io.gfile.rename(temporary, path)
        except BaseException as error:
            if tf.io.gfile.exists(temporary):
                leftovers.remove_directory(temporary)
            if tf.io.gfile.exists(replaced) and not tf.io.gfile.exists(path):
                tf.io.gfile.rename(replaced, path)
            _name(error, path)
            raise
        if tf.io.gfile.exists(replaced):
            leftovers.remove_directory(replaced)


def _refuse_meanwhile(path: str, temporary: str, overwrite: bool) -> None:
    """Raises UserError if an output appeared that a new one may not replace.

    The new output then gets a name of its own, so neither output is lost.
    """
    try:
        outputs.refuse_existing(path, overwrite)
    except UserError as error:
        own = path_names.temporary(path, "new")
        tf.io.gfile.rename(temporary, own)
        raise UserError(
            f"{path} appeared while this command ran, so its output is {own}; allowed: "
            "one run at a time for an output"
        ) from error


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Names a path in an OSError that names none, as that of a write on a full disk."""
    try:
        yield
    except OSError as error:
        _name(error, path)
        raise


def _name(error: BaseException, path: str) -> None:
    """Names the output in an error of a write; the system names no file on its own."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = path
