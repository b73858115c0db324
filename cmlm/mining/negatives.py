"""Hard negatives: sentences near a source that are not translations of it.

A weaker model finds the target sentences nearest to the source, and the known
translations are removed. In LaBSE (Feng et al., 2020, https://arxiv.org/abs/2007.01852,
appendix B, after Guo et al., 2018, https://arxiv.org/abs/1807.11906), hard negatives
resemble the right translation instead of the source.
"""

from __future__ import annotations

import array
import dataclasses
import os
import sys
from collections.abc import Sequence

import numpy as np

from cmlm.common import progress
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.neighbours import NeighbourFiles
from cmlm.mining.texts import Texts
from cmlm.mining.vectors import ShardedVectors

# Extra neighbours to find, because some neighbours are known translations.
_SPARE = 16
# More comparisons of sources with the whole pool would take hours on one core.
MOST_COSINES = 10**11
# The cosines of so many sources and texts take 64 MB.
_SOURCES_AT_ONCE, _POOL_AT_ONCE = 1024, 16_384


@dataclasses.dataclass(frozen=True)
class NegativeRule:
    """Which texts become the hard negatives of a source.

    Attributes:
        count: the number of negatives of a source.
        skip: the number of nearest wrong texts to leave out.
        max_cosine: the highest cosine of a negative with its source.
    """

    count: int
    skip: int = 0
    max_cosine: float = 1.0


def neighbours_for(rule: NegativeRule, pool: int, has_right: bool) -> int:
    """Returns the number of neighbours to find for each source.

    Args:
        rule: the negatives to choose.
        pool: the number of texts to choose from.
        has_right: whether each source's right translation is among them.

    Raises:
        UserError: the pool is too small.
    """
    wrong = rule.count + rule.skip
    least = wrong + has_right
    if least > pool:
        raise UserError(
            f"the pool has {counted(pool, 'distinct sentence')}; "
            f"--hard_negatives={rule.count} with --skip_nearest={rule.skip} needs at "
            f"least {least}"
        )
    return min(wrong + _SPARE, pool)


def choose(
    source: Texts,
    target: Texts,
    pool: Texts,
    found: NeighbourFiles,
    vectors: tuple[ShardedVectors, ShardedVectors],
    rule: NegativeRule,
    directory: str,
) -> np.ndarray:
    """Chooses hard negatives for each distinct source.

    A candidate is dropped if it equals the source or one of its targets in the bitext,
    or if its cosine is above `max_cosine` (it may be a translation). The nearest `skip`
    of the other candidates are left out, and the next `count` are taken. If the found
    neighbours are too few for that, the source is compared with the whole pool. After
    MOST_COSINES such comparisons, the other sources of this kind stay without
    negatives, and a line on stderr counts them.

    Args:
        source, target: the columns of the bitext, with the same number of lines.
        pool: texts to choose from.
        found: neighbours of the sources in the pool.
        vectors: the unit vectors of `source` and of `pool`.
        rule: which candidates to take.
        directory: the directory for the file of the result.

    Returns:
        Rows of the pool, int64 [len(source), count], the nearest first. A source with
        fewer than `count` negatives has -1 in its whole row.
    """
    path = os.path.join(directory, "negatives.npy")
    chosen = storage.new_map(path, "<i8", (len(source), rule.count))
    choice = _Choice(source, target, pool, rule, chosen)
    short = _from_neighbours(found, choice)
    with progress.bar(len(short), "choosing from the whole pool") as bar:
        for first in range(0, len(short), _SOURCES_AT_ONCE):
            part = short[first : first + _SOURCES_AT_ONCE]
            known = [choice.known_to(own) for own in part]
            # So many are enough, whichever of the known texts are in the pool.
            needs = [rule.count + rule.skip + len(texts) for texts in known]
            queries = vectors[0].take(np.array(part))
            near = _nearest_allowed(queries, vectors[1], needs, rule.max_cosine)
            for each in zip(part, near, known, strict=True):
                choice.take(*each)
            bar.update(len(part))
    return chosen


