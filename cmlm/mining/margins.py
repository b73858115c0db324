"""Margin scores: the cosine of a pair relative to the cosines of its neighbours.

Artetxe and Schwenk, 2019, https://arxiv.org/abs/1811.01136. Some sentences have a high
cosine with most sentences, so plain cosines of different sentences are not comparable.
A margin divides the cosine by the mean cosine of the neighbours, or subtracts it.
"""

from __future__ import annotations

import numpy as np

from cmlm.common.choices import MARGINS


def score(
    cosines: np.ndarray, of_x: np.ndarray, of_y: np.ndarray, margin: str = "ratio"
) -> np.ndarray:
    """Scores candidates (section 3.1 of the paper).

    Let a(x) be the mean cosine of x with its k nearest sentences on the other side, and
    m = (a(x) + a(y)) / 2. The score is cos / m (`ratio`), cos - m (`distance`) or cos
    (`absolute`).

    Args:
        cosines: float [n, k], each x with its candidates.
        of_x, of_y: float [n, k], a(x) and a(y) of each candidate; [n, 1] if the
            candidates of an x share the value.
        margin: one of MARGINS. The score of `ratio` is 0 where m is not above 0.

    Returns:
        float64 [n, k].

    Raises:
        ValueError: the margin, or the shape of the means, is another one.
    """
    cosines = np.asarray(cosines, np.float64)
    if margin == "absolute":
        return cosines
    for name, means in (("of_x", of_x), ("of_y", of_y)):
        # NumPy would take k values for each x as values of each candidate.
        if (shape := np.shape(means)) not in (cosines.shape, (len(cosines), 1)):
            raise ValueError(
                f"{name} has the shape {list(shape)}; allowed: "
                f"{list(cosines.shape)} or {[len(cosines), 1]}"
            )
    mean = (np.asarray(of_x, np.float64) + of_y) / 2
    if margin == "distance":
        return cosines - mean
    if margin != "ratio":
        raise ValueError(f"margin is {margin!r}; allowed: {', '.join(MARGINS)}")
    return np.divide(cosines, mean, out=np.zeros_like(cosines), where=mean > 0)
