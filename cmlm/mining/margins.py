"""How much nearer a sentence is to a candidate than neighbours are anyway.

Artetxe and Schwenk, 2019, https://arxiv.org/abs/1811.01136. Some sentences are near to
everything, and their cosines cannot be compared with those of others; a margin divides
by, or subtracts, what is usual for the two.
"""

from __future__ import annotations

import numpy as np

MARGINS = ("ratio", "distance", "absolute")


def score(
    cosines: np.ndarray, of_x: np.ndarray, of_y: np.ndarray, margin: str = "ratio"
) -> np.ndarray:
    """Scores candidates, section 3.1.

    The usual cosine of x and y is (a(x) + a(y)) / 2, where a is the average cosine of a
    sentence with its k nearest on the other side.

    Args:
        cosines: float [n, k], of each x with its candidates.
        of_x: float [n], a(x).
        of_y: float [n, k], a(y) of the candidates.
        margin: `ratio` divides by the usual cosine (the score is 0 where that is not
            above 0), `distance` subtracts it, `absolute` leaves the cosine as it is.

    Returns:
        float64 [n, k].
    """
    cosines = np.asarray(cosines, np.float64)
    if margin == "absolute":
        return cosines
    usual = (np.asarray(of_x, np.float64)[:, np.newaxis] + of_y) / 2
    if margin == "distance":
        return cosines - usual
    if margin != "ratio":
        raise ValueError(f"margin {margin!r}; allowed: {', '.join(MARGINS)}")
    return np.divide(cosines, usual, out=np.zeros_like(cosines), where=usual > 0)
