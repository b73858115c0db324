"""What a command may do with a damaged input."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from .warm import Result

MOST_GB = 4.0
# Of a processor: other programs may share the machine.
MOST_SECONDS = 60.0
OUT = "out"


def snapshot(directory: Path) -> dict[str, str]:
    """The files of a directory with their hashes, without those in `out/`."""
    found = {}
    for folder, folders, names in os.walk(directory):
        if Path(folder) == directory and OUT in folders:
            folders.remove(OUT)
        for name in (*names, *folders):
            path = os.path.join(folder, name)
            hashed = ""
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    hashed = hashlib.blake2b(file.read()).hexdigest()
            found[os.path.relpath(path, directory)] = hashed
    return found


def faults(
    result: Result,
    before: dict[str, str],
    after: dict[str, str],
    may_write: Collection[str] = (),
    right: Callable[[], str] | None = None,
) -> list[str]:
    """Names everything that a command should not have done.

    Args:
        result: what it did.
        before, after: `snapshot` around it.
        may_write: prefixes of paths outside `out/` that it may write.
        right: checks its output; returns what is wrong, or "".
    """
    found = []
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    if result.timed_out:
        found.append("took too long")
    elif result.code < 0:
        found.append(f"died of signal {-result.code}")
    elif result.code not in (0, 1):
        found.append(f"exit code {result.code}")
    if "Traceback" in result.stderr:
        last = result.stderr.strip().splitlines()[-1]
        found.append(f"traceback: {last[:200]}")
    elif result.code == 1 and len(errors) != 1:
        found.append(f"{len(errors)} error lines: {result.stderr[-200:]!r}")
    elif result.code == 1 and errors[0] != result.stderr.splitlines()[-1]:
        found.append("lines after the error")
    if any(len(line) > 3000 for line in errors):
        found.append("an error line of over 3,000 characters")
    if result.processor_seconds > MOST_SECONDS:
        found.append(f"{result.processor_seconds} s of a processor")
    if result.peak_gb > MOST_GB:
        found.append(f"{result.peak_gb} GB")
    changed = {
        path
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
        and not path.startswith(tuple(may_write) or "\0")
    }
    if changed:
        found.append(f"touched {sorted(changed)[:5]}")
    if result.code == 0 and not found and right is not None:
        wrong = right()
        if wrong:
            found.append(f"wrong result: {wrong}")
    return found


def whole_vectors(path: Path) -> str:
    """ "" if a file holds finite vectors."""
    if not path.exists():
        return f"{path.name} is missing"
    array = np.load(path, allow_pickle=False)
    if array.ndim != 2 or not array.shape[1] or not np.isfinite(array).all():
        return f"{array.shape}, finite: {np.isfinite(array).all()}"
    return ""
