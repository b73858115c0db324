"""Prepares a process for native code, and keeps its log lines off the terminal."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from cmlm.common import machine
from cmlm.errors import UserError

# Level 3 hides TensorFlow's ERROR lines too. Important ones reach Python as exceptions;
# the others say "no GPU driver here" and the like.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
# By itself, TensorFlow uses oneDNN's layers only on processors with AVX-512's or AMX's
# instructions for neural networks. They are faster with AVX2, too.
_FAST = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def prepare() -> None:
    """Prepares a process for native code: its variables and its streams.

    Variables that the user has set stay. Without effect on the speed in a process that
    has imported TensorFlow.

    A process without stdout or stderr (`>&-`, `2>&-`) gets one that drops everything:
    bars and messages of libraries need it.
    """
    fast = _FAST if "avx2" in machine.cpu_flags() else {}
    for name, value in (_QUIET | fast).items():
        os.environ.setdefault(name, value)
    # Each takes the free descriptor 1 or 2, which native code writes to.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


class _Messages(io.TextIOWrapper):
    """stderr, which drops what a full disk or a reader that has gone does not take."""

    def write(self, text: str) -> int:
        with _dropping():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with _dropping():
            super().flush()


@contextlib.contextmanager
def _dropping() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EIO):
            raise


def outlive_stderr() -> None:
    """Lets a command go on if the file or the reader of its messages fails."""
    stderr = sys.stderr
    if stderr is sys.__stderr__ and isinstance(stderr, io.TextIOWrapper):
        sys.stderr = _Messages(
            open(stderr.fileno(), "wb", closefd=False),
            encoding=stderr.encoding,
            errors=stderr.errors,
            line_buffering=True,
        )


def _captured() -> BinaryIO:
    """A file without a name; on Linux in memory, as no folder may be writable."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()


@contextlib.contextmanager
def dropped() -> Iterator[None]:
    """Drops everything that is written to stderr in the body, warnings too.

    Environment variables are not enough: native code logs before it reads them, and
    packages warn about themselves. If the body raises anything but a UserError, the
    dropped output is printed after all. With TF_CPP_MIN_LOG_LEVEL below 3 in the
    environment nothing is dropped, nor in another thread than the main one: stderr is
    the whole process's, and the main thread may write to it or fork meanwhile.
    """
    prepare()
    is_main = threading.current_thread() is threading.main_thread()
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] < "3" or not is_main:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    had_faulthandler = faulthandler.is_enabled()
    with _captured() as captured:
        os.dup2(captured.fileno(), 2)
        # The trace of a crash in native code must not go to the captured file.
        faulthandler.enable(terminal)
        written = b""
        try:
            with warnings.catch_warnings():
                if not sys.warnoptions:
                    warnings.simplefilter("ignore")
                yield
        except UserError:
            raise
        except Exception:
            sys.stderr.flush()
            captured.seek(0)
            written = captured.read()
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            if had_faulthandler:
                faulthandler.enable(2)
            else:
                faulthandler.disable()
            os.close(terminal)
            with contextlib.suppress(OSError):
                os.write(2, written)
