"""Selects pairs from neighbours by margin, retrieval, threshold and one-to-one rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cmlm.mining import margins
from cmlm.mining.neighbours import OTHER, Means, NeighbourFiles

# ratio: WikiMatrix (Schwenk et al., 2019, https://arxiv.org/abs/1907.05791);
# absolute: LaBSE, section 7 (Feng et al., https://arxiv.org/abs/2007.01852);
# distance: the pair is at least as near as its neighbours on average.
THRESHOLDS = {"ratio": 1.04, "distance": 0.0, "absolute": 0.6}
_AT_ONCE = 1 << 20

# A pair: its rows of the two sides, its margin score and its cosine.
PAIR = np.dtype(
    [("source", "<i8"), ("target", "<i8"), ("score", "<f8"), ("cosine", "<f4")]
)


@dataclasses.dataclass(frozen=True)
class PairRule:
    """Which pairs to take (Artetxe and Schwenk, 2019, section 3.2).

    Attributes:
        margin: one of `choices.MARGINS`.
        retrieval: one of `choices.RETRIEVALS`. `forward` takes the best candidate of
            each source sentence, and `backward` the best candidate of each target
            sentence. `intersection` takes the pairs that both find, and `max` the pairs
            of either.
        threshold: the lowest score to keep.
        one_to_one: use each sentence at most once. Pairs are taken greedily, in the
            order of their scores.
    """

    margin: str
    retrieval: str
    threshold: float = -np.inf
    one_to_one: bool = True

    @property
    def needed(self) -> tuple[str, ...]:
        """The sides whose neighbours `mine` needs: one for cosines in one direction."""
        if self.margin == "absolute" and self.retrieval in ("forward", "backward"):
            return ("source",) if self.retrieval == "forward" else ("target",)
        return ("source", "target")


def mine(found: Mapping[str, NeighbourFiles], rule: PairRule) -> np.ndarray:
    """Selects pairs.

    Args:
        found: the neighbours of each side that `rule.needed` lists.
        rule: which pairs to take.

    Returns:
        The pairs, PAIR [n], by falling score; ties by source row, then by target row.
    """
    means = {}
    if rule.margin != "absolute":
        means = {side: neighbours.means() for side, neighbours in found.items()}
    proposed = []
    if rule.retrieval != "backward":
        proposed.append(_best("source", found, means, rule))
    if rule.retrieval != "forward":
        own = rule
        if rule.retrieval == "intersection":
            # An intersection takes the scores of the forward pairs.
            own = dataclasses.replace(rule, threshold=-np.inf)
        proposed.append(_best("target", found, means, own))
    if rule.retrieval == "intersection":
        forward, backward = proposed
        back = np.full(len(found["target"]), -1, np.int64)
        back[backward["target"]] = backward["source"]
        chosen = forward[back[forward["target"]] == forward["source"]]
    else:
        chosen = np.concatenate(proposed)
    chosen = chosen[np.lexsort((chosen["target"], chosen["source"], -chosen["score"]))]
    if rule.one_to_one:
        return chosen[_greedy(chosen)]
    return chosen[_first(chosen)] if rule.retrieval == "max" else chosen


def _best(
    x: str,
    found: Mapping[str, NeighbourFiles],
    means: Mapping[str, Means],
    rule: PairRule,
) -> np.ndarray:
    """Returns the pairs of each x with its best candidate y.

    Args:
        x: the name of the side.
        found: the neighbours of each side.
        means: the mean cosines of each side, unless the margin is `absolute`.
        rule: the margin, and the lowest score to keep.
    """
    y, parts = OTHER[x], []
    for start, cosines, rows in found[x].blocks():
        each = np.arange(len(rows))
        if rule.margin == "absolute":
            scores = cosines.astype(np.float64)
        else:
            known = np.where(rows < 0, np.float32(0), cosines)
            of_x = means[x].beside(start + each[:, np.newaxis], known)
            of_y = means[y].beside(rows, known)
            scores = margins.score(known, of_x, of_y, rule.margin)
        scores[rows < 0] = -np.inf
        best = np.argmax(scores, axis=1)
        chosen = np.empty(len(rows), PAIR)
        chosen[x], chosen[y] = start + each, rows[each, best]
        chosen["score"], chosen["cosine"] = scores[each, best], cosines[each, best]
        there = chosen["score"] > -np.inf
        parts.append(chosen[there & (chosen["score"] >= rule.threshold)])
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
