"""Finds flagfiles from anywhere: by path, or by the name of one that the package ships.

--flagfile=my.flags              a file
--flagfile=en_small              configs/en_small.flags of the package
--flagfile=configs/ulr.flags     the same, also outside the checkout
--flagfile=papers/ulr/mlm        configs/papers/ulr/mlm.flags

A space may stand in the place of the =.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from cmlm.errors import did_you_mean

SHIPPED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "configs")
_FLAGFILE = re.compile(r"--?flagfile=(.*)", re.S)
_PROMPT = re.compile(r"--?prompts?=")


def names() -> list[str]:
    """Returns the names of the flagfiles that the package ships."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), SHIPPED).removesuffix(".flags")
        for folder, _, files in os.walk(SHIPPED, followlinks=True)
        for name in files
        if name.endswith(".flags")
    )


def fault(arguments: Sequence[str]) -> str:
    """Names the first flagfile among expanded arguments that does not exist, or ""."""
    for argument in arguments:
        name = _named(argument)
        if name is not None and find(name) is None:
            asked = name.removeprefix("configs/").removesuffix(".flags")
            return (
                f"--flagfile={name}: there is no such file; "
                f"{did_you_mean(asked, names())}allowed: a file, or a name that `cmlm "
                "configs` lists"
            )
    return ""


def _named(argument: str) -> str | None:
    """Returns the flagfile that an argument names, or None."""
    match = _FLAGFILE.fullmatch(argument)
    return match[1].strip() if match else None


def find(path: str) -> str | None:
    """Returns the path of a flagfile, or None if the file does not exist."""
    shipped = os.path.join(SHIPPED, path.removeprefix("configs/"))
    for candidate in (os.path.expanduser(path), shipped, f"{shipped}.flags"):
        if os.path.isfile(candidate):
            return candidate
    return None


def expand(arguments: Sequence[str]) -> list[str]:
    """Replaces flagfiles among command-line arguments by their lines, in place.

    Blank lines and lines that begin with # or // are left out. A file that cannot be
    opened stays as it is, so that the parser of the flags names it.

    Raises:
        UnicodeDecodeError: a flagfile is not UTF-8 text.
    """
    return list(_expanded(_joined(arguments), ()))


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    """Writes `--flagfile NAME` as `--flagfile=NAME`."""
    rest = iter(arguments)
    for argument in rest:
        name = next(rest, None) if argument in ("-flagfile", "--flagfile") else None
        yield argument if name is None else f"{argument}={name}"


def _expanded(arguments: Iterable[str], open_files: tuple[str, ...]) -> Iterator[str]:
    for argument in arguments:
        name = _named(argument)
        path = None if name is None else find(name)
        if path is None or path in open_files:
            yield argument
            continue
        try:
            with open(path, encoding="utf-8") as file:
                lines = [_stripped(line) for line in file]
        except OSError:
            yield argument
            continue
        told = [line for line in lines if line and not line.startswith(("#", "//"))]
        yield from _expanded(told, (*open_files, path))


def _stripped(line: str) -> str:
    """A line without the spaces around it; a prompt keeps those at its end."""
    text = line.strip()
    return line.lstrip().rstrip("\r\n") if _PROMPT.match(text) else text
