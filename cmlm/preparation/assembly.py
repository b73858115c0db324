r"""The whole pipeline: read, clean, find what repeats, write shards.

Text takes one way only, from where it is read and split to the shard it is written in.
What is known of other documents meets it there: arrays of fingerprints go to buckets
of their own, and what they find repeated goes to the shard of its document. A worker
holds one bucket, or some blocks of one shard, so their number has to follow the size of
the input. Before each grouping blocks may wait on disk, see `spilling`.

    files -> read -> steps -> spread --- text, packed ----------------------> write
                                 \--- fingerprints -> repeated, near --------/
                                  \--- sentences a language -> limit -------/
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam import pvalue
from apache_beam.utils import windowed_value

from cmlm.common import beam_runner
from cmlm.data import sentences
from cmlm.errors import UserError
from cmlm.preparation import (
    deduplication,
    documents,
    filters,
    sources,
    spilling,
    steps,
)
from cmlm.preparation.deduplication import ROWS, SIGNATURES
from cmlm.preparation.documents import Document
from cmlm.preparation.steps import count_name

# Steps in their order. The last three compare documents with one another.
STEPS = (
    "c4",
    "length",
    "language",
    "duplicate_documents",
    "near_duplicates",
    "duplicate_lines",
)

# Why documents are dropped by others; of two reasons the first one is told.
_DOCUMENT_REASONS = ("duplicate document", "near duplicate")
# Signatures take more room than fingerprints: so many times as many buckets.
_SIGNATURE_BUCKETS = 4
# So much text is gathered before it is sent on, in characters.
_BLOCK = 8 << 20
# The limit of a language cuts at one of so many steps of `documents.scatter`.
_CUTS = 4096
_SHARD_BITS = 20


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a preparation does.

    Attributes:
        paths: files, in the order that decides which of two copies stays.
        layout: of the files, one of `sources.LAYOUTS`.
        steps: some of STEPS.
        languages: with the step `language` those to keep, none for all; without it
            the one language of the text, or a pair as `en-de`.
        shards: files to write for each language.
        seed: decides which document goes to which shard, and which ones a limit keeps.
        text_field: of layout `json`.
        quality_model, min_quality: a file of `cmlm.quality`, or "".
        remove_sentences_of: files whose sentences must not be in the output.
        max_sentences: of one language, 0 for no limit.
        buckets: independent parts in which fingerprints are compared. More need less
            memory at a time; what is written does not depend on it.
    """

    paths: tuple[str, ...]
    layout: str
    steps: tuple[str, ...]
    languages: tuple[str, ...]
    shards: int
    seed: int = 0
    text_field: str = "text"
    quality_model: str = ""
    min_quality: float = 0.5
    remove_sentences_of: tuple[str, ...] = ()
    max_sentences: int = 0
    buckets: int = 64

    @property
    def is_bitext(self) -> bool:
        return self.layout in sources.BITEXT_LAYOUTS

    @property
    def language_table(self) -> tuple[str, ...]:
        """The languages that arrays name by index."""
        if "language" in self.steps:
            return self.languages or tuple(filters.identified_languages())
        return self.languages

    def document_steps(self) -> list[steps.Step]:
        """The transforms that see one document at a time, in order."""
        chosen: list[steps.Step] = [steps.Pairs()] if self.is_bitext else []
        if "c4" in self.steps:
            chosen.append(steps.C4())
        if "length" in self.steps:
            chosen.append(steps.Length())
        if "language" in self.steps:
            chosen.append(steps.Language(self.languages))
        if self.quality_model:
            chosen.append(steps.Quality(self.quality_model, self.min_quality))
        if not self.is_bitext:
            chosen.append(steps.Split())
        if self.remove_sentences_of:
            chosen.append(steps.Guard(self.remove_sentences_of, self.is_bitext))
        return chosen


