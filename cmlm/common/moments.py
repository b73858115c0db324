"""The first and second moments of vectors, from which linear maps are fitted."""

from __future__ import annotations

import numpy as np

from cmlm.errors import UserError


class Moments:
    """The sums of x and of x x^T over vectors x.

    The sums have the shapes [dim] and [dim, dim], so memory does not grow with the
    number of vectors.

    Args:
        dim: width of a vector.

    Attributes:
        count: number of vectors.
        products: the sum of x x^T, float64 [dim, dim].
    """

    def __init__(self, dim: int):
        self.count = 0
        self.products = np.zeros([dim, dim])
        self._sum = np.zeros(dim)

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
        self.products += vectors.T @ vectors
        self._sum += vectors.sum(axis=0)
        self.count += len(vectors)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the vectors, float64 [dim]."""
        return self._sum / self.count

    @property
    def covariance(self) -> np.ndarray:
        """The covariance of the vectors, float64 [dim, dim]."""
        return self.products / self.count - np.outer(self.mean, self.mean)


def principal_axes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns eigenvalues and eigenvectors, the largest eigenvalue first.

    Args:
        matrix: symmetric, float64 [dim, dim].

    Returns:
        float64 [dim], and float64 [dim, dim] with an eigenvector of length 1 in each
        row. The sign of an eigenvector is arbitrary; here its largest entry is
        positive, so equal data give equal vectors.
    """
    values, directions = np.linalg.eigh(matrix)
    values, directions = values[::-1], directions.T[::-1]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(values)), largest])
    return values, directions * signs[:, np.newaxis]
