"""Hard negatives: for a sentence, near texts that are not its translation.

Feng et al., 2020 (LaBSE), https://arxiv.org/abs/2007.01852, appendix B, after Guo et
al., 2018, https://arxiv.org/abs/1807.11906: a weaker model looks for the target
sentences that are nearest to the source, and the right ones are taken out.
"""

from __future__ import annotations

import os

import numpy as np

from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.neighbours import Found
from cmlm.mining.texts import Texts

# Neighbours beyond those asked for, since known translations are among them.
_SPARE = 16


def neighbours_for(count: int, skip: int, pool: int) -> int:
    """How many neighbours to look for.

    Args:
        count: hard negatives of a pair.
        skip: nearest ones to leave out.
        pool: texts to choose from.

    Raises:
        UserError: there are too few.
    """
    # One more: a pool of targets holds the right one too.
    if count + skip + 1 > pool:
        raise UserError(
            f"--hard_negatives={count} with --skip_nearest={skip}, but the pool has "
            f"{pool} different sentences; at least {count + skip + 1} are needed"
        )
    return min(count + skip + _SPARE, pool)


def choose(
    source: Texts,
    target: Texts,
    pool: Texts,
    found: Found,
    count: int,
    skip: int,
    max_cosine: float,
    directory: str,
) -> np.ndarray:
    """Chooses hard negatives for each distinct source.

    Left out are texts that equal the source or any of its targets in the bitext, then
    the nearest `skip` of the rest, and what is nearer than `max_cosine`: such a one
    may be right.

    Args:
        source, target: columns of the bitext, with as many lines.
        pool: texts to choose from.
        found: neighbours of the sources in the pool.
        count: negatives of a source.
        skip: see above.
        max_cosine: see above.
        directory: for the result.

    Returns:
        Rows of the pool, int64 [len(source), count], the nearest first; -1 in the
        whole row where there are not as many.
    """
    chosen = storage.new_map(
        os.path.join(directory, "negatives.npy"), "<i8", (len(source), count)
    )
    lines = np.argsort(source.rows, kind="stable")
    borders = np.searchsorted(source.rows[lines], np.arange(len(source) + 1))
    with storage.bar(len(source), "choosing negatives", "sentences") as bar:
        for start, cosines, rows in found.blocks():
            for own, (near, candidates) in enumerate(
                zip(cosines, rows, strict=True), start
            ):
                allowed = candidates[(candidates >= 0) & (near <= max_cosine)]
                known = set(source.take([own]))
                of_source = lines[borders[own] : borders[own + 1]]
                known.update(target.take(target.rows[of_source]))
                texts = pool.take(allowed)
                wrong = [
                    row
                    for row, text in zip(allowed.tolist(), texts, strict=True)
                    if text not in known
                ][skip : skip + count]
                chosen[own] = wrong if len(wrong) == count else -1
            bar.update(len(rows))
    return chosen
