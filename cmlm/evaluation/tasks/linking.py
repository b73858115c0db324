"""Entity linking: find the dictionary entry of a mention in a text.

The protocol follows the released code (dmis-lab/BioSyn, cambridgeltl/sapbert), which
Mirror-BERT uses (table 2). The names and synonyms of the dictionary form the pool. A
mention is right at k if one of its k nearest names shares a concept with it. The
nearest names have the largest inner products with the mention, as in the released code;
`accuracy_cosine` ranks by cosine. A composite mention (`breast cancer|ovarian cancer`)
is right if all its parts are right.

The released files are `NAME/processed_test/*.concept`, with rows of
`document||span||type||mention||concepts`, and `NAME/test_dictionary.txt`, with rows of
`concepts||name`. Their mentions are in lower case and without punctuation, with
abbreviations resolved and composites split. Mentions without a concept (`CUI-less`, -1)
are left out.

AskAPatient and COMETA come in the files of SapBERT's authors: a dictionary with rows of
`concept||name`, whose names are changed to lower case only. Each row stays a name of
its own, as in the released code: of equal names with different concepts, the first one
is the nearest. (The released files of the other corpora unite the concepts of equal
names.) AskAPatient has ten folds, `AskAPatient.fold-N.test.preprocessed_query.txt`,
with rows of `concept||mention`; its score is the mean over them. COMETA has tables with
columns `Term` and `General SNOMED ID`, whose cells may have the quotes of CSV.
Mirror-BERT tests on the split `stratified_general` and tunes on `zeroshot_general`. A
`+` or `|` of COMETA belongs to the mention.

If its files are missing, `ncbi-disease` reads the corpus in its authors' distribution
(Dogan et al., 2014) and MEDIC of 2012-07-06. This module then changes mentions to lower
case, removes punctuation, and counts each mention once a document. It neither resolves
abbreviations nor splits composites: a composite is right with any of its concepts. The
result has `released` 0.
"""

from __future__ import annotations

import dataclasses
import os
import re
import string
from collections.abc import Iterable, Iterator

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import parsing, search
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base
from cmlm.mining import exact

_TOP = 5
_FOLDER = "askapatient"
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_WITHOUT_CONCEPT = {"CUI-less", "-1", ""}


@dataclasses.dataclass
class Linking:
    """Mentions and the dictionary that they are linked to.

    Attributes:
        mentions: the parts of each mention, [n]; several for a composite mention.
        concepts: the concepts of each mention, [n].
        names: the names of the dictionary, each with its concepts.
        is_released: whether the data come from the released, processed files.
    """

    mentions: list[list[str]]
    concepts: list[set[str]]
    names: list[tuple[str, set[str]]]
    is_released: bool = True

    def sentences(self) -> list[str]:
        """The parts of all mentions, and the names."""
        parts = (part for parts in self.mentions for part in parts)
        return [*parts, *(name for name, _ in self.names)]


class EntityLinking(base.Task[Linking]):
    """A corpus in the released layout.

    The released files of all corpora have the same names. So the folder of a corpus has
    the name of its task: it is the folder of test sets, or a folder in it.

    Args:
        name: the name of the task and of its folder.
    """

    main_metric = "accuracy"
    shown_metrics = (f"accuracy@{_TOP}", "accuracy_cosine")
    not_ranked = ("released",)
    protocol = (
        "accuracy@1 by inner product among the names of the test dictionary, "
        "composites right in all parts, x 100"
    )

    def __init__(self, name: str):
        self.name = name

    def read(self, source: DataDir) -> Linking:
        if os.path.basename(source.path) != self.name:
            source = source.inside(self.name)
        paths = source.matching("processed_test/*.concept")
        dictionary = source.find("test_dictionary.txt")
        mentions, concepts = [], []
        for path in paths:
            # A document without a mention has an empty file.
            lines = enumerate(source.text(path).split("\n"), 1)
            numbered = [(row, text.split("||")) for row, text in lines if text.strip()]
            parsing.check_columns(path, numbered, 5)
            for _, row in numbered:
                if row[4].strip() not in _WITHOUT_CONCEPT:
                    mentions.append(re.split(r"[|+]", row[3].strip()))
                    concepts.append(_identifiers(row[4]))
        names = read_dictionary(source, dictionary)
        return _checked(Linking(mentions, concepts, names), os.path.dirname(paths[0]))

    def sentences(self, data: Linking) -> Iterable[str]:
        return data.sentences()

    def score(self, data: Linking, vectors: base.Vectors) -> dict[str, float]:
        return link(data, vectors) | {"released": float(data.is_released)}


