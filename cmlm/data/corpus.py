"""Which text a run trains on: its configuration, its files, and whether they will do.

The training format is one sentence a line and a blank line between documents, `.txt`
or `.txt.gz`. Two lines that follow each other inside a document are a pair.
Translations have a format of their own: `parallel.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from typing import BinaryIO, ClassVar, NamedTuple

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import files as files_lib
from cmlm.common.files import MAX_LINE_CHARACTERS
from cmlm.data import builtin, languages, sentences
from cmlm.errors import UserError

# By how much gzip shrinks text, to guess what of a file was not read.
_GZIP_RATIO = 3.0
# Some broken bytes are in every web corpus; more than this is another encoding.
MAX_INVALID_SHARE = 0.1

# What tf.strings.strip takes for white space, so that both count the same lines.
_BLANK = b" \t\n\v\f\r"
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class DataConfig(hyperparams.Config):
    """What an objective reads, and how it is batched.

    Attributes:
        input_path: files, globs or a comma-separated list of them. With languages:
            `en=FILES,de=FILES`; a language is then drawn in proportion to its size to
            the power of `sampling_exponent`.
        global_batch_size: examples a step, over all replicas.
        seq_length: longest sequence in tokens, [CLS] and [SEP] included.
        sampling_exponent: 1 draws every example equally often, 0 every language.
        shuffle_buffer_size: examples to shuffle at a time, over all languages.
        length_buckets: batch examples of like length; false gives every batch
            `seq_length` columns.
        hold_out_fraction: share of the data kept for validation where there is no
            validation data.
        seed: of every random choice in the pipeline.
    """

    input_path: str = ""
    global_batch_size: int = 0
    seq_length: int = 128
    sampling_exponent: float = 0.3
    shuffle_buffer_size: int = 100_000
    length_buckets: bool = True
    hold_out_fraction: float = 0.01
    seed: int = 0

    # What to do about a missing input_path.
    hint: ClassVar[str]

    def validate(self) -> None:
        """Raises UserError where a value makes no sense."""
        if not self.input_path:
            raise UserError(f"input_path is empty: {self.hint}")
        for name, least in (
            ("global_batch_size", 1),
            ("seq_length", 3),
            ("shuffle_buffer_size", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(
                    f"{name}={getattr(self, name)}: allowed is {least} or more"
                )
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(
                f"sampling_exponent={self.sampling_exponent}: allowed is 0 to 1"
            )
        if not 0 <= self.hold_out_fraction < 1:
            raise UserError(
                f"hold_out_fraction={self.hold_out_fraction}: allowed is 0 <= x < 1"
            )

    def load(self, work_dir: str) -> languages.Corpus:
        """Finds the files, checks what they hold and says so in the log.

        Args:
            work_dir: directory for what has to be made, normally inside model_dir.

        Raises:
            UserError: data that is missing, empty, or not what it should be.
        """
        files, found = {}, {}
        for language, patterns in languages.split(self.input_path).items():
            named = f"{language}={patterns}" if language else patterns
            try:
                files[language] = self._resolve(language, patterns, work_dir)
                found[language] = self._inspect(files[language])
            except UserError as error:
                raise UserError(
                    f"{language}: {error}" if language else error
                ) from error
            logger.info("text: %s: %s", named, found[language].summary)
        corpus = languages.Corpus(
            files,
            {language: each.examples for language, each in found.items()},
            {
                language: each.neighbours
                for language, each in found.items()
                if each.neighbours is not None
            },
        )
        if len(files) > 1:
            shares = corpus.probabilities(self.sampling_exponent)
            logger.info(
                "languages, by size^%g: %s",
                self.sampling_exponent,
                ", ".join(
                    f"{language} {corpus.sizes[language]:,} {share:.1%}"
                    for language, share in shares.items()
                ),
            )
        return corpus

    def _resolve(self, language: str, patterns: str, work_dir: str) -> list[str]:
        raise NotImplementedError

    def _inspect(self, files: list[str]) -> Inspected:
        """Counts what there is, and refuses what is not of the format."""
        raise NotImplementedError

    @property
    def origin(self) -> tuple:
        """What decides which data is found: objectives that agree in it share it."""
        return type(self), self.input_path


class Inspected(NamedTuple):
    """What the files of a language hold.

    Attributes:
        examples: how many, maybe estimated.
        summary: what a person should know of them.
        neighbours: of running text, sentences that follow another one.
    """

    examples: int
    summary: str
    neighbours: int | None = None


@dataclasses.dataclass
class TextDataConfig(DataConfig):
    """Plain text to train on, `.txt` or `.txt.gz`, or `builtin:python-docs`.

    Attributes:
        raw_layout: empty for text with one sentence a line; `lines`, `wrapped` or
            `wikitext` for raw text, which is then split into sentences once, before
            training.
        raw_language: ISO 639 code for that splitting, where `input_path` names none.
    """

    raw_layout: str = ""
    raw_language: str = "en"

    hint = f"--train_data names files or {builtin.PYTHON_DOCS}"

    def validate(self) -> None:
        super().validate()
        if self.raw_layout not in ("", *sentences.LAYOUTS):
            raise UserError(
                f"raw_layout={self.raw_layout!r}: allowed are '' (one sentence a line)"
                f" and {', '.join(sentences.LAYOUTS)}"
            )

    def _resolve(self, language, patterns, work_dir):
        config = self.replace(
            input_path=patterns, raw_language=language or self.raw_language
        )
        return resolve(config, work_dir)

    def _inspect(self, files):
        report = inspect(files)
        return Inspected(report.estimated_sentences(), str(report), report.pairs)

    @property
    def origin(self):
        return *super().origin, self.raw_layout, self.raw_language


def resolve(config: TextDataConfig, work_dir: str) -> list[str]:
    """Returns the files of a corpus in the training format.

    The built-in corpus and the sentences of raw text are written to `work_dir` on
    first use; the next run with the same input finds them there.

    Args:
        config: says where the text is and in which layout.
        work_dir: directory for what has to be made, normally inside model_dir.

    Raises:
        UserError: no file matches, or the built-in corpus is asked for in a layout.
    """
    if config.input_path == builtin.PYTHON_DOCS:
        if config.raw_layout:
            raise UserError(
                f"raw_layout={config.raw_layout!r}: {builtin.PYTHON_DOCS} is split"
                " already, allowed is ''"
            )
        return [builtin.python_docs(work_dir)]
    if config.input_path.startswith("builtin:"):
        raise UserError(
            f"input_path={config.input_path!r}: allowed is {builtin.PYTHON_DOCS}"
        )
    paths = files_lib.expand(config.input_path)
    if not config.raw_layout:
        return paths
    return _split_once(paths, config, work_dir)


def _split_once(paths: list[str], config: TextDataConfig, work_dir: str) -> list[str]:
    """Splits raw files into `work_dir`, unless an equal input was split there."""
    stats = [(path, tf.io.gfile.stat(path)) for path in paths]
    state = [(path, stat.length, stat.mtime_nsec) for path, stat in stats]
    identity = repr((state, config.raw_layout, config.raw_language))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    directory = os.path.join(work_dir, f"sentences-{digest}")
    if not tf.io.gfile.exists(directory):
        logger.info("splitting %d files into sentences: %s", len(paths), directory)
        with files_lib.atomic_directory(directory) as temporary:
            for index, path in enumerate(paths):
                target = os.path.join(temporary, f"{index:05d}.txt.gz")
                sentences.write_sentences(
                    path, target, config.raw_layout, config.raw_language
                )
    return files_lib.expand(os.path.join(directory, "*.txt.gz"))


# ------------------------------------------------------------------ inspection


@dataclasses.dataclass
class CorpusReport:
    """What a corpus holds, and what was wrong with it.

    Attributes:
        files, bytes: files read and bytes of unpacked text.
        documents, sentences, pairs: the content.
        one_sentence_documents: documents that give no pair.
        invalid_lines: lines with bytes that are not UTF-8.
        replaced_characters: the U+FFFD these bytes become.
        longest_line: in characters.
        whole: false where the inspection ended at its limit.
        share: of the bytes on disk that were read, 1 if whole.
    """

    files: int = 0
    bytes: int = 0
    documents: int = 0
    sentences: int = 0
    pairs: int = 0
    one_sentence_documents: int = 0
    invalid_lines: int = 0
    replaced_characters: int = 0
    longest_line: int = 0
    whole: bool = True
    share: float = 1.0

    def estimated_sentences(self) -> int:
        """Sentences of the whole corpus, as far as the part read is like the rest."""
        return round(self.sentences / self.share)

    def __str__(self) -> str:
        text = (
            f"{self.files:,} files, {self.documents:,} documents,"
            f" {self.sentences:,} sentences, {self.pairs:,} pairs"
            f" ({self.one_sentence_documents:,} documents of one sentence give none)"
        )
        if self.invalid_lines:
            text += (
                f"; {self.invalid_lines:,} lines are not UTF-8:"
                f" {self.replaced_characters:,} characters replaced"
            )
        if not self.whole:
            text += f"; in the first {self.bytes / 2**20:.0f} MB, more was not counted"
        return text


def inspect(files: list[str], max_bytes: int = 256 * 2**20) -> CorpusReport:
    """Counts what a corpus holds and refuses what cannot be trained on.

    Args:
        files: paths in the training format; read one after the other, as a stream.
        max_bytes: of unpacked text to read; a corpus may be larger.

    Raises:
        UserError: a file is not text, not UTF-8 or has a line of more than
        MAX_LINE_CHARACTERS, or there is no sentence.
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
    if not report.sentences:
        raise unusable(files, "is empty")
    return report


