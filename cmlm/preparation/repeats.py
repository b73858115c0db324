"""Finds repeated documents and lines, and the rows that remain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np

from cmlm.preparation import deduplication, spilling, spreading
from cmlm.preparation.deduplication import ROWS, SIGNATURES
from cmlm.preparation.settings import Settings

# Reasons to drop a document because of another; the first reason that applies counts.
DOCUMENT_REASONS = ("duplicate document", "near duplicate")


class Repeated(beam.DoFn):
    """(bucket, blocks of ROWS) to (shard key, repeated ROWS)."""

    def __init__(self, settings: Settings, reason: str):
        self._settings, self.reason = settings, reason

    def process(self, element):
        again = self.find(spilling.read(element[1]))
        yield from spreading.split_by(
            spreading.shard_keys(again, self._settings), again
        )

    def find(self, blocks: Iterable[bytes]) -> np.ndarray:
        """The repeated rows of a bucket."""
        return deduplication.repeated(deduplication.join(blocks, ROWS))


class Near(Repeated):
    """Like `Repeated` for SIGNATURES; its output is ROWS too."""

    def find(self, blocks: Iterable[bytes]) -> np.ndarray:
        near = deduplication.near(deduplication.join(blocks, SIGNATURES))
        rows = np.zeros(len(near), ROWS)
        rows["number"], rows["language"] = near["number"], near["language"]
        return rows


def rows_of(groups: dict, name: str) -> np.ndarray:
    """The ROWS of one input of a CoGroupByKey."""
    return deduplication.join(spilling.read(groups.get(name, ())), ROWS)


def kept_rows(groups: dict) -> Iterator[np.ndarray]:
    """Yields the ROWS of one shard in batches, without repeated documents and lines."""
    dropped = [np.unique(rows_of(groups, r)["number"]) for r in DOCUMENT_REASONS]
    dropped, lines = np.concatenate(dropped), rows_of(groups, "duplicate line")
    blocks = spilling.read(groups.get("rows", ()))
    for rows in deduplication.batches(blocks, ROWS):
        rows = rows[~np.isin(rows["number"], dropped)]
        yield rows[~deduplication.are_among(rows, lines)]


class ByFingerprint(beam.DoFn):
    """Rows of a shard to (bucket, ROWS), without dropped documents."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def process(self, element):
        for rows in kept_rows(element[1]):
            yield from spreading.split_by(
                spreading.buckets_of(rows, self._settings.buckets), rows
            )
