"""Is CMLM a better objective for sentence vectors than masked LM and QuickThought?

    python benchmarks/cmlm_claims.py --model=minilm --train_data='text/*/*.txt.gz' \\
        --data_dir=EVAL --output=DIR --results=docs/results/cmlm_claims.jsonl

The text is in sentences, one a line, with an empty line between documents. `base` makes
a masked LM of the given weights: --base_steps of 64 passages of 64 tokens, AdamW 1e-4,
so that little of a sentence encoder's geometry is left. Every arm then trains for
--steps from that base on 128 sentences a step (Yang et al., 2020,
https://arxiv.org/abs/2012.14388, tables 1 and 2):

mlm           more masked LM, 128 sentences
cmlm          CMLM, 64 pairs of neighbours
quickthought  neighbours find each other among the 64 of the step
shuffled      CMLM on the same text, its sentences shuffled over all documents

`start` is --model itself. All vectors are means over tokens. Every arm and seed adds a
JSON line to --results; a second start skips the lines that are there. --table prints
mean and deviation over the seeds as Markdown, and runs nothing.
"""

import glob
import gzip
import json
import os
import random
import sys

import claims
from absl import flags

flags.DEFINE_string("model", None, "A Hugging Face folder to start from.")
flags.DEFINE_string("train_data", None, "Text in sentences.")
flags.DEFINE_string("data_dir", None, "Where the test sets are.")
flags.DEFINE_string("output", None, "Directory of the runs.")
flags.DEFINE_string("results", None, "JSON lines to append to.", required=True)
flags.DEFINE_bool("table", False, "Print the table of --results.")
flags.DEFINE_list("arms", ["mlm", "cmlm", "quickthought", "shuffled"], "Which.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Of new weights and of the text's order.")
flags.DEFINE_integer("base_steps", 1200, "Of masked LM, before all arms.")
flags.DEFINE_integer("steps", 300, "Of every arm.")
flags.DEFINE_string("precision", "float32", "Of the training: float32 or bfloat16.")

FLAGS = flags.FLAGS

_STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sick-r")
_SENTEVAL = ("mr", "mpqa", "trec", "sick-e")
# Batches are sorted by length, so micro-batches hold less padding.
_MICRO = "trainer.micro_batch_size=16"
_CMLM = ["task.cmlm.train_data.seq_length=64", _MICRO]
ARMS = {
    "mlm": [
        *("task.cmlm.weight=0", "task.mlm.weight=1", "task.mlm.masking.rate=0.15"),
        "task.mlm.train_data.global_batch_size=128",
        "task.mlm.train_data.seq_length=64",
        _MICRO,
    ],
    "cmlm": _CMLM,
    "shuffled": _CMLM,
    "quickthought": [
        *("task.cmlm.weight=0", "task.quickthought.weight=1"),
        "task.quickthought.train_data.global_batch_size=64",
        "task.quickthought.train_data.seq_length=64",
    ],
}
_OBJECTIVE = {"shuffled": "cmlm"}


def _train(name: str, flagfile: str, start: str, text: str, *overrides: str) -> str:
    directory = os.path.join(FLAGS.output, name)
    overrides += (
        f"runtime.mixed_precision_dtype={FLAGS.precision}",
        "trainer.optimizer.type=adamw",
        "trainer.optimizer.learning_rate=1e-4",
        "trainer.best_checkpoint_metric=",
    )
    claims.run(
        "cmlm.train",
        flagfile,
        f"--init_checkpoint={start}",
        f"--train_data={text}",
        f"--model_dir={directory}",
        *(f"--params_override={value}" for value in overrides),
    )
    return directory


def _base() -> str:
    directory = os.path.join(FLAGS.output, "base")
    if os.path.exists(os.path.join(directory, f"ckpt-{FLAGS.base_steps}.index")):
        return directory
    return _train(
        "base",
        "--experiment=cmlm/english",
        FLAGS.model,
        FLAGS.train_data,
        "model.pooling=mean",
        "task.cmlm.weight=0",
        *("task.mlm.weight=1", "task.mlm.passages=true", "task.mlm.masking.rate=0.15"),
        "task.mlm.train_data.global_batch_size=64",
        "task.mlm.train_data.seq_length=64",
        f"trainer.train_steps={FLAGS.base_steps}",
        "trainer.optimizer.warmup_steps=100",
        "trainer.summary_interval=25",
        *("trainer.checkpoint_interval=300", "trainer.validation_interval=300"),
    )