def unusable(files: list[str], what: str) -> UserError:
    """The error for text with too little in it, which says how text is to be."""
    named = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    return UserError(
        f"text {named} {what}: write one sentence a line, a blank line between"
        " documents, or split raw text with python -m cmlm.prepare"
    )


def share_read(files: list[str], begun: int, bytes_of_last: int) -> float:
    """Which share of the files, by their size on disk, has been read.

    Args:
        files: paths.
        begun: how many of them, from the first on, have been read, all but the last of
            these to their end.
        bytes_of_last: of unpacked text, read of that one.
    """
    on_disk = [tf.io.gfile.stat(path).length for path in files]
    packing = _GZIP_RATIO if files[begun - 1].endswith(".gz") else 1.0
    last = min(bytes_of_last / packing, on_disk[begun - 1])
    return (sum(on_disk[: begun - 1]) + last) / sum(on_disk)


def _inspect_file(path: str, report: CorpusReport, max_bytes: int) -> None:
    """Adds one file to a report."""
    number = invalid = first_invalid = in_document = 0

    def end_document():
        report.documents += in_document > 0
        report.one_sentence_documents += in_document == 1
        report.pairs += max(in_document - 1, 0)

    with files_lib.open_bytes(path) as stream:
        # Bounded, so that a file without line ends does not fill the memory.
        while line := stream.readline(4 * MAX_LINE_CHARACTERS):
            number += 1
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UserError(f"{path} is UTF-16: convert it to UTF-8")
            if b"\0" in line:
                raise UserError(f"{path} is not text: line {number} has a NUL byte")
            length = len(line)
            if length > MAX_LINE_CHARACTERS or length > report.longest_line:
                length = _characters(line, stream)
                report.longest_line = max(report.longest_line, length)
            if length > MAX_LINE_CHARACTERS:
                raise UserError(
                    f"{path} line {number} has {length:,} characters, allowed are"
                    f" {MAX_LINE_CHARACTERS:,}: split it into sentences with"
                    " python -m cmlm.prepare"
                )
            try:
                line.decode()
            except UnicodeDecodeError:
                invalid += 1
                first_invalid = first_invalid or number
                report.replaced_characters += line.decode(errors="replace").count(
                    "\ufffd"
                ) - line.count("\ufffd".encode())
            if line.strip(_BLANK):
                report.sentences += 1
                in_document += 1
            else:
                end_document()
                in_document = 0
            report.bytes += len(line)
            if report.bytes >= max_bytes:
                report.whole = False
                break
    end_document()
    report.invalid_lines += invalid
    if invalid > MAX_INVALID_SHARE * number:
        raise UserError(
            f"{path} is not UTF-8: {invalid:,} of its {number:,} lines are not, the"
            f" first is line {first_invalid}"
        )


def _characters(line: bytes, stream: BinaryIO) -> int:
    """Counts the characters of a line of which `line` is the part read so far."""
    length = 0
    while line:
        length += len(line.translate(None, _CONTINUATION_BYTES))
        if line.endswith(b"\n"):
            return length - 1
        line = stream.readline(4 * MAX_LINE_CHARACTERS)
    return length
