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


class SecondMoment:
    """The sum of x x^T over vectors x, from which components are fitted.

    The right singular vectors of X are the eigenvectors of X^T X. That matrix has the
    shape [dim, dim], so memory does not grow with the number of vectors.

    Args:
        dim: width of a vector.
    """

    def __init__(self, dim: int):
        self._sum = np.zeros([dim, dim])
        self._count = 0

    def add(self, vectors: np.ndarray) -> None:
        """Adds vectors, float [n, dim].

        Raises:
            UserError: the vectors have another width, or an entry is not finite.
        """
        dim = len(self._sum)
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise UserError(
                f"vectors of shape {list(vectors.shape)}; allowed: [n, {dim}]"
            )
        if not np.isfinite(vectors).all():
            raise UserError("a vector has an entry that is not a finite number")
        vectors = vectors.astype(np.float64)
        self._sum += vectors.T @ vectors
        self._count += len(vectors)

    def components(self, count: int) -> LanguageComponents:
        """Returns the strongest directions of the added vectors.

        Args:
            count: k, the number of directions.

        Raises:
            UserError: there is no vector other than zero, or `count` is below 1 or
                above the number of directions in which the vectors have length.
        """
        if not self._sum.any():
            raise UserError(
                "all vectors are zero; allowed: at least one that is not zero"
                if self._count
                else "no sentences; allowed: at least one"
            )
        # The eigenvalues ascend, and the eigenvectors have length 1.
        values, directions = np.linalg.eigh(self._sum)
        # Rounding gives eigenvalues other than 0 to directions without any length.
        rounding = max(self._count, len(values)) * np.finfo(np.float64).eps
        limit = int((values > values[-1] * rounding).sum())
        if not 1 <= count <= limit:
            raise UserError(
                f"--components is {count}; allowed: 1 to {limit}, the rank of "
                f"{counted(self._count, 'vector')} of width {len(self._sum)}"
            )
        found = directions.T[::-1][:count]
        # The sign of an eigenvector is arbitrary. With a fixed sign, equal data give
        # equal files.
        largest = np.abs(found).argmax(axis=1)
        found = found * np.sign(found[np.arange(count), largest])[:, np.newaxis]
        shares = values[::-1][:count] / values.sum()
        return LanguageComponents(
            found.astype(np.float32), tuple(map(float, shares)), self._count
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
    moment = SecondMoment(vectors.shape[1])
    moment.add(fitted)
    return remove(vectors, moment.components(1).components)
