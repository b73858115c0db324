"""Bitext retrieval: each sentence searches the other language for its translation.

`score_retrieval` reports three metrics of one search: accuracy (P@1 by cosine, as the
papers print it), the error of the ratio margin with 4 neighbours (LASER's xSIM), and
MTEB's weighted F1. As in LASER and MTEB, a sentence that occurs twice in a file counts
as two sentences, and its duplicate is a wrong answer.

The UN corpus is too large for a full matrix product, so its search uses a mining index.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import f1_score

from cmlm.common import arrays, language_names
from cmlm.common.components import without_component
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import averages, metrics, parsing, search, tatoeba_codes
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base

_NEIGHBOURS = 4
# CMLM's figure 3 maps these languages with English. It names no projection; PCA here.
_DRAWN = ("fr", "de", "ru", "es")
_MAPPED = 30
_TATOEBA_FOLDERS = ("tatoeba", "tatoeba/v1")


@dataclasses.dataclass
class Bitext:
    """Sentences and their translations.

    Attributes:
        first, second: the sentences, [n]; equal rows translate each other.
        languages: the languages of `first` and `second`; empty if unknown.
    """

    first: list[str]
    second: list[str]
    languages: tuple[str, str] = ("", "")

    def encoded(self, vectors: base.Vectors) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of both sides, float32 [n, dim] each."""
        first, second = self.languages
        return vectors(self.first, first), vectors(self.second, second)