def link(data: Linking, vectors: base.Vectors) -> dict[str, float]:
    """The accuracies of mentions and a dictionary, times 100.

    Returns:
        `accuracy` and `accuracy@5` by inner product; `accuracy_cosine` and
        `accuracy_cosine@5`.
    """
    parts = [part for mention in data.mentions for part in mention]
    names, identifiers = zip(*data.names, strict=True)
    both = vectors(parts, "en"), vectors(list(names), "en")
    counts = [len(mention) for mention in data.mentions]
    owner = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum([0, *counts[:-1]])
    scores = {}
    for metric, nearest in (
        ("accuracy", exact.nearest),
        ("accuracy_cosine", search.nearest),
    ):
        hits = np.array(
            [
                [bool(identifiers[row] & data.concepts[mention]) for row in rows]
                for mention, rows in zip(owner, nearest(*both, _TOP).rows, strict=True)
            ]
        )
        for suffix, top in (("", 1), (f"@{_TOP}", _TOP)):
            is_found = hits[:, :top].any(axis=1)
            # A mention is right if all its parts are.
            right = np.logical_and.reduceat(is_found, starts)
            scores[metric + suffix] = 100 * float(right.mean())
    return scores


class NcbiDisease(EntityLinking):
    """The NCBI disease corpus: the released files, or the original corpus."""

    def read(self, source: DataDir) -> Linking:
        try:
            return super().read(source)
        except MissingData as error:
            try:
                path = source.find("test/NCBItestset_corpus.txt", within=self.name)
            except MissingData:
                # Neither is there, or the released files lack one.
                raise error from None
        return self._read_corpus(source, path)

    def _read_corpus(self, source: DataDir, path: str) -> Linking:
        # Lines of one column are blank lines, titles and abstracts.
        numbered = [
            (number, line.split("\t"))
            for number, line in enumerate(source.lines(path), 1)
            if "\t" in line
        ]
        parsing.check_columns(path, numbered, 6)
        seen = dict.fromkeys((row[0], processed(row[3]), row[5]) for _, row in numbered)
        (dictionary, *_) = source.matching("medic-*.txt", within=self.name)
        linking = Linking(
            [[mention] for _, mention, _ in seen],
            [_identifiers(concepts) for _, _, concepts in seen],
            read_dictionary(source, dictionary),
            is_released=False,
        )
        return _checked(linking, path)


class AskAPatient(base.PartedTask[Linking]):
    """Phrases of patients and concepts of SNOMED CT, in ten folds."""

    main_metric = "accuracy"
    shown_metrics = (f"accuracy@{_TOP}", "accuracy_cosine")
    protocol = (
        "accuracy@1 by inner product among the names of the dictionary, composites "
        "right in all parts, x 100; mean over folds"
    )
    _QUERIES = "AskAPatient.fold-{}.test.preprocessed_query.txt"

    def find_parts(self, source: DataDir) -> dict[str, str]:
        paths = source.matching(self._QUERIES.format("*"), within=_FOLDER)
        return {
            os.path.basename(path).split("-")[1].split(".")[0]: path for path in paths
        }

    def read_part(self, source: DataDir, part: str, where: str) -> Linking:
        names = _names(source, source.find("AskAPatient.dict.txt", within=_FOLDER))
        mentions, concepts = [], []
        for concept, mention in _two_columns(source, where):
            mentions.append(re.split(r"[|+]", mention))
            concepts.append(_identifiers(concept))
        return _checked(Linking(mentions, concepts, names), where)

    def part_sentences(self, data: Linking) -> Iterable[str]:
        return data.sentences()

    def part_outcome(
        self, part: str, data: Linking, vectors: base.Vectors
    ) -> base.Outcome:
        return base.Outcome(link(data, vectors))


