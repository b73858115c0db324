"""Natural language inference: `premise<TAB>hypothesis<TAB>label`, one file a language.

The files of different languages are line-by-line translations of each other, as in
XNLI. A premise can then be read in one language and its hypothesis in another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from cmlm.common import files as files_lib
from cmlm.common import iterators
from cmlm.common.counts import counted
from cmlm.common.utf8 import BLANK
from cmlm.data import line_files, streams
from cmlm.data.corpus import Corpus
from cmlm.data.settings import DataConfig, Inspected
from cmlm.errors import UserError

LABELS = ("entailment", "neutral", "contradiction")
# All spellings of the labels that files may use.
_SPELLINGS = {
    **{label: number for number, label in enumerate(LABELS)},
    **{str(number): number for number in range(len(LABELS))},
    "contradictory": 2,
}


@dataclasses.dataclass
class NliDataConfig(DataConfig):
    """Labelled pairs to train on, `.tsv` or `.tsv.gz`, one file a language.

    `input_path` names them as `en=train-en.tsv,de=train-de.tsv`; a single file needs no
    language. Labels are entailment, neutral, contradiction, or 0, 1, 2 in this order.
    """

    flag, validation_flag = "nli_data", "nli_validation_data"
    accepted = "files, as en=train-en.tsv,de=train-de.tsv"

    def load(self, work_dir, reads_documents=True) -> Corpus:
        found = super().load(work_dir, reads_documents)
        if len(set(found.sizes.values())) > 1:
            lengths = ", ".join(
                f"{language} {size:,}" for language, size in found.sizes.items()
            )
            raise UserError(
                f"the NLI files {self.input_path!r} differ in length: {lengths} lines; "
                "allowed: line-by-line translations of each other"
            )
        if len(found.files) > 1:
            _check_parallel(found.files)
        return found

    def _inspect(self, files, reads_documents):
        size = sum(1 for path in files for _ in _labels([path]))
        return Inspected(size, counted(size, "labelled pair"))


def _labels(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yields the place and the label's index of each line of some files.

    Raises:
        UserError: a file is empty, or a line has another format. The line cannot be
            left out, because the lines of different languages must correspond.
    """
    for path in paths:
        place = ""
        with files_lib.open_text(path, for_tensorflow=True) as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path} line {number}"
                # `_cells` strips the same characters: a no-break space stays.
                cells = [cell.strip(BLANK) for cell in line.split("\t")]
                if len(cells) != 3:
                    raise UserError(
                        f"{place} has {counted(len(cells), 'column')}; allowed: 3"
                        " (premise, hypothesis, label)"
                    )
                if not cells[0] or not cells[1]:
                    raise UserError(
                        f"{place} lacks a sentence; allowed: premise, hypothesis, label"
                    )
                label = _SPELLINGS.get(cells[2].lower())
                if label is None:
                    raise UserError(
                        f"{place} has label {cells[2]!r}; allowed: "
                        f"{', '.join(LABELS)}, or 0, 1, 2"
                    )
                yield place, label
        if not place:
            raise UserError(
                f"{path} is empty; allowed: lines of premise, hypothesis, label"
            )


def _check_parallel(files: Mapping[str, Iterable[str]]) -> None:
    """Raises UserError if a line has different labels in different languages."""
    for same in zip(*map(_labels, files.values()), strict=True):
        (first, label), *others = same
        for place, other in others:
            if other != label:
                raise UserError(
                    f"{place} has label {LABELS[other]}, {first} has {LABELS[label]};"
                    " allowed: line-by-line translations of each other"
                )


def rows(portion: streams.Portion, *, same_language: bool = False) -> tf.data.Dataset:
    """Returns labelled pairs, in one streamed pass.

    Args:
        portion: the lines to read. Its files are language to paths, and all languages
            have the same number of lines. A fingerprint of the premise in the first
            language decides whether a line is held out. Hosts share the lines. The seed
            draws one language for the premise and one for the hypothesis of each pair,
            anew in every pass over the dataset; None returns all languages.
        same_language: whether premise and hypothesis may have the same language. False
            draws two different languages if the files have two, as in CMLM (section
            4.3: "the premise u and hypothesis v are in different languages").

    Returns:
        Dataset of (premises string [languages], hypotheses string [languages], label
        string []), where `languages` is 1 if a seed is given.
    """
    parts = []
    for paths in portion.files.values():
        lines = line_files.named(paths).flat_map(line_files.read)
        parts.append(lines.unbatch().map(_cells))
    dataset = iterators.untuned(tf.data.Dataset.zip(tuple(parts))).map(
        lambda *cells: (
            tf.stack([cell[0] for cell in cells]),
            tf.stack([cell[1] for cell in cells]),
            cells[0][2],
        )
    )

    def is_in_part(premises, *_):
        return streams.rows_in_buckets(premises[:1], portion.buckets)[0]

    dataset = dataset.filter(is_in_part)
    context = portion.input_context
    if context is not None:
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    if portion.seed is None:
        return dataset

    n = len(portion.files)

    def draw(row, number):
        premises, hypotheses, label = row
        first = number % n
        if same_language or n == 1:
            second = (number // n) % n
        else:
            second = (first + 1 + (number // n) % (n - 1)) % n
        return premises[first][tf.newaxis], hypotheses[second][tf.newaxis], label

    draws = tf.data.Dataset.random(seed=portion.seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip((dataset, draws)).map(draw)


def _cells(line: tf.Tensor) -> tf.Tensor:
    cells = tf.strings.strip(tf.strings.split(line, "\t"))
    cells = tf.strings.substr(cells, 0, streams.MAX_SENTENCE_BYTES)
    return tf.ensure_shape(cells, [3])


def label_ids(labels: tf.Tensor) -> tf.Tensor:
    """Returns the index of each label in `LABELS`: string [n] -> int32 [n].

    Raises:
        InvalidArgumentError: a label is none of them.
    """
    labels = tf.strings.lower(labels)
    numbers = tf.fill(tf.shape(labels), -1)
    for spelling, number in _SPELLINGS.items():
        numbers = tf.where(labels == spelling, number, numbers)
    known = tf.debugging.assert_non_negative(
        numbers, f"a label is unknown; allowed: {', '.join(_SPELLINGS)}"
    )
    with tf.control_dependencies([known]):
        return tf.identity(numbers)