def score_retrieval(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores the search for the translation of each row, both ways.

    Args:
        x, y: float [n, dim]; equal rows translate each other.

    Returns:
        `accuracy`, `xsim_error` and `f1`, times 100, each as `METRIC_forward` (from x
        to y), `METRIC_backward` (from y to x) and `METRIC` (the mean of both).
    """
    return _scores_of(search.Neighbours.of(x, y, _NEIGHBOURS))


def _scores_of(found: search.Neighbours) -> dict[str, float]:
    """The scores of `score_retrieval` from its search."""
    gold = np.arange(len(found.forward.rows))
    scores: dict[str, float] = {}
    for direction, side in (("forward", found), ("backward", found.swapped())):
        nearest = side.forward.rows[:, 0]
        _, by_margin = side.best_by_margin()
        f1 = f1_score(gold, nearest, average="weighted", zero_division=0)
        scores |= {
            f"accuracy_{direction}": metrics.accuracy(nearest, gold),
            f"xsim_error_{direction}": 100 - metrics.accuracy(by_margin, gold),
            f"f1_{direction}": 100 * float(f1),
        }
    means = {
        name: (scores[f"{name}_forward"] + scores[f"{name}_backward"]) / 2
        for name in ("accuracy", "xsim_error", "f1")
    }
    return {**means, **scores}


class BitextRetrieval(base.PartedTask[Bitext]):
    """The base class of bitext retrieval; it scores pairs with `score_retrieval`."""

    main_metric = "accuracy"
    smaller_is_better = ("xsim_error",)
    protocol = "P@1 by cosine, mean of both directions, x 100"

    def part_sentences(self, data: Bitext) -> Iterable[str]:
        return [*data.first, *data.second]

    def part_outcome(
        self, part: str, data: Bitext, vectors: base.Vectors
    ) -> base.Outcome:
        x, y = data.encoded(vectors)
        found = search.Neighbours.of(x, y, _NEIGHBOURS)
        forward, backward = found.forward.rows[:, 0], found.backward.rows[:, 0]
        gold = np.arange(len(data.first))
        predictions = base.Predictions(
            [data.first],
            data.second,
            ((forward == gold).astype(float) + (backward == gold)) / 2,
            answers=[data.second[row] for row in forward],
        )
        scores = {**_scores_of(found), **self.more_scores(x, y)}
        return base.Outcome(scores, {"": predictions})

    def more_scores(self, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """Further scores of the vectors of both sides; none by default."""
        return {}


class Tatoeba(BitextRetrieval):
    """LASER's Tatoeba test sets: up to 1,000 sentences of a language, with English.

    Artetxe and Schwenk, 2019, https://arxiv.org/abs/1812.10464. Files
    `tatoeba.deu-eng.deu` and `.eng` in `tatoeba/`, or in `tatoeba/v1/` as in LASER's
    repository; a part has the two-letter code of its language if
    there is one. `forward` searches English for the translation of a foreign sentence,
    as MTEB and LaBSE (section 4.1) do. XTREME's script goes from English to the foreign
    language, which is `backward`. CMLM's paper does not state the direction.

    `accuracy_pcr`, `accuracy_forward_pcr` and `accuracy_backward_pcr` are measured
    after principal component removal, as in CMLM's table 8: the first component of each
    side of a test set is fitted on that side and removed from it.
    """

    protocol = (
        "P@1 by cosine, mean of both directions, x 100; forward: language to English; "
        "pcr: first component of each side removed, fitted on the side itself"
    )

    languages = ("en", *averages.TATOEBA)

    def find_parts(self, source: DataDir) -> dict[str, str]:
        # Either side's file names a language, so that a missing side is noticed.
        paths = source.matching("tatoeba.*-eng.*", within=_TATOEBA_FOLDERS)
        found = [
            re.fullmatch(r"(.*tatoeba\.(\w+)-eng)\.(\w+)(\.gz)?", p) for p in paths
        ]
        return {
            tatoeba_codes.short(stem[2]): stem[1]
            for stem in found
            if stem and stem[3] in ("eng", stem[2])
        }

    def read_part(self, source: DataDir, part: str, where: str) -> Bitext:
        code = where.rpartition("tatoeba.")[2].removesuffix("-eng")
        bitext = _read_lines(source, f"{where}.{code}", f"{where}.eng")
        bitext.languages = (part, "en")
        return bitext

    def more_scores(self, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        removed = score_retrieval(without_component(x), without_component(y))
        names = [f"accuracy{end}" for end in ("", "_forward", "_backward")]
        return {f"{name}_pcr": removed[name] for name in names}

    def figures(self, data: dict[str, Bitext], vectors: base.Vectors) -> dict[str, Any]:
        chosen = [name for name in _DRAWN if name in data] or list(data)[: len(_DRAWN)]
        found = {}
        for name in chosen:
            foreign = vectors(data[name].first[:_MAPPED], name)
            english = vectors(data[name].second[:_MAPPED], "en")
            sides = [arrays.unit_length(foreign), arrays.unit_length(english)]
            found[name] = metrics.plane(sides)
        return {"translations": found}


class UnCorpus(base.PartedTask[Bitext]):
    """Retrieval in the United Nations Parallel Corpus, through a mining index.

    Ziemski et al., 2016; LaBSE, section 4.1: 11.3 million aligned pairs in 86,000
    documents. The files `un/NAME.en`, `un/NAME.fr` and so on are aligned line by line,
    plain or packed: the corpus's own `UNv1.0.6way.*`, or a part of it. A language has
    one NAME, as in these files. A line that is blank on one side is left out.

    Equal sentences count as one candidate: an answer is right if its text is the
    translation. Up to 10**10 cosines (100,000 sentences a side) the search is exact; a
    larger search uses the approximate index of `cmlm.mine`. The metric `exact` is 1 or
    0 accordingly. Texts take about 400 bytes of memory a sentence; vectors lie on disk.

    As in Tatoeba, `forward` searches English. LaBSE's numbers are `backward`: "for each
    English sentence we try to find its true translation from a 9.5 million sentence
    pool from the other language" (https://tfhub.dev/google/LaBSE/1).
    """

    main_metric = "accuracy_backward"
    shown_metrics = ("accuracy_forward",)
    not_ranked = ("sentences", "exact")
    protocol = (
        "P@1 by cosine among the distinct sentences of the corpus, x 100; forward: "
        "language to English; backward: English to language"
    )
    languages = ("ar", "en", "es", "fr", "ru", "zh")

    def find_parts(self, source: DataDir) -> dict[str, tuple[str, str]]:
        parts: dict[str, tuple[str, str]] = {}
        stems: dict[str, str] = {}
        for english in source.matching(os.path.join("un", "*.en")):
            stem = re.sub(r"\.en(\.gz)?$", "", english)
            beside = glob.escape(os.path.relpath(stem, source.path))
            for path in source.matching(f"{beside}.??"):
                language = re.search(r"\.(\w\w)(\.gz)?$", path).group(1)
                if language == "en":
                    continue
                if stems.setdefault(language, stem) != stem:
                    raise UserError(
                        f"un: {language!r} has the files {stems[language]}.{language} "
                        f"and {stem}.{language}; allowed: one file a language"
                    )
                parts[language] = (path, english)
        if not parts:
            raise MissingData(
                "missing: un/NAME.fr or another language beside un/NAME.en"
            )
        return parts

    def read_part(self, source: DataDir, part: str, where: tuple[str, str]) -> Bitext:
        columns = {path: source.lines(path) for path in where}
        parsing.check_line_counts(columns)
        bitext = Bitext([], [], (part, "en"))
        for first, second in zip(*columns.values(), strict=True):
            if first.strip() and second.strip():
                bitext.first.append(first.strip())
                bitext.second.append(second.strip())
        return _checked(bitext, where[0])

    def check(self) -> None:
        search.check_faiss()

    def part_sentences(self, data: Bitext) -> Iterable[str]:
        return itertools.chain(data.first, data.second)

    def part_outcome(
        self, part: str, data: Bitext, vectors: base.Vectors
    ) -> base.Outcome:
        first, x = _distinct(data.first)
        second, y = _distinct(data.second)
        language, english = data.languages
        forward, backward, is_exact = search.nearest_on_disk(
            vectors.on_disk(first, language), vectors.on_disk(second, english)
        )
        scores = {
            "accuracy_forward": metrics.accuracy(forward[x], y),
            "accuracy_backward": metrics.accuracy(backward[y], x),
            "sentences": float(len(x)),
            "exact": float(is_exact),
        }
        return base.Outcome(scores)


def _distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, and the index of each text among them, int64 [n]."""
    found: dict[str, int] = {}
    numbers = [found.setdefault(text, len(found)) for text in texts]
    return list(found), np.array(numbers)


class BitextFiles(BitextRetrieval):
    """The user's own bitext: one TSV of two columns, or files aligned line by line.

    With more than two files, the first file is the pivot, like English in FLORES and
    NTREX: each other file forms a part with it. A part has the name of the file, or its
    path if names repeat; or the language of the file, if languages are given.

    Args:
        paths: the files, see `DataDir.find_own`. A single file may have a pair of
            languages, as in `en-de=FILE.tsv`.
    """

    def __init__(self, paths: Sequence[str]):
        super().__init__("bitext:" + ":".join(paths))
        self._paths = list(paths)

    def find_parts(self, source: DataDir) -> dict[str, list[tuple[str, str]]]:
        found = source.find_own(self._paths)
        pivot, *others = found
        if not others:
            return {pivot[0]: found}
        names = parsing.names_of_files(others)
        return {name: [pivot, file] for name, file in zip(names, others, strict=True)}

    def read_part(
        self, source: DataDir, part: str, where: list[tuple[str, str]]
    ) -> Bitext:
        paths, languages = zip(*where, strict=True)
        if len(paths) == 1:
            bitext = _read_tsv(source, *paths)
            bitext.languages = language_names.of_two_texts(*languages)
        else:
            bitext = _read_lines(source, *paths)
            bitext.languages = languages
        return bitext


TASKS = [Tatoeba("tatoeba"), UnCorpus("un")]


# -------------------------------------------------------------------- reading


def _read_lines(source: DataDir, first: str, second: str) -> Bitext:
    """Reads two files; line i of one translates line i of the other.

    Raises:
        MissingData: a file is missing.
        UserError: the files are one, or have different numbers of lines or fewer than 2
            lines; or a line is blank.
    """
    columns = {path: source.lines(source.find(path)) for path in (first, second)}
    if len(columns) < 2:
        raise UserError(f"{first} is both sides; allowed: two files")
    parsing.check_parallel(columns)
    x, y = ([line.strip() for line in lines] for lines in columns.values())
    return _checked(Bitext(x, y), first)


def _read_tsv(source: DataDir, path: str) -> Bitext:
    """Reads a file of `sentence<TAB>translation`; further columns are ignored.

    Raises:
        UserError: a line has fewer than two columns or an empty one, or the file has
            fewer than 2 lines.
    """
    rows = source.table(path, 2)
    first = [row[0].strip() for row in rows]
    second = [row[1].strip() for row in rows]
    parsing.check_parallel({f"{path}, column 1": first, f"{path}, column 2": second})
    return _checked(Bitext(first, second), path)


def _checked(bitext: Bitext, path: str) -> Bitext:
    if len(bitext.first) < 2:
        raise UserError(
            f"{path} has {counted(len(bitext.first), 'pair')}; allowed: at least 2"
        )
    return bitext
