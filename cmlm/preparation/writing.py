"""Limits the sentences of a language, and writes the shards."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np

from cmlm.common import beam_counts, beam_files
from cmlm.preparation import deduplication, documents, repeats, spreading
from cmlm.preparation.settings import Settings
from cmlm.preparation.steps import count_name

# A language's limit lies in one of this many steps of `documents.scatter`, the cuts.
# The documents of that cut are then ordered one by one.
_CUTS = 4096
# A document in the cut of the limit, and its sentences.
_SIZES = np.dtype([("number", "<u8"), ("sentences", "<u8")])
# Where a limit ends: the number of the last document, and its sentences that stay.
Limit = tuple[int, int]
_OVER = "over --max_sentences"


class Histogram(beam.DoFn):
    """Rows of a shard to (language, histogram of sentences by cut)."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def process(self, element):
        counts = np.zeros(_CUTS)
        for rows in repeats.kept_rows(element[1]):
            cuts = _cuts(rows["number"], self._settings.seed)
            weights = None if self._settings.is_bitext else rows["sentences"]
            counts += np.bincount(cuts, weights, _CUTS)
        yield element[0] >> spreading.SHARD_BITS, counts.astype(np.int64).tobytes()


def _order(numbers: np.ndarray, seed: int) -> np.ndarray:
    # The seed differs from the seed of the shards, so that a limit empties none of
    # them.
    return documents.scatter(numbers, seed + 1)


def _cuts(numbers: np.ndarray, seed: int) -> np.ndarray:
    return (_order(numbers, seed) >> np.uint64(52)).astype(np.int64)


def add_histograms(histograms: Iterable[bytes]) -> bytes:
    """Sums histograms."""
    total = np.zeros(_CUTS, np.int64)
    for histogram in histograms:
        total += np.frombuffer(histogram, np.int64)
    return total.tobytes()


def cut_of_limit(
    element: tuple[int, bytes], maximum: int
) -> tuple[int, tuple[int, int]]:
    """(language, histogram) to (language, (first cut above the maximum, rest)).

    The rest is the number of sentences that stay of this cut.
    """
    language, histogram = element
    total = np.cumsum(np.frombuffer(histogram, np.int64))
    cut = int(np.searchsorted(total, maximum, side="right"))
    return language, (cut, maximum - int(total[cut - 1]) if cut else maximum)


class SizesInCut(beam.DoFn):
    """Rows of a shard to (language, SIZES of the documents in the cut of the limit)."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def process(self, element, cuts):
        language = element[0] >> spreading.SHARD_BITS
        cut, _ = cuts[language]
        for rows in repeats.kept_rows(element[1]):
            rows = rows[_cuts(rows["number"], self._settings.seed) == cut]
            sizes = np.empty(len(rows), _SIZES)
            sizes["number"] = rows["number"]
            sizes["sentences"] = 1 if self._settings.is_bitext else rows["sentences"]
            yield language, sizes.tobytes()


def join_sizes(sizes: Iterable[bytes]) -> bytes:
    """Joins SIZES."""
    return b"".join(sizes)


def limit(
    element: tuple[int, bytes], cuts: dict[int, tuple[int, int]], seed: int
) -> tuple[int, Limit | None]:
    """(language, SIZES of the cut of the limit) to (language, Limit).

    A language that stays as a whole has None.

    Args:
        element: the language and the documents, in any order; one with several rows
            counts as a whole.
        cuts: the results of `cut_of_limit`, by language.
        seed: the seed of the preparation.
    """
    language, sizes = element
    sizes = np.frombuffer(sizes, _SIZES)
    sizes = sizes[np.argsort(_order(sizes["number"], seed), kind="stable")]
    total = np.cumsum(sizes["sentences"].astype(np.int64))
    _, rest = cuts[language]
    place = int(np.searchsorted(total, rest, side="right"))
    if place == len(sizes):
        return language, None
    number = sizes["number"][place]
    first = int(np.argmax(sizes["number"] == number))
    return language, (int(number), rest - int(total[first - 1]) if first else rest)


def first_sentences(lines: list[str], number: int, is_bitext: bool) -> list[str]:
    """Returns the first sentences or, of a bitext, the first pairs of a document."""
    if is_bitext:
        return lines[:number]
    kept = []
    for line in lines:
        sentences = line.split("\t")[:number]
        if not sentences:
            break
        number -= len(sentences)
        kept.append("\t".join(sentences))
    return kept


class WriteShard(beam_counts.CountingDoFn):
    """(shard key, grouped inputs) to the file of the shard."""

    def __init__(self, settings: Settings, directory: str):
        self._settings, self._directory = settings, directory

    def process(self, element, limits):
        key, groups = element
        index = key >> spreading.SHARD_BITS
        language = self._settings.language_table[index]
        limit = limits.get(index) if limits else None
        kept = self._kept(groups, language, limit)
        first = next(kept, None)
        if first is not None:
            shard = key & (1 << spreading.SHARD_BITS) - 1
            self._write(language, shard, itertools.chain([first], kept))
        yield from ()

    def _kept(self, groups, language: str, limit: Limit | None) -> Iterator[list[str]]:
        """Yields the remaining lines of each document in order; counts the others."""
        reasons: dict[int, str] = {}
        for reason in reversed(repeats.DOCUMENT_REASONS):
            numbers = repeats.rows_of(groups, reason)["number"].tolist()
            reasons |= dict.fromkeys(numbers, reason)
        repeated = deduplication.by_document(repeats.rows_of(groups, "duplicate line"))
        for number, text in spreading.unpack(groups["text"]):
            self.counts[count_name("in", "write", "documents")] += 1
            if number in reasons:
                self._drop("documents", language, reasons[number])
                continue
            if number in repeated:
                again = set(repeated[number].tolist())
                left = [t for i, t in enumerate(text) if i not in again]
                self._drop("lines", language, "duplicate line", len(text) - len(left))
                text = left
            if not text:
                self._drop("documents", language, "no line left")
            elif limit is None or self._precedes(number, limit[0]):
                yield text
            elif number == limit[0] and limit[1]:
                left = first_sentences(text, limit[1], self._settings.is_bitext)
                self._drop("lines", language, _OVER, len(text) - len(left))
                yield left
            elif self._settings.is_bitext:
                self._drop("lines", language, _OVER, len(text))
            else:
                self._drop("documents", language, _OVER)

    def _precedes(self, number: int, other: int) -> bool:
        """Whether a document comes before another one in the order of the limit."""
        numbers = np.array([number, other], np.uint64)
        own, others = _order(numbers, self._settings.seed).tolist()
        return own < others

    def _drop(self, unit: str, language: str, reason: str, amount: int = 1) -> None:
        if amount:
            self.counts[count_name("dropped", "write", unit, language, reason)] += (
                amount
            )

    def _write(self, language: str, shard: int, kept: Iterable[list[str]]) -> None:
        bitext = self._settings.is_bitext
        name = f"{shard:05d}-of-{self._settings.shards:05d}"
        name += ".tsv.gz" if bitext else ".txt.gz"
        written: collections.Counter = collections.Counter()
        path = os.path.join(self._directory, language, name)
        beam_files.make_directory(os.path.dirname(path))
        with beam_files.atomic_text(path) as output:
            for lines in kept:
                text = "\n".join(lines) + "\n"
                if not bitext:
                    text = text.replace("\t", "\n")
                written["documents"] += 1
                written["sentences"] += text.count("\n")
                if not bitext:
                    text += "\n"  # A blank line ends a document.
                output.write(text)
                written["characters"] += len(text)
        for unit, amount in written.items():
            self.counts[count_name("kept", "write", unit, language)] += amount
