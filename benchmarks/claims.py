"""Runs of a claim's arms: train, score, and one JSON line for each arm and seed.

A row has the arm, its seed, its scores and its cost. A program that is started again
skips the rows that its file holds, and goes on with the runs that --output holds. The
cost of a row is the cost of the arm's own run: all its starts, and neither the run that
it began from nor the scoring. A row has no cost if this program was killed in one of
the starts.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

FLAGS = flags.FLAGS
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGS = os.path.join(_ROOT, "configs")
# In the folder of a run: its command, whether it is finished, and the seconds so far.
_RECORD = ".claim.json"
# What files of --output besides runs are made of. Runs have records of their own.
_INPUTS = (
    *("teacher", "train_data", "bitext_data", "heldout", "old", "new", "data_dir"),
)
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
    flags.DEFINE_string(
        "base",
        None,
        "Name of the weights that the arms start from, the field `base` of the rows. "
        "The first ones have no name.",
    )


def main(
    run: Callable[[], None],
    table: Callable[[], None],
    arms: Collection[str],
    *inputs: str,
) -> None:
    """Reads the flags, then runs the arms or prints their table.

    Args:
        run: runs the arms that --results lacks.
        table: prints the table.
        arms: all arms of the program.
        *inputs: names of flags that `run` needs, besides --data_dir and --output.
    """

    def command(_) -> None:
        if FLAGS.table:
            table()
            return
        check_arms(arms)
        cli.require(**dict.fromkeys((*inputs, "data_dir", "output"), "a path"))
        os.makedirs(FLAGS.output, exist_ok=True)
        _check_inputs(os.path.join(FLAGS.output, "inputs.json"))
        run()

    cli.run(command)


def check_arms(allowed: Collection[str]) -> None:
    """Refuses --arms with another arm than the allowed ones."""
    if not set(FLAGS.arms) <= set(allowed):
        raise UserError(
            f"--arms is {','.join(FLAGS.arms)}; allowed: {', '.join(allowed)}"
        )


def _check_inputs(path: str) -> None:
    """Refuses an --output with files that were made of other inputs."""
    given = {
        name: FLAGS[name].value
        for name in _INPUTS
        if name in FLAGS and FLAGS[name].value
    }
    known = {}
    if os.path.exists(path):
        with open(path) as file:
            known = json.load(file)
    for name in given.keys() & known.keys():
        if given[name] != known[name]:
            raise UserError(
                f"--{name} is {given[name]}, and {FLAGS.output} has files of "
                f"{known[name]}; allowed: the same, or another --output"
            )
    _write(path, known | given)


def is_open(case: Case) -> bool:
    """Whether --results has no row of this case with this --base.

    Raises:
        UserError: it has one, of a run in another precision.
    """
    for row in rows(FLAGS.results):
        if case.items() <= row.items() and row.get("base") == FLAGS.base:
            if row.get("precision", FLAGS.precision) != FLAGS.precision:
                raise UserError(
                    f"--precision is {FLAGS.precision}; {FLAGS.results} has {case} in "
                    f"{row['precision']}; allowed: another --results"
                )
            # Starts, which no settings change, have no precision.
            there = row.get("params_override", []) if "precision" in row else _given()
            if there != _given():
                raise UserError(
                    f"--params_override is {_given()}; {FLAGS.results} has {case} with "
                    f"{there}; allowed: another --results"
                )
            return False
    return True


def _given() -> list[str]:
    """The settings of every run, in programs that have this flag."""
    return getattr(FLAGS, "params_override", [])


def _settings() -> dict[str, list[str]]:
    """The field of a row that has the settings of every run, if there are any."""
    return {"params_override": _given()} if _given() else {}


def _base() -> dict[str, str]:
    """The field of a row that names the weights of its start."""
    return {"base": FLAGS.base} if FLAGS.base else {}


def run_arm(case: Case, train: Callable[[], str], score: Callable[[str], dict]) -> None:
    """Trains and scores an arm, and appends its row, unless --results has it.

    Args:
        case: the first fields of the row.
        train: trains the arm and returns its model_dir.
        score: the further fields of the row, given the model_dir.
    """
    if not is_open(case):
        return
    directory = train()
    row = {**case, **_base(), "precision": FLAGS.precision, **_settings()}
    row |= _cost(directory)
    append(FLAGS.results, {**row, "commit": _commit(), **score(directory)})


def run_start(case: Case, score: Callable[[], dict]) -> None:
    """Scores weights as they are, and appends their row, unless --results has it."""
    if is_open(case):
        append(FLAGS.results, case | _base() | score())


def run(module: str, *arguments: str) -> None:
    """Runs a command of this project in a process of its own."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def train(
    name: str,
    overrides: Sequence[str],
    *arguments: str,
    program: Sequence[str] = ("-m", "cmlm.train"),
) -> str:
    """Trains into a folder of --output, in --precision, unless the run is finished.

    Args:
        name: of the folder.
        overrides: SETTING=VALUE each.
        *arguments: further flags of cmlm.train.
        program: arguments of Python that start cmlm.train.

    Returns:
        The model_dir.

    Raises:
        UserError: the folder holds a run with other flags, or with more steps.
    """
    directory = os.path.join(FLAGS.output, name)
    overrides = [*overrides, f"runtime.mixed_precision_dtype={FLAGS.precision}"]
    command = [
        *arguments,
        # After a flag file, which names a folder of its own.
        f"--model_dir={directory}",
        *(f"--params_override={value}" for value in overrides),
    ]
    record = _record(directory, command)
    if not record["finished"]:
        os.makedirs(directory, exist_ok=True)
        with _recorded(record, os.path.join(directory, _RECORD)):
            subprocess.run([sys.executable, *program, *command], check=True)
    return directory


