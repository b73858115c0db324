"""Limits the sentences of a language, and writes the shards."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np

from cmlm.common import beam_runner
from cmlm.preparation import deduplication, documents, repeats, spreading
from cmlm.preparation.settings import Settings
from cmlm.preparation.steps import count_name

# A language's limit cuts at one of this many steps of `documents.scatter`.
_CUTS = 4096


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


def _cuts(numbers: np.ndarray, seed: int) -> np.ndarray:
    # The seed differs from the seed of the shards, so that a limit empties none of
    # them.
    scattered = documents.scatter(numbers, seed + 1) >> np.uint64(52)
    return scattered.astype(np.int64)


def add_histograms(histograms: Iterable[bytes]) -> bytes:
    """Sums histograms."""
    total = np.zeros(_CUTS, np.int64)
    for histogram in histograms:
        total += np.frombuffer(histogram, np.int64)
    return total.tobytes()


def limit(element: tuple[int, bytes], maximum: int) -> tuple[int, int]:
    """(language, histogram) to (language, first cut above the maximum)."""
    language, histogram = element
    total = np.cumsum(np.frombuffer(histogram, np.int64))
    return language, int(np.searchsorted(total, maximum, side="right"))


class WriteShard(beam_runner.CountingDoFn):
    """(shard key, grouped inputs) to the file of the shard."""

    def __init__(self, settings: Settings, directory: str):
        self._settings, self._directory = settings, directory

    def process(self, element, limits=None):
        key, groups = element
        index = key >> spreading.SHARD_BITS
        language = self._settings.language_table[index]
        limit = limits[index] if limits else None
        kept = self._kept(groups, language, limit)
        first = next(kept, None)
        if first is not None:
            shard = key & (1 << spreading.SHARD_BITS) - 1
            self._write(language, shard, itertools.chain([first], kept))
        yield from ()

    def _kept(self, groups, language: str, limit: int | None) -> Iterator[list[str]]:
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
            elif limit is not None and self._cut(number) >= limit:
                self._drop("documents", language, "over --max_sentences")
            else:
                yield text

    def _cut(self, number: int) -> int:
        return int(_cuts(np.array([number], np.uint64), self._settings.seed)[0])

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
        beam_runner.make_directory(os.path.dirname(path))
        with beam_runner.atomic_text(path) as output:
            for lines in kept:
                text = "\n".join(lines) + "\n"
                if not bitext:
                    text = text.replace("\t", "\n") + "\n"
                output.write(text)
                written["documents"] += 1
                written["sentences"] += text.count("\n") - (not bitext)
                written["characters"] += len(text)
        for unit, amount in written.items():
            self.counts[count_name("kept", "write", unit, language)] += amount
