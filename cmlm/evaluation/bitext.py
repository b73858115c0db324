"""Bitext retrieval: each sentence looks for its translation among all of them.

Three measures of the same search, since each of them has its readers: accuracy (P@1 by
cosine, the papers'), the error of the ratio margin with 4 neighbours (LASER's xSIM)
and the weighted F1 of MTEB. A sentence that stands in a file twice counts as two, as it
does in LASER and MTEB: its double is a wrong answer.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np
from sklearn.metrics import f1_score

from cmlm.errors import UserError
from cmlm.evaluation import base, languages, metrics, reading, search

_NEIGHBOURS = 4
# Hu et al., 2020, https://arxiv.org/abs/2003.11080: the languages of XTREME's Tatoeba.
_XTREME = (
    "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru "
    "sw ta te th tl tr ur vi zh"
).split()


@dataclasses.dataclass
class Bitext:
    """Sentences beside their translations.

    Attributes:
        first, second: [n], the same row for the same meaning.
    """

    first: list[str]
    second: list[str]


def score_retrieval(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores the search for row i of one side among all rows of the other.

    Args:
        x, y: float [n, dim].

    Returns:
        `accuracy`, `xsim_error` and `f1`, times 100: each the mean of `_forward` (from
        x to y) and `_backward`, which are there too.
    """
    found = search.Neighbours.of(x, y, _NEIGHBOURS)
    gold = np.arange(len(x))
    scores: dict[str, dict[str, float]] = {}
    for direction, neighbours in (("forward", found), ("backward", found.swapped())):
        nearest = neighbours.forward[1][:, 0]
        _, by_margin = neighbours.best_by_margin()
        f1 = f1_score(gold, nearest, average="weighted", zero_division=0)
        scores[direction] = {
            "accuracy": metrics.accuracy(nearest, gold),
            "xsim_error": 100 - metrics.accuracy(by_margin, gold),
            "f1": 100 * float(f1),
        }
    names = scores["forward"]
    return {
        **{
            name: (scores["forward"][name] + scores["backward"][name]) / 2
            for name in names
        },
        **{
            f"{name}_{direction}": scores[direction][name]
            for direction in scores
            for name in names
        },
    }


class Retrieval(base.PartedTask[Bitext]):
    """What all bitext retrieval shares: pairs in, `score_retrieval` out."""

    main_metric = "accuracy"
    protocol = "P@1 by cosine, mean of both directions, x 100"

    def part_sentences(self, data: Bitext) -> Iterable[str]:
        return [*data.first, *data.second]

    def score_part(self, data: Bitext, vectors: base.Vectors) -> dict[str, float]:
        return score_retrieval(vectors(data.first), vectors(data.second))


class Tatoeba(Retrieval):
    """LASER's Tatoeba test sets: up to 1,000 sentences of a language, with English.

    Artetxe and Schwenk, 2019, https://arxiv.org/abs/1812.10464. Files
    `tatoeba.deu-eng.deu` and `.eng`; a language is called by its two letters where it
    has them. `forward` is from the language to English, which is what XTREME and MTEB
    report. If all 36 languages of XTREME are there, their mean is `accuracy_xtreme36`.
    """

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        paths = source.matching("tatoeba.*-eng.eng", within="tatoeba")
        stems = [re.sub(r"\.eng(\.gz)?$", "", path) for path in paths]
        codes = [re.search(r"tatoeba\.(\w+)-eng$", stem).group(1) for stem in stems]
        return dict(zip(map(languages.short, codes), stems, strict=True))

    def read_part(self, source: reading.DataDir, part: str, where: str) -> Bitext:
        code = where.rpartition("tatoeba.")[2].removesuffix("-eng")
        return read_lines(source, f"{where}.{code}", f"{where}.eng")

    def score(self, data: dict[str, Bitext], vectors: base.Vectors) -> dict[str, float]:
        scores = super().score(data, vectors)
        if set(_XTREME) <= set(data):
            found = [scores[f"accuracy_forward/{part}"] for part in _XTREME]
            scores["accuracy_xtreme36"] = float(np.mean(found))
        return scores


class BitextFiles(Retrieval):
    """Anyone's bitext: one TSV of two columns, or files that go line by line.

    With more than two files the first is the pivot, as English is in FLORES, NTREX and
    the UN corpus: every other is scored with it, as a part of its own.

    Args:
        paths: relative to the working directory or to the folder with test sets.
    """

    def __init__(self, paths: Sequence[str]):
        super().__init__("bitext:" + ":".join(paths))
        self._paths = list(paths)

    def find_parts(self, source: reading.DataDir) -> dict[str, tuple[str, ...]]:
        paths = [source.find(os.path.abspath(path), path) for path in self._paths]
        if len(paths) == 1:
            return {paths[0]: (paths[0],)}
        return {os.path.basename(path): (paths[0], path) for path in paths[1:]}

    def read_part(
        self, source: reading.DataDir, part: str, where: tuple[str, ...]
    ) -> Bitext:
        if len(where) == 1:
            return read_tsv(source, where[0])
        return read_lines(source, *where)


TASKS = [Tatoeba("tatoeba")]


# -------------------------------------------------------------------- reading


def read_lines(source: reading.DataDir, first: str, second: str) -> Bitext:
    """Reads two files of which line i is the translation of line i.

    Raises:
        MissingData: one is not there.
        UserError: they are of different length, or a line is blank.
    """
    columns = {path: source.lines(source.find(path)) for path in (first, second)}
    reading.check_parallel(columns)
    bitext = Bitext(*([line.strip() for line in lines] for lines in columns.values()))
    return _checked(bitext, first)


def read_tsv(source: reading.DataDir, path: str) -> Bitext:
    """Reads a file of `sentence<TAB>translation`; further columns are passed over.

    Raises:
        UserError: a line has fewer columns, or an empty one.
    """
    rows = source.table(path, 2)
    first, second = ([row[column].strip() for row in rows] for column in (0, 1))
    reading.check_parallel({f"{path}, column 1": first, f"{path}, column 2": second})
    return _checked(Bitext(first, second), path)


def _checked(bitext: Bitext, path: str) -> Bitext:
    if len(bitext.first) < 2:
        raise UserError(f"{path} has one pair: nothing to choose from")
    return bitext
