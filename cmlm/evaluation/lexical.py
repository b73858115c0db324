"""Similarity of words against people: SimLex-999, WordSim-353, Multi-SimLex.

Hill et al., 2015; Finkelstein et al., 2002; Vulic et al., 2020,
https://arxiv.org/abs/2003.04866. Spearman of the cosine of two words, each encoded as
a sentence of one word, with the score people gave.
"""

from __future__ import annotations

import itertools
import re

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import reading, sts

_LANGUAGES = {
    "ENGLISH": "en",
    "ARABIC": "ar",
    "CHINESE": "zh",
    "WELSH": "cy",
    "ESTONIAN": "et",
    "FINNISH": "fi",
    "FRENCH": "fr",
    "HEBREW": "he",
    "POLISH": "pl",
    "RUSSIAN": "ru",
    "SPANISH": "es",
    "CANTONESE": "yue",
}
# Two languages that score a pair this differently (of 0 to 6) do not mean the same by
# it: Multi-SimLex leaves it out of the cross-lingual sets.
_DISAGREEMENT = 6 / 5
_PLACE = re.compile(r"\d+:[12]")


class MultiSimLex(sts.ScoredPairsTask):
    """Multi-SimLex: 1,888 pairs in 12 languages, in the Concepticon's wide table.

    A row is a word in all languages; its pairs are in lists: `SIMLEX_IDS` has
    `PAIR:PLACE`, `..._IN_SOURCE` the word as it was shown, `..._SCORE` the scores.
    """

    protocol = "Spearman of cosine and gold, x 100, mean over languages"

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        (path, *_) = source.matching("Vulic-2020-*.tsv", within="multi-simlex")
        return {code: path for code in _LANGUAGES.values()}

    def read_part(self, source: reading.DataDir, part: str, where: str) -> sts.Pairs:
        pairs = _language(source, where, part)
        return sts.Pairs(
            [first for first, _, _ in pairs.values()],
            [second for _, second, _ in pairs.values()],
            np.array([score for _, _, score in pairs.values()]),
        )


class CrossLingualSimLex(MultiSimLex):
    """Word similarity between languages, made from Multi-SimLex as its paper does.

    Vulic et al., 2020, section 7: the first word of a pair in one language with the
    second in the other, and the other way round; the score is the mean of both
    languages', pairs on which these differ by more than a fifth of the scale are left
    out, and of equal pairs one remains.
    """

    def find_parts(self, source: reading.DataDir) -> dict[str, str]:
        parts = super().find_parts(source)
        return {
            f"{first}-{second}": parts[first]
            for first, second in itertools.combinations(parts, 2)
        }

    def read_part(self, source: reading.DataDir, part: str, where: str) -> sts.Pairs:
        first, second = (_language(source, where, code) for code in part.split("-"))
        crossed: dict[tuple[str, str], float] = {}
        for number in first.keys() & second.keys():
            a, b = first[number], second[number]
            if abs(a[2] - b[2]) <= _DISAGREEMENT:
                crossed[a[0], b[1]] = (a[2] + b[2]) / 2
                crossed[a[1], b[0]] = (a[2] + b[2]) / 2
        ordered = sorted(crossed)
        return sts.Pairs(
            [pair[0] for pair in ordered],
            [pair[1] for pair in ordered],
            np.array([crossed[pair] for pair in ordered]),
        )


class WordPairs(sts.PairFileTask):
    """A file of `word, word, score` under comments that begin with `#`."""

    def __init__(self, name: str, path: str):
        super().__init__(
            name, (path,), (0, 1, 2), 0, 10, header=False, within="lexical"
        )

    def rows(self, source: reading.DataDir, path: str) -> list[list[str]]:
        lines = [line for line in source.lines(path) if not line.startswith("#")]
        rows = [line.split("\t") for line in lines]
        for row in rows:
            if len(row) != 3:
                raise UserError(f"{path}: {len(row)} columns in {row}; allowed: 3")
        return rows


def _language(
    source: reading.DataDir, path: str, code: str
) -> dict[str, tuple[str, str, float]]:
    """Pairs of one language: (first, second, score) by number."""
    (name,) = [name for name, short in _LANGUAGES.items() if short == code]
    head, *rows = source.table(path, 10)
    wanted = ("SIMLEX_IDS", name, f"{name}_IN_SOURCE", f"{name}_SCORE")
    for column in wanted:
        if column not in head:
            raise UserError(f"{path} has no column {column}")
    words: dict[str, dict[str, str]] = {}
    scores: dict[str, float] = {}
    for line, row in enumerate(rows, 2):
        where = f"{path}, line {line}, {name}"
        if len(row) != len(head):
            raise UserError(f"{where}: {len(row)} columns; allowed: {len(head)}")
        ids, forms, shown, given = (row[head.index(column)] for column in wanted)
        pairs, values = ids.split(), given.split()
        if len(pairs) != len(values) or not all(map(_PLACE.fullmatch, pairs)):
            raise UserError(f"{where}: pairs {ids!r}, scores {given!r}")
        if not shown.strip():
            continue
        spoken = _split_words(shown, len(pairs), forms)
        if spoken is None:
            raise UserError(f"{where}: {shown!r} are not {len(pairs)} words")
        for item, value, word in zip(pairs, values, spoken, strict=True):
            pair, place = item.split(":")
            words.setdefault(pair, {})[place] = word
            scores[pair] = reading.parse_score(value, 0, 6, where)
    return {
        pair: (places["1"], places["2"], scores[pair])
        for pair, places in words.items()
        if len(places) == 2
    }


def _split_words(shown: str, count: int, forms: str) -> list[str] | None:
    """Parts words that have spaces in themselves and between them.

    Args:
        shown: `combattre se battre se battre combattre`.
        count: how many words it is, 4.
        forms: the words there are, `combattre (se battre)`.

    Returns:
        The words, or None if they cannot be told apart.
    """
    tokens = shown.split()
    if len(tokens) == count:
        return tokens
    known = {form.strip() for form in re.split(r"[(),/]", forms)} | {forms}
    known |= {form.strip() for form in re.findall(r"\((.*)\)", forms)}

    def split(start: int, left: int) -> list[str] | None:
        if left == 0:
            return [] if start == len(tokens) else None
        for end in range(len(tokens) - left + 1, start, -1):
            word = " ".join(tokens[start:end])
            rest = split(end, left - 1) if word in known else None
            if rest is not None:
                return [word, *rest]
        return None

    return split(0, count)


TASKS = [
    WordPairs("simlex999", "simlex999.txt"),
    WordPairs("wordsim353", "wordsim353.tsv"),
    MultiSimLex("multi-simlex"),
    CrossLingualSimLex("multi-simlex-cross"),
]
