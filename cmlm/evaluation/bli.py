"""Bilingual lexicon induction: the translation of a word among the words of a language.

Glavas et al., 2019, https://arxiv.org/abs/1902.00508: 28 language pairs with a test
dictionary of 2,000 pairs each. Similarity is CSLS with 10 neighbours (Conneau et al.,
2018, https://arxiv.org/abs/1710.04087, equation 4), which takes off what a word has in
common with everything. The papers search a vocabulary of 200,000 words taken from
fastText; here the pool, on either side, is every word that the dictionaries of the
pair (train and test) have, about 6,000: more is found than with theirs. No mapping is
learnt: both languages are encoded by the same model.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable

import numpy as np

from cmlm.evaluation import base, reading, search

_NEIGHBOURS = 10


@dataclasses.dataclass
class Lexicon:
    """Words of two languages and which of them translate each other.

    Attributes:
        source, target: distinct words; the first of `source` are the ones asked for.
        gold: for each word asked for, its translations as rows of `target`.
    """

    source: list[str]
    target: list[str]
    gold: list[set[int]]


class Bli(base.PartedTask[Lexicon]):
    """`en-de/yacle.test.freq.2k.en-de.tsv` and the `train` files beside it."""

    main_metric = "accuracy"
    protocol = "P@1 by CSLS (k = 10) among the dictionaries' words, x 100"

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        paths = source.matching(
            os.path.join("*-*", "yacle.test.freq.2k.*.tsv"), within="bli"
        )
        # en-fr is there twice, under its name backwards too.
        return {
            os.path.basename(os.path.dirname(path)): path for path in reversed(paths)
        }

    def read_part(self, source: reading.DataDir, part: str, where: str) -> Lexicon:
        rows = [row[:2] for row in source.table(where, 2)]
        gold: dict[str, set[str]] = {}
        for word, translation in rows:
            gold.setdefault(word, set()).add(translation)
        train = re.sub(r"test\.freq\.2k", "train.freq.5k", where)
        rows += [row[:2] for row in source.table(source.find(train), 2)]
        known = list(dict.fromkeys([*gold, *(word for word, _ in rows)]))
        target = list(dict.fromkeys(translation for _, translation in rows))
        row_of = {word: row for row, word in enumerate(target)}
        return Lexicon(
            known, target, [{row_of[word] for word in words} for words in gold.values()]
        )

    def part_sentences(self, data: Lexicon) -> Iterable[str]:
        return [*data.source, *data.target]

    def score_part(self, data: Lexicon, vectors: base.Vectors) -> dict[str, float]:
        ranks = csls_ranks(vectors(data.source), vectors(data.target), data.gold)
        return {
            "accuracy": 100 * float(np.mean(ranks == 1)),
            "mrr": 100 * float(np.mean(1 / ranks)),
        }


def csls_ranks(
    x: np.ndarray, y: np.ndarray, gold: list[set[int]], k: int = _NEIGHBOURS
) -> np.ndarray:
    """The rank of the best right answer by CSLS.

    CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), with r(x) the mean cosine of x with its k
    nearest y, and r(y) that of y with its k nearest x.

    Args:
        x: float [n, dim], of which the first `len(gold)` rows ask.
        y: float [m, dim].
        gold: for each of these its right rows of y.
        k: neighbours.

    Returns:
        int [len(gold)], 1 for the first place. Equals count against the right one.
    """
    x, y = search.unit_length(x), search.unit_length(y)
    of_y = search.nearest(y, x, k)[0].mean(axis=1)
    ranks = np.empty(len(gold), np.int64)
    for start in range(0, len(gold), 512):
        # r(x) is the same for all y and does not change their order.
        scores = 2 * x[start : start + 512][: len(gold) - start] @ y.T - of_y
        for row, answers in enumerate(scores, start):
            right = list(gold[row])
            above = int((answers >= answers[right].max()).sum())
            ranks[row] = above
    return ranks


TASKS = [Bli("bli")]