def with_languages(settings: Settings, wanted: str) -> Settings:
    """Checks the languages a user names, and that they fit the layout and the steps.

    Args:
        settings: all but `languages`.
        wanted: as `en`, `en,de`, `all` or `en-de`.

    Raises:
        UserError: no such language, or one that cannot be here.
    """
    codes = [code.strip() for code in wanted.split(",")]
    identified = "language" in settings.steps
    if identified and wanted == "all":
        return settings
    for code in codes:
        parts = code.split("-") if settings.is_bitext else [code]
        if len(parts) != 1 + settings.is_bitext:
            raise UserError(
                f"--language={code}: layout {settings.layout} needs a pair, as en-de"
            )
        for part in parts:
            sentences.check_language(part)
    if not identified and len(codes) > 1:
        raise UserError(
            f"--language={wanted}: several need the step `language`, which tells them"
            " apart"
        )
    if settings.is_bitext and set(settings.steps) - {"duplicate_lines"}:
        raise UserError(
            f"--steps={','.join(settings.steps)}: translations take only"
            " duplicate_lines"
        )
    unknown = sorted(set(codes) - set(filters.identified_languages()))
    if identified and unknown:
        raise UserError(
            f"--language={unknown[0]}: CLD2 does not tell it; it tells"
            f" {' '.join(filters.identified_languages())}"
        )
    return dataclasses.replace(settings, languages=tuple(dict.fromkeys(codes)))


