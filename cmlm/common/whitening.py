"""Whitening: fits the linear map that gives vectors the mean 0 and one variance.

Let mu be the mean and S = U L U^T the covariance of the vectors of some sentences.
Whitening (Su et al., 2021, https://arxiv.org/abs/2103.15316) turns a vector v into

    v' = (v - mu) U (L + r I)^(-1/2) = v K + b

The paper has r = 0. Here r is a hundredth of the mean of L: with r = 0, rounding would
become as large as the directions in which the vectors hardly differ. Layer norm leaves
one direction without any variance.

The whitened vectors are for cosines: a direction that all sentences share no longer
hides the others.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cmlm.common.moments import Moments, principal_axes
from cmlm.errors import UserError

_RIDGE = 0.01
# The variance of equal float32 vectors, as a share of their squared length, is below.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Whitening:
    """The fitted map.

    Attributes:
        kernel: K = U (L + r I)^(-1/2), float32 [dim, dim]; the direction of the largest
            variance comes first.
        bias: b = -mu K, float32 [dim].
        sentences: number of vectors that the map was fitted on.
    """

    kernel: np.ndarray
    bias: np.ndarray
    sentences: int

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Whitens vectors, float [n, dim]."""
        return vectors @ self.kernel + self.bias


def fit(moments: Moments) -> Whitening:
    """Fits the map to the moments of vectors.

    Raises:
        UserError: there are fewer vectors than their width, or all are equal.
    """
    dim = len(moments.products)
    if moments.count < dim:
        raise UserError(
            f"the text has {moments.count} sentences; allowed: at least {dim}, the "
            "width of a vector"
        )
    covariance = moments.covariance
    if np.trace(covariance) <= _ROUNDING * np.trace(moments.products) / moments.count:
        raise UserError(
            "the sentences of the text have equal vectors; allowed: different ones"
        )
    variances, directions = principal_axes(covariance)
    ridge = _RIDGE * variances.mean()
    kernel = directions.T / np.sqrt(np.maximum(variances, 0) + ridge)
    bias = -moments.mean @ kernel
    return Whitening(kernel.astype(np.float32), bias.astype(np.float32), moments.count)
