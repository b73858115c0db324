"""Counts the words of a corpus of any size on Apache Beam, by the rules of `words`.

    ranges of files -> lines -> words of 1,024 lines -> sums by language and word
        -> the most frequent ones of each language -> times the language's factor
        -> sums by word -> the most frequent ones

Only the most frequent words return to this process, whatever the size of the corpus.
All sums are sums of integers, so the division of the work does not change the result.
"""

from __future__ import annotations

import codecs
import collections
import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import apache_beam as beam
import tensorflow as tf

from cmlm.common import (
    beam_counts,
    beam_files,
    beam_progress,
    beam_runner,
    files,
    packing,
    utf8,
)
from cmlm.data import streams
from cmlm.errors import UserError
from cmlm.tokenization.rules import Rules
from cmlm.tokenization.word_pieces import WordSplitter
from cmlm.vocabulary import words

# A plain file is read in parts of this size, by any number of workers; a gzip file is
# read as a whole.
_RANGE_BYTES = 64 * 2**20


def count_and_smooth(
    paths: Mapping[str, list[str]],
    rules: Rules,
    exponent: float,
    number: int,
    work_path: str,
    beam_options: str = "",
    workers: int = 0,
) -> tuple[words.SmoothedCounts, dict[str, int]]:
    """Counts words by language and smooths the counts like `words.smooth_and_cut`.

    Args:
        paths: text in the training format or bitext, by language.
        rules: the case of words, and their accents.
        exponent: exponent of the smoothing.
        number: number of most frequent words to add of each language, and to return.
        work_path: prefix of temporary files; workers on other machines must see them.
        beam_options, workers: see `beam_runner.run`.

    Returns:
        Words and their smoothed counts, and the number of words of each language.

    Raises:
        UserError: a file cannot be read.
    """
    ranges, sizes = [], {}
    for language, of in paths.items():
        for path in of:
            ranges += [(language, path, start) for start in _starts(path)]
            sizes[path] = _size(path)
    progress = beam_progress.Progress(sum(sizes.values()))
    totals_path, words_path = f"{work_path}.totals.json", f"{work_path}.words.tsv"

    def build(pipeline):
        counted = (
            pipeline
            | "Ranges" >> beam.Create(ranges)
            | "Spread" >> beam.Reshuffle()
            | "Count"
            >> beam.ParDo(CountWords(rules, progress)).with_output_types(
                tuple[tuple[str, str], int]
            )
            | "SumByLanguage" >> beam.CombinePerKey(sum)
        )
        totals = (
            counted
            | "Languages"
            >> beam.MapTuple(lambda key, count: (key[0], count)).with_output_types(
                tuple[str, int]
            )
            | "Totals" >> beam.CombinePerKey(sum)
        )
        beam_counts.write_counts([totals], totals_path)
        _write_smoothed(counted, totals, exponent, number, words_path)

    tf.io.gfile.makedirs(os.path.dirname(work_path) or ".")
    try:
        beam_runner.run(build, beam_options, workers, progress)
        totals = beam_counts.read_counts(totals_path)
        smoothed = _read(words_path)
    finally:
        for path in (totals_path, words_path):
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
    return smoothed, {language: totals[language] for language in words.by_column(paths)}


def _write_smoothed(
    counted: beam.PCollection,
    totals: beam.PCollection,
    exponent: float,
    number: int,
    path: str,
) -> None:
    """Writes the most frequent words, with smoothed counts.

    Args:
        counted: ((language, word), count).
        totals: (language, number of words).
        exponent, number: see `count_and_smooth`.
        path: the file to write, lines of `word TAB count TAB occurrences`.
    """
    factors = (
        totals
        | "ListTotals" >> beam.combiners.ToList()
        | "Factors" >> beam.Map(lambda found: words.factors(dict(found), exponent))
    )
    (
        counted
        | "ByLanguage"
        >> beam.MapTuple(
            lambda key, count: (key[0], (key[1], count))
        ).with_output_types(tuple[str, tuple[str, int]])
        | "TopOfLanguage"
        >> beam.combiners.Top.SmallestPerKey(number, key=words.by_frequency)
        | "Scale"
        >> beam.FlatMap(_scaled, beam.pvalue.AsSingleton(factors)).with_output_types(
            tuple[str, tuple[int, int]]
        )
        | "Sum" >> beam.CombinePerKey(_sums)
        | "Top" >> beam.combiners.Top.Smallest(number, key=_by_scaled)
        | "WriteWords" >> beam.Map(_write, path)
    )


