"""SentEval's regression of scores: a softmax over the integer scores 1 to 5.

It follows facebookresearch/SentEval, senteval/tools/relatedness.py, without torch: a
linear layer and a softmax, trained with Adam on the squared error. The target spreads a
score over the two nearest integers (Tai et al., 2015, https://arxiv.org/abs/1503.00075,
section 4.2). Every 50 epochs the Pearson correlation on the validation set is measured.
Training ends at the fourth measurement without an improvement, and the model keeps its
best weights.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from cmlm.evaluation import metrics
from cmlm.evaluation.adam import Adam

_CLASSES = 5
_BATCH = 64
_EPOCHS_BETWEEN_LOOKS = 50
_MAX_EPOCHS = 1000
_PATIENCE = 3


def spread(scores: np.ndarray) -> np.ndarray:
    """Turns scores into distributions over 1 to 5.

    Args:
        scores: float [n], 0 to 5. 2.25 becomes 0.75 at 2 and 0.25 at 3. A score below
            1 has a share at 1 only, as in the toolkit.

    Returns:
        float32 [n, 5].
    """
    scores = np.asarray(scores, np.float64)[:, np.newaxis]
    whole = np.arange(1, _CLASSES + 1)
    return np.maximum(0, 1 - np.abs(scores - whole)).astype(np.float32)


def train_and_predict(
    x: np.ndarray,
    y: np.ndarray,
    x_dev: np.ndarray,
    y_dev: np.ndarray,
    x_test: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Trains a regression and predicts the test scores.

    Args:
        x, x_dev, x_test: the features, float32 [n, features].
        y, y_dev: the scores, float [n].
        seed: the seed of the initial weights and of the order of examples.

    Returns:
        The predicted scores of `x_test`, float [n], and the Pearson correlation, times
        100, on the validation set.
    """
    model = _SoftmaxRegression(x.shape[1], np.random.default_rng(seed))
    target = spread(y)
    best, best_weights, looks_in_vain = -np.inf, model.weights.copy(), 0
    for _ in range(0, _MAX_EPOCHS + 1, _EPOCHS_BETWEEN_LOOKS):
        for _ in range(_EPOCHS_BETWEEN_LOOKS):
            model.train_epoch(x, target)
        pearson = metrics.correlations(model.predict(x_dev), y_dev)["pearson"]
        if pearson > best:
            best, best_weights = pearson, model.weights.copy()
        elif looks_in_vain >= _PATIENCE:
            break
        else:
            looks_in_vain += 1
    model.weights = best_weights
    return model.predict(x_test), best


class _SoftmaxRegression:
    """softmax(x w + b) with Adam; the last row of `weights` is b."""

    def __init__(self, inputs: int, random: np.random.Generator):
        bound = 1 / np.sqrt(inputs)
        shape = (inputs + 1, _CLASSES)
        self.weights = random.uniform(-bound, bound, shape).astype(np.float32)
        self._random = random
        self._adam = Adam([self.weights])

    def _distribution(self, x: np.ndarray) -> np.ndarray:
        logits = x @ self.weights[:-1] + self.weights[-1]
        return special.softmax(logits, axis=1)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Expected scores, float [n]."""
        return self._distribution(x) @ np.arange(1, _CLASSES + 1)

    def train_epoch(self, x: np.ndarray, target: np.ndarray) -> None:
        order = self._random.permutation(len(x))
        for start in range(0, len(x), _BATCH):
            rows = order[start : start + _BATCH]
            self._update(x[rows], target[rows])

    def _update(self, x: np.ndarray, target: np.ndarray) -> None:
        p = self._distribution(x)
        # d mean((p - t)^2) / d logits, through the softmax.
        d_p = 2 * (p - target) / p.size
        d_logits = p * (d_p - (d_p * p).sum(axis=1, keepdims=True))
        gradient = np.concatenate([x.T @ d_logits, d_logits.sum(axis=0, keepdims=True)])
        self._adam.update([gradient])
