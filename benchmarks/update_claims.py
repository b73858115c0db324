"""How should a trained encoder take up new text?

    python benchmarks/update_claims.py --old='corpus/*.txt.gz' --new=manual.txt.gz \\
        --data_dir=EVAL --output=DIR --results=docs/results/update_claims.jsonl

Both texts are training text. Every tenth document of each is held out. The run `before`
trains configs/en_small.flags on the old text. Each arm starts from its weights:

new_slow, new_middle, new_fast   new text alone, at 1/15, 1/5 and all of the recipe's
                                 learning rate
half_slow, half_middle, half_fast
                                 new text and as much old text, drawn at random
all_middle                       all new and all old text
old_fast                         the old text alone: more steps without new text
again                            all text, from random weights, for as many steps as
                                 `before`

Scores: the next sentence among the held-out documents of the old and of the new text
(neighbours), STS-B and SICK-R. --steps are the steps of `before` and `again`,
--update_steps those of the other arms. Runs go on where they were stopped, and a second
start skips the rows that are there. --table prints mean and deviation over the seeds as
Markdown, and runs nothing.
"""

from __future__ import annotations

import functools
import glob
import gzip
import itertools
import os
import random
from collections.abc import Iterable, Iterator

import claims
from absl import flags

from cmlm.errors import UserError

flags.DEFINE_string("old", None, "Files of the text that `before` trains on.")
flags.DEFINE_string("new", None, "Files of the text that comes later.")
flags.DEFINE_integer("steps", 1000, "Steps of `before` and `again`.")
flags.DEFINE_integer("update_steps", 200, "Steps of every other arm.")

_RATE = 1.5e-3
_RATES = {"slow": _RATE / 15, "middle": _RATE / 5, "fast": _RATE}
# The parts of the text that an arm trains on, and its learning rate.
ARMS = {
    **{f"new_{name}": (("new",), rate) for name, rate in _RATES.items()},
    **{f"half_{name}": (("new", "old_sample"), rate) for name, rate in _RATES.items()},
    "all_middle": (("new", "old"), _RATES["middle"]),
    "old_fast": (("old",), _RATE),
    "again": (("new", "old"), _RATE),
}
claims.define_flags(list(ARMS))

FLAGS = flags.FLAGS


def _documents(pattern: str) -> Iterator[str]:
    """The documents of files of training text, each with its blank line."""
    for path in sorted(glob.glob(pattern)):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for has_text, lines in itertools.groupby(
                file, key=lambda x: bool(x.strip())
            ):
                if has_text:
                    yield "".join(lines) + "\n"


def _file(name: str) -> str:
    return os.path.join(FLAGS.output, f"{name}.txt.gz")


def _write(name: str, documents: Iterable[str]) -> None:
    with gzip.open(f"{_file(name)}.part", "wt", encoding="utf-8") as file:
        file.writelines(documents)
    os.replace(f"{_file(name)}.part", _file(name))


def _divide() -> None:
    """Writes the parts of the text to --output, unless they are there."""
    if os.path.exists(_file("old_sample")):
        return
    train: dict[str, list[str]] = {}
    for name in ("old", "new"):
        documents = list(_documents(FLAGS[name].value))
        train[name] = [text for i, text in enumerate(documents) if i % 10]
        if not train[name]:
            raise UserError(
                f"--{name}={FLAGS[name].value} has fewer than two documents; allowed: "
                "training text, packed (.gz)"
            )
        _write(name, train[name])
        _write(f"{name}_held", documents[::10])
    wanted, sample = sum(map(len, train["new"])), []
    for text in random.Random(0).sample(train["old"], len(train["old"])):
        if wanted <= 0:
            break
        sample.append(text)
        wanted -= len(text)
    _write("old_sample", sample)


def _train(name: str, parts: Iterable[str], rate: float, seed: int, *more: str) -> str:
    steps = FLAGS.update_steps if more else FLAGS.steps
    overrides = [
        f"trainer.train_steps={steps}",
        f"trainer.validation_interval={steps},trainer.checkpoint_interval={steps}",
        f"trainer.optimizer.learning_rate={rate}",
        f"trainer.seed={seed},task.quickthought.train_data.seed={seed}",
    ]
    return claims.train(
        name,
        overrides,
        f"--flagfile={os.path.join(claims.CONFIGS, 'en_small.flags')}",
        f"--train_data={','.join(map(_file, parts))}",
        *more,
    )


def _before(seed: int) -> str:
    return _train(f"before-{seed}", ("old",), _RATE, seed)


def _arm(arm: str, seed: int) -> str:
    parts, rate = ARMS[arm]
    start = () if arm == "again" else (f"--init_checkpoint={_before(seed)}",)
    return _train(f"{arm}-{seed}", parts, rate, seed, *start)


def _score(arm: str, seed: int, model: str) -> dict[str, float]:
    held = {f"neighbours:{_file(f'{name}_held')}": name for name in ("old", "new")}
    tasks = (*held, "stsb-test", "sick-r")
    found = claims.scores(f"{arm}-{seed}", model, tasks)
    return {held.get(task, task): value for task, value in found.items()}


def _run() -> None:
    _divide()
    for seed in map(int, FLAGS.seeds):
        runs = {"before": functools.partial(_before, seed)}
        runs |= {arm: functools.partial(_arm, arm, seed) for arm in FLAGS.arms}
        for arm, train in runs.items():
            claims.run_arm(
                {"arm": arm, "seed": seed},
                train,
                functools.partial(_score, arm, seed),
            )


def _table() -> None:
    shown = ("old", "new", "stsb-test", "sick-r", "train_cpu_seconds")
    claims.print_table(claims.rows(FLAGS.results), ("arm",), shown)


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "old", "new")
