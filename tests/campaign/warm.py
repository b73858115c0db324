"""Runs commands in forks of one process that has imported everything.

A fork starts in some milliseconds, an import of TensorFlow in seconds. The warm process
runs no TensorFlow operation before it forks: threads would not survive the fork.

    with warm.Process() as process:
        result = process.run("cmlm.encode", "--model=...", cwd=directory)
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.005
# A command that hangs takes no time of a processor within so many seconds.
IDLE_SECONDS = 120
_COMMANDS_OF_EXPORT = tuple(
    f"export.{name}" for name in ("client", "huggingface", "serve", "tfhub")
)
# Beyond this the kernel refuses memory: a bound for the machine, not for the verdict.
_MOST_BYTES = 10 << 30


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command did.

    Attributes:
        code: the exit code; negative: the signal that ended the process.
        stdout, stderr: what it printed.
        seconds: its time by the clock.
        processor_seconds: the time of all its threads on processors.
        peak_gb: its largest resident memory, the imported libraries included.
        timed_out: whether it was killed because it hung, see `hangs`.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float
    processor_seconds: float
    peak_gb: float
    timed_out: bool


class Process:
    """The warm process.

    Args:
        seconds: the limit of a command's time on processors.
    """

    def __init__(self, seconds: float = 60):
        self._seconds = seconds

    def __enter__(self) -> Process:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            text=True,
        )
        assert self._server.stdout.readline() == "warm\n"
        return self

    def __exit__(self, *_) -> None:
        self._server.stdin.close()
        self._server.wait()

    def run(
        self,
        module: str,
        *arguments: str,
        cwd: os.PathLike,
        seconds: float | None = None,
    ) -> Result:
        """Runs `python -m module arguments` in a directory, which is also its TMPDIR.

        Args:
            module, arguments: the command.
            cwd: the directory.
            seconds: another time limit than that of the process.

        Returns:
            What it did; a command that hangs is killed.
        """
        with tempfile.TemporaryDirectory() as directory:
            paths = [os.path.join(directory, name) for name in ("out", "err")]
            order = [
                module,
                list(arguments),
                str(cwd),
                seconds or self._seconds,
                *paths,
            ]
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            answer = json.loads(self._server.stdout.readline())
            said = [Path(path).read_text("utf-8", "replace") for path in paths]
        return Result(answer[0], *said, *answer[1:])


# --------------------------------------------------------------- the process


def _import() -> None:
    """Imports what commands import; none of these modules runs an operation."""
    from cmlm import cli
    from cmlm.errors import UserError

    with cli.quiet_imports():
        import importlib
        import pkgutil

        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (registers operations)

        # A command with two devices would need another process.
        tf.config.set_visible_devices([], "GPU")
        for package in ("cmlm", "export"):
            paths = importlib.import_module(package).__path__
            for module in pkgutil.walk_packages(paths, f"{package}."):
                commands = package == "cmlm" and module.name.count(".") == 1
                if commands and not module.ispkg:
                    continue
                if module.name in _COMMANDS_OF_EXPORT:
                    continue
                try:
                    importlib.import_module(module.name)
                except (ImportError, UserError):
                    # An extra that is not installed here.
                    pass
        # tf-text keeps this table, which each WordPiece tokenizer needs: 0.7 s.
        from tensorflow_text.core.pybinds import (
            pywrap_fast_bert_normalizer_model_builder as normalizers,
        )

        for lower_case in (False, True):
            normalizers.build_fast_bert_normalizer_model(lower_case)
    # What is there stays; a command looks for garbage elsewhere, and less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _run(module: str, arguments: list[str], cwd: str, out: str, err: str) -> None:
    """The child: it becomes the command, and does not return."""
    os.setsid()
    os.chdir(cwd)
    os.environ["TMPDIR"] = cwd
    # As `python -m` has it, but last: inputs have folders such as `export`.
    sys.path.append(cwd)
    sys.dont_write_bytecode = True
    tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    become(module, arguments, out, err)


def become(module: str, arguments: list[str], out: str, err: str) -> None:
    """Turns a fork into `python -m module arguments`; it does not return.

    Args:
        module, arguments: the command.
        out, err: files for what it prints.
    """
    for path, number in ((os.devnull, 0), (out, 1), (err, 2)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(path, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, errors=errors, closefd=False)
        for number, mode, errors in (
            (0, "r", None),
            (1, "w", None),
            (2, "w", "backslashreplace"),
        )
    )
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    import atexit

    # What an interpreter does at its end; the process has other threads to leave alone.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def processor_seconds(session: int) -> float:
    """The time on processors of a session's processes and of their ended children."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text()
        except OSError:
            continue
        # The name before it may hold anything.
        fields = stat.rpartition(")")[2].split()
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def hangs(busy: float, before: float, limit: float) -> bool:
    """Whether a command has used its time, or used no time since it was looked at.

    By the clock, a command on a busy machine may wait long for a processor.
    """
    return busy > limit or busy - before < 0.05


def _wait(child: int, limit: float) -> list:
    start = looked = time.monotonic()
    used, timed_out = 0.0, False
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        now = time.monotonic()
        seconds = now - start
        if done:
            break
        if now - looked > min(limit, IDLE_SECONDS) and not timed_out:
            looked, before, used = now, used, processor_seconds(child)
            if hangs(used, before, limit):
                timed_out = True
                os.killpg(child, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    busy = round(usage.ru_utime + usage.ru_stime, 2)
    peak_gb = round(usage.ru_maxrss / 2**20, 2)
    return [code, round(seconds, 2), busy, peak_gb, timed_out]


def _serve() -> None:
    # Commands print to descriptor 1; answers need one that commands do not have.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The folder of this file, whose modules have common names.
    sys.path.pop(0)
    _import()
    print("warm", file=answers, flush=True)
    for line in sys.stdin:
        module, arguments, cwd, limit, out, err = json.loads(line)
        child = os.fork()
        if not child:
            answers.close()
            _run(module, arguments, cwd, out, err)
        print(json.dumps(_wait(child, limit)), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
