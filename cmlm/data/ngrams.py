"""N-grams that mean something: counted out of core, scored by extended PMI.

    PMI(w) = 1/|w| (log P(w) - sum_k log P(w_k))                          (paper)
    score(w) = log C(w) - sum_k log C(w_k)                        (released code)

C is a count, P(w) the share of w among all n-grams of its length (Li & Zhao, 2021,
https://arxiv.org/abs/2105.14478, section 3.1, and the code its authors published).

Counts live in memory up to a limit; beyond it they are sorted runs on disk, merged as
streams. What is written is text: `n-gram TAB score`, sorted by n-gram.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from cmlm.common import fields
from cmlm.common import files as files_lib
from cmlm.data import streams
from cmlm.data.tokenization import Tokenizer, WordSplitter
from cmlm.errors import UserError

FORMS = ("paper", "released")
SCOPES = ("document", "corpus")
UNITS = ("words", "pieces")
# Runs open at a time; when there are more they are merged into one.
_MAX_RUNS = 64


@dataclasses.dataclass(frozen=True)
class NgramConfig:
    """Which n-grams are kept.

    Attributes:
        form: `paper` or `released`, see above.
        scope: `document` counts and scores each document by itself and keeps its best
            (an n-gram that is kept in several has its best score); `corpus` counts and
            scores the whole.
        longest: n-grams have 2 to this many units.
        top: the most n-grams to keep, of each document or of the corpus; 0: all.
        threshold: lowest score to keep; None: any.
        min_count: how often an n-gram must occur in the document or the corpus.
        max_entries: different n-grams to hold in memory at a time.
    """

    form: str = fields.one_of("paper", FORMS)
    scope: str = fields.one_of("document", SCOPES)
    longest: int = fields.ranged(6, at_least=2)
    top: int = fields.ranged(3000, at_least=0)
    threshold: float | None = None
    min_count: int = fields.ranged(1, at_least=1)
    max_entries: int = fields.ranged(1_000_000, at_least=1)


# ------------------------------------------------------------------- scores


def score(
    form: str, count: int, unit_counts: list[int], n_ngrams: int, n_units: int
) -> float:
    """Scores one n-gram; see the equations above.

    Args:
        form: one of `FORMS`.
        count: C(w).
        unit_counts: C(w_k) of each of its |w| units.
        n_ngrams: occurrences of all n-grams of its length.
        n_units: occurrences of all units.
    """
    if form == "released":
        return math.log(count) - sum(map(math.log, unit_counts))
    expected = sum(math.log(unit / n_units) for unit in unit_counts)
    return (math.log(count / n_ngrams) - expected) / len(unit_counts)


def score_document(
    lines: Iterable[list[list[str]]], config: NgramConfig
) -> dict[str, float]:
    """The best n-grams of one document and their scores.

    Args:
        lines: of each sentence its runs of units, as `units` gives them.
        config: form, longest, top, threshold, min_count.
    """
    counts: collections.Counter = collections.Counter()
    totals = [0] * (config.longest + 1)
    for runs in lines:
        _count(runs, config.longest, counts, totals)
    scored = (
        (ngram, score(config.form, count, of_units, totals[len(of_units)], totals[1]))
        for ngram, count in counts.items()
        if " " in ngram and count >= config.min_count
        for of_units in [[counts[unit] for unit in ngram.split(" ")]]
    )
    return dict(_best(scored, config))


def _count(runs, longest, counts, totals) -> None:
    """Adds the n-grams of one sentence to `counts`, those of length n to totals[n]."""
    for run in runs:
        for n in range(1, min(longest, len(run)) + 1):
            starts = range(len(run) - n + 1)
            totals[n] += len(starts)
            counts.update(" ".join(run[start : start + n]) for start in starts)


def _best(scored: Iterable[tuple[str, float]], config: NgramConfig):
    """Keeps what is above the threshold, and of that the best; ties go by n-gram."""
    if config.threshold is not None:
        scored = ((n, value) for n, value in scored if value >= config.threshold)
    if config.top:
        return heapq.nsmallest(config.top, scored, key=lambda pair: (-pair[1], pair[0]))
    return scored


# -------------------------------------------------------------- out of core


class SortedCounts:
    """A dictionary that may outgrow the memory; use it in a `with` statement.

    Args:
        combine: of two values of one key, such as their sum; associative.
        max_entries: keys to hold in memory; more go to disk as a sorted run.
    """

    def __init__(self, combine: Callable[[float, float], float], max_entries: int):
        self._combine = combine
        self._max_entries = max_entries
        self._entries: dict[str, float] = {}
        self._runs: list[str] = []
        self._number = itertools.count()

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="ngrams-")
        return self

    def __exit__(self, *error):
        self._directory.cleanup()

    def update(self, values: Iterable[tuple[str, float]]) -> None:
        """Adds values to their keys; keys hold no tab and no line feed."""
        entries = self._entries
        for key, value in values:
            before = entries.get(key)
            entries[key] = value if before is None else self._combine(before, value)
            if len(entries) >= self._max_entries:
                self._spill()

    def items(self) -> Iterator[tuple[str, float]]:
        """All keys in order, each once."""
        runs = [self._read(run) for run in self._runs]
        if self._entries:
            runs.append(iter(sorted(self._entries.items())))
        return self._merge(runs)

    def settle(self) -> None:
        """Merges what is on disk into one run: for what is read more than once."""
        if self._runs:
            self._write_run()
            self._merge_runs()

    @property
    def n_runs(self) -> int:
        """Sorted runs on disk now."""
        return len(self._runs)

    def _spill(self) -> None:
        self._write_run()
        if len(self._runs) >= _MAX_RUNS:
            self._merge_runs()

    def _write_run(self) -> None:
        self._runs.append(self._write(sorted(self._entries.items())))
        self._entries.clear()

    def _merge_runs(self) -> None:
        merged = self._write(self._merge(map(self._read, self._runs)))
        for run in self._runs:
            os.remove(run)
        self._runs = [merged]

    def _merge(self, runs) -> Iterator[tuple[str, float]]:
        runs = list(runs)
        if len(runs) == 1:
            yield from runs[0]
            return
        merged = heapq.merge(*runs, key=lambda entry: entry[0])
        for key, entries in itertools.groupby(merged, key=lambda entry: entry[0]):
            yield key, functools.reduce(self._combine, (value for _, value in entries))

    def _write(self, entries) -> str:
        path = os.path.join(self._directory.name, f"{next(self._number)}.tsv")
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            # repr gives every float back exactly.
            file.writelines(f"{key}\t{value!r}\n" for key, value in entries)
        return path

    @staticmethod
    def _read(path: str) -> Iterator[tuple[str, float]]:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                key, _, value = line.rstrip("\n").rpartition("\t")
                yield key, float(value) if "." in value or "e" in value else int(value)


# -------------------------------------------------------------------- units


class Units:
    """Cuts lines into runs of units; an n-gram never crosses punctuation.

    Words are those of the tokenizer before it cuts them into pieces: split at white
    space and punctuation, Chinese characters each by itself. Languages without spaces
    whose letters are not Chinese characters (Thai, kana, Khmer) need pieces.

    Args:
        lower_case: lower-case words and strip their accents.
        tokenizer: cut into its pieces instead, as `tokenizer.vocab` spells them.
    """

    def __init__(self, lower_case: bool = True, tokenizer: Tokenizer | None = None):
        self._tokenizer = tokenizer
        self._splitter = WordSplitter(lower_case)

    def split(self, lines: list[str]) -> list[list[list[str]]]:
        """Of every line its runs of units."""
        if self._tokenizer is not None:
            vocab = self._tokenizer.vocab
            tokens = self._tokenizer.tokenize(tf.constant(lines)).to_list()
            return [_runs([vocab[token] for token in row]) for row in tokens]
        return [
            _runs([word.decode() for word in words])
            for words in self._splitter.split_lines(tf.constant(lines))
        ]


def _runs(units: list[str]) -> list[list[str]]:
    """Splits at units that are no words."""
    return [list(run) for is_word, run in itertools.groupby(units, _is_word) if is_word]


@functools.lru_cache(maxsize=1 << 18)
def _is_word(unit: str) -> bool:
    if unit == "[UNK]":
        return False
    text = unit.removeprefix("##") if len(unit) > 2 else unit
    return any(unicodedata.category(character)[0] in "LMN" for character in text)


# ------------------------------------------------------------------- corpora


def extract(
    paths: list[str], units: Units, config: NgramConfig
) -> Iterator[tuple[str, float]]:
    """The n-grams of a corpus that are kept, sorted, with their scores.

    Memory holds one document (`document`), or the units that occur at least
    `min_count` times and the `top` n-grams (`corpus`), beside `max_entries` entries.

    Args:
        paths: text in the training format.
        units: cuts it.
        config: what is kept.
    """
    if config.scope == "document":
        yield from _extract_by_document(paths, units, config)
    else:
        yield from _extract_from_corpus(paths, units, config)


def _extract_by_document(paths, units, config):
    with SortedCounts(max, config.max_entries) as kept:
        for document in _documents(paths, units):
            kept.update(score_document(document, config).items())
        yield from kept.items()


def _extract_from_corpus(paths, units, config):
    totals = [0] * (config.longest + 1)
    with SortedCounts(lambda a, b: a + b, config.max_entries) as counted:
        for runs in _sentences(paths, units):
            if runs is not None:
                counts: collections.Counter = collections.Counter()
                _count(runs, config.longest, counts, totals)
                counted.update(counts.items())
        counted.settle()
        # A kept n-gram is never more frequent than any of its units.
        unit_counts = {
            key: count
            for key, count in counted.items()
            if " " not in key and count >= config.min_count
        }
        scored = (
            (key, score(config.form, count, of_units, totals[len(of_units)], totals[1]))
            for key, count in counted.items()
            if " " in key and count >= config.min_count
            for of_units in [[unit_counts[unit] for unit in key.split(" ")]]
        )
        yield from (
            sorted(_best(scored, config)) if config.top else _best(scored, config)
        )


def _documents(paths, units) -> Iterator[list]:
    """Documents as lists of the runs of their sentences."""
    document: list = []
    for runs in _sentences(paths, units):
        if runs is None:
            yield document
            document = []
        else:
            document.append(runs)


def _sentences(paths, units) -> Iterator[list[list[str]] | None]:
    """The runs of every sentence; None ends a document."""
    for path in paths:
        with files_lib.open_text(path) as stream:
            while lines := list(itertools.islice(stream, streams.LINES_PER_CHUNK)):
                lines = [line[: streams.MAX_SENTENCE_BYTES].strip() for line in lines]
                for line, runs in zip(lines, units.split(lines), strict=True):
                    yield runs if line else None
        yield None


# --------------------------------------------------------------------- files


def write(ngrams: Iterable[tuple[str, float]], path: str) -> int:
    """Writes n-grams as they come, whole or not at all; returns how many.

    Raises:
        UserError: there is none.
    """
    number = 0
    with files_lib.atomic_text(path) as file:
        for ngram, value in ngrams:
            file.write(f"{ngram}\t{value:.6g}\n")
            number += 1
        if not number:
            raise UserError(
                f"no n-gram is kept, {path} is not written: a lower threshold or "
                "min_count keeps more, or the text has no two words in a row"
            )
    return number


def read(path: str) -> list[str]:
    """Reads the n-grams of a file; a score is checked and dropped.

    Raises:
        UserError: the file is missing, empty, or a line is not `n-gram TAB number`.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"n-gram file {path} does not exist")
    found = []
    with files_lib.open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            ngram, tab, value = line.rstrip("\r\n").rpartition("\t")
            try:
                good = bool(tab and ngram.strip()) and math.isfinite(float(value))
            except ValueError:
                good = False
            if not good:
                raise UserError(
                    f"n-gram file {path} line {number} is {line.strip()[:60]!r}: "
                    "allowed is an n-gram, a tab and a number, as python -m "
                    "cmlm.ngrams writes them"
                )
            found.append(ngram)
    if not found:
        raise UserError(
            f"n-gram file {path} is empty: python -m cmlm.ngrams writes one"
        )
    return found


def read_entities(path: str) -> list[str]:
    """Reads a file of names, one a line, such as a gazetteer; blank lines are skipped.

    Raises:
        UserError: the file is missing or has no name in it.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"entity file {path} does not exist")
    with files_lib.open_text(path) as lines:
        found = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not found:
        raise UserError(f"entity file {path} is empty: one name a line is expected")
    return found