def _record(directory: str, command: list[str]) -> dict:
    """The record of a run before a start of it.

    Raises:
        UserError: the folder holds a run with other or unknown flags, or with more
            steps.
    """
    new = {"command": command, "finished": False, "seconds": [0, 0]}
    begun = glob.glob(os.path.join(glob.escape(directory), "ckpt-*.index"))
    path = os.path.join(directory, _RECORD)
    if not os.path.exists(path):
        if begun:
            raise UserError(
                f"{directory} holds a run without {_RECORD}, so its flags are not "
                "known; allowed: another --output"
            )
        return new
    with open(path) as file:
        old = json.load(file)
    if not begun and (old["finished"] or old["command"] != command):
        # Its checkpoints are gone, or it never had one.
        return new
    if old["command"] == command:
        return old
    _refuse_other_flags(directory, old["command"], command)
    # More steps than those of a finished run have a cost of their own.
    return new if old["finished"] else old | {"command": command}


def _refuse_other_flags(directory: str, old: list[str], new: list[str]) -> None:
    """Raises UserError for flags other than those of a run, except for more steps."""
    (steps_before, before), (steps, now) = map(_steps_and_others, (old, new))
    if before != now:
        differences = (
            " ".join(sorted(a - b)) for a, b in ((before, now), (now, before))
        )
        raise UserError(
            "{} holds a run with other flags ({}) than this start ({}); allowed: the "
            "same flags, or another --output".format(directory, *differences)
        )
    if steps < steps_before:
        raise UserError(
            f"trainer.train_steps is {steps}, and {directory} holds a run of "
            f"{steps_before} steps; allowed: at least {steps_before}, or another "
            "--output"
        )


def _steps_and_others(command: Sequence[str]) -> tuple[int, set[str]]:
    """The steps that a command names, 0 if none, and its other flags."""
    setting = "--params_override=trainer.train_steps="
    named = [flag for flag in command if flag.startswith(setting)]
    steps = int(named[-1].removeprefix(setting)) if named else 0
    return steps, set(command) - set(named)


@contextlib.contextmanager
def _recorded(record: dict, path: str) -> Iterator[None]:
    """Adds the seconds of the block, and of its processes, to the record of a run."""
    # They stay unknown if this process is killed.
    _write(path, record | {"seconds": None})
    began, before = time.monotonic(), os.times()
    finished = False
    try:
        yield
        finished = True
    finally:
        after, wall = os.times(), time.monotonic() - began
        cpu = after.children_user - before.children_user
        cpu += after.children_system - before.children_system
        if (known := record["seconds"]) is not None:
            known = [known[0] + cpu, known[1] + wall]
        _write(path, record | {"seconds": known, "finished": finished})


def _write(path: str, record: dict) -> None:
    with open(f"{path}.new", "w") as file:
        json.dump(record, file)
    os.replace(f"{path}.new", path)


def _cost(directory: str) -> dict[str, int]:
    """The fields of a row that say what its run has cost, as far as known."""
    with open(os.path.join(directory, _RECORD)) as file:
        seconds = json.load(file)["seconds"]
    names = ("train_cpu_seconds", "train_wall_seconds")
    return dict(zip(names, map(round, seconds), strict=True)) if seconds else {}


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


def with_means(row: dict, groups: Mapping[str, Sequence[str]]) -> dict:
    """Returns a row with the means of groups of its fields.

    Args:
        row: a row.
        groups: name of a mean to its fields. A row that lacks one of them gets no such
            mean.
    """
    return row | {
        name: statistics.fmean(row[field] for field in fields)
        for name, fields in groups.items()
        if fields and row.keys() >= set(fields)
    }


def append(path: str, row: dict) -> None:
    """Adds a row to a file of JSON lines, and prints it."""
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def print_table(found: list[dict], keys: Sequence[str], shown: Sequence[str]) -> None:
    """Prints mean and standard deviation over the seeds as Markdown.

    Args:
        found: rows.
        keys: fields that rows of one line of the table have in common; and `base`, if
            a row has it.
        shown: fields to average. Rows may lack some.
    """
    if any("base" in row for row in found):
        keys = ("base", *keys)
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
