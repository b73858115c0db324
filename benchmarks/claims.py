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
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import flags

FLAGS = flags.FLAGS
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGS = os.path.join(_ROOT, "configs")
# One arm of one seed, or one start: a row of the results holds all of its fields.
Case = dict[str, str | int]


# --------------------------------------------------------------------- command


def define_flags(arms: Sequence[str]) -> None:
    """Defines the flags that all programs of claims have.

    Args:
        arms: the default of --arms.
    """
    flags.DEFINE_string("data_dir", None, "Folder of the test sets.")
    flags.DEFINE_string("output", None, "Directory of the runs.")
    flags.DEFINE_string("results", None, "JSON lines to append to.", required=True)
    flags.DEFINE_bool("table", False, "Print the table of --results.")
    flags.DEFINE_list("arms", arms, "Arms to run.")
    flags.DEFINE_list(
        "seeds", ["0", "1", "2"], "Seeds of the weights and of the data's order."
    )
    flags.DEFINE_string(
        "precision", "float32", "Precision of the training: float32 or bfloat16."
    )


def main(run: Callable[[], None], table: Callable[[], None], *inputs: str) -> None:
    """Reads the flags, then runs the arms or prints their table.

    Args:
        run: runs the arms that --results lacks.
        table: prints the table.
        *inputs: names of flags that `run` needs, besides --data_dir and --output.
    """
    FLAGS(sys.argv)
    if FLAGS.table:
        table()
        return
    for name in (*inputs, "data_dir", "output"):
        if not FLAGS[name].value:
            sys.exit(f"--{name} is not given")
    os.makedirs(FLAGS.output, exist_ok=True)
    run()


def is_open(case: Case) -> bool:
    """Whether --results has no row of this case."""
    return not any(case.items() <= row.items() for row in rows(FLAGS.results))


def run_arm(case: Case, train: Callable[[], str], score: Callable[[str], dict]) -> None:
    """Trains and scores an arm, and appends its row, unless --results has it.

    Args:
        case: the first fields of the row.
        train: trains the arm and returns its model_dir.
        score: the further fields of the row, given the model_dir.
    """
    if not is_open(case):
        return
    row = {**case, "precision": FLAGS.precision}
    with measured(row):
        directory = train()
    append(FLAGS.results, row | score(directory))


def run_start(case: Case, score: Callable[[], dict]) -> None:
    """Scores weights as they are, and appends their row, unless --results has it."""
    if is_open(case):
        append(FLAGS.results, case | score())


def run(module: str, *arguments: str) -> None:
    """Runs a command of this project in a process of its own."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def train(name: str, overrides: Sequence[str], *arguments: str) -> str:
    """Trains into a folder of --output, in --precision.

    Args:
        name: of the folder.
        overrides: SETTING=VALUE each.
        *arguments: further flags of cmlm.train.

    Returns:
        The model_dir.
    """
    directory = os.path.join(FLAGS.output, name)
    overrides = [*overrides, f"runtime.mixed_precision_dtype={FLAGS.precision}"]
    run(
        "cmlm.train",
        *arguments,
        # After a flag file, which names a folder of its own.
        f"--model_dir={directory}",
        *(f"--params_override={value}" for value in overrides),
    )
    return directory


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
    name: str,
    model: str,
    tasks: Sequence[str],
    *more: str,
    also: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
) -> dict[str, float]:
    """Scores a model on the test sets of --data_dir.

    Args:
        name: of the report in --output, without ".json".
        model: as in --model of cmlm.evaluate.
        tasks: names of tasks, or of families of tasks.
        *more: further flags of cmlm.evaluate.
        also: task to further metrics of that task.

    Returns:
        The main metric of every task, and the metrics of `also` by their own names.
    """
    report = os.path.join(FLAGS.output, f"{name}.json")
    arguments = [f"--model={model}", f"--data_dir={FLAGS.data_dir}"]
    arguments += [f"--output={report}", f"--tasks={','.join(tasks)}", "--overwrite"]
    run("cmlm.evaluate", *arguments, *more)
    with open(report) as file:
        found = json.load(file)
    ((_, result),) = found["models"].items()
    values = {
        task: round(values[found["tasks"][task]["main_metric"]], 3)
        for task, values in result["scores"].items()
    }
    for task, metrics in also.items():
        for metric in metrics:
            values[metric] = round(result["scores"][task][metric], 3)
    return values


def conditioning_gains(directory: str) -> dict[str, float]:
    """The conditioning gain at every validation of a run, by step."""
    name = "validation/cmlm/conditioning_gain"
    found = rows(os.path.join(directory, "metrics.jsonl"))
    return {str(row["step"]): round(row[name], 5) for row in found if name in row}


# --------------------------------------------------------------------- rows


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
        groups.setdefault(tuple(row.get(key, "") for key in keys), []).append(row)
    for names, group in groups.items():
        cells = [*map(str, names), str(len(group))]
        for field in shown:
            values = [row[field] for row in group if field in row]
            cell = f"{statistics.fmean(values):.4g}" if values else ""
            if len(values) > 1:
                cell += f" ± {statistics.stdev(values):.2g}"
            cells.append(cell)
        print(f"| {' | '.join(cells)} |")