class Cometa(EntityLinking):
    """Terms of health forums and concepts of SNOMED CT (Basaldella et al., 2020).

    Args:
        name: the name of the task.
        split: the name of the folder in `splits/`.
    """

    protocol = "accuracy@1 by inner product among the names of the dictionary, x 100"

    def __init__(self, name: str, split: str):
        super().__init__(name)
        self._split = split

    def read(self, source: DataDir) -> Linking:
        path = source.find(f"splits/{self._split}/test.csv", within="cometa")
        dictionary = source.find("COMETA_id_sf_dictionary.txt", within="cometa")
        names = _names(source, dictionary)
        head, *rows = parsing.unquoted(source.table(path, 2))
        term, concept = parsing.columns(head, ("Term", "General SNOMED ID"), path)
        parsing.check_columns(path, enumerate(rows, 2), len(head))
        mentions = [[row[term].strip()] for row in rows]
        concepts = [_identifiers(row[concept]) for row in rows]
        return _checked(Linking(mentions, concepts, names), path)


def _checked(linking: Linking, path: str) -> Linking:
    if not linking.mentions:
        raise UserError(f"{path} has no mention with a concept; allowed: at least 1")
    if not linking.names:
        raise UserError(
            f"the dictionary of {path} has no name with a concept; allowed: at least 1"
        )
    return linking


def _two_columns(source: DataDir, path: str) -> Iterator[tuple[str, str]]:
    """Yields the columns of rows of `concept||text`, without concept-less rows.

    Raises:
        UserError: a row has another number of columns.
    """
    numbered = [
        (number, line.split("||"))
        for number, line in enumerate(source.lines(path), 1)
        if line.strip()
    ]
    parsing.check_columns(path, numbered, 2)
    for _, (concept, text) in numbered:
        if concept.strip() not in _WITHOUT_CONCEPT:
            yield concept, text.strip()


def _names(source: DataDir, path: str) -> list[tuple[str, set[str]]]:
    """Reads rows of `concept||name` into names in lower case and their concepts."""
    return [
        (name.lower(), _identifiers(concept))
        for concept, name in _two_columns(source, path)
    ]


def processed(text: str) -> str:
    """A mention or name in lower case, with spaces instead of punctuation."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def read_dictionary(source: DataDir, path: str) -> list[tuple[str, set[str]]]:
    """Reads lines of `ID|OTHER ID||name|synonym|...` into processed names.

    Equal names are one name with the concepts of all of them.

    Raises:
        UserError: a line has no `||`.
    """
    names: dict[str, set[str]] = {}
    for number, line in enumerate(source.lines(path), 1):
        if not line.strip():
            continue
        identifiers, found, synonyms = line.partition("||")
        if not found:
            raise UserError(f"{path}, line {number}: no '||' after the identifiers")
        for name in map(processed, synonyms.split("|")):
            if name:
                names.setdefault(name, set()).update(_identifiers(identifiers))
    return list(names.items())


def _identifiers(text: str) -> set[str]:
    """Turns `D001|MESH:D002+OMIM:3` into {D001, D002, 3}, without prefixes."""
    parts = (part.strip() for part in re.split(r"[|+]", text))
    return {part.rpartition(":")[2] for part in parts if part}


TASKS = [
    NcbiDisease("ncbi-disease"),
    EntityLinking("bc5cdr-disease"),
    EntityLinking("bc5cdr-chemical"),
    AskAPatient("askapatient"),
    Cometa("cometa", "stratified_general"),
    Cometa("cometa-zeroshot", "zeroshot_general"),
]
