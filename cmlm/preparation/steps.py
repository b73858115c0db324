"""The steps that work on single documents, as Beam transforms.

Each `Step` counts documents and lines in and out, and counts dropped documents and
lines by language and reason. `repeats` holds the steps that compare documents.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator

from cmlm.common import beam_counts, beam_progress
from cmlm.data import sentences
from cmlm.errors import UserError
from cmlm.preparation import documents, filters, quality, sources
from cmlm.preparation.documents import Document
from cmlm.preparation.settings import Settings

# Separates the fields in the name of a count.
SEPARATOR = "\t"


def count_name(kind: str, step: str, unit: str, language: str = "", reason: str = ""):
    """The name of a count; its kind is in, out, dropped, kept or source."""
    return SEPARATOR.join([kind, step, unit, language, reason])


class ReadDocuments(beam_counts.CountingDoFn):
    """(index, path, part, parts) to the documents of one part of a file."""

    def __init__(
        self,
        layout: str,
        language: str,
        text_field: str,
        progress: beam_progress.Progress | None,
    ):
        self._layout, self._language = layout, language
        self._text_field, self._progress = text_field, progress

    def process(self, element: tuple[int, str, int, int]) -> Iterator[Document]:
        file, path, part, parts = element
        told: collections.Counter = collections.Counter()
        try:
            for position, lines in sources.read(
                path, self._layout, told, self._text_field, self._progress, part, parts
            ):
                self.counts[count_name("out", "read", "documents")] += 1
                self.counts[count_name("out", "read", "lines")] += len(lines)
                yield Document(documents.number(file, position), self._language, lines)
        except sources.OtherLayoutError as error:
            # The first file was checked before: one of the others must not cost hours.
            told[f"{sources.LEFT_OUT}{error}"] += 1
        if self._progress:
            self._progress.flush()
        self.counts[count_name("source", "read", "files")] += part == 0
        for reason, amount in told.items():
            self.counts[count_name("source", "read", "told", "", reason)] += amount


class Step(beam_counts.CountingDoFn):
    """Changes or drops a document. A subclass defines `name` and `apply`.

    Attributes:
        name: of the step, in the statistics.
        unit: the parts of a document that the step drops: lines, or sentences.
    """

    name: str
    unit = "lines"

    def apply(self, document: Document, dropped: collections.Counter) -> Document | str:
        """Processes one document.

        Args:
            document: the input.
            dropped: receives the number of dropped parts by reason.

        Returns:
            The changed document, or the reason to drop it.
        """
        raise NotImplementedError

    def process(self, document: Document) -> Iterator[Document]:
        self.counts[count_name("in", self.name, "documents")] += 1
        self.counts[count_name("in", self.name, "lines")] += len(document.lines)
        dropped: collections.Counter = collections.Counter()
        result = self.apply(document, dropped)
        if not isinstance(result, str) and not result.lines:
            result = "no line left"
        language = document.language if isinstance(result, str) else result.language
        for reason, amount in dropped.items():
            name = count_name("dropped", self.name, self.unit, language, reason)
            self.counts[name] += amount
        if isinstance(result, str):
            name = count_name("dropped", self.name, "documents", language, result)
            self.counts[name] += 1
            return
        self.counts[count_name("out", self.name, "documents")] += 1
        self.counts[count_name("out", self.name, "lines")] += len(result.lines)
        yield result


class C4(Step):
    """C4's rules for lines and pages."""

    name = "c4"

    def apply(self, document, dropped):
        lines = filters.c4_lines(document.lines, dropped)
        reason = filters.c4_document(lines) if lines else None
        return reason or document._replace(lines=lines)


class CleanLines(Step):
    """Keeps the lines of each document that have no fault.

    Args:
        name: the name of the step.
        fault: returns the reason to drop a line, or None.
    """

    def __init__(self, name: str, fault: Callable[[str], str | None]):
        self.name, self._fault = name, fault

    def apply(self, document, dropped):
        lines = filters.kept(document.lines, self._fault, dropped)
        return document._replace(lines=lines)


class Language(Step):
    """Identifies the language of a document and keeps the given languages.

    Args:
        keep: ISO 639 codes; () keeps every language.
    """

    name = "language"

    def __init__(self, keep: tuple[str, ...]):
        self._keep = frozenset(keep)

    def apply(self, document, dropped):
        language = filters.identify("\n".join(document.lines))
        if language is None:
            return "language not clear"
        if self._keep and language not in self._keep:
            return f"in another language: {language}"
        return document._replace(language=language)


