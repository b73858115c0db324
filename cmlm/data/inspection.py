"""Reads training text once before a run: counts it, and refuses unusable files."""

from __future__ import annotations

import dataclasses

from cmlm.common import files as files_lib
from cmlm.common import once, utf8
from cmlm.common.counts import counted
from cmlm.data import line_files
from cmlm.errors import UserError

# Sentences of a text that hardly is one document, and the share of documents of one
# sentence that hardly are documents.
_LONG_DOCUMENT = 1_000
_MOSTLY = 0.5


@dataclasses.dataclass
class CorpusReport:
    """The size of a corpus and its faults.

    Attributes:
        files: number of files read.
        bytes: bytes of unpacked text read.
        documents: number of documents, which blank lines separate.
        sentences: number of lines with text.
        pairs: number of pairs of consecutive lines in one document.
        one_sentence_documents: number of documents without a pair.
        whole: False if the inspection stopped at its limit.
        share: bytes read as a share of all bytes on disk; 1 if `whole`.
        carriage_return: path and number of the first line with one inside.
        lines: number of lines read.
        invalid: number of those with bytes that are not UTF-8.
    """

    files: int = 0
    bytes: int = 0
    documents: int = 0
    sentences: int = 0
    pairs: int = 0
    one_sentence_documents: int = 0
    whole: bool = True
    share: float = 1.0
    carriage_return: tuple[str, int] | None = None
    lines: int = 0
    invalid: int = 0

    def estimated_sentences(self) -> int:
        """Estimates the number of sentences of the whole corpus."""
        return round(self.sentences / self.share)

    def describe(self, reads_documents: bool) -> str:
        """Describes the content and its faults in one line.

        Args:
            reads_documents: whether pairs and the borders of documents matter.
        """
        text = (
            f"{counted(self.files, 'file')}, {counted(self.documents, 'document')},"
            f" {counted(self.sentences, 'sentence')}"
        )
        if reads_documents:
            text += self._pairs()
        if not self.whole:
            text += (
                f"; counted in the first {self.bytes / 2**20:.0f} MB only; all files "
                f"have about {counted(self.estimated_sentences(), 'sentence')}"
            )
        return text

    def _pairs(self) -> str:
        alone = self.one_sentence_documents
        text = f", {counted(self.pairs, 'pair')}"
        if alone:
            text += f" ({counted(alone, 'document')} of one sentence, without a pair)"
        if self.documents == 1 and self.sentences >= _LONG_DOCUMENT:
            text += (
                "; without a blank line the text is one document, and pairs cross the "
                "borders of its texts: put a blank line between two texts"
            )
        if self.one_sentence_documents >= _MOSTLY * max(self.documents, 10):
            text += (
                "; a blank line ends a document: if your blank lines end paragraphs, "
                "python -m cmlm.prepare --layout=wrapped makes one document of each "
                "file"
            )
        return text


def inspect(files: list[str], max_bytes: int = 256 * 2**20) -> CorpusReport:
    """Counts the content of a corpus and refuses text that is unusable for training.

    Args:
        files: paths in the training format, streamed one after the other.
        max_bytes: bytes of unpacked text to read at most; the corpus may be larger.

    Raises:
        UserError: see `files.open_text`; or the corpus is empty, or not UTF-8.
    """
    report = CorpusReport()
    begin = 0
    for path in files:
        if report.bytes >= max_bytes:
            break
        report.files += 1
        begin = report.bytes
        _inspect_file(path, report, max_bytes)
    if not report.whole or report.files < len(files):
        report.whole = False
        report.share = share_read(files, report.files, report.bytes - begin)
    # Each file of a folder may be too short to show its encoding.
    utf8.refuse_other_encoding(named(files), report.invalid, report.lines)
    if not report.sentences:
        raise unusable(files, "is empty")
    warn_of_carriage_return(report.carriage_return)
    return report


def warn_of_carriage_return(place: tuple[str, int] | None) -> None:
    """Warns of the first line with a carriage return inside, (path, number), if any."""
    if place:
        once.warn(
            f"{place[0]} line {place[1]} has a carriage return inside; training drops"
            " it and joins the words around it; `tr '\\r' ' ' < OLD > NEW` replaces it"
        )


def unusable(files: list[str], fault: str) -> UserError:
    """Returns the error for text with too little content.

    Args:
        files: paths of the text.
        fault: predicate of the message, such as `is empty`.
    """
    return UserError(
        f"{named(files)} {fault}; allowed: one sentence a line with a blank line"
        " between documents, as python -m cmlm.prepare writes it"
    )


def named(files: list[str]) -> str:
    """Names some files of text in a message."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"text {files[0]}{more}"


def share_read(files: list[str], begun: int, bytes_of_last: int) -> float:
    """Estimates the share of some files that has been read, by their size on disk.

    Args:
        files: paths.
        begun: number of files that were opened, in order; all except the last of them
            were read whole.
        bytes_of_last: unpacked bytes that were read from the last opened file.

    Returns:
        A share between 0 and 1.
    """
    sizes = line_files.estimated_sizes(files)
    last = min(bytes_of_last, sizes[begun - 1])
    return (sum(sizes[: begun - 1]) + last) / sum(sizes)


def _inspect_file(path: str, report: CorpusReport, max_bytes: int) -> None:
    """Adds one file to a report."""
    in_document = 0

    def end_document():
        report.documents += in_document > 0
        report.one_sentence_documents += in_document == 1
        report.pairs += max(in_document - 1, 0)

    with files_lib.open_text(path, for_tensorflow=True) as lines:
        for number, line in enumerate(lines, 1):
            if not report.carriage_return and "\r" in line.rstrip("\r\n"):
                report.carriage_return = path, number
            if line.strip(utf8.BLANK):
                report.sentences += 1
                in_document += 1
            else:
                end_document()
                in_document = 0
            report.bytes += len(line.encode())
            if report.bytes >= max_bytes:
                report.whole = False
                lines.check_encoding()
                break
        report.lines += lines.number
        report.invalid += lines.invalid
    end_document()
