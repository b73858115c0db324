"""Finds meaningful n-grams: counts them out of core and scores them by extended PMI.

    PMI(w) = 1/|w| (log P(w) - sum_k log P(w_k))                          (paper)
    score(w) = log C(w) - sum_k log C(w_k)                        (released code)

The n-gram w consists of |w| words w_k. C is a count, and P is a count divided by the
number of words (Li & Zhao, 2021, https://arxiv.org/abs/2105.14478, section 3.1, and the
authors' released code).

Section 3.1 normalises counts by the corpus size; section 4 computes the scores of each
document. The best n-grams of each document are kept. The paper prints no minimum count.
Without a minimum, n-grams of six words that occur once score highest. The paper
describes short n-grams: more than half of the best 2,000 have two or three words, and
fewer than 3 % have more than four (section 4). The default `min_count`, our choice,
makes the 1.7 M words of WikiText-2 fit this description; a larger text may need a
larger number.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import heapq
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from cmlm.common import atomic, choices, fields, utf8
from cmlm.common import files as files_lib
from cmlm.common.counts import counted
from cmlm.data import line_files, ngram_files, streams
from cmlm.errors import UserError
from cmlm.ngram_lists.sorted_counts import SortedCounts
from cmlm.ngram_lists.units import Units


@dataclasses.dataclass(frozen=True)
class NgramConfig:
    """Settings of the counting, scoring and selection of n-grams.

    Attributes:
        form: the score, `paper` or `released`; the module's docstring has the formulas.
        counts: count in the whole `corpus` (the paper's section 3.1) or in each
            `document` by itself (section 4, and the released code).
        scope: keep the `top` n-grams of each `document` (the paper) or of the `corpus`.
        longest: the most units of an n-gram; the fewest are 2.
        top: the number of n-grams to keep; 0: all.
        threshold: the lowest score to keep; None: no limit.
        min_count: the fewest occurrences of an n-gram in the corpus or, with
            `counts=document`, in the document.
        max_entries: the most distinct n-grams in memory.
    """

    form: str = fields.one_of("paper", choices.NGRAM_FORMS)
    counts: str = fields.one_of("corpus", choices.NGRAM_COUNTS)
    scope: str = fields.one_of("document", choices.NGRAM_SCOPES)
    longest: int = fields.ranged(6, at_least=2)
    top: int = fields.ranged(3000, at_least=0)
    threshold: float | None = None
    min_count: int = fields.ranged(20, at_least=1)
    max_entries: int = fields.ranged(1_000_000, at_least=1)

    def check_together(self, prefix: str) -> None:
        """Raises UserError for values that exclude each other."""
        if self.counts == "document" and self.scope == "corpus":
            # Scores of different documents are not comparable.
            raise fields.refused(
                f"{prefix}scope", "corpus", f"document, with {prefix}counts=document"
            )


# ------------------------------------------------------------------- scores


def score(form: str, count: int, unit_counts: list[int], n_units: int) -> float:
    """Scores one n-gram with a formula of the module's docstring.

    Equal counts give equal scores, in any order of the units: `fsum` rounds once.

    Args:
        form: one of `choices.NGRAM_FORMS`.
        count: C(w).
        unit_counts: C(w_k) of each of its |w| units.
        n_units: the number of units in the corpus or document.
    """
    if form == "released":
        return math.log(count) - math.fsum(map(math.log, unit_counts))
    expected = math.fsum(math.log(unit / n_units) for unit in unit_counts)
    return (math.log(count / n_units) - expected) / len(unit_counts)


def score_document(
    lines: Iterable[list[list[str]]], config: NgramConfig
) -> dict[str, float]:
    """Counts the n-grams of one document and returns the best ones with their scores.

    Args:
        lines: the runs of units of each sentence, see `Units.split`.
        config: form, longest, top, threshold, min_count.
    """
    counts: collections.Counter = collections.Counter()
    n_units = 0
    for runs in lines:
        counts.update(_grams(runs, config.longest))
        n_units += sum(map(len, runs))
    return dict(_best(_scored(counts, counts.items(), n_units, config), config))


def _grams(runs: list[list[str]], longest: int) -> Iterator[str]:
    """Yields all n-grams of a sentence by their first unit, single units included."""
    for run in runs:
        for start in range(len(run)):
            for end in range(start + 1, min(start + longest, len(run)) + 1):
                yield " ".join(run[start:end])


def _scored(
    unit_counts: dict[str, int],
    counts: Iterable[tuple[str, int]],
    n_units: int,
    config: NgramConfig,
) -> Iterator[tuple[str, float]]:
    """Yields the n-grams of two or more units that reach `min_count`, with scores."""
    for ngram, count in counts:
        if " " in ngram and count >= config.min_count:
            of_units = [unit_counts[unit] for unit in ngram.split(" ")]
            yield ngram, score(config.form, count, of_units, n_units)


def _best(
    scored: Iterable[tuple[str, float]], config: NgramConfig
) -> Iterable[tuple[str, float]]:
    """Applies `threshold` and `top`; ties go to the alphabetically first n-gram."""
    if config.threshold is not None:
        scored = ((n, value) for n, value in scored if value >= config.threshold)
    if not config.top:
        return scored
    scored = iter(scored)
    first = list(itertools.islice(scored, config.top + 1))
    if len(first) <= config.top:
        return first
    scored = itertools.chain(first, scored)
    return heapq.nsmallest(config.top, scored, key=lambda pair: (-pair[1], pair[0]))


class _ScoreTable:
    """A table from the hash of an n-gram to its score, with 16 bytes an entry.

    Args:
        scored: n-grams and scores.
    """

    def __init__(self, scored: Iterable[tuple[str, float]]):
        pairs = np.fromiter(
            ((hash(ngram), value) for ngram, value in scored),
            np.dtype([("hash", "<i8"), ("score", "<f8")]),
        )
        pairs.sort(order="hash")
        self._hashes, self._scores = pairs["hash"], pairs["score"]

    def of(self, ngrams: Iterable[str]) -> list[tuple[str, float]]:
        """Returns the n-grams that are in the table, with their scores."""
        if not len(self._hashes):
            return []
        ngrams = list(ngrams)
        hashes = np.fromiter(map(hash, ngrams), np.int64, len(ngrams))
        places = np.searchsorted(self._hashes, hashes)
        places = np.minimum(places, len(self._hashes) - 1)
        known = np.flatnonzero(self._hashes[places] == hashes)
        scores = self._scores[places[known]].tolist()
        return [(ngrams[i], value) for i, value in zip(known, scores, strict=True)]


# ------------------------------------------------------------------- corpora


class _Document(NamedTuple):
    """The lines of a document, or of a part of a text, and each line's runs of units.

    An empty line follows the last line of each document.
    """

    path: str
    lines: list[str]
    runs: list[list[list[str]]]


def extract(
    paths: list[str],
    units: Units,
    config: NgramConfig,
    marked_directory: str | None,
    totals: collections.Counter,
) -> Iterator[tuple[str, float]]:
    """Yields the selected n-grams in alphabetical order with their scores.

    An n-gram that several documents select has its best score. Memory holds
    `max_entries` entries, and one document unless `scope=corpus`; with `counts=corpus`
    also all units and, for `scope=document`, 16 bytes for each n-gram that reaches
    `min_count`.

    Args:
        paths: text in the training format.
        units: cuts sentences into units.
        config: settings of the counting, scoring and selection, already checked.
        marked_directory: an existing directory that receives each text with its marks:
            after every sentence, the selected n-grams of its document that occur in the
            sentence, separated by tabs. The setting `task.misad.candidates=marks` reads
            these texts.
        totals: receives the number of `documents`.
    """
    read = functools.partial(_documents, paths, units, totals)
    if config.counts == "document":
        selected = (
            (document, score_document(document.runs, config))
            for document in read("document")
        )
        yield from _collect(selected, config, marked_directory)
        return
    with SortedCounts("sum", config.max_entries) as counted:
        scored = _score_corpus(read("corpus"), config, counted)
        if config.scope == "corpus":
            best = _best(scored, config)
            if marked_directory:
                ngrams = dict(best)
                best = ngrams.items()
                selected = ((part, ngrams) for part in read("corpus"))
                for _ in _marked(selected, config, marked_directory):
                    pass
            yield from sorted(best) if config.top else best
            return
        table = _ScoreTable(scored)
    selected = (
        (document, dict(_best(table.of(_distinct(document, config)), config)))
        for document in read("document")
    )
    yield from _collect(selected, config, marked_directory)


def _score_corpus(
    parts: Iterable[_Document], config: NgramConfig, counted: SortedCounts
) -> Iterator[tuple[str, float]]:
    """Counts the n-grams of a corpus, and yields those that score.

    Args:
        parts: the corpus.
        config: form, longest, min_count.
        counted: an empty dictionary for the counts.
    """
    total = 0
    for part in parts:
        for runs in part.runs:
            counts = collections.Counter(_grams(runs, config.longest))
            total += sum(map(len, runs))
            counted.update(counts.items())
    counted.settle()
    # A unit is at least as frequent as any n-gram that contains it, so rarer units are
    # not needed.
    unit_counts = {
        key: count
        for key, count in counted.items()
        if " " not in key and count >= config.min_count
    }
    return _scored(unit_counts, counted.items(), total, config)


def _distinct(document: _Document, config: NgramConfig) -> set[str]:
    """Returns a document's distinct n-grams of two or more units."""
    grams = itertools.chain.from_iterable(
        _grams(runs, config.longest) for runs in document.runs
    )
    return {ngram for ngram in grams if " " in ngram}


def _collect(
    selected: Iterable[tuple[_Document, dict[str, float]]],
    config: NgramConfig,
    marked_directory: str | None,
) -> Iterator[tuple[str, float]]:
    """Joins the n-grams of all documents, and writes the marked texts meanwhile."""
    with SortedCounts("max", config.max_entries) as kept:
        for ngrams in _marked(selected, config, marked_directory):
            kept.update(ngrams.items())
        yield from kept.items()


def _marked(
    selected: Iterable[tuple[_Document, dict[str, float]]],
    config: NgramConfig,
    directory: str | None,
) -> Iterator[dict[str, float]]:
    """Yields the n-grams of each document, and writes its marked text, if wanted."""
    for path, documents in itertools.groupby(selected, lambda one: one[0].path):
        with contextlib.ExitStack() as stack:
            file = None
            if directory:
                name = os.path.join(directory, _marked_name(path))
                file = stack.enter_context(atomic.text(name))
            for document, ngrams in documents:
                if file:
                    _write_marked(document, ngrams, config, file)
                yield ngrams


def _write_marked(document, ngrams, config, file) -> None:
    for line, runs in zip(document.lines, document.runs, strict=True):
        found = dict.fromkeys(n for n in _grams(runs, config.longest) if n in ngrams)
        line = line.replace(ngram_files.MARK, " ")
        marked = ngram_files.MARK.join([line, *found])
        file.write(_without_cut_mark(marked.encode()).decode() + "\n")


def _without_cut_mark(line: bytes) -> bytes:
    """Leaves out the marks that the training would not read whole.

    Part of an n-gram is another n-gram, or a single word.
    """
    limit = streams.MAX_SENTENCE_BYTES
    if len(line) <= limit:
        return line
    return line[: line.rindex(ngram_files.MARK.encode(), 0, limit + 1)]


def _marked_name(path: str) -> str:
    """The name of a marked text; it is packed by gzip if the text is packed."""
    name = os.path.basename(path)
    return name.removesuffix(".bz2") + ".gz" if name.endswith(".bz2") else name


def check_names(paths: list[str]) -> None:
    """Raises UserError if the marked texts of two texts would have the same name."""
    names = collections.Counter(map(_marked_name, paths))
    for name, count in names.items():
        if count > 1:
            raise UserError(
                f"--input names {counted(count, 'file')} for {name}; allowed with "
                "--marked_output: different file names"
            )


def _sentence(line: str) -> str:
    """What the training reads of a line, without a character that it would cut."""
    kept = line.encode()[: streams.MAX_SENTENCE_BYTES].decode(errors="ignore")
    return kept.strip(utf8.BLANK)


def _documents(
    paths: list[str], units: Units, totals: collections.Counter, scope: str
) -> Iterator[_Document]:
    """Yields the documents of all files, without empty ones.

    Args:
        paths, units, totals: see `extract`.
        scope: `corpus` yields parts of a few lines instead, of any document.
    """
    totals["documents"] = 0
    for path in paths:
        document, last = _Document(path, [], []), ""
        with files_lib.open_text(path) as stream:
            stream = itertools.chain(stream, ["\n"])
            while lines := list(itertools.islice(stream, line_files.LINES_PER_CHUNK)):
                lines = [_sentence(line) for line in lines]
                for line, runs in zip(lines, units.split(lines), strict=True):
                    if line or last:
                        document.lines.append(line)
                        document.runs.append(runs)
                    if last and not line:
                        totals["documents"] += 1
                        if scope == "document":
                            yield document
                            document = _Document(path, [], [])
                    last = line
                if scope == "corpus" and document.lines:
                    yield document
                    document = _Document(path, [], [])
