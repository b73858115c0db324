"""Commands as a user runs them, in forks of one warm process.

A fork costs milliseconds, an import of TensorFlow seconds of a processor. Tests that
kill a command, limit its files or change its environment start a process of their own.
"""

import atexit
import functools
import os
import subprocess
import tempfile

from campaign import warm


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
