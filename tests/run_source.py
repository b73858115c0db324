"""Runs Python source in a fork: `python -m tests.run_source FILE`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"))
