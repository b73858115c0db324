"""Neighbours in your own text: does a sentence find the next one? No labels needed.

`neighbours:FILE` takes text in the layout of training text. The first sentence of each
document searches the second sentences of all documents for its own. The encoder should
not have trained on the file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import metrics, search
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base

_LISTED = 10


@dataclasses.dataclass
class Openings:
    """How documents open.

    Attributes:
        first: the first sentence of each document, [n].
        second: the distinct second sentences, [m].
        rows: the row of `second` that follows each sentence of `first`, int64 [n].
        language: the language of the sentences; empty if unknown.
    """

    first: list[str]
    second: list[str]
    rows: np.ndarray
    language: str = ""


class NeighboursFiles(base.PredictingTask[Openings]):
    """Retrieval of the next sentence.

    Args:
        paths: files of text in one language: one sentence a line, a blank line between
            documents; see `DataDir.find_own`.
    """

    main_metric = "accuracy"
    shown_metrics = (f"accuracy_at_{_LISTED}",)
    not_ranked = ("candidates",)
    protocol = (
        "the first sentence of a document searches the second sentences of all "
        f"documents by cosine: its own is the nearest, or among the {_LISTED} nearest, "
        "x 100; first sentences that are also second sentences do not search"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "neighbours:" + ":".join(paths)
        self._paths = paths

    def read(self, source: DataDir) -> Openings:
        pairs = []
        paths, language = source.find_own_of_one_language(self._paths)
        for path in paths:
            lines = source.lines(path)
            for is_text, document in itertools.groupby(map(str.strip, lines), bool):
                opening = list(itertools.islice(document, 2)) if is_text else []
                if len(opening) == 2:
                    pairs.append(opening)
        rows: dict[str, int] = {}
        for _, second in pairs:
            rows.setdefault(second, len(rows))
        # A query that is a candidate too would find itself.
        pairs = [pair for pair in pairs if pair[0] not in rows]
        named = ", ".join(self._paths)
        if len(rows) < 2:
            raise UserError(
                f"{named}: {counted(len(rows), 'document')} with different second "
                "sentences; allowed: at least 2, a blank line between them"
            )
        if not pairs:
            raise UserError(
                f"{named}: each first sentence is also a second sentence; allowed: at "
                "least one that is not"
            )
        return Openings(
            [first for first, _ in pairs],
            list(rows),
            np.array([rows[second] for _, second in pairs]),
            language,
        )

    def sentences(self, data: Openings) -> Iterable[str]:
        return [*data.first, *data.second]

    def outcome(self, data: Openings, vectors: base.Vectors) -> base.Outcome:
        sides = (vectors(side, data.language) for side in (data.first, data.second))
        # The nearest rows of `second` for each sentence of `first`, int64 [n, k].
        found = search.nearest(*sides, _LISTED).rows
        nearest = found[:, 0]
        listed = (found == data.rows[:, np.newaxis]).any(axis=1)
        scores = {
            "accuracy": metrics.accuracy(nearest, data.rows),
            f"accuracy_at_{_LISTED}": 100 * float(listed.mean()),
            "candidates": float(len(data.second)),
        }
        predictions = base.Predictions(
            [data.first],
            [data.second[row] for row in data.rows],
            (nearest == data.rows).astype(float),
            answers=[data.second[row] for row in nearest],
        )
        return base.Outcome(scores, {"": predictions})
