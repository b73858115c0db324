"""Adam in numpy, as PyTorch computes it, for SentEval's networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


class Adam:
    """Adam for some arrays, which it changes in place.

    Args:
        weights: the arrays.
    """

    def __init__(self, weights: Sequence[np.ndarray]):
        self._weights = weights
        self._means = [np.zeros_like(part) for part in weights]
        self._variances = [np.zeros_like(part) for part in weights]
        self._step = 0

    def update(self, gradients: Sequence[np.ndarray]) -> None:
        """Takes one step."""
        self._step += 1
        for part, gradient, mean, variance in zip(
            self._weights, gradients, self._means, self._variances, strict=True
        ):
            mean += (1 - _BETA1) * (gradient - mean)
            variance += (1 - _BETA2) * (gradient**2 - variance)
            unbiased = mean / (1 - _BETA1**self._step)
            spread = variance / (1 - _BETA2**self._step)
            part -= _RATE * unbiased / (np.sqrt(spread) + _EPSILON)