class Quality(Step):
    """Keeps documents whose score reaches the minimum."""

    name = "quality"

    def __init__(self, path: str, minimum: float):
        self._path, self._minimum = path, minimum

    def setup(self):
        self._model = quality.QualityModel.load(self._path)

    def apply(self, document, dropped):
        (score,) = self._model.score(["\n".join(document.lines)])
        return document if score >= self._minimum else f"quality under {self._minimum}"


class Split(Step):
    """Splits lines into sentences, separated by tabs."""

    name = "split"
    unit = "sentences"

    def apply(self, document, dropped):
        lines = []
        for line in document.lines:
            found = sentences.split(line, document.language)
            kept = filters.kept(found, sentences.fault, dropped)
            if kept:
                lines.append("\t".join(kept))
        return document._replace(lines=lines)


class Guard(Step):
    """Removes the sentences of given files, or the pairs that contain one.

    Sentences are compared by their case-folded letters and digits, so quotes and spaces
    do not matter.

    Args:
        paths: files with one text per line, or several separated by tabs; plain or
            packed. A text of several sentences counts as a whole and by sentence. The
            files were checked before the run, see `on_beam.run`.
        whole_lines: whether to drop the whole line, as pairs need.
        languages: whose rules find the sentences of the files, and of pairs.
    """

    # The flag that names the files.
    name = "remove_sentences_of"

    def __init__(
        self, paths: tuple[str, ...], whole_lines: bool, languages: tuple[str, ...]
    ):
        self._paths, self._whole_lines = paths, whole_lines
        self.unit = "lines" if whole_lines else "sentences"
        self._languages = languages

    def setup(self):
        told: collections.Counter = collections.Counter()
        self._prints: set[int] = set()
        for path in self._paths:
            for _, lines in sources.read(path, "lines", told):
                self._prints |= self.prints(lines)
        damage = [reason for reason in told if reason.startswith(sources.DAMAGED)]
        if damage:
            raise UserError(f"--remove_sentences_of: {damage[0]}")

    def prints(self, lines: Iterable[str]) -> set[int]:
        """The fingerprints of the texts of some lines that have a letter."""
        return {
            documents.loose_fingerprint(text)
            for line in lines
            for text in self._texts(line)
            if any(map(str.isalpha, text))
        }

    def _texts(self, line: str) -> set[str]:
        """The line, its cells, and the sentences of each cell."""
        cells = line.split("\t")
        texts = {line, *cells}
        for cell in cells:
            for language in self._languages:
                texts.update(sentences.split(cell, language))
        return texts

    def apply(self, document, dropped):
        lines = []
        for line in document.lines:
            parts = [line] if self._whole_lines else line.split("\t")
            kept = [part for part in parts if not self._is_given(part)]
            dropped["sentence of the given files"] += len(parts) - len(kept)
            if kept:
                lines.append("\t".join(kept))
        return document._replace(lines=lines)

    def _is_given(self, part: str) -> bool:
        """Whether the files hold a sentence, or one of the texts of a whole line."""
        texts = self._texts(part) if self._whole_lines else (part,)
        return any(documents.loose_fingerprint(t) in self._prints for t in texts)


def guard(settings: Settings) -> Guard:
    """The step that removes the sentences of the given files."""
    codes = [part for code in settings.languages for part in code.split("-")]
    languages = tuple(dict.fromkeys(codes)) or ("en",)
    return Guard(settings.remove_sentences_of, settings.is_bitext, languages)


def chosen(settings: Settings) -> list[Step]:
    """The steps that the settings choose, in order."""
    found: list[Step] = []
    if settings.is_bitext:
        found.append(CleanLines("pairs", filters.pair_fault))
    if "c4" in settings.steps:
        found.append(C4())
    if "length" in settings.steps:
        found.append(CleanLines("length", filters.length_fault))
    if "language" in settings.steps:
        found.append(Language(settings.languages))
    if settings.quality_model:
        found.append(Quality(settings.quality_model, settings.min_quality))
    if not settings.is_bitext:
        found.append(Split())
    if settings.remove_sentences_of:
        found.append(guard(settings))
    return found
