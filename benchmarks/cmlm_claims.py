"""Is CMLM a better objective for sentence vectors than masked LM and QuickThought?

    python benchmarks/cmlm_claims.py --model=minilm --train_data='text/*/*.txt.gz' \\
        --data_dir=EVAL --output=DIR --results=docs/results/cmlm_claims.jsonl

The text is in sentences, one a line, with an empty line between documents. `base` makes
a masked LM of the given weights: --base_steps of 64 passages of 64 tokens, AdamW 1e-4,
so that little of a sentence encoder's geometry is left. Every arm then trains for
--steps from that base on 128 sentences a step, `both` on 256 (Yang et al., 2020,
https://arxiv.org/abs/2012.14388, tables 1 and 2):

mlm           more masked LM, 128 sentences
cmlm          CMLM, 64 pairs of neighbours
quickthought  neighbours find each other among the 64 of the step
shuffled      CMLM on the same text, its sentences shuffled over all documents
one_view      CMLM with one projection of the sentence's vector instead of 15 (table 7)
fewer_masks   CMLM with 40 masks for 256 tokens instead of 80 (table 10)
both          CMLM and QuickThought, 64 pairs of neighbours each

`start` is --model itself. All vectors are means over tokens. Every arm and seed adds a
JSON line to --results; a second start skips the lines that are there, so other --steps
add arms of another length. --table prints mean and deviation over the seeds as
Markdown, and runs nothing.
"""

import functools
import glob
import gzip
import itertools
import os
import random

import claims
from absl import flags

flags.DEFINE_string("model", None, "A Hugging Face folder to start from.")
flags.DEFINE_string("train_data", None, "Text in sentences.")
flags.DEFINE_integer("base_steps", 1200, "Steps of masked LM before all arms.")
flags.DEFINE_integer("steps", 300, "Steps of every arm.")
claims.define_flags(["mlm", "cmlm", "quickthought", "shuffled"])

FLAGS = flags.FLAGS

_STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sick-r")
_SENTEVAL = ("mr", "mpqa", "trec", "sick-e")
# Batches are sorted by length, so micro-batches hold less padding.
_MICRO = "trainer.micro_batch_size=16"
_CMLM = ["task.cmlm.train_data.seq_length=64", _MICRO]
_QUICKTHOUGHT = [
    "task.quickthought.weight=1",
    "task.quickthought.train_data.global_batch_size=64",
    "task.quickthought.train_data.seq_length=64",
]
ARMS = {
    "mlm": [
        *("task.cmlm.weight=0", "task.mlm.weight=1", "task.mlm.masking.rate=0.15"),
        "task.mlm.train_data.global_batch_size=128",
        "task.mlm.train_data.seq_length=64",
        _MICRO,
    ],
    "cmlm": _CMLM,
    "shuffled": _CMLM,
    "one_view": [*_CMLM, "model.num_views=1"],
    "fewer_masks": [*_CMLM, "task.cmlm.masking.rate=0.15625"],
    "quickthought": ["task.cmlm.weight=0", *_QUICKTHOUGHT],
    "both": [*_CMLM, *_QUICKTHOUGHT],
}


def _train(name: str, flagfile: str, start: str, text: str, *overrides: str) -> str:
    overrides += (
        "trainer.optimizer.type=adamw",
        "trainer.optimizer.learning_rate=1e-4",
        "trainer.best_checkpoint_metric=",
    )
    return claims.train(
        *(name, overrides, flagfile),
        *(f"--init_checkpoint={start}", f"--train_data={text}"),
    )


def _base() -> str:
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
    return _train(
        f"{arm}-{seed}-{FLAGS.steps}",
        f"--flagfile={os.path.join(claims.CONFIGS, 'adapt_cmlm.flags')}",
        base,
        _shuffled() if arm == "shuffled" else FLAGS.train_data,
        *ARMS[arm],
        f"trainer.seed={seed}",
        *(
            f"task.{objective}.train_data.seed={seed}"
            for objective in ("mlm", "cmlm", "quickthought")
        ),
        f"trainer.train_steps={FLAGS.steps}",
        f"trainer.optimizer.warmup_steps={FLAGS.steps // 10}",
        *("trainer.validation_interval=100", "trainer.validation_examples=4096"),
    )


def _score(name: str, model: str, *more: str) -> dict[str, float]:
    return claims.scores(name, model, (*_STS, *_SENTEVAL), *more)


def _score_arm(name: str, directory: str) -> dict:
    gains = claims.conditioning_gains(directory)
    return _score(name, directory) | {"conditioning_gain": gains}


def _run() -> None:
    base = _base()
    for name, model, more in (
        ("start", FLAGS.model, ["--pooling=mean"]),
        ("base", base, []),
    ):
        claims.run_start(
            {"arm": name, "seed": 0}, functools.partial(_score, name, model, *more)
        )
    for seed, arm in itertools.product(map(int, FLAGS.seeds), FLAGS.arms):
        claims.run_arm(
            {"arm": arm, "seed": seed, "steps": FLAGS.steps},
            functools.partial(_arm, arm, seed, base),
            functools.partial(_score_arm, f"{arm}-{seed}-{FLAGS.steps}"),
        )


def _table() -> None:
    groups = {"sts": _STS, "senteval": _SENTEVAL}
    found = [claims.with_means(row, groups) for row in claims.rows(FLAGS.results)]
    shown = ("sts", "stsb-test", "sick-r", "senteval", *_SENTEVAL)
    claims.print_table(found, ("arm", "steps"), (*shown, "train_cpu_seconds"))


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "model", "train_data")
