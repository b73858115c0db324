"""Principal component removal on test sentences, separately for each language."""

from __future__ import annotations

import numpy as np

from cmlm.common import components


def without_component(
    vectors: np.ndarray, fitted: np.ndarray | None = None
) -> np.ndarray:
    """Removes the first principal component of a language from its vectors.

    Yang et al., 2020, section 5.2: c is the first right singular vector of the
    language's matrix, not centred; v becomes v - (v . c) c.

    Args:
        vectors: float [n, dim], the vectors of sentences in one language.
        fitted: float [m, dim], the vectors that c is fitted on; by default `vectors`
            themselves, as table 8 does on Tatoeba.

    Returns:
        float [n, dim].
    """
    moment = components.SecondMoment(vectors.shape[1])
    moment.add(vectors if fitted is None else fitted)
    return components.remove(vectors, moment.components(1).components)
