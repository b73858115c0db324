"""SentEval's classifier: logistic regression on fixed vectors, C chosen by accuracy.

It follows facebookresearch/SentEval, senteval/tools/validation.py, with scikit-learn
(`usepytorch: False`): C from 2**-2 to 2**3, stratified folds, vectors not scaled. The
toolkit's solver stops early. Here it runs to the optimum, so that rounding in the
vectors does not change the result. Each C starts from the weights of the previous C.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import joblib
import numpy as np
import threadpoolctl
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlm.errors import UserError
from cmlm.evaluation import metrics

GRID = tuple(2.0**power for power in range(-2, 4))
FOLDS = 10


def _fit_path(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    tests: Sequence[np.ndarray],
    grid: Sequence[float],
    seed: int,
) -> list[list[np.ndarray]]:
    """Fits each value of the grid; returns the predicted labels of each test set."""
    model = LogisticRegression(
        random_state=seed, warm_start=True, tol=1e-6, max_iter=1000
    )
    rows, labels, predicted = x[train], y[train], []
    # Each fit has one thread, because `_fit_paths` runs one fit on each core.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for value in grid:
            model.set_params(C=value).fit(rows, labels)
            predicted.append([model.predict(x[test]) for test in tests])
    return predicted


def _fit_paths(jobs) -> list:
    parallel = joblib.Parallel(n_jobs=os.cpu_count(), prefer="threads")
    return parallel(joblib.delayed(_fit_path)(*job) for job in jobs)


def _best(accuracies: np.ndarray) -> int:
    """The index of the best mean accuracy, to two decimals as in the toolkit."""
    return int(np.argmax(np.round(accuracies, 2)))


def _folds(y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    most = int(np.bincount(y).max())
    if most < FOLDS:
        raise UserError(
            f"the largest class has {most} examples; allowed: at least {FOLDS}, one "
            "for each fold"
        )
    folds = StratifiedKFold(n_splits=FOLDS, shuffle=True, random_state=seed)
    return list(folds.split(np.zeros(len(y)), y))


def _cross_validate(x, y, rows_of_folds, seed) -> list[np.ndarray]:
    """For each list of folds, the mean accuracy of each value of the grid."""
    jobs = [
        (x, y, train, [test], GRID, seed)
        for folds in rows_of_folds
        for train, test in folds
    ]
    accuracies = np.array(
        [
            [metrics.accuracy(predicted[0], y[job[3][0]]) for predicted in path]
            for job, path in zip(jobs, _fit_paths(jobs), strict=True)
        ]
    )
    return [
        part.mean(axis=0) for part in np.split(accuracies, len(rows_of_folds), axis=0)
    ]


def nested_cross_validation(
    x: np.ndarray, y: np.ndarray, seed: int
) -> dict[str, float]:
    """Ten-fold cross-validation; ten inner folds choose C (the toolkit's InnerKFold).

    Args:
        x: the features, float [n, dim].
        y: the labels, int [n].
        seed: the seed of the folds.

    Returns:
        `accuracy`, the mean over the outer folds, and `dev_accuracy`, the mean of the
        best accuracies on the inner folds.
    """
    outer = _folds(y, seed)
    inner = [
        [(train[a], train[b]) for a, b in _folds(y[train], seed)] for train, _ in outer
    ]
    accuracies = _cross_validate(x, y, inner, seed)
    chosen = [GRID[_best(row)] for row in accuracies]
    jobs = [
        (x, y, train, [test], [value], seed)
        for (train, test), value in zip(outer, chosen, strict=True)
    ]
    scores = [
        metrics.accuracy(path[0][0], y[test])
        for (_, test), path in zip(outer, _fit_paths(jobs), strict=True)
    ]
    return {
        "accuracy": float(np.mean(scores)),
        "dev_accuracy": float(np.mean([row.max() for row in accuracies])),
    }


def cross_validation_then_test(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Chooses C by ten folds of the training set, then fits once (the toolkit's KFold).

    Returns:
        The predicted labels of `x_test`, and the best accuracy of the cross-validation.
    """
    (accuracies,) = _cross_validate(x, y, [_folds(y, seed)], seed)
    both = np.concatenate([x, x_test])
    train, test = np.split(np.arange(len(both)), [len(x)])
    path = _fit_path(both, y, train, [test], [GRID[_best(accuracies)]], seed)
    return path[0][0], float(accuracies.max())


def validation_then_test(
    x: np.ndarray,
    y: np.ndarray,
    x_dev: np.ndarray,
    y_dev: np.ndarray,
    x_test: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Chooses C by a fixed validation set (the toolkit's Split).

    Returns:
        The predicted labels of `x_test`, and the best accuracy on the validation set.
    """
    every = np.concatenate([x, x_dev, x_test])
    ends = np.cumsum([len(x), len(x_dev)])
    train, dev, test = np.split(np.arange(len(every)), ends)
    path = _fit_path(every, y, train, [dev, test], GRID, seed)
    accuracies = np.array([metrics.accuracy(labels, y_dev) for labels, _ in path])
    best = _best(accuracies)
    return path[best][1], float(accuracies.max())


def fit_and_predict(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int
) -> np.ndarray:
    """Fits once with C = 1 and returns the predicted labels of `x_test`."""
    both = np.concatenate([x, x_test])
    train, test = np.split(np.arange(len(both)), [len(x)])
    return _fit_path(both, y, train, [test], [1.0], seed)[0][0]
