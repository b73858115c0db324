"""Training from Python: the command in a process of its own.

Keras and TensorFlow keep random states, devices and precision for a whole process. A
process of its own trains exactly as the command does, and does not change the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from cmlm.errors import UserError, shown

# The flags that the command takes several times.
_REPEATED = ("config_file", "flagfile", "params_override")


def train(
    model_dir: str, settings: Mapping[str, Any], flags: Mapping[str, Any]
) -> None:
    """Runs `cmlm train`; its log goes to stderr.

    Ctrl-C stops the run as it stops the command: it saves first.

    Args:
        model_dir: the directory of the run.
        settings: values by dotted name.
        flags: values of the command's flags by name. None is not given. A list gives
            its items with commas, or the flag several times if the command takes it so.
            A dict gives NAME=VALUE with commas, as for the texts of several languages.

    Raises:
        UserError: the settings are not a dict of plain data, or the command ends with
            an exit code or by a signal.
    """
    if not isinstance(settings, Mapping):
        raise UserError(
            f"settings is {shown(settings)}; allowed: a dict, such as "
            "{'trainer.train_steps': 100}"
        )
    # A flagfile comes first: the arguments of the caller win over it.
    given = sorted(flags.items(), key=lambda item: item[0] != "flagfile")
    command = [sys.executable, "-m", "cmlm.train"]
    for name, value in given:
        value = _plain(value)
        if not isinstance(value, (str, int, float, list, dict, type(None))):
            raise UserError(
                f"{name} is {shown(value)}; allowed: a str, a path, a number, a list "
                "or a dict (texts are files, not sentences)"
            )
        values = value if name in _REPEATED and isinstance(value, list) else [value]
        command += [f"--{name}={joined(each)}" for each in values if each is not None]
    # The command's messages name a flag, the caller wrote an argument.
    arguments: dict[str, str] = {}
    for name, value in settings.items():
        flag = f"--params_override={nested(name, value)}"
        arguments[flag] = f"settings has {name!r}"
        command.append(flag)
    last = held = ""
    with _start([*command, f"--model_dir={model_dir}"]) as process:
        try:
            for line in process.stderr:
                # The command's error becomes the exception, not a line of the log.
                sys.stderr.write(held)
                held = line if line.startswith("error: ") else ""
                if not held:
                    sys.stderr.write(line)
                last = line.strip() or last
        except BaseException:
            _stop(process)
            raise
    if process.returncode < 0:
        number = -process.returncode
        reason = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
        raise UserError(f"the training was killed by signal {number}{reason}")
    if process.returncode:
        for flag, argument in arguments.items():
            last = last.replace(flag, argument)
        raise UserError(last.removeprefix("error: ") or "cmlm train failed")
    sys.stderr.write(held)


def _start(command: list[str]) -> subprocess.Popen:
    # What the caller finds after sys.path.insert, the command finds, too.
    path = [*map(str, sys.path), os.environ.get("PYTHONPATH", "")]
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            # Native libraries may write other bytes, such as those of a path.
            errors="replace",
        )
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise UserError(
            "the arguments are longer than a command may be; allowed: texts as files, "
            "and a glob for many of them"
        ) from error


def _stop(process: subprocess.Popen) -> None:
    """Lets a run save and end, and shows the rest of its log; Ctrl-C ends it at once.

    It gets SIGTERM: Ctrl-C in a terminal has sent it SIGINT already, and a second
    SIGINT would end it before it has saved.
    """
    process.terminate()
    try:
        for line in process.stderr:
            # A stderr that is gone does not stop the run from saving.
            with contextlib.suppress(Exception):
                sys.stderr.write(line)
        process.wait()
    except BaseException:
        process.terminate()
        raise


def nested(name: str, value: Any) -> str:
    """Returns a setting as YAML in one line: {a: {b: 1}}.

    Raises:
        UserError: the name is not a str, or the value is not plain data.
    """
    if not isinstance(name, str):
        raise UserError(
            f"settings has the name {shown(name)}; allowed: dotted names, such as "
            "'trainer.train_steps'"
        )
    whole = _plain(value)
    for key in reversed(name.split(".")):
        whole = {key: whole}
    try:
        text = yaml.safe_dump(whole, default_flow_style=True, width=float("inf"))
    except yaml.YAMLError as error:
        raise UserError(
            f"{name} is {shown(value)}; allowed: numbers, str, paths, lists and dicts"
        ) from error
    return text.strip()


def joined(value: Any) -> str:
    """Returns the value of a flag as text; the items of a list or dict with commas."""
    value = _plain(value)
    if isinstance(value, dict):
        value = [f"{name}={joined(each)}" for name, each in value.items()]
    return ",".join(map(joined, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    """Turns paths into str, and the numbers and arrays of numpy into Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
