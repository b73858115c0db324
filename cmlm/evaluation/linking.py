"""Entity linking: find the dictionary entry of a mention in a text.

The protocol follows the released code (dmis-lab/BioSyn, cambridgeltl/sapbert), which
Mirror-BERT uses (table 2). The names and synonyms of the dictionary form the pool. A
mention is right at k if one of its k nearest names shares a concept with it. A
composite mention (`breast cancer|ovarian cancer`) is right if all its parts are right.

The released files are `NAME/processed_test/*.concept`, with rows of
`document||span||type||mention||concepts`, and `NAME/test_dictionary.txt`, with rows of
`concepts||name`. Their mentions are in lower case and without punctuation, with
abbreviations resolved and composites split. Mentions without a concept (`CUI-less`, -1)
are left out.

If these files are missing, `ncbi-disease` reads the corpus in its authors' distribution
(Dogan et al., 2014) and MEDIC of 2012-07-06. This module then changes mentions to lower
case, removes punctuation, and counts each mention once a document. It neither resolves
abbreviations nor splits composites: a composite is right with any of its concepts. The
result has `released` 0.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, reading, search

_TOP = 5
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_WITHOUT_CONCEPT = {"CUI-less", "-1", ""}


@dataclasses.dataclass
class Linking:
    """Mentions and the dictionary that they are linked to.

    Attributes:
        mentions: the parts of each mention, [n]; several for a composite mention.
        concepts: the concepts of each mention, [n].
        names: the distinct names of the dictionary, [m].
        identifiers: the concepts of each name, [m].
        is_released: whether the data come from the released, processed files.
    """

    mentions: list[list[str]]
    concepts: list[set[str]]
    names: list[str]
    identifiers: list[set[str]]
    is_released: bool


class EntityLinking(base.Task[Linking]):
    """A corpus in the released layout.

    Args:
        name: the name of the task and of its folder.
    """

    main_metric = "accuracy"
    shown_metrics = (f"accuracy@{_TOP}",)
    protocol = (
        "accuracy@1 by cosine among the names of the test dictionary, composites right "
        "in all parts, x 100"
    )

    def __init__(self, name: str):
        self.name = name

    def read(self, source: reading.DataDir) -> Linking:
        paths = source.matching("processed_test/*.concept", within=self.name)
        dictionary = source.find("test_dictionary.txt", within=self.name)
        mentions, concepts = [], []
        for path in paths:
            for number, line in enumerate(source.lines(path), 1):
                row = line.split("||")
                if len(row) != 5:
                    raise UserError(
                        f"{path}, line {number}: {len(row)} columns; allowed: 5"
                    )
                if row[4].strip() not in _WITHOUT_CONCEPT:
                    mentions.append(re.split(r"[|+]", row[3].strip()))
                    concepts.append(_identifiers(row[4]))
        names = read_dictionary(source, dictionary)
        identifiers = list(names.values())
        return Linking(mentions, concepts, list(names), identifiers, True)

    def sentences(self, data: Linking) -> Iterable[str]:
        return [*(part for parts in data.mentions for part in parts), *data.names]

    def score(self, data: Linking, vectors: base.Vectors) -> dict[str, float]:
        parts = [part for mention in data.mentions for part in mention]
        _, found = search.nearest(
            search.unit_length(vectors(parts)),
            search.unit_length(vectors(data.names)),
            _TOP,
        )
        counts = [len(mention) for mention in data.mentions]
        owner = np.repeat(np.arange(len(counts)), counts)
        hits = np.array(
            [
                [bool(data.identifiers[row] & data.concepts[mention]) for row in rows]
                for mention, rows in zip(owner, found, strict=True)
            ]
        )
        at = {1: hits[:, :1], _TOP: hits}
        right = {
            top: np.bincount(owner, 1 - known.any(axis=1), len(counts)) == 0
            for top, known in at.items()
        }
        return {
            "accuracy": 100 * float(right[1].mean()),
            f"accuracy@{_TOP}": 100 * float(right[_TOP].mean()),
            "released": float(data.is_released),
        }


class NcbiDisease(EntityLinking):
    """The NCBI disease corpus: the released files, or the original corpus."""

    def read(self, source: reading.DataDir) -> Linking:
        try:
            return super().read(source)
        except reading.MissingData:
            return self._read_corpus(source)

    def _read_corpus(self, source: reading.DataDir) -> Linking:
        path = source.find("test/NCBItestset_corpus.txt", within=self.name)
        seen: dict[tuple[str, str, str], None] = {}
        for number, line in enumerate(source.lines(path), 1):
            row = line.split("\t")
            # Lines of one column are blank lines, titles and abstracts.
            if len(row) > 1:
                if len(row) != 6:
                    raise UserError(
                        f"{path}, line {number}: {len(row)} columns; allowed: 6"
                    )
                seen[row[0], processed(row[3]), row[5]] = None
        (dictionary, *_) = source.matching("medic-*.txt", within=self.name)
        names = read_dictionary(source, dictionary)
        return Linking(
            [[mention] for _, mention, _ in seen],
            [_identifiers(concepts) for _, _, concepts in seen],
            list(names),
            list(names.values()),
            False,
        )


def processed(text: str) -> str:
    """A mention or name in lower case, with spaces instead of punctuation."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def read_dictionary(source: reading.DataDir, path: str) -> dict[str, set[str]]:
    """Reads lines of `ID|OTHER ID||name|synonym|...` into concepts by processed name.

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
    return names


def _identifiers(text: str) -> set[str]:
    """Turns `D001|MESH:D002+OMIM:3` into {D001, D002, 3}, without prefixes."""
    parts = (part.strip() for part in re.split(r"[|+]", text))
    return {part.rpartition(":")[2] for part in parts if part}


TASKS = [
    NcbiDisease("ncbi-disease"),
    EntityLinking("bc5cdr-disease"),
    EntityLinking("bc5cdr-chemical"),
]
