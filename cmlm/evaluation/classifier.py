"""SentEval's classifiers on fixed vectors; their strength is chosen by accuracy.

It follows facebookresearch/SentEval, senteval/tools/validation.py: stratified folds,
vectors not scaled, and a choice of classifiers:

- `logistic`: scikit-learn's logistic regression (`usepytorch: False`). C is chosen from
  2**-2 to 2**3, and from 2**-1 to 2**5 if folds of a training set choose it for a test
  set. The toolkit's solver stops early. Here it runs to the optimum, so that rounding
  in the vectors does not change the result. Each C starts from the last C's weights.
- `logistic-adam` and `mlp`: `perceptron`, the toolkit's networks in PyTorch with 0 and
  50 hidden units (`nhid`). Their L2 regularization is chosen from 1e-5 to 1e-2.
- `logistic-cmlm`: `logistic-adam` in batches of 16, with six epochs between
  measurements. These are the "slower, best performance" settings of CMLM's authors:
  tensorflow/hub, examples/colab/senteval_for_universal_sentence_encoder_cmlm.ipynb.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import joblib
import numpy as np
import threadpoolctl
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlm.common import choices, machine
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import metrics, perceptron

GRID = tuple(2.0**power for power in range(-2, 4))
FOLDS_GRID = tuple(2.0**power for power in range(-1, 6))
STRENGTHS = tuple(10.0**power for power in range(-5, -1))
FOLDS = 10
LOGISTIC, _ADAM, _CMLM, _PERCEPTRON = choices.CLASSIFIERS
# The names of classifiers and what reports call them.
ABOUT = {
    LOGISTIC: "a logistic regression",
    _ADAM: "a logistic regression by Adam, as the toolkit's in PyTorch",
    _CMLM: "a logistic regression by Adam, with the settings of CMLM's authors",
    _PERCEPTRON: "a perceptron with 50 hidden units, as the toolkit's in PyTorch",
}
# Arguments of `perceptron.fit_path`.
_NETWORKS = {
    _ADAM: {"hidden": 0},
    _CMLM: {"hidden": 0, "batch_size": 16, "epochs": 6},
    _PERCEPTRON: {"hidden": 50},
}


def _grid(kind: str, of_folds: bool = False) -> Sequence[float]:
    if kind != LOGISTIC:
        return STRENGTHS
    return FOLDS_GRID if of_folds else GRID


class _Rows(NamedTuple):
    """Examples: rows of arrays, which are copied only when they are read.

    Attributes:
        x: the features, float [n, dim].
        y: the labels, int [n]; None if they are not needed.
        rows: the rows; a slice needs no copy.
    """

    x: np.ndarray
    y: np.ndarray | None = None
    rows: np.ndarray | slice = slice(None)

    def features(self) -> np.ndarray:
        """The features, float [rows, dim]."""
        return self.x[self.rows]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The features, float [rows, dim], and the labels, int [rows]."""
        return self.features(), self.y[self.rows]


class _Path(NamedTuple):
    """A regularization path: a classifier is fitted with each strength of a grid.

    Attributes:
        train: the examples to train on.
        dev: the examples by which networks stop; None: see `perceptron.fit_path`.
        tests: the examples of each test set.
        grid: the strengths.
    """

    train: _Rows
    dev: _Rows | None
    tests: Sequence[_Rows]
    grid: Sequence[float]


def _fit_path(
    kind: str, classes: int, seed: int, path: _Path
) -> list[list[np.ndarray]]:
    """For each strength, the predicted labels of each test set."""
    x, y = path.train.read()
    if kind != LOGISTIC:
        return perceptron.fit_path(
            (x, y),
            path.dev and path.dev.read(),
            [test.features() for test in path.tests],
            classes,
            path.grid,
            seed,
            **_NETWORKS[kind],
        )
    # Vectors that are not scaled make the problem ill-conditioned: L-BFGS takes
    # hundreds of steps. Newton's method takes few, in double precision only.
    x = x.astype(np.float64)
    # The Hessian of newton-cholesky grows with the square of the classes.
    if len(np.unique(y)) > 2:
        solver, tol = "newton-cg", 1e-5
    else:
        solver, tol = "newton-cholesky", 1e-6
    model = LogisticRegression(
        random_state=seed, warm_start=True, solver=solver, tol=tol, max_iter=1000
    )
    predicted = []
    for value in path.grid:
        model.set_params(C=value)
        try:
            model.fit(x, y)
        except LinAlgWarning:
            # As the solver itself does for a singular Hessian.
            model.set_params(solver="lbfgs").fit(x, y)
        predicted.append([model.predict(test.features()) for test in path.tests])
    return predicted


