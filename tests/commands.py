"""Commands as a user runs them, in forks of one warm process.

A fork costs milliseconds, an import of TensorFlow seconds of a processor. Tests that
kill a command, limit its files or change its environment start a process of their own.
"""

import atexit
import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

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
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cases.json")
        file.write_text(json.dumps([module, prepare, cases]))
        done = run("tests.run_repeatedly", str(file))
    answers = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), done.stderr[-3000:]
    return answers
