"""Runs the blocks of the pages and prints a table; exit code 1 if a block failed."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import inputs, pages

ROOT = Path(__file__).resolve().parents[2]
# What a reader has installed when the pages speak of it.
_EXTRAS = "pip install --quiet --editable '.[corpus,evaluate,mine,test]'"
_ACTIVATE = ". ~/cmlm-env/bin/activate"
_OF_THE_CALLER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.walk")
    parser.add_argument("--texts", type=Path, required=True, help="public text")
    parser.add_argument("--minilm", type=Path, required=True, help="all-MiniLM-L6-v2")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--whole", action="store_true", help="long runs to their end")
    parser.add_argument("page", nargs="*", default=pages.IN_ORDER)
    chosen = parser.parse_args()
    checkout = prepare(chosen)
    failed = 0
    for page in chosen.page:
        for block in pages.blocks(checkout, page):
            if block.language not in ("bash", "python"):
                continue
            code, seconds = follow(block, chosen.whole, checkout)
            print(
                f"{block.name:16} exit {code:3}  {seconds:6.0f} s  "
                f"{'shortened' if block.long and not chosen.whole else ''}",
                flush=True,
            )
            failed += bool(code)
    print(f"{failed} blocks failed")
    return int(bool(failed))


def prepare(chosen: argparse.Namespace) -> Path:
    """The clone that the commands run in; made, with its inputs, if it is missing."""
    checkout = chosen.directory / "cmlm"
    if checkout.exists():
        return checkout
    # It gets its name when it is whole.
    new = chosen.directory / "cmlm.new"
    shutil.rmtree(new, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, new], check=True)
    inputs.write(chosen.texts.resolve(), new)
    (new / "pretrained").mkdir()
    (new / "pretrained/minilm").symlink_to(chosen.minilm.resolve())
    for name in ("home", "logs"):
        (chosen.directory / name).mkdir(exist_ok=True)
    return new.rename(checkout)


def follow(block: pages.Block, whole: bool, checkout: Path) -> tuple[int, float]:
    """Runs a block in the checkout: its exit code and its seconds."""
    text = block.text if whole else block.shortened()
    is_python = block.language == "python"
    directory = checkout.parent.resolve()
    script = directory / "logs" / f"{block.name}{'.py' if is_python else '.sh'}"
    script.write_text(text, "utf-8")
    run = f"{'python' if is_python else 'source'} {script}"
    makes_environment = "-m venv" in text
    lines = [run, _EXTRAS] if makes_environment else [_ACTIVATE, run]
    kept = {k: v for k, v in os.environ.items() if k not in _OF_THE_CALLER}
    start = time.monotonic()
    with open(script.with_suffix(".log"), "wb") as log:
        done = subprocess.run(
            ["bash", "-c", "\n".join(["set -euo pipefail", *lines])],
            cwd=checkout,
            env={**kept, "HOME": str(directory / "home")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return done.returncode, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
