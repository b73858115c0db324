"""Runs a command several times in one process: `python -m tests.run_repeatedly FILE`.

FILE is a JSON file: the module of the command, Python source that runs first, and the
arguments of each time. Prints a line of JSON for each: the exit code, and what the
command printed and reported. One module a process: two may have a flag of one name.
"""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

from absl import flags

from cmlm import cli

with cli.quiet_imports():
    from tests import quick

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    quick.configure()
    module, prepare, cases = json.loads(Path(sys.argv[1]).read_text())
    command = importlib.import_module(module)
    exec(prepare)
    for arguments in cases:
        flags.FLAGS.unparse_flags()
        for flag in flags.FLAGS.flags_by_module_dict()[module]:
            flag.unparse()
        sys.argv = [module, *arguments]
        said, code = [io.StringIO(), io.StringIO()], 0
        with (
            contextlib.chdir(ROOT),
            contextlib.redirect_stdout(said[0]),
            contextlib.redirect_stderr(said[1]),
        ):
            try:
                cli.run(command.main)
            except SystemExit as leaving:
                code = leaving.code
        answer = [code or 0, *(stream.getvalue() for stream in said)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
