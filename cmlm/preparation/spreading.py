"""Splits documents into blocks: text by shard, fingerprints by bucket."""

from __future__ import annotations

import collections
import heapq
import json
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam import pvalue

from cmlm.common import choices
from cmlm.preparation import deduplication, documents, spilling
from cmlm.preparation.deduplication import ROWS, SIGNATURES
from cmlm.preparation.documents import Document
from cmlm.preparation.settings import Settings

# A shard key holds the language in its upper bits and the shard in these.
SHARD_BITS = (choices.MAX_SHARDS - 1).bit_length()
# Signatures are larger than fingerprints, so they get this many times the buckets.
_SIGNATURE_BUCKETS = 4
# Characters of text to collect before a block is sent.
_BLOCK = 8 << 20


def shard_keys(rows: np.ndarray, settings: Settings) -> np.ndarray:
    """The shard key (language and shard) of each row, int64 [n].

    Args:
        rows: an array with the fields `language` and `number`, [n].
        settings: the settings of the preparation.
    """
    shards = documents.scatter(rows["number"], settings.seed)
    shards %= np.uint64(settings.shards)
    return rows["language"].astype(np.int64) << SHARD_BITS | shards.astype(np.int64)


def split_by(keys: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Yields the rows of each key, as bytes."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    borders = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    for part in np.split(np.arange(len(keys)), borders):
        if len(part):
            yield int(keys[part[0]]), rows[part].tobytes()


def buckets_of(rows: np.ndarray, buckets: int) -> np.ndarray:
    """The bucket of each row, int64 [n], by its fingerprint."""
    return (rows["print"] % np.uint64(buckets)).astype(np.int64)


class Spread(beam.DoFn):
    """Documents to packed text by shard and fingerprints by bucket."""

    ROWS, DOCUMENTS, SIGNATURES = "rows", "documents", "signatures"

    def __init__(self, settings: Settings):
        self._settings = settings
        self._languages = {
            code: index for index, code in enumerate(settings.language_table)
        }

    def start_bundle(self):
        self._documents: list[Document] = []
        self._characters = 0

    def process(self, document: Document):
        self._documents.append(document)
        self._characters += sum(map(len, document.lines))
        if self._characters > _BLOCK:
            for tag, item in self._sent():
                yield pvalue.TaggedOutput(tag, item) if tag else item

    def finish_bundle(self):
        for tag, item in self._sent():
            item = beam.window.GlobalWindows.windowed_value(item)
            yield pvalue.TaggedOutput(tag, item) if tag else item

    def _sent(self) -> Iterator[tuple[str, tuple[int, bytes]]]:
        """The collected documents as (output, (key, block))."""
        gathered, self._documents, self._characters = self._documents, [], 0
        if not gathered:
            return
        steps = self._settings.steps
        owners = self._owners(gathered)
        keys = shard_keys(owners, self._settings).tolist()
        texts = collections.defaultdict(list)
        for document, key in zip(gathered, keys, strict=True):
            texts[key].append((document.number, document.lines))
        for key, block in texts.items():
            yield "", (key, pack(block))
        if "duplicate_documents" in steps:
            buckets = buckets_of(owners, self._settings.buckets)
            for item in split_by(buckets, owners):
                yield self.DOCUMENTS, item
        if "duplicate_lines" in steps or self._settings.max_sentences:
            lines = self._lines(gathered)
            for item in split_by(shard_keys(lines, self._settings), lines):
                yield self.ROWS, item
        if "near_duplicates" in steps:
            signatures = self._signatures(gathered)
            buckets = _SIGNATURE_BUCKETS * self._settings.buckets
            for item in split_by(buckets_of(signatures, buckets), signatures):
                yield self.SIGNATURES, item

    def _owners(self, gathered: list[Document]) -> np.ndarray:
        """Each document, as ROWS; with its fingerprint, if a step compares it."""
        compares = "duplicate_documents" in self._settings.steps
        rows = []
        for document in gathered:
            fingerprint = 0
            if compares:
                fingerprint = documents.fingerprint("\n".join(document.lines))
            rows.append((fingerprint, *self._owner(document), 0, 0))
        return np.array(rows, ROWS)

    def _lines(self, gathered: list[Document]) -> np.ndarray:
        """Each line, as ROWS; with its fingerprint, if a step compares it."""
        compares = "duplicate_lines" in self._settings.steps
        rows = []
        for document in gathered:
            owner = self._owner(document)
            for index, line in enumerate(document.lines):
                sentences = 1 + line.count("\t")
                fingerprint = documents.fingerprint(line) if compares else 0
                rows.append((fingerprint, *owner, index, sentences))
        return np.array(rows, ROWS)

    def _signatures(self, gathered: list[Document]) -> np.ndarray:
        """The MinHash of each document that has one, once for each band."""
        rows = []
        for document in gathered:
            signature = deduplication.signature(" ".join(document.lines))
            if signature:
                bands, values = signature
                rows += [(band, *self._owner(document), values) for band in bands]
        return np.array(rows, SIGNATURES)

    def _owner(self, document: Document) -> tuple[int, int]:
        return document.number, self._languages[document.language]


def pack(block: list[tuple[int, list[str]]]) -> bytes:
    """Packs (number, lines) of documents into one block."""
    text = json.dumps(block, ensure_ascii=False).encode()
    return spilling.numbered(min(n for n, _ in block), zlib.compress(text, 1))


def unpack(blocks: Iterable[spilling.Value]) -> Iterator[tuple[int, list[str]]]:
    """Yields the documents of all blocks in order, with few blocks in memory.

    Only blocks that several workers wrote at the same time overlap.
    """
    waiting: list[tuple[int, list[str]]] = []
    for number, block in spilling.read_in_order(blocks):
        while waiting and waiting[0][0] < number:
            yield heapq.heappop(waiting)
        for document in json.loads(zlib.decompress(block)):
            heapq.heappush(waiting, document)
    while waiting:
        yield heapq.heappop(waiting)
