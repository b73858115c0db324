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

import dataclasses
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


class Rows(NamedTuple):
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

    def labels(self) -> np.ndarray:
        """The labels, int [rows]."""
        return self.y[self.rows]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The features, float [rows, dim], and the labels, int [rows]."""
        return self.features(), self.labels()

    def of(self, rows: np.ndarray) -> Rows:
        """Some of the examples, int [n]."""
        return self._replace(rows=np.arange(len(self.x))[self.rows][rows])


class _Path(NamedTuple):
    """A regularization path: a classifier is fitted with each strength of a grid.

    Attributes:
        train: the examples to train on.
        dev: the examples by which networks stop; None: see `perceptron.fit_path`.
        tests: the examples of each test set.
        grid: the strengths.
    """

    train: Rows
    dev: Rows | None
    tests: Sequence[Rows]
    grid: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A classifier of SentEval.

    Attributes:
        kind: a name of `ABOUT`.
        seed: the seed of the folds and of the weights. The toolkit always has the folds
            of seed 1111.
        jobs: the number of fits that run in parallel; 0 for one on each core.
    """

    kind: str
    seed: int
    jobs: int

    def cross_validated(self, train: Rows) -> tuple[np.ndarray, dict[str, float]]:
        """Ten-fold cross-validation; ten inner folds choose (the toolkit's InnerKFold).

        Returns:
            The predicted label of each row, by the classifier of its fold; and
            `accuracy`, the mean over the outer folds, and `dev_accuracy`, the mean of
            the best accuracies on the inner folds.
        """
        y = train.labels()
        check_folds(y.tolist(), is_nested=True)
        outer, grid = _folds(y, self.seed), self._grid()
        inner = [
            (rows[inner_rows], rows[inner_test])
            for rows, _ in outer
            for inner_rows, inner_test in _folds(y[rows], self.seed)
        ]
        accuracies = self._accuracies(train, inner, grid)
        # [outer folds, grid]
        accuracies = accuracies.reshape([FOLDS, FOLDS, len(grid)]).mean(axis=1)
        paths = [
            _Path(train.of(rows), None, [train.of(test)], [grid[_best(row)]])
            for (rows, test), row in zip(outer, accuracies, strict=True)
        ]
        fitted = self._fit_paths(_classes(y), paths)
        predicted = np.empty_like(y)
        for ((labels,),), (_, test) in zip(fitted, outer, strict=True):
            predicted[test] = labels
        scores = [metrics.accuracy(predicted[test], y[test]) for _, test in outer]
        return predicted, {
            "accuracy": float(np.mean(scores)),
            "dev_accuracy": float(accuracies.max(axis=1).mean()),
        }

    def tested(self, train: Rows, test: Rows) -> tuple[np.ndarray, float]:
        """Ten folds of the training set choose, then one fit (the toolkit's KFold).

        Returns:
            The predicted labels of `test`, and the best accuracy of the
            cross-validation.
        """
        y = train.labels()
        check_folds(y.tolist(), is_nested=False)
        grid = self._grid(of_folds=True)
        accuracies = self._accuracies(train, _folds(y, self.seed), grid).mean(axis=0)
        predicted = self.fitted(train, test, grid[_best(accuracies)])
        return predicted, float(accuracies.max())

    def tested_by(self, train: Rows, dev: Rows, test: Rows) -> tuple[np.ndarray, float]:
        """A fixed validation set chooses (the toolkit's Split).

        Returns:
            The predicted labels of `test`, and the best accuracy on the validation set.
        """
        path = _Path(train, dev, [dev, test], self._grid())
        y_dev = dev.labels()
        (fitted,) = self._fit_paths(_classes(train.labels(), y_dev), [path])
        accuracies = np.array([metrics.accuracy(of_dev, y_dev) for of_dev, _ in fitted])
        _, predicted = fitted[_best(accuracies)]
        return predicted, float(accuracies.max())

    def fitted(self, train: Rows, test: Rows, strength: float) -> np.ndarray:
        """The predicted labels of `test`, by one fit."""
        path = _Path(train, None, [test], [strength])
        return self._fit_paths(_classes(train.labels()), [path])[0][0][0]

    def _grid(self, of_folds: bool = False) -> Sequence[float]:
        if self.kind != LOGISTIC:
            return STRENGTHS
        return FOLDS_GRID if of_folds else GRID

    def _accuracies(
        self,
        train: Rows,
        folds: Sequence[tuple[np.ndarray, np.ndarray]],
        grid: Sequence[float],
    ) -> np.ndarray:
        """The accuracies, [folds, grid]; each fold has rows to train on and to test."""
        parts = [(train.of(rows), train.of(test)) for rows, test in folds]
        paths = [_Path(rows, test, [test], grid) for rows, test in parts]
        fitted = self._fit_paths(_classes(train.labels()), paths)
        return np.array(
            [
                [metrics.accuracy(tests[0], test.labels()) for tests in predicted]
                for (_, test), predicted in zip(parts, fitted, strict=True)
            ]
        )

    def _fit_paths(
        self, classes: int, paths: Sequence[_Path]
    ) -> list[list[list[np.ndarray]]]:
        """Calls `_fit_path` with each path, `jobs` at a time."""
        jobs = min(self.jobs or machine.processors(), len(paths))
        parallel = joblib.Parallel(n_jobs=jobs, prefer="threads")
        # Threads share the filters of warnings and the number of BLAS threads, so both
        # are set once. The solver makes LinAlgWarning an error for a moment, in which
        # other threads may meet it; so it is always one here.
        with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("error", LinAlgWarning)
            fit = joblib.delayed(_fit_path)
            return parallel(fit(self.kind, classes, self.seed, path) for path in paths)


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