@dataclasses.dataclass
class _Choice:
    """The negatives that are chosen so far.

    Attributes:
        source, target, pool, rule: see `choose`.
        rows: the result of `choose`.
    """

    source: Texts
    target: Texts
    pool: Texts
    rule: NegativeRule
    rows: np.ndarray

    def __post_init__(self):
        # The lines of the bitext by source, and where those of each source begin.
        self._lines = np.argsort(self.source.rows, kind="stable")
        own = np.arange(len(self.source) + 1)
        self._borders = np.searchsorted(self.source.rows[self._lines], own)

    def known_to(self, own: int) -> set[str]:
        """A source and its targets in the bitext."""
        lines = self._lines[self._borders[own] : self._borders[own + 1]]
        targets = self.target.take(self.target.rows[lines])
        return {*self.source.take([own]), *targets}

    def take(self, own: int, candidates: np.ndarray, known: set[str]) -> bool:
        """Chooses from candidates, the nearest first; False if they are too few."""
        wrong = [
            row
            for row, text in zip(candidates, self.pool.take(candidates), strict=True)
            if text not in known
        ][self.rule.skip : self.rule.skip + self.rule.count]
        is_enough = len(wrong) == self.rule.count
        self.rows[own] = wrong if is_enough else -1
        return is_enough


def _from_neighbours(found: NeighbourFiles, choice: _Choice) -> array.array:
    """Chooses from neighbours. Returns the sources to compare with the whole pool."""
    pool, short, left_out = len(choice.pool), array.array("q"), 0
    with progress.bar(len(found), "choosing negatives") as bar:
        for start, cosines, rows in found.blocks():
            allowed = (rows >= 0) & (_cut(cosines) <= choice.rule.max_cosine)
            for own, (fits, candidates) in enumerate(
                zip(allowed, rows, strict=True), start
            ):
                if choice.take(own, candidates[fits], choice.known_to(own)):
                    continue
                if len(candidates) == pool and candidates.min() >= 0:
                    continue  # The neighbours are the whole pool.
                if (len(short) + 1) * pool <= MOST_COSINES:
                    short.append(own)
                else:
                    left_out += 1
            bar.update(len(rows))
    if left_out:
        print(
            f"note: {counted(left_out, 'source')} with too few negatives among "
            f"{rows.shape[1]} neighbours; to search the whole pool for more would take "
            "too long",
            file=sys.stderr,
        )
    return short


def _cut(cosines: np.ndarray) -> np.ndarray:
    """Cuts cosines at 1, which rounding exceeds for equal vectors."""
    return np.minimum(cosines, np.float32(1))


def _nearest_allowed(
    queries: np.ndarray, pool: ShardedVectors, needs: Sequence[int], max_cosine: float
) -> list[np.ndarray]:
    """Finds for each query the nearest rows that are not nearer than `max_cosine`.

    Args:
        queries: unit vectors, float32 [n, dim].
        pool: the vectors to search.
        needs: the number of rows for each query.
        max_cosine: the highest cosine.

    Returns:
        Rows of the pool for each query, int64 [up to its need], the nearest first.
    """
    best = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(needs)
    for first in range(0, len(pool), _POOL_AT_ONCE):
        cosines = _cut(queries @ pool.read(first, first + _POOL_AT_ONCE).T)
        for own, need in enumerate(needs):
            values, rows = best[own]
            lowest = values[-1] if len(values) == need else -np.inf
            near = (cosines[own] <= max_cosine) & (cosines[own] > lowest)
            values = np.append(values, cosines[own][near])
            rows = np.append(rows, first + np.flatnonzero(near))
            order = np.lexsort((rows, -values))[:need]
            best[own] = values[order], rows[order]
    return [rows for _, rows in best]
