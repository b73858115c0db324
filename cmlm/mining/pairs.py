"""Selects pairs from neighbours by margin, retrieval, threshold and one-to-one rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from cmlm.mining import margins
from cmlm.mining.neighbours import Found

# ratio: WikiMatrix (Schwenk et al., 2019, https://arxiv.org/abs/1907.05791);
# absolute: LaBSE, section 7 (Feng et al., https://arxiv.org/abs/2007.01852);
# distance: the pair is at least as near as its neighbours on average.
THRESHOLDS = {"ratio": 1.04, "distance": 0.0, "absolute": 0.6}
_AT_ONCE = 1 << 20


@dataclasses.dataclass
class Pairs:
    """Pairs of rows.

    Attributes:
        source, target: int64 [n], the rows of the two sides.
        score: float64 [n], the margin score.
        cosine: float32 [n], the cosine of the two rows.
    """

    source: np.ndarray
    target: np.ndarray
    score: np.ndarray
    cosine: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def where(self, chosen: np.ndarray) -> Pairs:
        """Selects pairs by a mask, a slice or indices."""
        return Pairs(
            self.source[chosen],
            self.target[chosen],
            self.score[chosen],
            self.cosine[chosen],
        )


def _joined(parts: Sequence[Pairs]) -> Pairs:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Pairs(*map(np.concatenate, columns))


def needed(retrieval: str, margin: str) -> tuple[str, ...]:
    """Returns the sides whose neighbours `mine` needs.

    Plain cosines in one direction need the neighbours of one side only.
    """
    if margin == "absolute" and retrieval in ("forward", "backward"):
        return ("source",) if retrieval == "forward" else ("target",)
    return ("source", "target")


def mine(
    of_source: Found | None,
    of_target: Found | None,
    margin: str,
    retrieval: str,
    threshold: float = -np.inf,
    one_to_one: bool = True,
) -> Pairs:
    """Selects pairs (Artetxe and Schwenk, 2019, section 3.2).

    `forward` takes the best candidate of each source sentence, and `backward` the best
    candidate of each target sentence. `intersection` takes the pairs that both find,
    and `max` the pairs of either.

    Args:
        of_source, of_target: neighbours of the two sides; a side that `needed` does not
            list may be None.
        margin: one of `margins.MARGINS`.
        retrieval: one of `choices.RETRIEVALS`.
        threshold: the lowest score to keep.
        one_to_one: use each sentence at most once. Pairs are taken greedily, in the
            order of their scores.

    Returns:
        The pairs by falling score; ties by source row, then by target row.
    """
    means = [
        None if margin == "absolute" else found.means()
        for found in (of_source, of_target)
    ]
    proposed = []
    if retrieval != "backward":
        proposed.append(_best(of_source, *means, margin))
    if retrieval != "forward":
        best = _best(of_target, *means[::-1], margin)
        best.source, best.target = best.target, best.source
        proposed.append(best)
    if retrieval == "intersection":
        forward, backward = proposed
        back = np.full(len(of_target), -1, np.int64)
        back[backward.target] = backward.source
        chosen = forward.where(back[forward.target] == forward.source)
    else:
        chosen = _joined(proposed)
    chosen = chosen.where(chosen.score >= threshold)
    chosen = chosen.where(np.lexsort((chosen.target, chosen.source, -chosen.score)))
    if one_to_one:
        return chosen.where(_greedy(chosen))
    return chosen.where(_first(chosen)) if retrieval == "max" else chosen


def _best(
    found: Found, of_x: np.ndarray | None, of_y: np.ndarray | None, margin: str
) -> Pairs:
    """Returns the pairs of each x with its best candidate y."""
    parts = []
    for start, cosines, rows in found.blocks():
        own = slice(start, start + len(rows))
        if margin == "absolute":
            scores = cosines.astype(np.float64)
        else:
            scores = margins.score(cosines, of_x[own], of_y[rows], margin)
        scores[rows < 0] = -np.inf
        best = np.argmax(scores, axis=1)
        each = np.arange(len(rows))
        chosen = Pairs(
            start + each, *(part[each, best] for part in (rows, scores, cosines))
        )
        parts.append(chosen.where(chosen.target >= 0))
    return _joined(parts)


def _first(pairs: Pairs) -> np.ndarray:
    """Returns the first index of each distinct pair, in order."""
    numbers = pairs.source * (1 + pairs.target.max(initial=0)) + pairs.target
    return np.sort(np.unique(numbers, return_index=True)[1])


def _greedy(pairs: Pairs) -> np.ndarray:
    """Returns the indices of pairs with two sentences that no taken pair has used."""
    of_source, of_target = (
        bytearray(int(rows.max(initial=-1)) + 1)
        for rows in (pairs.source, pairs.target)
    )
    chosen = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        rows = zip(
            pairs.source[part].tolist(), pairs.target[part].tolist(), strict=True
        )
        for number, (source, target) in enumerate(rows, start):
            if not of_source[source] and not of_target[target]:
                of_source[source] = of_target[target] = True
                chosen[number] = True
    return np.flatnonzero(chosen)
