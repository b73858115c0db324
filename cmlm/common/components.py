"""The maths of principal component removal (PCR): fit components, remove them.

For each language, c is the first right singular vector of the matrix whose rows are the
vectors of its sentences, not centred (Yang et al., 2020, section 5.2, after Arora et
al., 2017). PCR turns a vector v of that language into

    v' = v - (v . c) c

The printed formula omits the last c. With k components, PCR removes all k.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cmlm.errors import UserError


@dataclasses.dataclass(frozen=True)
class LanguageComponents:
    """The principal components of one language.

    Attributes:
        components: float32 [k, dim], orthonormal rows, the strongest first.
        shares: k floats, the part of the vectors' summed squared length that lies along
            each component, 0 to 1.
        sentences: how many vectors it was fitted on.
    """

    components: np.ndarray
    shares: tuple[float, ...]
    sentences: int


class SecondMoment:
    """The sum of x x^T over vectors; components are fitted from it.

    The right singular vectors of X are the eigenvectors of X^T X. That matrix has
    [dim, dim] entries, so memory does not grow with the number of vectors.

    Args:
        dim: width of a vector.
    """

    def __init__(self, dim: int):
        self._sum = np.zeros([dim, dim])
        self._count = 0

    def add(self, vectors: np.ndarray) -> None:
        """Adds vectors, float [n, dim].

        Raises:
            UserError: one has another width, or an entry that is not finite.
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
        """The strongest directions of what was added.

        Args:
            count: k.

        Raises:
            UserError: there are not so many directions.
        """
        limit = min(self._count, len(self._sum))
        if not 1 <= count <= limit:
            raise UserError(
                f"{count} components of {self._count} vectors of width "
                f"{len(self._sum)}; allowed: 1 to {limit}"
            )
        # Ascending, and of length 1.
        values, directions = np.linalg.eigh(self._sum)
        found = directions.T[::-1][:count]
        # A direction has no sign; fixing one makes equal data give equal files.
        largest = np.abs(found).argmax(axis=1)
        found = found * np.sign(found[np.arange(count), largest])[:, np.newaxis]
        shares = np.maximum(values[::-1][:count], 0) / max(values.sum(), 1e-300)
        return LanguageComponents(
            found.astype(np.float32), tuple(map(float, shares)), self._count
        )


def remove(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """v - sum over c of (v . c) c.

    Args:
        vectors: float [n, dim].
        components: float [k, dim], orthonormal rows.

    Returns:
        float [n, dim].
    """
    return vectors - (vectors @ components.T) @ components
