"""Entity linking: a disease as it is written to its entry in a dictionary.

NCBI disease corpus (Dogan et al., 2014) against MEDIC of 2012-07-06. The names and
synonyms of the dictionary are the pool; a mention is right at k if one of its k
nearest names belongs to its concept. As in the most used code (dmis-lab/BioSyn,
cambridgeltl/sapbert): lower case, each mention once a document, and a mention of
several concepts is right with any of them. A mention whose concept the dictionary
lacks counts as wrong.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, reading, search

_TOP = 5


@dataclasses.dataclass
class Linking:
    """Mentions and the names they are looked up in.

    Attributes:
        mentions: [n].
        concepts: identifiers of each mention, [n].
        names: distinct names of the dictionary, [m].
        identifiers: concepts of each name, [m].
    """

    mentions: list[str]
    concepts: list[set[str]]
    names: list[str]
    identifiers: list[set[str]]


class NcbiDisease(base.Task[Linking]):
    """The corpus' test set."""

    name = "ncbi-disease"
    main_metric = "accuracy"
    protocol = "accuracy@1 by cosine among the names of MEDIC, x 100"

    def read(self, source: reading.DataDir) -> Linking:
        path = source.find("test/NCBItestset_corpus.txt", within="ncbi-disease")
        seen: dict[tuple[str, str, str], None] = {}
        for number, line in enumerate(source.lines(path), 1):
            row = line.split("\t")
            # The others are blank lines, titles and abstracts.
            if len(row) > 1:
                if len(row) != 6:
                    raise UserError(
                        f"{path}, line {number}: {len(row)} columns; allowed: 6"
                    )
                seen[row[0], row[3].lower(), row[5]] = None
        (dictionary, *_) = source.matching("medic-*.txt", within="ncbi-disease")
        names = read_dictionary(source, dictionary)
        return Linking(
            [mention for _, mention, _ in seen],
            [_identifiers(concepts) for _, _, concepts in seen],
            list(names),
            list(names.values()),
        )

    def sentences(self, data: Linking) -> Iterable[str]:
        return [*data.mentions, *data.names]

    def score(self, data: Linking, vectors: base.Vectors) -> dict[str, float]:
        _, rows = search.nearest(
            search.unit_length(vectors(data.mentions)),
            search.unit_length(vectors(data.names)),
            _TOP,
        )
        hits = np.array(
            [
                [bool(data.identifiers[row] & concepts) for row in found]
                for found, concepts in zip(rows, data.concepts, strict=True)
            ]
        )
        return {
            "accuracy": 100 * float(hits[:, 0].mean()),
            f"accuracy@{_TOP}": 100 * float(hits.any(axis=1).mean()),
        }


def read_dictionary(source: reading.DataDir, path: str) -> dict[str, set[str]]:
    """Reads `ID|OTHER ID||name|synonym|...` lines: concepts by lower-cased name.

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
        for name in synonyms.split("|"):
            if name.strip():
                known = names.setdefault(name.strip().lower(), set())
                known |= _identifiers(identifiers)
    return names


def _identifiers(text: str) -> set[str]:
    """`D001|MESH:D002+OMIM:3` to {D001, D002, 3}: the dictionary has no prefixes."""
    parts = (part.strip() for part in re.split(r"[|+]", text))
    return {part.rpartition(":")[2] for part in parts if part}


TASKS = [NcbiDisease()]
