"""Analogies: a is to b as c is to d; find d.

3CosAdd (Mikolov et al., 2013; Levy and Goldberg, 2014) on vectors of length 1 answers
with the candidate nearest to b - a + c.

The universal analogy set (ULR: Li and Zhao, 2021, https://arxiv.org/abs/2105.14478,
section 5.1.1, table 2) asks with words, phrases and sentences. Each question lists its
own candidates: the right answer in the fourth column, wrong answers in the later
columns. In Google's analogies (Mikolov et al., 2013) the candidates are all words of
the file except a, b and c.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

import numpy as np

from cmlm.common import arrays
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base

_AT_ONCE = 1024


@dataclasses.dataclass
class Questions:
    """The questions of one kind.

    Attributes:
        texts: distinct texts, [m].
        rows: int [n, 3 + candidates], rows of `texts`: a, b, c, the right answer, the
            wrong answers; -1 pads a question that has fewer wrong answers.
    """

    texts: list[str]
    rows: np.ndarray


class UniversalAnalogy(base.Task[dict[str, Questions]]):
    """Files such as `semantic/word/capital-common.txt`, in folders KIND/LEVEL.

    The authors' repository has these folders in `ulr_data`.
    """

    name = "ulr-analogy"
    main_metric = "accuracy"
    protocol = (
        "accuracy of 3CosAdd among closed candidates, x 100; a level is the mean of "
        "semantic and syntactic, the whole the mean of the levels"
    )

    def read(self, source: DataDir) -> dict[str, Questions]:
        groups: dict[str, list[list[str]]] = {}
        paths = []
        for kind in ("semantic", "syntactic"):
            with source.part(kind):
                pattern = os.path.join(kind, "*", "*.txt")
                within = ("ulr_data", "ulr-analogy")
                paths += source.matching(pattern, within)
        source.check_found(paths)
        for path in paths:
            kind, level = path.split(os.sep)[-3:-1]
            group = groups.setdefault(f"{level}-{kind}", [])
            for number, row in enumerate(source.table(path, 5), 1):
                texts = [" ".join(text.split()) for text in row]
                if not all(texts[:4]) or not any(texts[4:]):
                    raise UserError(
                        f"{path}, line {number}: an empty column; allowed: a, b, c, d "
                        "and a wrong answer"
                    )
                group.append(texts)
        return {name: _questions(rows) for name, rows in groups.items()}

    def sentences(self, data: dict[str, Questions]) -> Iterable[str]:
        return (text for group in data.values() for text in group.texts)

    def score(
        self, data: dict[str, Questions], vectors: base.Vectors
    ) -> dict[str, float]:
        scores = {
            f"accuracy/{name}": closed_accuracy(vectors(group.texts, "en"), group.rows)
            for name, group in data.items()
        }
        levels = dict.fromkeys(name.split("-")[0] for name in data)
        means = {
            f"accuracy/{level}": float(
                np.mean([scores[f"accuracy/{n}"] for n in data if n.startswith(level)])
            )
            for level in levels
        }
        return {"accuracy": float(np.mean(list(means.values()))), **means, **scores}


class GoogleAnalogy(base.Task[dict[str, Questions]]):
    """`questions-words.txt`: lines of `a b c d` under a line `: KIND`."""

    name = "google-analogy"
    main_metric = "accuracy"
    protocol = "accuracy of 3CosAdd among all words of the file, over questions, x 100"

    def read(self, source: DataDir) -> dict[str, Questions]:
        path = source.find("questions-words.txt", within="lexical")
        kinds: dict[str, list[list[str]]] = {}
        kind = None
        for number, line in enumerate(source.lines(path), 1):
            words = line.split()
            if line.startswith(":"):
                kind = kinds.setdefault(line[1:].strip(), [])
            elif kind is None or len(words) != 4:
                raise UserError(
                    f"{path}, line {number}: {line[:60]!r}; allowed: 4 words"
                )
            else:
                kind.append(words)
        if not any(kinds.values()):
            raise UserError(f"{path} has no question; allowed: at least 1")
        return {name: _questions(rows) for name, rows in kinds.items() if rows}

    def sentences(self, data: dict[str, Questions]) -> Iterable[str]:
        return (text for group in data.values() for text in group.texts)

    def score(
        self, data: dict[str, Questions], vectors: base.Vectors
    ) -> dict[str, float]:
        texts = list(dict.fromkeys(self.sentences(data)))
        row_of = {text: row for row, text in enumerate(texts)}
        everything = vectors(texts, "en")
        right = {}
        for name, group in data.items():
            renumbered = np.array([row_of[text] for text in group.texts])
            right[name] = open_hits(everything, renumbered[group.rows])
        averaged: dict[str, list[np.ndarray]] = {
            "accuracy": list(right.values()),
            "accuracy/semantic": [],
            "accuracy/syntactic": [],
        }
        for name, hits in right.items():
            is_syntactic = name.startswith("gram")
            kind = "syntactic" if is_syntactic else "semantic"
            averaged[f"accuracy/{kind}"].append(hits)
            averaged[f"accuracy/{name}"] = [hits]
        return {
            metric: 100 * float(np.concatenate(hits).mean())
            for metric, hits in averaged.items()
            if hits
        }


def targets(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """b - a + c, float [n, dim], of unit vectors; `rows` begin with a, b, c."""
    a, b, c = (vectors[rows[:, column]] for column in range(3))
    return b - a + c


def closed_accuracy(vectors: np.ndarray, rows: np.ndarray) -> float:
    """The accuracy, times 100, if each question has its own candidates.

    Args:
        vectors: float [m, dim], of any length.
        rows: rows as in `Questions`; a wrong answer equal to the right one is ignored.
    """
    vectors = arrays.unit_length(vectors)
    right = 0
    for start in range(0, len(rows), _AT_ONCE):
        block = rows[start : start + _AT_ONCE]
        candidates = block[:, 3:]
        products = np.einsum("nd,ncd->nc", targets(vectors, block), vectors[candidates])
        absent = (candidates < 0) | (candidates == candidates[:, :1])
        absent[:, 0] = False
        best_wrong = np.where(absent, -np.inf, products)[:, 1:].max(axis=1)
        right += int((products[:, 0] > best_wrong).sum())
    return 100 * right / len(rows)


def open_hits(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Whether d is the nearest of all vectors except a, b and c.

    Args:
        vectors: float [m, dim], of any length.
        rows: a, b, c and d of each question, int [n, 4].

    Returns:
        bool [n].
    """
    vectors = arrays.unit_length(vectors)
    hits = []
    for start in range(0, len(rows), _AT_ONCE):
        block = rows[start : start + _AT_ONCE]
        products = targets(vectors, block) @ vectors.T
        np.put_along_axis(products, block[:, :3], -np.inf, axis=1)
        hits.append(products.argmax(axis=1) == block[:, 3])
    return np.concatenate(hits)


def _questions(rows: list[list[str]]) -> Questions:
    texts: dict[str, int] = {}
    width = max(map(len, rows))
    numbers = np.full([len(rows), width], -1)
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            if text:
                numbers[number, column] = texts.setdefault(text, len(texts))
    return Questions(list(texts), numbers)


TASKS = [GoogleAnalogy(), UniversalAnalogy()]
