"""Commands as a user runs them, in forks of one warm process.

A fork costs milliseconds, an import of TensorFlow seconds of a processor. Tests that
limit the files of a command or change its environment start a process of their own.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import beam_workers
from campaign import warm

# For `repeatedly`: its cases open each encoder once.
OPEN_ONCE = """
import functools
from cmlm.encoders import opening
opening.open_encoder = functools.cache(opening.open_encoder)
"""


@functools.cache
def process() -> warm.Process:
    """The warm process of this test process, started when first needed."""
    started = warm.Process().__enter__()
    atexit.register(started.__exit__)
    return started


def run(
    module: str, *arguments: str, cwd: os.PathLike | None = None
) -> subprocess.CompletedProcess:
    """Runs `python -m module arguments`, for five minutes at most.

    Args:
        module, arguments: the command.
        cwd: the directory in which it runs; None: an empty one.
    """
    with tempfile.TemporaryDirectory() as empty:
        done = process().run(
            module, *map(str, arguments), cwd=cwd or empty, seconds=300
        )
    return subprocess.CompletedProcess(
        [module, *arguments], done.code, done.stdout, done.stderr
    )


def source(text: str) -> str:
    """Runs Python source in a fork, and returns what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "source.py")
        file.write_text(text)
        done = run("tests.run_source", str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def signalled(
    module: str,
    *arguments: str,
    path: os.PathLike | str = "",
    signum: int = signal.SIGKILL,
    workers: int = 1,
) -> list[tuple[int, str]]:
    """Runs `python -m module arguments` and sends it a signal.

    Args:
        module, arguments: the command.
        path: the signal is sent as soon as this file exists; "": never.
        signum: the signal.
        workers: how many processes run the command; the first gets the signal.

    Returns:
        The exit code and the messages of each process.
    """
    order = [workers, str(path), signum, module, [str(value) for value in arguments]]
    return _answers("tests.run_signalled", order)


def repeatedly(
    module: str, cases: list[list[str]], prepare: str = ""
) -> list[tuple[int, str, str]]:
    """Runs `python -m module` with the arguments of each case, in one fork for all.

    Args:
        module, cases: the command, and its arguments each time.
        prepare: Python source that runs first.

    Returns:
        The exit code, the output and the messages of each case.
    """
    answers = _answers("tests.run_repeatedly", [module, prepare, cases])
    assert len(answers) == len(cases)
    return answers


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Beam's workers that this process starts are forks of the warm process.

    What a pickle names must not be changed after the import: the workers import it
    anew. `test_words_on_beam.py` starts the workers that a user has.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as first,
    ):
        path = os.path.join(folder, "socket")
        done = run("tests.beam_workers", path)
        assert done.returncode == 0, done.stderr
        first.connect(path)
        program = Path(folder, "python")
        program.write_text(beam_workers.CLIENT.format(python=sys.executable, path=path))
        program.chmod(0o700)
        with mock.patch.object(sys, "executable", str(program)):
            yield


def eager_python(path: Path) -> str:
    """Writes a program to stand in for Python where `cmlm.fit` starts `cmlm.train`.

    The training runs eagerly, in a process of its own.
    """
    program = Path(__file__).with_name("train_eagerly.py")
    # In the place of `-m cmlm.train`.
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {program} "$@"\n')
    path.chmod(0o700)
    return str(path)


def _answers(module: str, order: list) -> list[tuple]:
    """Runs a module on a file of JSON; returns the values of each line it prints."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "order.json")
        file.write_text(json.dumps(order))
        done = run(module, str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
