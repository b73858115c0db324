"""Training from Python: the command in a process of its own.

Keras and TensorFlow keep random states, devices and precision for a whole process. A
process of its own trains exactly as the command does, and leaves the caller's alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from cmlm.errors import UserError


def train(
    model_dir: str, settings: Mapping[str, Any], flags: Mapping[str, Any]
) -> None:
    """Runs `cmlm train`; its log goes to stderr.

    Args:
        model_dir: the directory of the run.
        settings: values by dotted name.
        flags: values of the command's flags by name.

    Raises:
        UserError: the command ends with an exit code.
    """
    # A flagfile comes first: the arguments of the caller win over it.
    given = sorted(flags.items(), key=lambda item: item[0] != "flagfile")
    command = [sys.executable, "-m", "cmlm.train"]
    command += [f"--{name}={value}" for name, value in given]
    for name, value in settings.items():
        command.append(f"--params_override={nested(name, value)}")
    last = "no message"
    with subprocess.Popen(
        [*command, f"--model_dir={model_dir}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode:
        raise UserError(last.removeprefix("error: "))


def nested(name: str, value: Any) -> str:
    """Returns a setting as YAML in one line: {a: {b: 1}}."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).strip()
