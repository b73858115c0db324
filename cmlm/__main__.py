"""`cmlm COMMAND ...` runs `python -m cmlm.COMMAND ...`.

    cmlm                      the commands
    cmlm train --help         the flags of a command
    cmlm settings PATTERN     explains settings: type, meaning, and the default, which a
                              recipe may change
    cmlm configs              flagfiles that --flagfile=NAME finds from anywhere

`cmlm export`, `cmlm export-huggingface`, `cmlm client` and `cmlm serve` run
`export.tfhub`, `export.huggingface`, `export.client` and `export.serve`.
"""

import ast
import importlib.util
import runpy
import sys

from cmlm import __version__, cli
from cmlm.common import flagfiles
from cmlm.errors import UserError, did_you_mean

COMMANDS = {
    **{
        name: f"cmlm.{name}"
        for name in (
            "train",
            "encode",
            "evaluate",
            "finetune",
            "prepare",
            "vocab",
            "ngrams",
            "quality",
            "mine",
            "pcr",
        )
    },
    "export": "export.tfhub",
    "export-huggingface": "export.huggingface",
    "client": "export.client",
    "serve": "export.serve",
}


def main() -> None:
    """Runs the command that the first argument names."""
    cli.guard(_dispatch)


def _dispatch() -> None:
    name, *arguments = sys.argv[1:] or ["help"]
    if name in COMMANDS:
        sys.argv = [f"cmlm {name}", *arguments]
        runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)
    elif name == "configs" and not arguments:
        print("\n".join(flagfiles.names()))
    elif name in ("configs", "settings") and {"--help", "-h"} & set(arguments):
        _help()
    elif name == "configs":
        raise UserError(f"cmlm configs {' '.join(arguments)}; allowed: no argument")
    elif name == "settings":
        _settings(arguments)
    elif name == "--version":
        print(f"cmlm {__version__}")
    elif name in ("help", "--help", "-h"):
        _help()
    else:
        names = [*COMMANDS, "settings", "configs"]
        raise UserError(
            f"the command is {name!r}; {did_you_mean(name, names)}allowed: "
            f"{', '.join(names)}"
        )


def _help() -> None:
    print(f"cmlm {__version__}: {__doc__}")
    for name, module in COMMANDS.items():
        print(f"  {name:18s}  {_first_line(module)}")


def _first_line(module: str) -> str:
    """Returns the first line of a module's docstring, without importing the module."""
    with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
        return ast.get_docstring(ast.parse(file.read())).splitlines()[0]


def _settings(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        raise UserError(
            f"cmlm settings {' '.join(arguments)}; allowed: one pattern, such as "
            "learning_rate, or none"
        )
    with cli.quiet_imports():
        from cmlm.config import listing

    found = listing.settings(*arguments)
    if not found:
        raise UserError(
            f"no setting has {arguments[0]!r} in its name; "
            f"{listing.meant(arguments[0])}allowed: a part of a name that `cmlm "
            "settings` lists"
        )
    print("\n".join(map(str, found)))


if __name__ == "__main__":
    main()
