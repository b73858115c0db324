"""SentEval's classifiers on fixed vectors; their strength is chosen by accuracy.

It follows facebookresearch/SentEval, senteval/tools/validation.py: stratified folds,
vectors not scaled, and a choice of classifiers:

- `logistic`: scikit-learn's logistic regression (`usepytorch: False`). C is chosen from
  2**-2 to 2**3, and from 2**-1 to 2**5 if folds of a training set choose it for a test
  set. The toolkit's solver stops early. Here it runs to the optimum, so that rounding
  in the vectors does not change the result. Each C starts from the last C's weights.
- `logistic-adam` and `mlp`: `perceptron`, the toolkit's networks in PyTorch with 0 and
  50 hidden units (`nhid`). Their L2 regularization is chosen from 1e-5 to 1e-2.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import joblib
import numpy as np
import threadpoolctl
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlm.common import machine
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import metrics, perceptron

GRID = tuple(2.0**power for power in range(-2, 4))
FOLDS_GRID = tuple(2.0**power for power in range(-1, 6))
STRENGTHS = tuple(10.0**power for power in range(-5, -1))
FOLDS = 10
# The names of classifiers and what reports call them.
LOGISTIC = "logistic"
ABOUT = {
    LOGISTIC: "a logistic regression",
    "logistic-adam": "a logistic regression by Adam, as the toolkit's in PyTorch",
    "mlp": "a perceptron with 50 hidden units, as the toolkit's in PyTorch",
}
_HIDDEN = {"logistic-adam": 0, "mlp": 50}
# For two classes, and for more: the Hessian grows with the square of the classes.
_SOLVERS = (("newton-cholesky", 1e-6), ("newton-cg", 1e-5))


def _grid(kind: str, of_folds: bool = False) -> Sequence[float]:
    if kind != LOGISTIC:
        return STRENGTHS
    return FOLDS_GRID if of_folds else GRID


def _fit_path(
    kind: str,
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray | None,
    tests: Sequence[np.ndarray],
    grid: Sequence[float],
    seed: int,
) -> list[list[np.ndarray]]:
    """Fits each value of the grid; returns the predicted labels of each test set.

    Networks stop by the rows `dev`; see `perceptron.fit_path`.
    """
    if kind != LOGISTIC:
        hidden = _HIDDEN[kind]
        return perceptron.fit_path(x, y, train, dev, tests, grid, seed, hidden)
    # Vectors that are not scaled make the problem ill-conditioned: L-BFGS takes
    # hundreds of steps. Newton's method takes few, in double precision only.
    rows, labels, predicted = x[train].astype(np.float64), y[train], []
    solver, tol = _SOLVERS[len(np.unique(labels)) > 2]
    model = LogisticRegression(
        random_state=seed, warm_start=True, solver=solver, tol=tol, max_iter=1000
    )
    for value in grid:
        model.set_params(C=value)
        try:
            model.fit(rows, labels)
        except LinAlgWarning:
            # As the solver itself does for a singular Hessian.
            model.set_params(solver="lbfgs").fit(rows, labels)
        predicted.append([model.predict(x[test]) for test in tests])
    return predicted


def _fit_paths(paths: Sequence[tuple], jobs: int) -> list[list[list[np.ndarray]]]:
    """Calls `_fit_path` with each tuple, `jobs` at a time; 0 for one on each core."""
    parallel = joblib.Parallel(n_jobs=jobs or machine.processors(), prefer="threads")
    # Threads share the filters of warnings and the number of BLAS threads, so both are
    # set once. The solver makes LinAlgWarning an error for a moment, in which other
    # threads may meet it; so it is always one here.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        return parallel(joblib.delayed(_fit_path)(*path) for path in paths)


def _best(accuracies: np.ndarray) -> int:
    """The index of the best mean accuracy, to two decimals as in the toolkit."""
    return int(np.argmax(np.round(accuracies, 2)))


def check_folds(labels: Sequence[int] | Sequence[str], is_nested: bool) -> None:
    """Checks that each fold is trained on two classes.

    Args:
        labels: the labels of the training set.
        is_nested: whether each fold is divided into folds again.

    Raises:
        UserError: the two largest classes have too few examples.
    """
    needed = (FOLDS + 2, 3) if is_nested else (FOLDS, 2)
    counts = [count for _, count in Counter(labels).most_common(2)]
    most, next_most, *_ = (*counts, 0, 0)
    if most < needed[0] or next_most < needed[1]:
        raise UserError(
            f"the largest class has {counted(most, 'example')}, the next {next_most}; "
            f"allowed for {FOLDS} folds: at least {needed[0]} and {needed[1]}"
        )


def _folds(y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    folds = StratifiedKFold(n_splits=FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # Classes with fewer examples than folds are allowed, and usual in own files.
        warnings.filterwarnings("ignore", "The least populated class")
        return list(folds.split(np.zeros(len(y)), y))


def _cross_validate(kind, x, y, rows_of_folds, grid, seed, jobs) -> list[np.ndarray]:
    """For each list of folds, the mean accuracy of each value of the grid."""
    paths = [
        (kind, x, y, train, test, [test], grid, seed)
        for folds in rows_of_folds
        for train, test in folds
    ]
    accuracies = np.array(
        [
            [metrics.accuracy(labels[0], y[path[4]]) for labels in predicted]
            for path, predicted in zip(paths, _fit_paths(paths, jobs), strict=True)
        ]
    )
    return [
        part.mean(axis=0) for part in np.split(accuracies, len(rows_of_folds), axis=0)
    ]


def nested_cross_validation(
    x: np.ndarray, y: np.ndarray, seed: int, kind: str = LOGISTIC, jobs: int = 0
) -> dict[str, float]:
    """Ten-fold cross-validation; ten inner folds choose (the toolkit's InnerKFold).

    Args:
        x: the features, float [n, dim].
        y: the labels, int [n].
        seed: the seed of the folds.
        kind: the classifier, a name of `ABOUT`.
        jobs: the number of fits at a time; 0 for one on each core.

    Returns:
        `accuracy`, the mean over the outer folds, and `dev_accuracy`, the mean of the
        best accuracies on the inner folds.
    """
    check_folds(y.tolist(), is_nested=True)
    outer, grid = _folds(y, seed), _grid(kind)
    inner = [
        [(train[a], train[b]) for a, b in _folds(y[train], seed)] for train, _ in outer
    ]
    accuracies = _cross_validate(kind, x, y, inner, grid, seed, jobs)
    chosen = [grid[_best(row)] for row in accuracies]
    paths = [
        (kind, x, y, train, None, [test], [value], seed)
        for (train, test), value in zip(outer, chosen, strict=True)
    ]
    scores = [
        metrics.accuracy(predicted[0][0], y[test])
        for (_, test), predicted in zip(outer, _fit_paths(paths, jobs), strict=True)
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
    kind: str = LOGISTIC,
    jobs: int = 0,
) -> tuple[np.ndarray, float]:
    """Ten folds of the training set choose, then one fit (the toolkit's KFold).

    Returns:
        The predicted labels of `x_test`, and the best accuracy of the cross-validation.
    """
    check_folds(y.tolist(), is_nested=False)
    grid = _grid(kind, of_folds=True)
    (accuracies,) = _cross_validate(kind, x, y, [_folds(y, seed)], grid, seed, jobs)
    both = np.concatenate([x, x_test])
    train, test = np.split(np.arange(len(both)), [len(x)])
    chosen = [grid[_best(accuracies)]]
    (path,) = _fit_paths([(kind, both, y, train, None, [test], chosen, seed)], 1)
    return path[0][0], float(accuracies.max())


def validation_then_test(
    x: np.ndarray,
    y: np.ndarray,
    x_dev: np.ndarray,
    y_dev: np.ndarray,
    x_test: np.ndarray,
    seed: int,
    kind: str = LOGISTIC,
) -> tuple[np.ndarray, float]:
    """A fixed validation set chooses (the toolkit's Split).

    Returns:
        The predicted labels of `x_test`, and the best accuracy on the validation set.
    """
    every, labels = np.concatenate([x, x_dev, x_test]), np.concatenate([y, y_dev])
    ends = np.cumsum([len(x), len(x_dev)])
    train, dev, test = np.split(np.arange(len(every)), ends)
    whole = (kind, every, labels, train, dev, [dev, test], _grid(kind), seed)
    (path,) = _fit_paths([whole], 1)
    accuracies = np.array([metrics.accuracy(found, y_dev) for found, _ in path])
    best = _best(accuracies)
    return path[best][1], float(accuracies.max())


def fit_and_predict(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int
) -> np.ndarray:
    """Predicts the labels of `x_test` by a logistic regression with C = 1."""
    both = np.concatenate([x, x_test])
    train, test = np.split(np.arange(len(both)), [len(x)])
    (path,) = _fit_paths([(LOGISTIC, both, y, train, None, [test], [1.0], seed)], 1)
    return path[0][0]
