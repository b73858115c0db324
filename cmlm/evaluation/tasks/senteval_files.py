"""Reads SentEval's files into labelled examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import parsing
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks.base import Pairs

_BINARY = {"0": 0, "1": 1}
_FIVE = {str(label): label for label in range(5)}
_QUESTION_TYPES = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}
_ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
# The organisers' file names, which the toolkit keeps.
SICK_FILES = {
    "train": "SICK/SICK_train.txt",
    "dev": "SICK/SICK_trial.txt",
    "test": "SICK/SICK_test_annotated.txt",
}


@dataclasses.dataclass
class Examples:
    """Labelled sentences or sentence pairs.

    Attributes:
        texts: the one or two sentences of each example.
        labels: the classes, int [n], or the scores, float [n].
        classes: the name of each class; empty if classes have only numbers.
        language: the language of texts of the user's own; empty if unknown.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray
    classes: Sequence[str] = dataclasses.field(default=(), kw_only=True)
    language: str = dataclasses.field(default="", kw_only=True)

    def __len__(self) -> int:
        return len(self.texts)

    def by_length(self) -> Examples:
        """The examples in the toolkit's order, on which the folds depend."""
        words = [tuple(text.split() for text in texts) for texts in self.texts]
        order = sorted(
            range(len(words)),
            key=lambda row: (*map(len, words[row]), float(self.labels[row])),
        )
        return dataclasses.replace(
            self,
            texts=[tuple(" ".join(text) for text in words[row]) for row in order],
            labels=self.labels[order],
        )

    def as_pairs(self) -> Pairs:
        """The pairs of sentences, with the labels as their gold."""
        first, second = map(list, zip(*self.texts, strict=True))
        return Pairs(first, second, self.labels)

    def shown(self, labels: np.ndarray) -> list[str]:
        """The names of classes, [n]; their numbers if they have no names."""
        return [self.classes[label] if self.classes else str(label) for label in labels]


# The parts of a data set, by name: `train`, and `dev` or `test` if they exist.
Parts = dict[str, Examples]
Reader = Callable[[DataDir], Parts]


def polarity(positive: str, negative: str) -> Reader:
    """A reader of one file of positive examples and one file of negative examples."""

    def read(source: DataDir) -> Parts:
        texts, labels = [], []
        for name, label in ((positive, 1), (negative, 0)):
            path = source.find(name, within="senteval")
            lines = source.lines(path, source.senteval_encodings)
            texts += [(line,) for line in lines]
            labels += [label] * len(lines)
        return {"train": Examples(texts, np.array(labels))}

    return read


def sst2(source: DataDir) -> Parts:
    """Reads rows of `sentence<TAB>label`."""
    parts = {}
    for part in ("train", "dev", "test"):
        path = source.find(f"SST/binary/sentiment-{part}", within="senteval")
        rows = [((text,), label) for text, label, *_ in source.table(path, 2)]
        parts[part] = examples_of(path, rows, _BINARY)
    return parts


def sst5(source: DataDir) -> Parts:
    """Reads lines of `label sentence`, with labels from 0 to 4."""
    parts = {}
    for part in ("train", "dev", "test"):
        path = source.find(f"SST/fine/sentiment-{part}", within="senteval")
        rows = []
        for line in source.lines(path):
            label, _, text = line.partition(" ")
            rows.append(((text,), label))
        parts[part] = examples_of(path, rows, _FIVE)
    return parts


def trec(source: DataDir) -> Parts:
    """Reads lines of `TYPE:subtype question`; the six types are the labels."""
    parts = {}
    for part, name in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        path = source.find(f"TREC/{name}", within="senteval")
        rows = []
        for line in source.lines(path, source.senteval_encodings):
            label, _, rest = line.partition(":")
            _, _, question = rest.partition(" ")
            rows.append(((question,), label))
        parts[part] = examples_of(path, rows, _QUESTION_TYPES)
    return parts


def mrpc(source: DataDir) -> Parts:
    """Reads rows of `label, id, id, sentence, sentence` under a header."""
    parts = {}
    for part in ("train", "test"):
        path = source.find(f"MRPC/msr_paraphrase_{part}.txt", within="senteval")
        rows = [((row[3], row[4]), row[0]) for row in source.table(path, 5)[1:]]
        parts[part] = examples_of(path, rows, _BINARY, first=2)
    return parts


def sick_entailment(source: DataDir) -> Parts:
    """Reads rows of `id, sentence, sentence, relatedness, judgment` under a header."""
    parts = {}
    for part, name in SICK_FILES.items():
        path = source.find(name, within="senteval")
        rows = [((row[1], row[2]), row[4].strip()) for row in source.table(path, 5)[1:]]
        parts[part] = examples_of(path, rows, _ENTAILMENT, first=2)
    return parts


def sick_relatedness(source: DataDir) -> Parts:
    """Reads the files of `sick_entailment` with their scores from 1 to 5."""
    return {part: sick_relatedness_part(source, part) for part in SICK_FILES}


def sick_relatedness_part(source: DataDir, part: str) -> Examples:
    """Reads the scores of one of SICK's three files."""
    path = source.find(SICK_FILES[part], within="senteval")
    return _scored_pairs(source, path, columns=(1, 2, 3), lowest=1, header=True)


def sts_benchmark(source: DataDir) -> Parts:
    """Reads `genre, file, year, id, score, sentence, sentence`; scores from 0 to 5."""
    return {part: sts_benchmark_part(source, part) for part in ("train", "dev", "test")}


def sts_benchmark_part(source: DataDir, part: str) -> Examples:
    """Reads one of STS-B's three files."""
    # In the toolkit, and in STS-B's own archive.
    names = f"STS/STSBenchmark/sts-{part}.csv", f"stsbenchmark/sts-{part}.csv"
    path = source.find(*names, within="senteval")
    return _scored_pairs(source, path, columns=(5, 6, 4), lowest=0, header=False)


def _scored_pairs(
    source: DataDir,
    path: str,
    columns: tuple[int, int, int],
    lowest: float,
    header: bool,
) -> Examples:
    first, second, gold = columns
    texts, scores = [], []
    for number, row in enumerate(source.table(path, max(columns) + 1), 1):
        if number > 1 or not header:
            where = f"{path}, line {number}"
            scores.append(parsing.parse_score(row[gold], lowest, 5, where))
            texts.append((row[first].strip(), row[second].strip()))
    return Examples(texts, np.array(scores))


def examples_of(
    path: str,
    rows: Sequence[tuple[tuple[str, ...], str]],
    classes: Mapping[str, int],
    first: int = 1,
) -> Examples:
    """Examples of rows of texts and a label; `first` is the number of their line."""
    labels = [
        parsing.parse_label(label, classes, f"{path}, line {number}")
        for number, (_, label) in enumerate(rows, first)
    ]
    if len(set(labels)) < 2:
        raise UserError(f"{path} has examples of one class; allowed: two or more")
    return Examples([texts for texts, _ in rows], np.array(labels))
