"""Bitext mining: BUCC 2018, translation pairs mined from two unaligned texts.

Zweigenbaum et al., 2018. Each sentence of one side proposes its best candidate on the
other side, by cosine (the papers) or by ratio margin with 4 neighbours. The pairs that
reach a threshold are the answer. `forward` searches the second language (English in
BUCC) for each sentence of the first language, `backward` the reverse (LaBSE, table 3).

If a pair has `test` files with gold, they are scored, with the threshold of the best F1
on its `training`, else `dev`, else `sample` files. (XTREME calls the training files
`test` and the sample `dev`.) Otherwise the `training` files are scored as in the papers
(LaBSE, table 3, and LASER's `bucc.py`): their threshold has the best F1 on these files
themselves, which flatters the result; `own_threshold` is then 1. Pairs without training
files have `dev`, other or `sample` files scored in the same way. A sentence that occurs
twice counts as one.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import metrics, search
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base

_NEIGHBOURS = 4
# The names of files: which give the threshold of test files, and which are scored.
_TEST = "test"
_TUNING = ("training", "dev", "sample")
_SCORED = (_TEST, "training", "dev")
_LAST = "sample"


@dataclasses.dataclass
class Corpus:
    """Two texts and their translation pairs.

    Attributes:
        first, second: the distinct sentences of each text.
        gold: the translation pairs, as rows of `first` and `second`.
    """

    first: list[str]
    second: list[str]
    gold: set[tuple[int, int]]


@dataclasses.dataclass
class Split:
    """The files to score, and the files that give the threshold, if any.

    Attributes:
        scored, tuning: the texts.
        names: the names of these files without their ends, such as `zh-en.test`.
    """

    scored: Corpus
    tuning: Corpus | None
    names: list[str]


class Bucc(base.PartedTask[Split]):
    """Files `zh-en.dev.zh`, `.en` and `.gold`, rows of `id<TAB>...`.

    They lie in `bucc2018/`, or in a folder for each pair as in BUCC's own archives:
    `bucc2018/zh-en/zh-en.training.gold`.
    """

    main_metric = "f1"
    shown_metrics = tuple(
        f"{name}_cosine_{direction}"
        for direction in ("forward", "backward")
        for name in ("precision", "recall", "f1")
    )
    not_ranked = ("own_threshold",)
    protocol = (
        "F1 of pairs by ratio margin (k = 4), mean of both directions, x 100; cosine: "
        "by cosine; forward: first language to second"
    )
    languages = ("de", "en", "fr", "ru", "zh")

    def find_parts(self, source: DataDir) -> dict[str, list[str]]:
        paths: list[str] = []
        for pattern in ("*-*/*-*.*.gold", "*-*.*.gold"):
            try:
                paths += source.matching(pattern, within="bucc2018")
            except MissingData as error:
                missing = error
        if not paths:
            raise missing
        parts: dict[str, list[str]] = {}
        for path in paths:
            stem = re.sub(r"\.gold(\.gz)?$", "", path)
            pair = os.path.basename(stem).split(".")[0]
            parts.setdefault(pair, []).append(stem)
        return parts

    def read_part(self, source: DataDir, part: str, where: list[str]) -> Split:
        scored, tuning = _chosen(where)
        languages = part.split("-")
        return Split(
            _corpus(source, scored, languages),
            _corpus(source, tuning, languages) if tuning else None,
            [os.path.basename(stem) for stem in (scored, tuning) if stem],
        )

    def part_sentences(self, data: Split) -> Iterable[str]:
        for corpus in filter(None, (data.scored, data.tuning)):
            yield from corpus.first
            yield from corpus.second

    def remarks(self, data: dict[str, Split]) -> list[str]:
        said = [" with the threshold of ".join(split.names) for split in data.values()]
        own = ", ".join(part for part, split in data.items() if not split.tuning)
        remarks = [*super().remarks(data), f"scored files: {', '.join(said)}"]
        if own:
            remarks.append(
                f"{own}: the thresholds are tuned on the scored pairs themselves, "
                "which flatters the result"
            )
        return remarks

    def part_outcome(
        self, part: str, data: Split, vectors: base.Vectors
    ) -> base.Outcome:
        languages = part.split("-")
        proposed = _proposals(data.scored, vectors, languages)
        tuned, tuning_gold = proposed, data.scored.gold
        if data.tuning:
            tuned = _proposals(data.tuning, vectors, languages)
            tuning_gold = data.tuning.gold
        scores: dict[str, float] = {}
        for key, (values, hits) in proposed.items():
            threshold = best_threshold(*tuned[key], len(tuning_gold))
            measured = measure(values, hits, len(data.scored.gold), threshold)
            scores |= {f"{name}_{key}": value for name, value in measured.items()}
        means = {}
        for kind, suffix in (("margin", ""), ("cosine", "_cosine")):
            for name in ("f1", "precision", "recall"):
                forward = scores[f"{name}_{kind}_forward"]
                backward = scores[f"{name}_{kind}_backward"]
                means[f"{name}{suffix}"] = (forward + backward) / 2
        own = {"own_threshold": float(data.tuning is None)}
        return base.Outcome({**means, **scores, **own})


def _chosen(stems: list[str]) -> tuple[str, str | None]:
    """The files of a pair to score, and those that give the threshold, if any."""
    named = {stem.rpartition(".")[2]: stem for stem in stems}
    others = [name for name in named if name != _LAST]
    scored = next(name for name in (*_SCORED, *others, _LAST) if name in named)
    if scored != _TEST:
        return named[scored], None
    tuning = next((named[name] for name in _TUNING if name in named), None)
    return named[scored], tuning


def _proposals(
    corpus: Corpus, vectors: base.Vectors, languages: list[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The score and hit of each sentence's best candidate, by measure and direction."""
    found = search.Neighbours.of(
        vectors(corpus.first, languages[0]),
        vectors(corpus.second, languages[1]),
        _NEIGHBOURS,
    )
    proposals = {}
    for direction, neighbours in (("forward", found), ("backward", found.swapped())):
        by_cosine = neighbours.forward.cosines[:, 0], neighbours.forward.rows[:, 0]
        candidates = {"cosine": by_cosine, "margin": neighbours.best_by_margin()}
        for measure_name, (values, rows) in candidates.items():
            pairs = enumerate(rows.tolist())
            if direction == "backward":
                pairs = ((row, own) for own, row in pairs)
            hits = np.array([pair in corpus.gold for pair in pairs])
            proposals[f"{measure_name}_{direction}"] = (values, hits)
    return proposals


