"""Semantic textual similarity, zero-shot: the cosine of two vectors against people.

STS12 to STS16 (Agirre et al., 2012-2016), STS-B (Cer et al., 2017) and the
relatedness of SICK (Marelli et al., 2014), read from SentEval's files; STS-B in other
languages, and files of one's own. Nothing is trained.

STS12 to STS16 are made of subsets, and papers differ in how they join them: `spearman`
is one correlation over all pairs ("all"), `spearman_mean` the average of one per
subset; the two are up to 5 points apart, so both are given. "all" is the main one, as
in the public leaderboards.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, metrics, reading
from cmlm.evaluation.senteval_files import SICK_FILES, sts_benchmark_files


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
        within: the subfolder that may have the file.
    """

    def __init__(
        self,
        name: str,
        paths: tuple[str, ...],
        columns: tuple[int, int, int],
        lowest: float,
        highest: float,
        header: bool,
        within: str = "senteval",
    ):
        super().__init__(name)
        self._within = within
        self._paths = paths
        self._columns = columns
        self._range = (lowest, highest)
        self._header = header

    def read(self, source: reading.DataDir) -> dict[str, Pairs]:
        path = source.find(*self._paths, within=self._within)
        rows = self.rows(source, path)
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

    def rows(self, source: reading.DataDir, path: str) -> list[list[str]]:
        """The pairs of the file, with at least the columns that are needed."""
        return source.table(path, max(self._columns) + 1)[int(self._header) :]


class ScoredPairsTask(base.PartedTask[Pairs]):
    """Scored pairs in several languages."""

    main_metric = "spearman"

    def part_sentences(self, data: Pairs) -> Iterable[str]:
        return data.first + data.second

    def score_part(self, data: Pairs, vectors: base.Vectors) -> dict[str, float]:
        cosines = metrics.cosine(vectors(data.first), vectors(data.second))
        return metrics.correlations(cosines, data.gold)


class MultilingualStsb(ScoredPairsTask):
    """STS-B machine-translated, a file per language: `stsb-de-test.csv`.

    https://github.com/PhilipMay/stsb-multi-mt; rows `sentence1,sentence2,score`.
    """

    protocol = "Spearman of cosine and gold, x 100, mean over languages"

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        paths = source.matching("stsb-*-test.csv", within="stsb-multilingual")
        names = [os.path.basename(path).split("-") for path in paths]
        return {
            "-".join(name[1:-1]): path for name, path in zip(names, paths, strict=True)
        }

    def read_part(self, source: reading.DataDir, part: str, where: str) -> Pairs:
        return _pairs(where, source.csv(where, 3))


class StsFiles(StsTask):
    """Anyone's pairs: files of `sentence, sentence, score`, each a subset.

    Args:
        paths: `.csv`, or anything else with tabs between the columns; scores from 0 to
            5. Relative to the working directory or to the folder with test sets.
    """

    def __init__(self, paths: Sequence[str]):
        super().__init__("sts:" + ":".join(paths), subsets=tuple(paths))

    def read(self, source: reading.DataDir) -> dict[str, Pairs]:
        pairs = {}
        for name in self._subsets:
            path = source.find(os.path.abspath(name), name)
            is_csv = path.removesuffix(".gz").endswith(".csv")
            rows = source.csv(path, 3) if is_csv else source.table(path, 3)
            pairs[name] = _pairs(path, rows)
        return pairs


def _pairs(path: str, rows: list[list[str]]) -> Pairs:
    """Rows of `sentence, sentence, score`, 0 to 5."""
    return Pairs(
        [row[0].strip() for row in rows],
        [row[1].strip() for row in rows],
        np.array(
            [
                reading.parse_score(row[2], 0, 5, f"{path}, pair {number}")
                for number, row in enumerate(rows, 1)
            ]
        ),
    )


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
            sts_benchmark_files(part),
            columns=(5, 6, 4),
            lowest=0,
            highest=5,
            header=False,
        )
        for part in ("dev", "test")
    ),
    PairFileTask(
        "sick-r",
        (SICK_FILES["test"],),
        columns=(1, 2, 3),
        lowest=1,
        highest=5,
        header=True,
    ),
    MultilingualStsb("stsb-multilingual"),
]