def _fit_paths(
    kind: str, classes: int, seed: int, paths: Sequence[_Path], jobs: int = 1
) -> list[list[list[np.ndarray]]]:
    """Calls `_fit_path` with each path, `jobs` at a time; 0 for one on each core."""
    parallel = joblib.Parallel(n_jobs=jobs or machine.processors(), prefer="threads")
    # Threads share the filters of warnings and the number of BLAS threads, so both are
    # set once. The solver makes LinAlgWarning an error for a moment, in which other
    # threads may meet it; so it is always one here.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        fit = joblib.delayed(_fit_path)
        return parallel(fit(kind, classes, seed, path) for path in paths)


def _classes(*labels: np.ndarray) -> int:
    """The number of classes, which are numbered from 0 on."""
    return 1 + int(max(part.max() for part in labels))


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
    least, next_least = (FOLDS + 2, 3) if is_nested else (FOLDS, 2)
    (_, most), (_, next_most) = Counter(labels).most_common(2)
    if most < least or next_most < next_least:
        raise UserError(
            f"the largest class has {counted(most, 'example')}, the next {next_most}; "
            f"allowed for {FOLDS} folds: at least {least} and {next_least}"
        )


def _folds(y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    folds = StratifiedKFold(n_splits=FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # Classes with fewer examples than folds are allowed, and usual in own files.
        warnings.filterwarnings("ignore", "The least populated class")
        return list(folds.split(np.zeros(len(y)), y))


def _cross_validate(
    kind: str,
    x: np.ndarray,
    y: np.ndarray,
    seed: int,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
    grid: Sequence[float],
    jobs: int,
) -> np.ndarray:
    """The accuracies, [folds, grid]; each fold has rows to train on and to test."""
    parts = [[_Rows(x, y, rows) for rows in fold] for fold in folds]
    paths = [_Path(train, test, [test], grid) for train, test in parts]
    fitted = _fit_paths(kind, _classes(y), seed, paths, jobs)
    return np.array(
        [
            [metrics.accuracy(tests[0], y[test]) for tests in predicted]
            for (_, test), predicted in zip(folds, fitted, strict=True)
        ]
    )


def nested_cross_validation(
    x: np.ndarray, y: np.ndarray, seed: int, kind: str = LOGISTIC, jobs: int = 0
) -> tuple[np.ndarray, dict[str, float]]:
    """Ten-fold cross-validation; ten inner folds choose (the toolkit's InnerKFold).

    Args:
        x: the features, float [n, dim].
        y: the labels, int [n].
        seed: the seed of the folds and of the classifier. The toolkit always has the
            folds of seed 1111.
        kind: the classifier, a name of `ABOUT`.
        jobs: the number of fits at a time; 0 for one on each core.

    Returns:
        The predicted label of each row, by the classifier of its fold; and `accuracy`,
        the mean over the outer folds, and `dev_accuracy`, the mean of the best
        accuracies on the inner folds.
    """
    check_folds(y.tolist(), is_nested=True)
    outer, grid = _folds(y, seed), _grid(kind)
    inner = [
        (train[inner_train], train[inner_test])
        for train, _ in outer
        for inner_train, inner_test in _folds(y[train], seed)
    ]
    accuracies = _cross_validate(kind, x, y, seed, inner, grid, jobs)
    # [outer folds, grid]
    accuracies = accuracies.reshape([FOLDS, FOLDS, len(grid)]).mean(axis=1)
    paths = [
        _Path(_Rows(x, y, train), None, [_Rows(x, y, test)], [grid[_best(row)]])
        for (train, test), row in zip(outer, accuracies, strict=True)
    ]
    fitted = _fit_paths(kind, _classes(y), seed, paths, jobs)
    predicted = np.empty_like(y)
    for ((labels,),), (_, test) in zip(fitted, outer, strict=True):
        predicted[test] = labels
    scores = [metrics.accuracy(predicted[test], y[test]) for _, test in outer]
    return predicted, {
        "accuracy": float(np.mean(scores)),
        "dev_accuracy": float(accuracies.max(axis=1).mean()),
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
    folds, grid = _folds(y, seed), _grid(kind, of_folds=True)
    accuracies = _cross_validate(kind, x, y, seed, folds, grid, jobs).mean(axis=0)
    predicted = fit_and_predict(x, y, x_test, seed, kind, grid[_best(accuracies)])
    return predicted, float(accuracies.max())


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
    dev = _Rows(x_dev, y_dev)
    path = _Path(_Rows(x, y), dev, [dev, _Rows(x_test)], _grid(kind))
    (fitted,) = _fit_paths(kind, _classes(y, y_dev), seed, [path])
    accuracies = np.array([metrics.accuracy(of_dev, y_dev) for of_dev, _ in fitted])
    _, predicted = fitted[_best(accuracies)]
    return predicted, float(accuracies.max())


def fit_and_predict(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    seed: int,
    kind: str = LOGISTIC,
    strength: float = 1.0,
) -> np.ndarray:
    """Predicts the labels of `x_test`, by default by a regression with C = 1."""
    path = _Path(_Rows(x, y), None, [_Rows(x_test)], [strength])
    return _fit_paths(kind, _classes(y), seed, [path])[0][0][0]
