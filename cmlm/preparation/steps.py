"""The steps that a document goes through one by one, as Beam transforms.

Each is a `Step`: it counts documents and lines in and out, and what it dropped by
language and reason. Steps that compare documents with one another are in `assembly.py`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from cmlm.common import beam_runner
from cmlm.data import sentences
from cmlm.preparation import documents, filters, quality, sources
from cmlm.preparation.documents import Document

# Fields of the name of a count are separated by this.
SEPARATOR = "\t"


def count_name(kind: str, step: str, unit: str, language: str = "", reason: str = ""):
    """The name of a count: kind is in, out, dropped, kept or source."""
    return SEPARATOR.join([kind, step, unit, language, reason])


class ReadDocuments(beam_runner.CountingDoFn):
    """(index, path, part, parts) to the documents of that part of a file."""

    def __init__(
        self,
        layout: str,
        language: str,
        text_field: str,
        progress: beam_runner.Progress | None,
    ):
        self._layout, self._language = layout, language
        self._text_field, self._progress = text_field, progress

    def process(self, element: tuple[int, str, int, int]) -> Iterator[Document]:
        file, path, part, parts = element
        told: collections.Counter = collections.Counter()
        for position, lines in sources.read(
            path, self._layout, told, self._text_field, self._progress, part, parts
        ):
            self.counts[count_name("out", "read", "documents")] += 1
            self.counts[count_name("out", "read", "lines")] += len(lines)
            yield Document(documents.number(file, position), self._language, lines)
        if self._progress:
            self._progress.flush()
        self.counts[count_name("source", "read", "files")] += part == 0
        for reason, amount in told.items():
            self.counts[count_name("source", "read", "told", "", reason)] += amount


class Step(beam_runner.CountingDoFn):
    """Changes or drops a document. A subclass gives `name` and `apply`."""

    name: str

    def apply(self, document: Document, dropped: collections.Counter) -> Document | str:
        """Works on one document.

        Args:
            document: to be worked on.
            dropped: takes the lines (of the last step, sentences) dropped, by reason.

        Returns:
            The document to go on with, or the reason why it does not.
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
            name = count_name("dropped", self.name, "lines", language, reason)
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


class Length(Step):
    """LaBSE's limits, 10 to 5,000 characters a line."""

    name = "length"

    def apply(self, document, dropped):
        return document._replace(lines=filters.length(document.lines, dropped))


class Pairs(Step):
    """What every translation must be: two sides with letters, not equal."""

    name = "pairs"

    def apply(self, document, dropped):
        return document._replace(lines=filters.pairs(document.lines, dropped))


class Language(Step):
    """Names the language of a document, and keeps those that are asked for."""

    name = "language"

    def __init__(self, keep: tuple[str, ...]):
        """Takes ISO 639 codes; none at all keeps every language."""
        self._keep = frozenset(keep)

    def apply(self, document, dropped):
        language = filters.identify("\n".join(document.lines))
        if language is None:
            return "language not clear"
        if self._keep and language not in self._keep:
            return f"in another language: {language}"
        return document._replace(language=language)


class Quality(Step):
    """Keeps documents that a model scores at least so."""

    name = "quality"

    def __init__(self, path: str, minimum: float):
        self._path, self._minimum = path, minimum

    def setup(self):
        self._model = quality.QualityModel.load(self._path)

    def apply(self, document, dropped):
        (score,) = self._model.score(["\n".join(document.lines)])
        return document if score >= self._minimum else f"quality under {self._minimum}"


class Split(Step):
    """Lines become sentences with tabs between them."""

    name = "split"

    def apply(self, document, dropped):
        lines = []
        for line in document.lines:
            kept = []
            for sentence in sentences.split(line, document.language):
                if not any(map(str.isalpha, sentence)):
                    dropped["sentence without a letter"] += 1
                elif len(sentence) > sentences.MAX_CHARACTERS:
                    dropped[f"sentence over {sentences.MAX_CHARACTERS:,}"] += 1
                else:
                    kept.append(sentence)
            if kept:
                lines.append("\t".join(kept))
        return document._replace(lines=lines)


class Guard(Step):
    """Takes out every sentence that given files have; of translations the pair.

    Letters and digits are compared, case folded: other quotes or spaces hide nothing.
    """

    name = "guard"

    def __init__(self, paths: tuple[str, ...], whole_lines: bool):
        """Takes files with a sentence a line, or several with tabs between.

        Args:
            paths: the files, plain or packed.
            whole_lines: drop the line with the sentence, as pairs must be.
        """
        self._paths, self._whole_lines = paths, whole_lines

    def setup(self):
        self._prints = frozenset(
            documents.loose_fingerprint(cell)
            for path in self._paths
            for _, lines in sources.read(path, "lines", collections.Counter())
            for line in lines
            for cell in {line, *line.split("\t")}
            if any(map(str.isalpha, cell))
        )

    def apply(self, document, dropped):
        lines = []
        for line in document.lines:
            cells = line.split("\t")
            kept = [c for c in cells if not self._is_given(c)]
            dropped["sentence of the given files"] += len(cells) - len(kept)
            if kept and (len(kept) == len(cells) or not self._whole_lines):
                lines.append("\t".join(kept))
        return document._replace(lines=lines)

    def _is_given(self, sentence: str) -> bool:
        return documents.loose_fingerprint(sentence) in self._prints