def _shuffled() -> str:
    """Writes the text with its sentences shuffled; documents keep their lengths."""
    path = os.path.join(FLAGS.output, "shuffled.txt.gz")
    if os.path.exists(path):
        return path
    lines = []
    for source in sorted(glob.glob(FLAGS.train_data)):
        opened = gzip.open if source.endswith(".gz") else open
        with opened(source, "rt", encoding="utf-8") as file:
            lines += [*(line.rstrip("\n") for line in file), ""]
    sentences = [line for line in lines if line]
    random.Random(0).shuffle(sentences)
    shuffled = iter(sentences)
    with gzip.open(f"{path}.new", "wt", encoding="utf-8") as file:
        for line in lines:
            file.write(f"{next(shuffled) if line else ''}\n")
    os.rename(f"{path}.new", path)
    return path


def _arm(arm: str, seed: int, base: str) -> str:
    objective = _OBJECTIVE.get(arm, arm)
    return _train(
        f"{arm}-{seed}",
        f"--flagfile={os.path.join(claims.CONFIGS, 'adapt_cmlm.flags')}",
        base,
        _shuffled() if arm == "shuffled" else FLAGS.train_data,
        *ARMS[arm],
        f"trainer.seed={seed}",
        f"task.{objective}.train_data.seed={seed}",
        f"trainer.train_steps={FLAGS.steps}",
        f"trainer.optimizer.warmup_steps={FLAGS.steps // 10}",
        "trainer.validation_interval=100",
    )


def _gains(directory: str) -> dict[str, float]:
    """The conditioning gain of every validation, by step."""
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        found = [json.loads(line) for line in file]
    name = "validation/cmlm/conditioning_gain"
    return {str(row["step"]): round(row[name], 5) for row in found if name in row}


def _score(name: str, model: str, *more: str) -> dict[str, float]:
    report = os.path.join(FLAGS.output, f"{name}.json")
    return claims.scores(model, report, FLAGS.data_dir, (*_STS, *_SENTEVAL), *more)


def _run() -> None:
    os.makedirs(FLAGS.output, exist_ok=True)
    done = {(row["arm"], row["seed"]) for row in claims.rows(FLAGS.results)}
    base = _base()
    for name, model, more in (
        ("start", FLAGS.model, ["--pooling=mean"]),
        ("base", base, []),
    ):
        if (name, 0) not in done:
            row = {"arm": name, "seed": 0} | _score(name, model, *more)
            claims.append(FLAGS.results, row)
    for seed in map(int, FLAGS.seeds):
        for arm in FLAGS.arms:
            if (arm, seed) in done:
                continue
            row = {"arm": arm, "seed": seed, "steps": FLAGS.steps}
            row["precision"] = FLAGS.precision
            with claims.measured(row):
                directory = _arm(arm, seed, base)
            row |= _score(f"{arm}-{seed}", directory)
            row["conditioning_gain"] = _gains(directory)
            claims.append(FLAGS.results, row)


def _with_means(row: dict) -> dict:
    means = {"sts": _STS, "senteval": _SENTEVAL}
    return row | {
        name: sum(row[task] for task in tasks) / len(tasks)
        for name, tasks in means.items()
    }


def main() -> None:
    FLAGS(sys.argv)
    if FLAGS.table:
        found = [_with_means(row) for row in claims.rows(FLAGS.results)]
        shown = ("sts", "stsb-test", "sick-r", "senteval", *_SENTEVAL)
        claims.print_table(found, ("arm",), (*shown, "train_cpu_seconds"))
        return
    for name in ("model", "train_data", "data_dir", "output"):
        if not FLAGS[name].value:
            sys.exit(f"--{name} is not given")
    _run()


if __name__ == "__main__":
    main()
