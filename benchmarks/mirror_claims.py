"""Does Mirror-BERT improve a strong encoder, and which augmentation does it?

    python benchmarks/mirror_claims.py --model=minilm --data_dir=EVAL \\
        --strings=10k.txt --output=DIR --results=docs/results/mirror_sentence.jsonl

Arms of Liu et al., 2021 (https://arxiv.org/abs/2104.08027, tables 1, 6 and 8), at equal
steps from the same weights: `none` (the two views are equal), `span`, `dropout`,
`both`, `drophead` (a span and dropped heads) and `controlled` (no span, and one dropout
mask for both views). `before` is the start itself. --words takes
configs/mirror_word.flags, which masks no span: there `none`, `dropout` and `drophead`
differ.

Every arm and seed appends one JSON line with its scores to --results, when it is
finished; a second start skips the lines that are there. --table prints mean and
deviation over the seeds as Markdown, and runs nothing.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import flags

flags.DEFINE_string("model", None, "Weights to start from.")
flags.DEFINE_string("data_dir", None, "Where the test sets are.")
flags.DEFINE_string("strings", None, "Strings to train on, one a line.")
flags.DEFINE_string("output", None, "Directory of the runs.")
flags.DEFINE_string("results", None, "JSON lines to append to.", required=True)
flags.DEFINE_bool("words", False, "The recipe for words.")
flags.DEFINE_bool("table", False, "Print the table of --results.")
flags.DEFINE_list("poolings", ["cls", "mean"], "How sentence vectors are read.")
flags.DEFINE_list("arms", ["both", "none", "span", "dropout"], "Which.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Of dropout, and of the order of strings.")
flags.DEFINE_string("precision", "float32", "Of the training: float32 or bfloat16.")

FLAGS = flags.FLAGS

_CONFIGS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs"
)
_NO_DROPOUT = ["model.dropout_rate=0", "model.attention_dropout_rate=0"]
_NO_SPAN = ["task.mirror.span.length=0"]
ARMS = {
    "none": [*_NO_SPAN, *_NO_DROPOUT],
    "span": _NO_DROPOUT,
    "dropout": _NO_SPAN,
    "both": [],
    "drophead": [*_NO_DROPOUT, "model.drophead_rate=0.2"],
    "controlled": [*_NO_SPAN, "task.mirror.controlled_dropout=true"],
}
_TASKS = ("stsb-test", "sick-r", "simlex999", "geometry")


def _rows() -> list[dict]:
    if not os.path.exists(FLAGS.results):
        return []
    with open(FLAGS.results) as file:
        return [json.loads(line) for line in file if line.strip()]


def _commit() -> str:
    """The commit of this checkout, or an empty string outside one."""
    command = ["git", "-C", _CONFIGS, "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _append(row: dict) -> None:
    with open(FLAGS.results, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def _score(name: str, model: str, *more: str) -> dict[str, float]:
    report = os.path.join(FLAGS.output, f"{name}.json")
    command = [sys.executable, "-m", "cmlm.evaluate", f"--model={model}", *more]
    command += [f"--data_dir={FLAGS.data_dir}", f"--tasks={','.join(_TASKS)}"]
    subprocess.run([*command, f"--output={report}"], check=True)
    with open(report) as file:
        found = json.load(file)
    ((_, result),) = found["models"].items()
    scores = {
        task: round(values[found["tasks"][task]["main_metric"]], 3)
        for task, values in result["scores"].items()
    }
    unit = result["scores"]["geometry"]["isotropy_unit"]
    return {**scores, "isotropy_unit": round(unit, 3)}


def _train(name: str, pooling: str, arm: str, seed: int) -> str:
    directory = os.path.join(FLAGS.output, name)
    recipe = "mirror_word.flags" if FLAGS.words else "mirror_sentence.flags"
    overrides = [
        f"model.pooling={pooling}",
        f"trainer.seed={seed}",
        f"task.mirror.train_data.seed={seed}",
        f"runtime.mixed_precision_dtype={FLAGS.precision}",
        *ARMS[arm],
    ]
    command = [sys.executable, "-m", "cmlm.train", "--mode=train"]
    command += [
        f"--flagfile={os.path.join(_CONFIGS, recipe)}",
        f"--init_checkpoint={FLAGS.model}",
        f"--train_data={FLAGS.strings}",
        f"--model_dir={directory}",
    ]
    subprocess.run(
        [*command, *(f"--params_override={value}" for value in overrides)], check=True
    )
    return directory


def _run() -> None:
    os.makedirs(FLAGS.output, exist_ok=True)
    kind = "words" if FLAGS.words else "sentences"
    done = {(r["pooling"], r["arm"], r["seed"]) for r in _rows() if r["kind"] == kind}
    for pooling in FLAGS.poolings:
        if (pooling, "before", 0) not in done:
            name = f"before-{pooling}"
            scores = _score(name, FLAGS.model, f"--pooling={pooling}")
            row = {"kind": kind, "pooling": pooling, "arm": "before", "seed": 0}
            _append({**row, **scores})
    for seed in map(int, FLAGS.seeds):
        for pooling in FLAGS.poolings:
            for arm in FLAGS.arms:
                if (pooling, arm, seed) in done:
                    continue
                name = f"{kind}-{pooling}-{arm}-{seed}"
                began, before = time.monotonic(), os.times()
                directory = _train(name, pooling, arm, seed)
                after = os.times()
                row = {"kind": kind, "pooling": pooling, "arm": arm, "seed": seed}
                row |= _score(name, directory)
                row |= {"precision": FLAGS.precision, "commit": _commit()}
                row["train_cpu_seconds"] = round(
                    after.children_user
                    - before.children_user
                    + after.children_system
                    - before.children_system
                )
                row["wall_seconds"] = round(time.monotonic() - began)
                _append(row)


def _table() -> None:
    rows = _rows()
    shown = [*_TASKS, "isotropy_unit"]
    print(f"| strings | read by | arm | seeds | {' | '.join(shown)} |")
    print("|---" * (len(shown) + 4) + "|")
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        key = (row["kind"], row["pooling"], row["arm"])
        groups.setdefault(key, []).append(row)
    for (kind, pooling, arm), group in groups.items():
        cells = []
        for task in shown:
            values = [row[task] for row in group]
            cell = f"{statistics.fmean(values):.4g}"
            if len(values) > 1:
                cell += f" ± {statistics.stdev(values):.2g}"
            cells.append(cell)
        print(f"| {kind} | {pooling} | {arm} | {len(group)} | {' | '.join(cells)} |")


def main() -> None:
    FLAGS(sys.argv)
    if FLAGS.table:
        _table()
        return
    for name in ("model", "data_dir", "strings", "output"):
        if not FLAGS[name].value:
            sys.exit(f"--{name} is not given")
    _run()


if __name__ == "__main__":
    main()
