"""Hard negatives: sentences near a source that are not translations of it.

Feng et al., 2020 (LaBSE), https://arxiv.org/abs/2007.01852, appendix B, after Guo et
al., 2018, https://arxiv.org/abs/1807.11906: a weaker model finds the target sentences
nearest to the source, and the known translations are removed.
"""

from __future__ import annotations

import os

import numpy as np

from cmlm.common import progress
from cmlm.errors import UserError
from cmlm.mining import storage
from cmlm.mining.neighbours import Found
from cmlm.mining.texts import Texts

# Extra neighbours to find, because some neighbours are known translations.
_SPARE = 16


def neighbours_for(count: int, skip: int, pool: int) -> int:
    """Returns the number of neighbours to find for each source.

    Args:
        count: the number of hard negatives of a pair.
        skip: the number of nearest wrong texts to leave out.
        pool: the number of texts to choose from.

    Raises:
        UserError: the pool is too small.
    """
    # One more neighbour, because a pool of targets contains the right translation, too.
    if count + skip + 1 > pool:
        raise UserError(
            f"the pool has {pool} distinct sentences; --hard_negatives={count} with "
            f"--skip_nearest={skip} needs at least {count + skip + 1}"
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

    A candidate is dropped if it equals the source or one of its targets in the bitext,
    or if its cosine is above `max_cosine` (it may be a translation). The nearest `skip`
    of the other candidates are left out, and the next `count` are taken.

    Args:
        source, target: the columns of the bitext, with the same number of lines.
        pool: texts to choose from.
        found: neighbours of the sources in the pool.
        count: the number of negatives of a source.
        skip: the number of nearest candidates to leave out.
        max_cosine: the highest cosine of a negative with its source.
        directory: the directory for the file of the result.

    Returns:
        Rows of the pool, int64 [len(source), count], the nearest first. A source with
        fewer than `count` negatives has -1 in its whole row.
    """
    chosen = storage.new_map(
        os.path.join(directory, "negatives.npy"), "<i8", (len(source), count)
    )
    lines = np.argsort(source.rows, kind="stable")
    borders = np.searchsorted(source.rows[lines], np.arange(len(source) + 1))
    with progress.bar(len(source), "choosing negatives") as bar:
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
