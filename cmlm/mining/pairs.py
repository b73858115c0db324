"""Selects pairs from neighbours by margin, retrieval, threshold and one-to-one rule."""

from __future__ import annotations

import numpy as np

from cmlm.mining import margins
from cmlm.mining.neighbours import Means, NeighbourFiles

# ratio: WikiMatrix (Schwenk et al., 2019, https://arxiv.org/abs/1907.05791);
# absolute: LaBSE, section 7 (Feng et al., https://arxiv.org/abs/2007.01852);
# distance: the pair is at least as near as its neighbours on average.
THRESHOLDS = {"ratio": 1.04, "distance": 0.0, "absolute": 0.6}
_AT_ONCE = 1 << 20

# A pair: its rows of the two sides, its margin score and its cosine.
PAIR = np.dtype(
    [("source", "<i8"), ("target", "<i8"), ("score", "<f8"), ("cosine", "<f4")]
)


def needed(retrieval: str, margin: str) -> tuple[str, ...]:
    """Returns the sides whose neighbours `mine` needs.

    Plain cosines in one direction need the neighbours of one side only.
    """
    if margin == "absolute" and retrieval in ("forward", "backward"):
        return ("source",) if retrieval == "forward" else ("target",)
    return ("source", "target")


def mine(
    of_source: NeighbourFiles | None,
    of_target: NeighbourFiles | None,
    margin: str,
    retrieval: str,
    threshold: float = -np.inf,
    one_to_one: bool = True,
) -> np.ndarray:
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
        The pairs, PAIR [n], by falling score; ties by source row, then by target row.
    """
    means = [
        None if margin == "absolute" else found.means()
        for found in (of_source, of_target)
    ]
    proposed = []
    if retrieval != "backward":
        sides = ("source", "target")
        proposed.append(_best(of_source, *means, margin, sides, threshold))
    if retrieval != "forward":
        sides = ("target", "source")
        # An intersection takes the scores of the forward pairs.
        lowest = -np.inf if retrieval == "intersection" else threshold
        proposed.append(_best(of_target, *means[::-1], margin, sides, lowest))
    if retrieval == "intersection":
        forward, backward = proposed
        back = np.full(len(of_target), -1, np.int64)
        back[backward["target"]] = backward["source"]
        chosen = forward[back[forward["target"]] == forward["source"]]
    else:
        chosen = np.concatenate(proposed)
    chosen = chosen[np.lexsort((chosen["target"], chosen["source"], -chosen["score"]))]
    if one_to_one:
        return chosen[_greedy(chosen)]
    return chosen[_first(chosen)] if retrieval == "max" else chosen


def _best(
    found: NeighbourFiles,
    of_x: Means | None,
    of_y: Means | None,
    margin: str,
    sides: tuple[str, str],
    threshold: float,
) -> np.ndarray:
    """Returns the pairs of each x with its best candidate y.

    Args:
        found: the neighbours of x.
        of_x, of_y: the mean cosines of both sides, or None.
        margin: see `mine`.
        sides: the names of x and y.
        threshold: the lowest score to keep.
    """
    x, y = sides
    parts = []
    for start, cosines, rows in found.blocks():
        each = np.arange(len(rows))
        if margin == "absolute":
            scores = cosines.astype(np.float64)
        else:
            known = np.where(rows < 0, np.float32(0), cosines)
            own = of_x.beside(start + each[:, np.newaxis], known)
            usual = own, of_y.beside(rows, known)
            scores = margins.score(known, *usual, margin)
        scores[rows < 0] = -np.inf
        best = np.argmax(scores, axis=1)
        chosen = np.empty(len(rows), PAIR)
        chosen[x], chosen[y] = start + each, rows[each, best]
        chosen["score"], chosen["cosine"] = scores[each, best], cosines[each, best]
        there = chosen["score"] > -np.inf
        parts.append(chosen[there & (chosen["score"] >= threshold)])
    return np.concatenate(parts)


def _first(pairs: np.ndarray) -> np.ndarray:
    """Returns the first index of each distinct pair, in order."""
    numbers = pairs["source"] * (1 + pairs["target"].max(initial=0)) + pairs["target"]
    return np.sort(np.unique(numbers, return_index=True)[1])


def _greedy(pairs: np.ndarray) -> np.ndarray:
    """Returns the indices of pairs with two sentences that no taken pair has used."""
    of_source, of_target = (
        bytearray(int(pairs[side].max(initial=-1)) + 1) for side in ("source", "target")
    )
    chosen = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _AT_ONCE):
        part = pairs[["source", "target"]][start : start + _AT_ONCE].tolist()
        for number, (source, target) in enumerate(part, start):
            if not of_source[source] and not of_target[target]:
                of_source[source] = of_target[target] = True
                chosen[number] = True
    return np.flatnonzero(chosen)
