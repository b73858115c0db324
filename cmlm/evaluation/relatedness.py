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

from cmlm.evaluation import metrics, perceptron

_SCORES = np.arange(1, 6)


def spread(scores: np.ndarray) -> np.ndarray:
    """Turns scores into distributions over 1 to 5.

    Args:
        scores: float [n], 0 to 5. 2.25 becomes 0.75 at 2 and 0.25 at 3. A score below
            1 has a share at 1 only, as in the toolkit.

    Returns:
        float32 [n, 5].
    """
    scores = np.asarray(scores, np.float64)[:, np.newaxis]
    return np.maximum(0, 1 - np.abs(scores - _SCORES)).astype(np.float32)


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
    model = perceptron.Networks(
        [x.shape[1], len(_SCORES)],
        [0.0],
        _squared_error_gradient,
        np.random.default_rng(seed),
    )

    def predict(rows: np.ndarray) -> np.ndarray:
        return special.softmax(model.logits(rows)[0], axis=1) @ _SCORES

    def measure() -> np.ndarray:
        return np.array([metrics.correlations(predict(x_dev), y_dev)["pearson"]])

    (best,) = model.train(
        x, spread(y), measure, epochs_between=50, most_epochs=1000, patience=3
    )
    return predict(x_test), float(best)


def _squared_error_gradient(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """d mean((softmax(logits) - targets)^2) / d logits, [1, n, 5]."""
    p = special.softmax(logits, axis=2)
    d_p = 2 * (p - targets) / p.size
    return p * (d_p - (d_p * p).sum(axis=2, keepdims=True))