def best_threshold(values: np.ndarray, hits: np.ndarray, gold: int) -> float:
    """The threshold with the best F1; on a tie, the highest threshold.

    Args:
        values: float [n], the scores of pairs; a pair at the threshold is accepted.
        hits: bool [n], whether a pair is right.
        gold: the number of right pairs.
    """
    thresholds, taken, right = metrics.at_thresholds(values, hits)
    return float(thresholds[np.argmax(2 * right / (taken + gold))])


def measure(
    values: np.ndarray, hits: np.ndarray, gold: int, threshold: float
) -> dict[str, float]:
    """`f1`, `precision` and `recall` of the pairs at or above a threshold, x 100."""
    taken = values >= threshold
    right = int(hits[taken].sum())
    return {
        "f1": 200 * right / (int(taken.sum()) + gold),
        "precision": 100 * right / max(int(taken.sum()), 1),
        "recall": 100 * right / gold,
    }


def _corpus(source: DataDir, stem: str, languages: list[str]) -> Corpus:
    texts: list[list[str]] = []
    rows: list[dict[str, int]] = []
    for language in languages:
        distinct: dict[str, int] = {}
        by_id = {}
        path = source.find(f"{stem}.{language}")
        for number, row in enumerate(source.table(path, 2), 1):
            if row[0] in by_id:
                raise UserError(
                    f"{path}, line {number}: the id {row[0]!r} occurs twice"
                )
            by_id[row[0]] = distinct.setdefault(row[1].strip(), len(distinct))
        texts.append(list(distinct))
        rows.append(by_id)
    path, gold = source.find(f"{stem}.gold"), set()
    for number, pair in enumerate(source.table(path, 2), 1):
        for side, name in enumerate(pair[:2]):
            if name not in rows[side]:
                raise UserError(
                    f"{path}, line {number}: the id {name!r} is not in "
                    f"{stem}.{languages[side]}"
                )
        gold.add((rows[0][pair[0]], rows[1][pair[1]]))
    return Corpus(*texts, gold)


TASKS = [Bucc("bucc")]
