"""Semantic textual similarity, zero-shot: the cosine of two vectors against people.

STS12 to STS16 (Agirre et al., 2012-2016), STS-B (Cer et al., 2017) and the
relatedness of SICK (Marelli et al., 2014), read from SentEval's files. Nothing is
trained. STS12 to STS16 are made of subsets, and papers differ in how they join them:
`all` is one correlation over all pairs, `mean` the average of one per subset; the
two are up to 5 points apart, so both are given. `all` is the main one, as in the
public leaderboards.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, metrics, reading


@dataclasses.dataclass
class Pairs:
    """Sentence pairs with what people say of them.

    Attributes:
        first, second: the sentences, [n].
        gold: float [n].
    """

    first: list[str]
    second: list[str]
    gold: np.ndarray


class StsTask(base.Task[dict[str, Pairs]]):
    """One STS test set of one or several subsets."""

    main_metric = "spearman"
    protocol = "Spearman of cosine and gold, x 100"

    def __init__(self, name: str, year: str = "", subsets: tuple[str, ...] = ()):
        self.name = name
        self._year = year
        self._subsets = subsets

    def read(self, source: reading.DataDir) -> dict[str, Pairs]:
        return {
            subset: _read_subset(source, self._year, subset) for subset in self._subsets
        }

    def sentences(self, data: dict[str, Pairs]) -> Iterable[str]:
        return itertools.chain.from_iterable(
            pairs.first + pairs.second for pairs in data.values()
        )

    def score(self, data: dict[str, Pairs], vectors: base.Vectors) -> dict[str, float]:
        cosines = {
            subset: metrics.cosine(vectors(pairs.first), vectors(pairs.second))
            for subset, pairs in data.items()
        }
        scores = metrics.correlations(
            np.concatenate(list(cosines.values())),
            np.concatenate([pairs.gold for pairs in data.values()]),
        )
        if len(data) == 1:
            return scores
        parts = {
            subset: metrics.correlations(cosines[subset], pairs.gold)
            for subset, pairs in data.items()
        }
        for name in ("spearman", "pearson"):
            scores[f"{name}_mean"] = float(np.mean([p[name] for p in parts.values()]))
        for subset, part in parts.items():
            scores[f"spearman/{subset}"] = part["spearman"]
        return scores


class PairFileTask(StsTask):
    """A test set that is one file.

    Args:
        name: of the task.
        paths: the file's possible places.
        columns: those of the first sentence, the second and the gold score.
        lowest, highest: the range of the gold score.
        header: whether the first line is one.
    """

    def __init__(
        self,
        name: str,
        paths: tuple[str, ...],
        columns: tuple[int, int, int],
        lowest: float,
        highest: float,
        header: bool,
    ):
        super().__init__(name)
        self._paths = paths
        self._columns = columns
        self._range = (lowest, highest)
        self._header = header

    def read(self, source: reading.DataDir) -> dict[str, Pairs]:
        path = source.find(*self._paths, within="senteval")
        rows = source.table(path, max(self._columns) + 1)[int(self._header) :]
        first, second, gold = self._columns
        pairs = Pairs(
            [row[first].strip() for row in rows],
            [row[second].strip() for row in rows],
            np.array(
                [
                    reading.parse_score(
                        row[gold], *self._range, f"{path}, pair {number}"
                    )
                    for number, row in enumerate(rows, 1)
                ]
            ),
        )
        return {self.name: pairs}


def _read_subset(source: reading.DataDir, year: str, subset: str) -> Pairs:
    """Reads STS.input.X.txt and STS.gs.X.txt, pairs without a gold score left out."""
    folder = f"STS/{year}-en-test"
    path = source.find(f"{folder}/STS.input.{subset}.txt", within="senteval")
    gold_path = source.find(f"{folder}/STS.gs.{subset}.txt", within="senteval")
    rows, gold = source.table(path, 2), source.lines(gold_path)
    if len(rows) != len(gold):
        raise UserError(f"{path} has {len(rows)} pairs, {gold_path} {len(gold)} scores")
    scored = [number for number, score in enumerate(gold) if score.strip()]
    return Pairs(
        [rows[number][0].strip() for number in scored],
        [rows[number][1].strip() for number in scored],
        np.array(
            [
                reading.parse_score(
                    gold[number], 0, 5, f"{gold_path}, line {number + 1}"
                )
                for number in scored
            ]
        ),
    )


TASKS = [
    StsTask(
        "sts12",
        "STS12",
        ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    ),
    # Without SMT, whose sentences its owner does not give away.
    StsTask("sts13", "STS13", ("FNWN", "headlines", "OnWN")),
    StsTask(
        "sts14",
        "STS14",
        ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    ),
    StsTask(
        "sts15",
        "STS15",
        ("answers-forums", "answers-students", "belief", "headlines", "images"),
    ),
    StsTask(
        "sts16",
        "STS16",
        (
            "answer-answer",
            "headlines",
            "plagiarism",
            "postediting",
            "question-question",
        ),
    ),
    *(
        PairFileTask(
            f"stsb-{part}",
            (f"STS/STSBenchmark/sts-{part}.csv", f"stsbenchmark/sts-{part}.csv"),
            columns=(5, 6, 4),
            lowest=0,
            highest=5,
            header=False,
        )
        for part in ("dev", "test")
    ),
    PairFileTask(
        "sick-r",
        ("SICK/SICK_test_annotated.txt",),
        columns=(1, 2, 3),
        lowest=1,
        highest=5,
        header=True,
    ),
]
