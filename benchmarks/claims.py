"""Runs of a claim's arms: train, score, and one JSON line for each arm and seed.

A row has the arm, its seed, its scores and its cost. A program that is started again
skips the rows that its file holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGS = os.path.join(_ROOT, "configs")


def rows(path: str) -> list[dict]:
    """The rows of a file of JSON lines; none if the file does not exist."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def append(path: str, row: dict) -> None:
    """Adds a row to a file of JSON lines, and prints it."""
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def run(module: str, *arguments: str) -> None:
    """Runs a command of this project in a process of its own."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


@contextlib.contextmanager
def measured(row: dict) -> Iterator[None]:
    """Adds the cost of the block's processes, and the commit, to a row."""
    began, before = time.monotonic(), os.times()
    yield
    after = os.times()
    seconds = after.children_user - before.children_user
    seconds += after.children_system - before.children_system
    row["train_cpu_seconds"] = round(seconds)
    row["train_wall_seconds"] = round(time.monotonic() - began)
    row["commit"] = _commit()


def _commit() -> str:
    """The commit of this checkout, or an empty string outside one."""
    command = ["git", "-C", _ROOT, "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def scores(
    model: str, report: str, data_dir: str, tasks: Sequence[str], *more: str
) -> dict[str, float]:
    """Scores a model.

    Args:
        model: as in --model of cmlm.evaluate.
        report: the JSON file to write.
        data_dir: where the test sets are.
        tasks: names of tasks.
        *more: further flags of cmlm.evaluate.

    Returns:
        The main metric of every task. `geometry` adds `isotropy_unit`.
    """
    arguments = [f"--model={model}", f"--data_dir={data_dir}", f"--output={report}"]
    run("cmlm.evaluate", *arguments, f"--tasks={','.join(tasks)}", "--overwrite", *more)
    with open(report) as file:
        found = json.load(file)
    ((_, result),) = found["models"].items()
    values = {
        task: round(values[found["tasks"][task]["main_metric"]], 3)
        for task, values in result["scores"].items()
    }
    if "geometry" in values:
        unit = result["scores"]["geometry"]["isotropy_unit"]
        values["isotropy_unit"] = round(unit, 3)
    return values


def print_table(found: list[dict], keys: Sequence[str], shown: Sequence[str]) -> None:
    """Prints mean and standard deviation over the seeds as Markdown.

    Args:
        found: rows.
        keys: fields that rows of one line of the table have in common.
        shown: fields to average. Rows may lack some.
    """
    print(f"| {' | '.join([*keys, 'seeds', *shown])} |")
    print("|---" * (len(keys) + 1 + len(shown)) + "|")
    groups: dict[tuple, list[dict]] = {}
    for row in found:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for names, group in groups.items():
        cells = [*names, str(len(group))]
        for field in shown:
            values = [row[field] for row in group if field in row]
            cell = f"{statistics.fmean(values):.4g}" if values else ""
            if len(values) > 1:
                cell += f" ± {statistics.stdev(values):.2g}"
            cells.append(cell)
        print(f"| {' | '.join(cells)} |")
