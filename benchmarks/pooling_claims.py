"""Which pooling reads the best sentence vectors from an encoder?

    python benchmarks/pooling_claims.py --models=base=DIR/base,cmlm=DIR/cmlm-0-300 \\
        --data_dir=EVAL --output=DIR --results=docs/results/pooling.jsonl

Each model, trained before, is read by the mean, the maximum and [CLS] (Yang et al.,
2020, https://arxiv.org/abs/2012.14388, table 9, which most likely does so with
CMLM and BERT-base). Every model and pooling adds a JSON line to --results; a second
start skips the lines that are there. --table prints them as Markdown, and runs nothing.
"""

import functools
import itertools

import claims
from absl import flags

flags.DEFINE_list("models", [], "NAME=MODEL, as in --model of cmlm.evaluate.")
claims.define_flags(["mean", "max", "cls"])

FLAGS = flags.FLAGS

ARMS = ("mean", "max", "cls", "pooler")
_SENTEVAL = ("mr", "mpqa", "trec", "sick-e")
_STS = ("stsb-test", "sick-r")


def _run() -> None:
    for named, pooling in itertools.product(FLAGS.models, FLAGS.arms):
        name, _, model = named.partition("=")
        claims.run_start(
            {"model": name, "arm": pooling},
            functools.partial(
                claims.scores,
                *(f"{name}-{pooling}", model, (*_SENTEVAL, *_STS)),
                f"--pooling={pooling}",
            ),
        )


def _table() -> None:
    found = [
        claims.with_means(row, {"senteval": _SENTEVAL})
        for row in claims.rows(FLAGS.results)
    ]
    claims.print_table(found, ("model", "arm"), ("senteval", *_SENTEVAL, *_STS))


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "models")
