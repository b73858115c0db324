"""The text of an objective: its configuration, and the search for its files.

The training format is plain text, `.txt` or `.txt.gz`, with one sentence a line and a
blank line between documents. Two consecutive lines of one document form a pair. Bitext
and NLI data have formats of their own, see `bitext.py` and `nli.py`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import logging
import os
from typing import ClassVar, NamedTuple

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import atomic, choices, fields, utf8
from cmlm.common import files as files_lib
from cmlm.common.counts import counted
from cmlm.data import builtin, inspection, languages, other_formats, sentences
from cmlm.data.corpus import Corpus
from cmlm.errors import UserError, naming

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class DataConfig(hyperparams.Config):
    """The data of one objective, and the settings of its batches.

    Attributes:
        input_path: files, globs, or a comma-separated list of them. Languages are named
            as `en=FILES,de=FILES`.
        global_batch_size: examples in a step, over all replicas; every recipe sets it.
        seq_length: longest sequence in tokens, [CLS] and [SEP] included.
        sampling_exponent: with several languages, an example is drawn from language l
            with probability n_l^sampling_exponent / sum_k n_k^sampling_exponent, where
            n_l is the number of sentences of language l (of lines, for tables such as
            bitext). With 1, every line is equally likely; with 0, every language. The
            papers print no exponent for training data: the 0.3 of CMLM (section 4.4)
            and LaBSE (section 3.2) belongs to the vocabulary. LaBSE balances its bitext
            by a cap of 100 M pairs a language (section 3.1), which goes with 1. Our
            default is 0.3, which XLM-R uses for its data: with 1 and no cap, the
            smallest of a hundred languages would hardly ever be drawn. With
            `trainer.epochs`, every example is read, and this setting has no effect.
        shuffle_buffer_size: size of the shuffle buffer in examples, over all languages.
        length_buckets: pad a batch only to its longest sequence, and batch examples of
            similar length where the objective's loss allows it; False pads every batch
            to `seq_length`.
        hold_out_fraction: share of the data to hold out for validation if no validation
            data is given. If this is too little of a small text, the run holds out
            more, up to 0.2; 0 holds out nothing.
        seed: seed of every random choice in the pipeline.
    """

    input_path: str = ""
    global_batch_size: int = fields.ranged(0, at_least=1)
    seq_length: int = fields.ranged(128, at_least=3)
    sampling_exponent: float = fields.ranged(0.3, at_least=0, at_most=1)
    shuffle_buffer_size: int = fields.ranged(100_000, at_least=1)
    length_buckets: bool = True
    hold_out_fraction: float = fields.ranged(0.01, at_least=0, below=1)
    seed: int = fields.ranged(0, at_least=0)

    # The flags of `cmlm.train` that name files of this kind; None: no such flag.
    flag: ClassVar[str]
    validation_flag: ClassVar[str | None] = None
    # A description of the values of `flag`, for messages.
    accepted: ClassVar[str]

    def require_input(self, prefix: str) -> None:
        """Raises UserError if `input_path` is empty.

        Args:
            prefix: prefix of the field names in the message.
        """
        if not self.input_path:
            raise fields.refused(
                f"{prefix}input_path", "", f"{self.accepted} (--{self.flag})"
            )

    def load(self, work_dir: str, reads_documents: bool = True) -> Corpus:
        """Finds the files, inspects them, and logs their content.

        Args:
            work_dir: directory for derived files, normally inside model_dir.
            reads_documents: whether an objective reads more than single lines of them.

        Raises:
            UserError: the data is missing, empty, or in another format.
        """
        files, found = {}, {}
        for language, patterns in languages.split(self.input_path).items():
            named = f"{language}={patterns}" if language else patterns
            with naming(language) if language else contextlib.nullcontext():
                files[language] = self._resolve(language, patterns, work_dir)
                found[language] = self._inspect(files[language], reads_documents)
            logger.info("text: %s: %s", named, found[language].summary)
        corpus = Corpus(
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
                "languages, drawn in proportion to size^%g: %s",
                self.sampling_exponent,
                ", ".join(
                    f"{language} {corpus.sizes[language]:,} {share:.1%}"
                    for language, share in shares.items()
                ),
            )
        return corpus

    def _resolve(self, language: str, patterns: str, work_dir: str) -> list[str]:
        """Returns the paths of one language's files; arguments as `load`."""
        return files_lib.expand(patterns)

    def _inspect(self, files: list[str], reads_documents: bool) -> Inspected:
        """Counts the examples, and refuses files in another format."""
        raise NotImplementedError

    @property
    def origin(self) -> tuple:
        """Identifies the data: objectives with equal origins share the loaded data."""
        return type(self), self.input_path


