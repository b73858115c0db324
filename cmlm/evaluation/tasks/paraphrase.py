"""Paraphrase retrieval: GEOGRANNO, questions and their canonical phrases.

Herzig and Berant, 2019, https://arxiv.org/abs/1908.09940; ULR (Li and Zhao, 2021,
https://arxiv.org/abs/2105.14478, section 5.1.3, tables 4, 8 and 9) queries with the
training and development pairs and retrieves among 158 sentences: the distinct canonical
phrases of these two files. Here each of the 365 distinct questions is a query. It is
right at k if one of its own phrases is among the k nearest. (The test file has no
canonical phrases.)

The questions of the files have placeholders where their phrases have names: "how long
is the _river_ river ?" belongs to "length of colorado river". Each placeholder gives
way to its name. With the names, the groups of queries by length have the shares of
ULR's table 9.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from cmlm.evaluation import search
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base

_TOPS = (1, 5, 10)
# The name that the canonical phrases of the files have for each placeholder.
_NAMES = {
    "_state_": "california",
    "_city_": "sacramento",
    "_country_": "usa",
    "_river_": "colorado river",
    "_place_": "death valley",
}
_PLACEHOLDER = re.compile("|".join(_NAMES))
# Groups of ULR's table 9: by the length of the query in words, and by the difference
# between the lengths of query and phrase.
_QUERY_WORDS = ((1, 6), (7, 8), (9, 15))
_DIFFERENCES = (0, 2, 3)


@dataclasses.dataclass
class Paraphrases:
    """Questions, phrases, and their pairs.

    Attributes:
        questions: the distinct questions, [n].
        phrases: the distinct phrases, [m].
        gold: for each question, its rows of `phrases`, [n].
    """

    questions: list[str]
    phrases: list[str]
    gold: list[set[int]]


class Geogranno(base.PredictingTask[Paraphrases]):
    """`train_geo_granno.json` and `dev_geo_granno.json`, a JSON object on each line."""

    name = "geogranno"
    main_metric = "accuracy"
    shown_metrics = ("accuracy@5", "accuracy@10")
    protocol = (
        "share of questions whose phrase is the nearest by cosine, x 100; names in the "
        "place of placeholders"
    )

    def read(self, source: DataDir) -> Paraphrases:
        gold: dict[str, set[int]] = {}
        phrases: dict[str, int] = {}
        for part in ("train", "dev"):
            path = source.find(f"{part}_geo_granno.json", within="geogranno")
            for _, item in source.json_lines(path, ("nl", "can")):
                row = phrases.setdefault(item["can"].strip(), len(phrases))
                question = _PLACEHOLDER.sub(_name, item["nl"].strip())
                gold.setdefault(question, set()).add(row)
        return Paraphrases(list(gold), list(phrases), list(gold.values()))

    def sentences(self, data: Paraphrases) -> Iterable[str]:
        return [*data.questions, *data.phrases]

    def outcome(self, data: Paraphrases, vectors: base.Vectors) -> base.Outcome:
        nearest, hits = self._nearest(data, vectors)
        scores = {}
        for top in _TOPS:
            metric = "accuracy" if top == 1 else f"accuracy@{top}"
            scores[metric] = 100 * float(hits[:, :top].any(axis=1).mean())
        found = hits.any(axis=1)
        scores |= {
            f"accuracy@{max(_TOPS)}/{group}": 100 * float(found[rows].mean())
            for group, rows in _by_length(data).items()
            if rows.any()
        }
        predictions = base.Predictions(
            [data.questions],
            [
                " / ".join(data.phrases[row] for row in sorted(right))
                for right in data.gold
            ],
            hits[:, 0].astype(float),
            answers=[data.phrases[row] for row in nearest[:, 0]],
        )
        return base.Outcome(scores, {"": predictions})

    def _nearest(
        self, data: Paraphrases, vectors: base.Vectors
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest phrases of each question, and whether each is right, [n, k]."""
        questions, phrases = vectors(data.questions, "en"), vectors(data.phrases, "en")
        rows = search.nearest(questions, phrases, max(_TOPS)).rows
        hits = [
            [row in right for row in found]
            for found, right in zip(rows.tolist(), data.gold, strict=True)
        ]
        return rows, np.array(hits)


def _name(placeholder: re.Match[str]) -> str:
    return _NAMES[placeholder[0]]


def _by_length(data: Paraphrases) -> dict[str, np.ndarray]:
    """The queries of each group of ULR's table 9, bool [n] by group.

    Lengths are in words with a letter or a digit; each query ends in a "?" apart, which
    the paper's shares of queries do not count. The difference of a query is the
    smallest over its phrases.
    """
    words = np.array([_words(text) for text in data.questions])
    phrases = np.array([_words(text) for text in data.phrases])
    differences = np.array(
        [
            np.abs(phrases[list(right)] - own).min()
            for own, right in zip(words, data.gold, strict=True)
        ]
    )
    return {
        **{
            f"query {low}-{high}": (low <= words) & (words <= high)
            for low, high in _QUERY_WORDS
        },
        **{f"difference {low}+": differences >= low for low in _DIFFERENCES},
    }


def _words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


TASKS = [Geogranno()]
