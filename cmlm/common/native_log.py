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
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

from cmlm.common import machine
from cmlm.errors import UserError

# Level 3 hides TensorFlow's ERROR lines too. Important ones reach Python as exceptions;
# the others say "no GPU driver here" and the like.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
# By itself, TensorFlow uses oneDNN's layers only on processors with AVX-512's or AMX's
# instructions for neural networks. They are faster with AVX2, too.
_FAST = {"TF_ENABLE_ONEDNN_OPTS": "1"}
# The file that an error of a command's results names.
STDOUT = "stdout"


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


@contextlib.contextmanager
def outliving(stream: TextIO) -> Iterator[None]:
    """Goes on if a stream of messages takes none: a run outlives the reader of its log.

    Args:
        stream: what the body writes to.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):
            # The reader does not come back. A full disk may have space again.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())


@contextlib.contextmanager
def _naming_stdout(stream: TextIO) -> Iterator[None]:
    """Names stdout in an error of its disk, as Python names no stream."""
    try:
        yield
    except OSError as error:
        error.filename = STDOUT
        raise


class _Guarded(io.TextIOWrapper):
    """A stream of the process whose writes run within a guard of their errors."""

    def __init__(
        self,
        stream: io.TextIOWrapper,
        guard: Callable[[TextIO], contextlib.AbstractContextManager[None]],
    ):
        super().__init__(
            open(stream.fileno(), "wb", closefd=False),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering or stream.write_through,
        )
        self._guard = guard

    def write(self, text: str) -> int:
        with self._guard(self):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard(self):
            super().flush()


def guard_streams() -> None:
    """Lets a command outlive the reader of its messages, and name a full stdout."""
    stdout, stderr = sys.stdout, sys.stderr
    if stdout is sys.__stdout__ and isinstance(stdout, io.TextIOWrapper):
        sys.stdout = _Guarded(stdout, _naming_stdout)
    if stderr is sys.__stderr__ and isinstance(stderr, io.TextIOWrapper):
        sys.stderr = _Guarded(stderr, outliving)


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