class Inspected(NamedTuple):
    """The content of one language's files.

    Attributes:
        examples: number of examples, possibly an estimate.
        summary: description for the log.
        neighbours: for running text, the number of sentences that follow another one;
            None if unknown.
    """

    examples: int
    summary: str
    neighbours: int | None = None


@dataclasses.dataclass
class TextDataConfig(DataConfig):
    """Plain text to train on, `.txt` or `.txt.gz`, or `builtin:python-docs`.

    Attributes:
        raw_layout: empty for text with one sentence a line; `lines`, `wrapped` or
            `wikitext` for raw text, which is split into sentences once before training.
        raw_language: ISO 639 code of raw text if `input_path` names no language.
    """

    raw_layout: str = fields.one_of("", ("", *choices.TEXT_LAYOUTS))
    raw_language: str = "en"

    flag, validation_flag = "train_data", "validation_data"
    accepted = f"files, or {builtin.PYTHON_DOCS}"

    def _resolve(self, language, patterns, work_dir):
        # The built-in corpus and the sentences of raw text are written to `work_dir` on
        # first use; a later run with the same input reads them from there.
        if patterns == builtin.PYTHON_DOCS:
            if self.raw_layout:
                raise UserError(
                    f"raw_layout is {self.raw_layout!r}; allowed with "
                    f"{builtin.PYTHON_DOCS}: '', because this text has one sentence a "
                    "line"
                )
            return [builtin.python_docs(work_dir)]
        if patterns.startswith("builtin:"):
            raise UserError(
                f"the text is {patterns!r}; allowed: {builtin.PYTHON_DOCS}, or files"
            )
        paths = files_lib.expand(patterns)
        other_formats.warn(paths, self.raw_layout, for_tensorflow=not self.raw_layout)
        if not self.raw_layout:
            return paths
        language = language or self.raw_language
        return _split_once(paths, self.raw_layout, language, work_dir)

    def _inspect(self, files, reads_documents):
        report = inspection.inspect(files)
        return Inspected(
            report.estimated_sentences(),
            report.describe(reads_documents),
            # The rest of a text that was not read may have some.
            report.pairs if report.pairs or report.whole else None,
        )

    @property
    def origin(self):
        return *super().origin, self.raw_layout, self.raw_language


def _split_once(
    paths: list[str], layout: str, language: str, work_dir: str
) -> list[str]:
    """Splits raw files into sentences in `work_dir`, unless an earlier run did so.

    Raises:
        UserError: the language is unknown, a file cannot be read, or the text is not
            UTF-8.
    """
    # The splitter has rules for `pt`, and would take its fallback for `pt-BR`.
    base = language.replace("_", "-").partition("-")[0]
    identity = repr((files_lib.states(paths), layout, base))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    directory = os.path.join(work_dir, f"sentences-{digest}")
    if not tf.io.gfile.exists(directory):
        # The splitter would take the rules of English for an unknown language.
        sentences.check_language(base, "LANGUAGE=FILES, or raw_language,")
        logger.info(
            "splitting %s into sentences: %s", counted(len(paths), "file"), directory
        )
        totals: collections.Counter = collections.Counter()
        with atomic.directory(directory) as temporary:
            for index, path in enumerate(paths):
                target = os.path.join(temporary, f"{index:05d}.txt.gz")
                totals += sentences.write_sentences(path, target, layout, base)
            # Each file of a folder may be too short to show its encoding.
            utf8.refuse_other_encoding(
                inspection.named(paths), totals["invalid UTF-8"], totals["lines"]
            )
        logger.info("dropped sentences: %s", sentences.describe_dropped(totals))
    return sorted(
        tf.io.gfile.glob(os.path.join(files_lib.escaped(directory), "*.txt.gz"))
    )
