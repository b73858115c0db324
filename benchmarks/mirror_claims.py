"""Does Mirror-BERT improve a strong encoder, and which augmentation does it?

    python benchmarks/mirror_claims.py --model=minilm --data_dir=EVAL \\
        --strings=10k.txt --output=DIR --results=docs/results/mirror_sentence.jsonl

Arms of Liu et al., 2021 (https://arxiv.org/abs/2104.08027, tables 1, 7 and 8), at equal
steps from the same weights: `none` (the two views are equal), `span`, `dropout`,
`both`, `drophead` (a span and dropped heads) and `controlled` (no span, and one dropout
mask for both views). `before` is the start itself. --words takes
configs/mirror_word.flags, which masks no span, and refuses arms with a span.

`both` has a dropout of 0.1 and spans of 5 characters. `dropout_0.05` to `dropout_0.4`
and `span_2` to `span_20` change one of these values (tables 12 and 13). `fast` trains
words at 5e-5 instead of 2e-5, which the paper does with random strings (table 10).
`nested` is `both` with the loss of nested vectors (Matryoshka,
https://arxiv.org/abs/2205.13147), for a start of 384 dimensions. --dimensions=96 scores
the first 96 components of the vectors, too: `stsb-test@96`.

Every arm and seed appends one JSON line with its scores to --results, when it is
finished; a second start skips the lines that are there. --table prints mean and
deviation over the seeds as Markdown, and runs nothing.
"""

import functools
import itertools
import os

import claims
from absl import flags

flags.DEFINE_string("model", None, "Weights to start from.")
flags.DEFINE_string("strings", None, "Strings to train on, one a line.")
flags.DEFINE_bool("words", False, "Use the recipe for words.")
flags.DEFINE_list("poolings", ["cls", "mean"], "Poolings of the sentence vectors.")
flags.DEFINE_list("dimensions", [], "Numbers of first components to score, too.")
claims.define_flags(["both", "none", "span", "dropout"])

FLAGS = flags.FLAGS

_NO_DROPOUT = ["model.dropout_rate=0", "model.attention_dropout_rate=0"]
_NO_SPAN = ["task.mirror.span.length=0"]
ARMS = {
    "none": [*_NO_SPAN, *_NO_DROPOUT],
    "span": _NO_DROPOUT,
    "dropout": _NO_SPAN,
    "both": [],
    "drophead": [*_NO_DROPOUT, "model.drophead_rate=0.2"],
    "controlled": [*_NO_SPAN, "task.mirror.controlled_dropout=true"],
    "nested": ["task.mirror.dimensions=[384,192,96,48]"],
    "fast": [*_NO_SPAN, "trainer.optimizer.learning_rate=5e-5"],
}
for _rate in ("0.05", "0.2", "0.3", "0.4"):
    ARMS[f"dropout_{_rate}"] = [
        f"model.dropout_rate={_rate}",
        f"model.attention_dropout_rate={_rate}",
    ]
for _length in ("2", "10", "15", "20"):
    ARMS[f"span_{_length}"] = [f"task.mirror.span.length={_length}"]
_WITHOUT_SPAN = ("none", "dropout", "drophead", "controlled", "fast")
_TASKS = ("stsb-test", "sick-r", "simlex999", "geometry")
_SHORT_TASKS = ("stsb-test", "sick-r")


def _score(name: str, model: str, *more: str) -> dict[str, float]:
    also = {"geometry": ["isotropy_unit"]}
    found = claims.scores(name, model, _TASKS, *more, also=also)
    for size in FLAGS.dimensions:
        more_of_size = (*more, f"--dimensions={size}")
        short = claims.scores(f"{name}-{size}", model, _SHORT_TASKS, *more_of_size)
        found |= {f"{task}@{size}": value for task, value in short.items()}
    return found


def _train(name: str, pooling: str, arm: str, seed: int) -> str:
    recipe = "mirror_word.flags" if FLAGS.words else "mirror_sentence.flags"
    overrides = [
        f"model.pooling={pooling}",
        f"trainer.seed={seed}",
        f"task.mirror.train_data.seed={seed}",
        *ARMS[arm],
    ]
    return claims.train(
        name,
        overrides,
        f"--flagfile={os.path.join(claims.CONFIGS, recipe)}",
        "--mode=train",
        f"--init_checkpoint={FLAGS.model}",
        f"--train_data={FLAGS.strings}",
    )


def _run() -> None:
    if FLAGS.words:
        claims.check_arms(_WITHOUT_SPAN)
    kind = "words" if FLAGS.words else "sentences"
    for pooling in FLAGS.poolings:
        claims.run_start(
            {"kind": kind, "pooling": pooling, "arm": "before", "seed": 0},
            functools.partial(
                _score, f"before-{pooling}", FLAGS.model, f"--pooling={pooling}"
            ),
        )
    seeds = map(int, FLAGS.seeds)
    for seed, pooling, arm in itertools.product(seeds, FLAGS.poolings, FLAGS.arms):
        name = f"{kind}-{pooling}-{arm}-{seed}"
        claims.run_arm(
            {"kind": kind, "pooling": pooling, "arm": arm, "seed": seed},
            functools.partial(_train, name, pooling, arm, seed),
            functools.partial(_score, name),
        )


def _table() -> None:
    found = claims.rows(FLAGS.results)
    keys = ("kind", "pooling", "arm")
    sizes = dict.fromkeys(key for row in found for key in row if "@" in key)
    claims.print_table(found, keys, (*_TASKS, "isotropy_unit", *sizes))


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "model", "strings")
