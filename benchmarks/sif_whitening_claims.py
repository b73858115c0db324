"""Do SIF's weights of words and whitening improve sentence vectors?

    python benchmarks/sif_whitening_claims.py --train_data='TEXT/*.txt.gz' \\
        --models=small=RUN,untrained=untrained:RUN,bow=bow:RUN --data_dir=EVAL \\
        --output=DIR --results=docs/results/sif_whitening.jsonl

Each model, trained before, is scored as it is; with the tokens of its mean weighted by
SIF (Arora et al., 2017); whitened (Su et al., 2021, https://arxiv.org/abs/2103.15316);
and with both. Weights and map come from the sentences that export.tfhub --sif and
--whitening take from --train_data. Every model and arm adds a JSON line to --results; a
second start skips the lines that are there. --table prints them as Markdown, and runs
nothing.
"""

import functools
import itertools

import claims
import numpy as np
from absl import flags

import cmlm
from cmlm.common import files, line_samples, sif, whitening
from cmlm.encoders import locating, opening, run_weights, vector_moments
from cmlm.encoders.opened_weights import resolve_seq_length
from cmlm.errors import naming
from cmlm.evaluation import catalogue
from export import text_fitting

ARMS = ("plain", "sif", "whitened", "sif_whitened")

flags.DEFINE_list("models", [], "NAME=MODEL, as in --model of cmlm.evaluate.")
flags.DEFINE_string("train_data", None, "Text that fits: files or globs.")
claims.define_flags(list(ARMS))

FLAGS = flags.FLAGS

_STS = ("stsb-test", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")
_SENTEVAL = ("mr", "mpqa", "sst2", "trec", "sick-e")


class _WeightedWords:
    """The mean of the word embeddings of a run, weighted by SIF."""

    def __init__(self, run: str, paths: list[str]):
        opened = run_weights.load(run)
        self._tokenizer = opened.tokenizer
        self._table = opened.encoder.embedding_table.numpy()
        self.dim = self._table.shape[1]
        counts = np.zeros(len(self._table), np.int64)
        for lines in line_samples.of_each(paths, text_fitting.SENTENCES):
            tokens = self._tokenizer.tokenize(lines).flat_values
            counts += np.bincount(tokens, minlength=len(counts))
        self._weights = sif.weights(counts)

    def encode(self, sentences, progress=True):
        del progress
        vectors = np.zeros([len(sentences), self.dim], np.float32)
        if not len(sentences):
            return vectors
        for row, ids in enumerate(self._tokenizer.tokenize(list(sentences))):
            if len(ids):
                weights = self._weights[ids.numpy()]
                vectors[row] = weights @ self._table[ids.numpy()] / weights.sum()
        return vectors


class _Whitened:
    """An encoder whose vectors are whitened."""

    def __init__(self, encoder, paths: list[str]):
        moments = vector_moments.sample(encoder, paths, text_fitting.SENTENCES)
        self._whiten = whitening.fit(moments)
        self._encoder = encoder

    def encode(self, sentences):
        return self._whiten(self._encoder.encode(list(sentences)))


def _open(model: str, arm: str):
    """The encoder of an arm."""
    with naming("--train_data"):
        paths = files.expand(FLAGS.train_data)
    if arm in ("plain", "whitened"):
        encoder = cmlm.load(model)
    elif model.startswith("bow:"):
        encoder = _WeightedWords(locating.locate(model).path, paths)
    else:
        opened = opening.open_weights(model)
        text_fitting.weigh_words(opened, resolve_seq_length(opened), paths)
        encoder = opening.from_weights(opened)
    return _Whitened(encoder, paths) if arm.endswith("whitened") else encoder


def _score(model: str, arm: str) -> dict[str, float]:
    found = cmlm.score(_open(model, arm), FLAGS.data_dir, [*_STS, *_SENTEVAL])
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