def _size(path: str) -> int:
    return tf.io.gfile.stat(path).length


def _starts(path: str) -> range:
    """Returns the first byte of each range of a file; an empty file has one, too."""
    end = 1 if path.endswith(".gz") else max(_size(path), 1)
    return range(0, end, _RANGE_BYTES)


def _scaled(
    item: tuple[str, list[tuple[str, int]]], factors: dict[str, float]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """(language, its words and counts) to the words, scaled counts and counts."""
    language, found = item
    for word, count in found:
        yield word, (round(count * factors[language]), count)


def _sums(found: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Adds scaled counts, and counts."""
    scaled, counts = zip(*found, strict=True)
    return sum(scaled), sum(counts)


def _by_scaled(item: tuple[str, tuple[int, int]]) -> tuple[int, str]:
    """Returns the sort key of a word and its counts; see `words.by_frequency`."""
    word, (scaled, _) = item
    return words.by_frequency((word, scaled))


def _write(found: list[tuple[str, tuple[int, int]]], path: str) -> None:
    with beam_files.atomic_text(path) as output:
        output.writelines(f"{word}\t{scaled}\t{n}\n" for word, (scaled, n) in found)


def _read(path: str) -> words.SmoothedCounts:
    """Reads a file of `_write`."""
    with files.open_text(path) as lines:
        rows = [line.rstrip("\n").rsplit("\t", 2) for line in lines]
    return words.SmoothedCounts(
        collections.Counter({word: int(scaled) for word, scaled, _ in rows}),
        frozenset(word for word, scaled, n in rows if n == "1" != scaled),
    )


class CountWords(beam.DoFn):
    """Maps (language, path, start of a range) to ((language, word), count).

    The output has a word once for each chunk of lines that contains it; Beam adds the
    counts.

    Args:
        rules: the case of words, and their accents.
        progress: advances by the bytes read from disk, before unpacking.
    """

    def __init__(self, rules: Rules, progress: beam_progress.Progress):
        self._rules = rules
        self._progress = progress

    def setup(self):
        self._splitter = WordSplitter(self._rules)

    def process(self, element):
        language, path, start = element
        with beam_files.open_bytes(path) as raw:
            lines = read_range(raw, path, start)
            while chunk := list(itertools.islice(lines, words.LINES_PER_CHUNK)):
                for name, texts in words.split_columns(language, path, chunk, b"\t"):
                    found = self._splitter.split(tf.constant(texts))
                    for word, count in collections.Counter(found).items():
                        yield (name, word.decode()), count
            self._progress.add(raw.tell() - start)

    def finish_bundle(self):
        self._progress.flush()


def read_range(raw: BinaryIO, path: str, start: int) -> Iterator[bytes]:
    """Yields the lines that begin in a range, cleaned as in `streams.sentences`.

    Args:
        raw: the opened file, not unpacked.
        path: the file's name; a `.gz` file is unpacked and has one range.
        start: first byte of the range.

    Raises:
        UserError: the file is not a whole gzip file, is packed in another way than its
            name says, is UTF-16, or has a line of more than MAX_LINE_CHARACTERS.
    """
    end = start + _RANGE_BYTES
    if not start:
        files.refuse_bzip2(path)
        mark = raw.read(packing.MARK_BYTES)
        packing.refuse_other(path, mark, packing.READ_BY_TENSORFLOW)
        utf8.refuse_utf16(path, mark)
        raw.seek(0)
    if path.endswith(".gz"):
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield from filter(None, map(_clean, _lines(unpacked, path)))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is not a whole gzip file: {error}") from error
        return
    lines, position = _lines(raw, path), 0
    # A line belongs to the range that contains its first byte.
    if start:
        raw.seek(start - 1)
        position = start - 1 + len(next(lines, b""))
    while position < end and (line := next(lines, b"")):
        position += len(line)
        if line := _clean(line):
            yield line


def _lines(stream: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields lines with their ends; raises UserError for one that is too long.

    The inspection reads the first part of a large corpus only.
    """
    limit = files.MAX_LINE_CHARACTERS
    # A character has at most four bytes.
    while line := stream.readline(4 * limit + 1):
        text = line.rstrip(b"\n")
        if len(text) > limit and len(text.decode(errors="replace")) > limit:
            raise UserError(
                f"a line of {path} is longer than {limit:,} characters, the limit "
                "(python -m cmlm.prepare splits text into sentences)"
            )
        yield line


def _clean(line: bytes) -> bytes:
    return line[: streams.MAX_SENTENCE_BYTES].removeprefix(codecs.BOM_UTF8).strip()