def build(
    pipeline: beam.Pipeline,
    settings: Settings,
    directory: str,
    counts_path: str,
    progress: beam_runner.Progress | None = None,
    readers: int = 1,
    scratch: str | None = None,
) -> None:
    """Adds the whole preparation to a pipeline.

    Args:
        pipeline: an empty one.
        settings: what to do.
        directory: takes LANGUAGE/00000-of-00001.txt.gz, or .tsv.gz of translations.
        counts_path: JSON file of all counts by `steps.count_name`.
        progress: is moved by the bytes read.
        readers: workers to keep busy. Fewer files than that are read by several, each
            of which goes on with documents of its own: reading costs little beside
            what follows, and sending raw text to others would take their memory.
        scratch: an empty directory of this machine, where all workers are, for what
            waits to be grouped; None leaves that to the runner.
    """
    counts: list[beam.PCollection] = []

    def counting(label: str, collection: beam.PCollection, do_fn: beam.DoFn, *args):
        outputs = collection | label >> beam.ParDo(do_fn, *args).with_outputs(
            beam_runner.COUNTS, main="kept"
        )
        counts.append(outputs[beam_runner.COUNTS])
        return outputs.kept

    # ---------------------------------------------------- one document at a time
    language = "" if "language" in settings.steps else settings.languages[0]
    parts = -(-readers // len(settings.paths))
    files = [
        (index, path, part, parts)
        for index, path in enumerate(settings.paths)
        for part in range(parts)
    ]
    stream = counting(
        "read",
        pipeline | beam.Create(files) | beam.Reshuffle(),
        steps.ReadDocuments(
            settings.layout,
            language or documents.UNKNOWN,
            settings.text_field,
            progress,
        ),
    )
    for step in settings.document_steps():
        stream = counting(step.name, stream, step)

    # ---------------------------------------------------- what repeats
    spread = stream | "spread" >> beam.ParDo(_Spread(settings)).with_outputs(
        _Spread.ROWS, _Spread.DOCUMENTS, _Spread.SIGNATURES, main="text"
    )

    def spill(label: str, collection: beam.PCollection) -> beam.PCollection:
        return collection | f"spill {label}" >> spilling.Spill(scratch)

    def compare(label: str, collection: beam.PCollection, do_fn: _Repeated) -> None:
        grouped = spill(label, collection) | f"group {label}" >> beam.GroupByKey()
        repeated = grouped | f"{do_fn.reason}s" >> beam.ParDo(do_fn)
        decided[do_fn.reason] = spill(f"{do_fn.reason}s", repeated)

    decided: dict[str, beam.PCollection] = {}
    rows = spill("rows", spread[_Spread.ROWS])
    if "duplicate_documents" in settings.steps:
        same = _Repeated(settings, "duplicate document")
        compare("documents", spread[_Spread.DOCUMENTS], same)
    if "near_duplicates" in settings.steps:
        near = _Near(settings, "near duplicate")
        compare("signatures", spread[_Spread.SIGNATURES], near)
    if "duplicate_lines" in settings.steps:
        lines = (
            {"rows": rows, **decided}
            | "lines of documents kept" >> beam.CoGroupByKey()
            | "by fingerprint" >> beam.ParDo(_ByFingerprint(settings))
        )
        compare("lines", lines, _Repeated(settings, "duplicate line"))

    # ---------------------------------------------------- limits, shards
    limits = []
    if settings.max_sentences:
        limits.append(
            pvalue.AsDict(
                {"rows": rows, **decided}
                | "lines kept" >> beam.CoGroupByKey()
                | "histogram" >> beam.ParDo(_Histogram(settings))
                | "histogram of a language" >> beam.CombinePerKey(_add_histograms)
                | "limit" >> beam.Map(_limit, settings.max_sentences)
            )
        )
    text = {"text": spill("text", spread.text), **decided}
    grouped = text | "shards" >> beam.CoGroupByKey()
    counting("write", grouped, _WriteShard(settings, directory), *limits)
    beam_runner.write_counts(counts, counts_path)


def _shard_keys(rows: np.ndarray, settings: Settings) -> np.ndarray:
    """Language and shard of rows that have `language` and `number`, int64 [n]."""
    shards = documents.scatter(rows["number"], settings.seed)
    shards %= np.uint64(settings.shards)
    return rows["language"].astype(np.int64) << _SHARD_BITS | shards.astype(np.int64)


def _split_by(keys: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """The rows of each key, as bytes."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    borders = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    for part in np.split(np.arange(len(keys)), borders):
        if len(part):
            yield int(keys[part[0]]), rows[part].tobytes()


def _buckets(rows: np.ndarray, buckets: int) -> np.ndarray:
    return (rows["print"] % np.uint64(buckets)).astype(np.int64)


class _Spread(beam.DoFn):
    """Documents to packed text by shard, and to fingerprints by bucket."""

    ROWS, DOCUMENTS, SIGNATURES = "rows", "documents", "signatures"

    def __init__(self, settings: Settings):
        self._settings = settings
        self._languages = {c: i for i, c in enumerate(settings.language_table)}
        self._wants_rows = "duplicate_lines" in settings.steps or bool(
            settings.max_sentences
        )

    def start_bundle(self):
        self._documents: list[Document] = []
        self._characters = 0

    def process(self, document: Document):
        self._documents.append(document)
        self._characters += sum(map(len, document.lines))
        if self._characters > _BLOCK:
            for tag, value in self._sent():
                yield pvalue.TaggedOutput(tag, value) if tag else value

    def finish_bundle(self):
        window = [beam.window.GlobalWindow()]
        for tag, value in self._sent():
            value = windowed_value.WindowedValue(value, 0, window)
            yield pvalue.TaggedOutput(tag, value) if tag else value

    def _sent(self) -> Iterator[tuple[str, tuple[int, bytes]]]:
        """What has gathered, as (output, (key, block))."""
        gathered, self._documents, self._characters = self._documents, [], 0
        if not gathered:
            return
        owners = np.array(
            [
                (documents.fingerprint("\n".join(d.lines)), *self._owner(d), 0, 0)
                for d in gathered
            ],
            ROWS,
        )
        texts = collections.defaultdict(list)
        for document, key in zip(
            gathered, _shard_keys(owners, self._settings).tolist(), strict=True
        ):
            texts[key].append((document.number, document.lines))
        for key, block in texts.items():
            yield "", (key, _pack(block))
        if "duplicate_documents" in self._settings.steps:
            buckets = _buckets(owners, self._settings.buckets)
            for item in _split_by(buckets, owners):
                yield self.DOCUMENTS, item
        if self._wants_rows:
            lines = np.array(
                [
                    (documents.fingerprint(t), *self._owner(d), i, 1 + t.count("\t"))
                    for d in gathered
                    for i, t in enumerate(d.lines)
                ],
                ROWS,
            )
            for item in _split_by(_shard_keys(lines, self._settings), lines):
                yield self.ROWS, item
        if "near_duplicates" in self._settings.steps:
            found = [
                (band, *self._owner(d), sketch[1])
                for d in gathered
                if (sketch := deduplication.signature(" ".join(d.lines)))
                for band in sketch[0]
            ]
            signatures = np.array(found, SIGNATURES)
            buckets = _SIGNATURE_BUCKETS * self._settings.buckets
            for item in _split_by(_buckets(signatures, buckets), signatures):
                yield self.SIGNATURES, item

    def _owner(self, document: Document) -> tuple[int, int]:
        return document.number, self._languages[document.language]


def _pack(block: list[tuple[int, list[str]]]) -> bytes:
    text = json.dumps(block, ensure_ascii=False).encode()
    return spilling.numbered(min(n for n, _ in block), zlib.compress(text, 1))


def _unpack(blocks: Iterable[spilling.Value]) -> Iterator[tuple[int, list[str]]]:
    """The documents of all blocks, in order; few blocks are in memory at a time.

    What several workers read at the same time overlaps, nothing else does.
    """
    waiting: list[tuple[int, list[str]]] = []
    for number, block in spilling.read_in_order(blocks):
        while waiting and waiting[0][0] < number:
            yield heapq.heappop(waiting)
        for document in json.loads(zlib.decompress(block)):
            heapq.heappush(waiting, document)
    while waiting:
        yield heapq.heappop(waiting)


class _Repeated(beam.DoFn):
    """(bucket, blocks of ROWS) to (shard key, ROWS that repeat)."""

    def __init__(self, settings: Settings, reason: str):
        self._settings, self.reason = settings, reason

    def process(self, element):
        again = self.find(spilling.read(element[1]))
        yield from _split_by(_shard_keys(again, self._settings), again)

    def find(self, blocks: Iterable[bytes]) -> np.ndarray:
        return deduplication.repeated(deduplication.join(blocks, ROWS))


class _Near(_Repeated):
    """The same for SIGNATURES; what it sends are ROWS as well."""

    def find(self, blocks: Iterable[bytes]) -> np.ndarray:
        near = deduplication.near(deduplication.join(blocks, SIGNATURES))
        rows = np.zeros(len(near), ROWS)
        rows["number"], rows["language"] = near["number"], near["language"]
        return rows


def _rows_of(groups: dict, name: str) -> np.ndarray:
    return deduplication.join(spilling.read(groups.get(name, ())), ROWS)


def _kept_rows(groups: dict) -> Iterator[np.ndarray]:
    """ROWS of one shard, some at a time, without those that were found to repeat."""
    dropped = [np.unique(_rows_of(groups, r)["number"]) for r in _DOCUMENT_REASONS]
    dropped, lines = np.concatenate(dropped), _rows_of(groups, "duplicate line")
    blocks = spilling.read(groups.get("rows", ()))
    for rows in deduplication.batches(blocks, ROWS):
        rows = rows[~np.isin(rows["number"], dropped)]
        yield rows[~deduplication.are_among(rows, lines)]


class _ByFingerprint(beam.DoFn):
    """Rows of a shard to (bucket, ROWS), without documents that are dropped."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def process(self, element):
        for rows in _kept_rows(element[1]):
            yield from _split_by(_buckets(rows, self._settings.buckets), rows)


class _Histogram(beam.DoFn):
    """Rows of a shard to (language, sentences by the cut that keeps them)."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def process(self, element):
        counts = np.zeros(_CUTS)
        for rows in _kept_rows(element[1]):
            cuts = _cuts(rows["number"], self._settings.seed)
            weights = None if self._settings.is_bitext else rows["sentences"]
            counts += np.bincount(cuts, weights, _CUTS)
        yield element[0] >> _SHARD_BITS, counts.astype(np.int64).tobytes()


def _cuts(numbers: np.ndarray, seed: int) -> np.ndarray:
    # Another seed than the shards': a limit must not empty some of them.
    scattered = documents.scatter(numbers, seed + 1) >> np.uint64(52)
    return scattered.astype(np.int64)


def _add_histograms(histograms: Iterable[bytes]) -> bytes:
    total = np.zeros(_CUTS, np.int64)
    for histogram in histograms:
        total += np.frombuffer(histogram, np.int64)
    return total.tobytes()


def _limit(element: tuple[int, bytes], maximum: int) -> tuple[int, int]:
    """(language, histogram) to (language, the first cut that is too much)."""
    language, histogram = element
    total = np.cumsum(np.frombuffer(histogram, np.int64))
    return language, int(np.searchsorted(total, maximum, side="right"))


class _WriteShard(beam_runner.CountingDoFn):
    """(shard key, all that arrived for it) to its file."""

    def __init__(self, settings: Settings, directory: str):
        self._settings, self._directory = settings, directory

    def process(self, element, limits=None):
        key, groups = element
        index = key >> _SHARD_BITS
        language = self._settings.language_table[index]
        limit = limits[index] if limits else None
        kept = self._kept(groups, language, limit)
        first = next(kept, None)
        if first is not None:
            shard = key & (1 << _SHARD_BITS) - 1
            self._write(language, shard, itertools.chain([first], kept))
        yield from ()

    def _kept(self, groups, language: str, limit: int | None) -> Iterator[list[str]]:
        """What is left of the documents, in order; counts the rest."""
        reasons: dict[int, str] = {}
        for reason in reversed(_DOCUMENT_REASONS):
            numbers = _rows_of(groups, reason)["number"].tolist()
            reasons |= dict.fromkeys(numbers, reason)
        repeated = deduplication.by_document(_rows_of(groups, "duplicate line"))
        for number, text in _unpack(groups["text"]):
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
