"""Principal component removal (PCR): fits components and removes them from vectors.

For each language, c is the first right singular vector of the matrix whose rows are the
vectors of the language's sentences, not centred (Yang et al., 2020, section 5.2). PCR
turns a vector v of that language into

    v' = v - (v . c) c

This is the paper's "the projection of v onto c is removed". Its formula, a misprint,
is v - (v . c) / |v|. With k components, PCR removes all of them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cmlm.common.counts import counted
from cmlm.common.moments import Moments, principal_axes
from cmlm.errors import UserError


@dataclasses.dataclass(frozen=True)
class LanguageComponents:
    """The principal components of one language.

    Attributes:
        components: float32 [k, dim], orthonormal rows, the strongest first.
        shares: k floats from 0 to 1, the share of the vectors' summed squared length
            that lies along each component.
        sentences: number of vectors that the components were fitted on.
    """

    components: np.ndarray
    shares: tuple[float, ...]
    sentences: int


def fit(moments: Moments, count: int) -> LanguageComponents:
    """Finds the strongest directions of vectors.

    The right singular vectors of X are the eigenvectors of X^T X.

    Args:
        moments: the moments of the vectors.
        count: k, the number of directions.

    Raises:
        UserError: there is no vector other than zero, or `count` is below 1 or above
            the number of directions in which the vectors have length.
    """
    if not moments.products.any():
        raise UserError(
            "all vectors are zero; allowed: at least one that is not zero"
            if moments.count
            else "no sentences; allowed: at least one"
        )
    values, directions = principal_axes(moments.products)
    # Rounding gives eigenvalues other than 0 to directions without any length.
    rounding = max(moments.count, len(values)) * np.finfo(np.float64).eps
    limit = int((values > values[0] * rounding).sum())
    if not 1 <= count <= limit:
        raise UserError(
            f"--components is {count}; allowed: 1 to {limit}, the rank of "
            f"{counted(moments.count, 'vector')} of width {len(values)}"
        )
    shares = values[:count] / values.sum()
    return LanguageComponents(
        directions[:count].astype(np.float32),
        tuple(map(float, shares)),
        moments.count,
    )


def remove(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """Removes components from vectors: v - sum over c of (v . c) c.

    Args:
        vectors: float [n, dim].
        components: float [k, dim], orthonormal rows.

    Returns:
        float [n, dim].
    """
    return vectors - (vectors @ components.T) @ components


def without_component(
    vectors: np.ndarray, fitted: np.ndarray | None = None
) -> np.ndarray:
    """Removes the first principal component of a language from its vectors.

    Args:
        vectors: float [n, dim], the vectors of sentences in one language.
        fitted: float [m, dim], the vectors that c is fitted on; by default `vectors`
            themselves, as table 8 does on Tatoeba.

    Returns:
        float [n, dim].
    """
    fitted = vectors if fitted is None else fitted
    if not fitted.any():
        # Vectors of length 0 have no direction.
        return vectors
    moments = Moments(vectors.shape[1])
    moments.add(fitted)
    return remove(vectors, fit(moments, 1).components)
