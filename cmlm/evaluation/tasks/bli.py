"""Bilingual lexicon induction: find the translation of a word.

Glavas et al., 2019, https://arxiv.org/abs/1902.00508: 28 language pairs, each with a
test dictionary of 2,000 pairs. The similarity is CSLS with 10 neighbours (Conneau et
al., 2018, https://arxiv.org/abs/1710.04087, equation 4), which subtracts the mean
cosine of each word with its neighbours. Papers search fastText's vocabulary of 200,000
words. Here the pool of each side holds every word of the pair's dictionaries (train and
test), about 6,000 words, so scores are higher.

`accuracy` compares vectors without a mapping; it suits one model of both languages.
`accuracy_mapped` first learns an orthogonal mapping on the training dictionary. That is
the mapping-based set-up of Mirror-BERT (section 3, table 6), with one encoder for
each language: `--model=languages:en=MODEL,fr=OTHER`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

import numpy as np

from cmlm.common import arrays
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base
from cmlm.mining import exact

_NEIGHBOURS = 10
_AT_ONCE = 512


@dataclasses.dataclass
class Lexicon:
    """The words of two languages and their translation pairs.

    Attributes:
        source, target: distinct words; the test words come first in `source`.
        gold: for each test word, its translations as rows of `target`.
        train: the training dictionary, int [pairs, 2]: rows of `source` and `target`.
    """

    source: list[str]
    target: list[str]
    gold: list[set[int]]
    train: np.ndarray


class Bli(base.PartedTask[Lexicon]):
    """`en-de/yacle.test.freq.2k.en-de.tsv` and the `train` files beside it."""

    main_metric = "accuracy"
    shown_metrics = ("accuracy_mapped",)
    languages = ("de", "en", "fi", "fr", "hr", "it", "ru", "tr")
    protocol = (
        "P@1 by CSLS (k = 10) among the dictionaries' words, x 100; mapped: after an "
        "orthogonal mapping learnt on the training dictionary"
    )

    def find_parts(self, source: DataDir) -> dict[str, str]:
        paths = source.matching(
            os.path.join("*-*", "yacle.test.freq.2k.*.tsv"), within="bli"
        )
        # The data set holds en-fr twice, once under the reversed name.
        return {
            os.path.basename(os.path.dirname(path)): path for path in reversed(paths)
        }

    def read_part(self, source: DataDir, part: str, where: str) -> Lexicon:
        test = [row[:2] for row in source.table(where, 2)]
        gold: dict[str, set[str]] = {}
        for word, translation in test:
            gold.setdefault(word, set()).add(translation)
        # Either file may be packed.
        path = where.removesuffix(".gz").replace("test.freq.2k", "train.freq.5k")
        train = [row[:2] for row in source.table(source.find(path), 2)]
        words = dict.fromkeys([*gold, *(word for word, _ in train)])
        translations = dict.fromkeys(word for _, word in [*test, *train])
        rows = {word: row for row, word in enumerate(words)}
        columns = {word: row for row, word in enumerate(translations)}
        return Lexicon(
            list(rows),
            list(columns),
            [{columns[word] for word in answers} for answers in gold.values()],
            np.array([(rows[word], columns[answer]) for word, answer in train]),
        )

    def part_sentences(self, data: Lexicon) -> Iterable[str]:
        return [*data.source, *data.target]

    def part_outcome(
        self, part: str, data: Lexicon, vectors: base.Vectors
    ) -> base.Outcome:
        source, target = part.split("-")
        x, y = vectors(data.source, source), vectors(data.target, target)
        ranks = csls_ranks(x, y, data.gold)
        after = csls_ranks(*mapped(x, y, data.train), data.gold)
        scores = {
            "accuracy": 100 * float(np.mean(ranks == 1)),
            "mrr": 100 * float(np.mean(1 / ranks)),
            "accuracy_mapped": 100 * float(np.mean(after == 1)),
        }
        return base.Outcome(scores)


def mapped(
    x: np.ndarray, y: np.ndarray, train: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Maps two sets of vectors into one space by an orthogonal mapping.

    VecMap's supervised orthogonal mapping (Artetxe et al., 2016; 2018) scales the rows
    to length 1, centres the columns of each side, and scales the rows again. Then
    X_train^T Y_train = U S V^T, x becomes x U, and y becomes y V (the Procrustes
    solution W = U V^T, applied to both sides).

    Args:
        x: float [n, dim].
        y: float [m, dim].
        train: int [pairs, 2], rows of x and y that translate each other.

    Returns:
        The mapped vectors, float [n, dim] and [m, dim].
    """
    x, y = _normalized(x), _normalized(y)
    u, _, v = np.linalg.svd(x[train[:, 0]].T @ y[train[:, 1]], full_matrices=False)
    return x @ u, y @ v.T


def _normalized(vectors: np.ndarray) -> np.ndarray:
    vectors = arrays.unit_length(vectors).astype(np.float64)
    return arrays.unit_length(vectors - vectors.mean(axis=0)).astype(np.float64)


def csls_ranks(
    x: np.ndarray, y: np.ndarray, gold: list[set[int]], k: int = _NEIGHBOURS
) -> np.ndarray:
    """The rank of the best right answer by CSLS.

    CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), where r(x) is the mean cosine of x with its
    k nearest y, and r(y) the mean cosine of y with its k nearest x.

    Args:
        x: float [n, dim]; the first `len(gold)` rows are the queries.
        y: float [m, dim].
        gold: for each query, the right rows of y.
        k: the number of neighbours.

    Returns:
        int [len(gold)], 1 for the first place. A tie with a wrong row counts against
        the right one.
    """
    x, y = arrays.unit_length(x), arrays.unit_length(y)
    of_y = exact.nearest(y, x, k)[0].mean(axis=1)
    queries = x[: len(gold)]
    ranks = []
    for start in range(0, len(queries), _AT_ONCE):
        # r(x) is the same for all y and does not change their order.
        scores = 2 * queries[start : start + _AT_ONCE] @ y.T - of_y
        for own, right in zip(scores, gold[start : start + _AT_ONCE], strict=True):
            wrong = np.ones(len(own), bool)
            wrong[list(right)] = False
            ranks.append(1 + np.sum(own[wrong] >= own[~wrong].max()))
    return np.array(ranks)


TASKS = [Bli("bli")]
