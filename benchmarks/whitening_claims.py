"""Does whitening improve sentence vectors?

    python benchmarks/whitening_claims.py --train_data='TEXT/*.txt.gz' \\
        --models=small=RUN,untrained=untrained:RUN,bow=bow:RUN --data_dir=EVAL \\
        --output=DIR --results=docs/results/whitening.jsonl

Each model, trained before, is scored as it is and whitened (Su et al., 2021,
https://arxiv.org/abs/2103.15316) by the sentences that export.tfhub --whitening takes
from --train_data. Every model and arm adds a JSON line to --results; a second start
skips the lines that are there. --table prints them as Markdown, and runs nothing.
"""

import functools
import itertools

import claims
from absl import flags

import cmlm
from cmlm.common import files, whitening
from cmlm.encoders import vector_moments
from cmlm.evaluation import catalogue
from export.text_fitting import SENTENCES

flags.DEFINE_list("models", [], "NAME=MODEL, as in --model of cmlm.evaluate.")
flags.DEFINE_string("train_data", None, "Text that whitens: files or globs.")
claims.define_flags(["plain", "whitened"])

FLAGS = flags.FLAGS

ARMS = ("plain", "whitened")
_STS = ("stsb-test", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")
_SENTEVAL = ("mr", "mpqa", "sst2", "trec", "sick-e")


class _Whitened:
    """An encoder whose vectors are whitened."""

    def __init__(self, encoder):
        paths = files.expand(FLAGS.train_data)
        self._whiten = whitening.fit(vector_moments.sample(encoder, paths, SENTENCES))
        self._encoder = encoder

    def encode(self, sentences):
        return self._whiten(self._encoder.encode(list(sentences)))


def _score(model: str, arm: str) -> dict[str, float]:
    encoder = cmlm.load(model)
    if arm == "whitened":
        encoder = _Whitened(encoder)
    found = cmlm.score(encoder, FLAGS.data_dir, [*_STS, *_SENTEVAL])
    tasks = catalogue.select([*_STS, *_SENTEVAL])
    return {task.name: round(found[task.name][task.main_metric], 3) for task in tasks}


def _run() -> None:
    for named, arm in itertools.product(FLAGS.models, FLAGS.arms):
        name, _, model = named.partition("=")
        claims.run_start(
            {"model": name, "arm": arm}, functools.partial(_score, model, arm)
        )


def _table() -> None:
    found = [
        claims.with_means(row, {"senteval": _SENTEVAL, "sts": _STS})
        for row in claims.rows(FLAGS.results)
    ]
    claims.print_table(found, ("model", "arm"), ("sts", *_STS, "senteval", *_SENTEVAL))


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "models", "train_data")
