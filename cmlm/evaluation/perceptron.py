"""SentEval's second classifier: a linear layer or a perceptron, trained with Adam.

It follows facebookresearch/SentEval, senteval/tools/classifier.py, without torch: the
mean cross-entropy, batches of 64, weights as `nn.Linear` draws them, L2 regularization
as Adam's `weight_decay` adds it to the gradient, biases included. Every 4 epochs the
accuracy on the validation set is measured. Training ends at the sixth measurement
without an improvement or after 200 epochs, and the model keeps its best weights.

The toolkit trains one strength of the regularization after another, each from the same
seed: the same first weights, and the same batches. So here all strengths train at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy import special

from cmlm.evaluation.adam import Adam

_BATCH = 64
_EPOCHS_BETWEEN_LOOKS = 4
_MAX_EPOCHS = 200
_PATIENCE = 5
# The share of the training set that validates if there is no other validation set.
_DEV_SHARE = 0.05


def fit_path(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray | None,
    tests: Sequence[np.ndarray],
    strengths: Sequence[float],
    seed: int,
    hidden: int,
) -> list[list[np.ndarray]]:
    """Trains a classifier for each strength of the regularization.

    Args:
        x: the features, float [n, inputs].
        y: the classes, int [n], from 0 on.
        train, dev: the rows to train on and the rows to validate on; without `dev`, a
            random 20th of `train` validates.
        tests: the rows of each test set.
        strengths: the strengths, PyTorch's `weight_decay`.
        seed: the seed of the first weights and of the order of examples.
        hidden: the number of hidden units; 0 for a linear layer alone.

    Returns:
        For each strength, the predicted classes of each test set, int [rows].
    """
    random = np.random.default_rng(seed)
    x = np.asarray(x, np.float32)
    if dev is None:
        order = random.permutation(len(train))
        count = max(1, int(_DEV_SHARE * len(train)))
        train, dev = train[order[count:]], train[order[:count]]
    model = _Models(x.shape[1], hidden, int(y.max()) + 1, strengths, random)
    rows, labels = x[train], y[train]
    best = np.full(len(strengths), -1.0)
    kept = [part.copy() for part in model.weights]
    in_vain = np.zeros(len(strengths), int)
    # The toolkit stops at the look after the fifth in vain.
    for _ in range(0, _MAX_EPOCHS + 1, _EPOCHS_BETWEEN_LOOKS):
        for _ in range(_EPOCHS_BETWEEN_LOOKS):
            order = random.permutation(len(rows))
            for start in range(0, len(rows), _BATCH):
                batch = order[start : start + _BATCH]
                model.update(rows[batch], labels[batch])
        accuracies = (model.predict(x[dev]) == y[dev]).mean(axis=1)
        better = (accuracies > best) & (in_vain <= _PATIENCE)
        best[better] = accuracies[better]
        for part, own in zip(kept, model.weights, strict=True):
            part[better] = own[better]
        in_vain += ~better
        if (in_vain > _PATIENCE).all():
            break
    model.weights = kept
    predicted = [model.predict(x[test]) for test in tests]
    return [[labels[place] for labels in predicted] for place in range(len(strengths))]


class _Models:
    """One classifier for each strength; the first axis of an array is the strength."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        classes: int,
        strengths: Sequence[float],
        random: np.random.Generator,
    ):
        widths = [inputs, hidden, classes] if hidden else [inputs, classes]
        self.weights: list[np.ndarray] = []
        for width, outputs in itertools.pairwise(widths):
            bound = 1 / np.sqrt(width)
            for shape in ((width, outputs), (1, outputs)):
                drawn = random.uniform(-bound, bound, shape).astype(np.float32)
                self.weights.append(np.repeat(drawn[np.newaxis], len(strengths), 0))
        self._strengths = np.array(strengths, np.float32)[:, np.newaxis, np.newaxis]
        self._adam = Adam(self.weights)

    def _forward(self, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The input of each layer, [strengths or none, n, width], and the logits."""
        inputs = [x]
        *before, kernel, bias = self.weights
        if before:
            inputs.append(special.expit(x @ before[0] + before[1]))
        return inputs, inputs[-1] @ kernel + bias

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The classes, int [strengths, n]."""
        return self._forward(x)[1].argmax(axis=2)

    def update(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step of Adam down the mean cross-entropy of a batch."""
        gradients = self._gradients(x, y)
        for part, gradient in zip(self.weights, gradients, strict=True):
            gradient += self._strengths * part
        self._adam.update(gradients)

    def _gradients(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        inputs, logits = self._forward(x)
        d_logits = special.softmax(logits, axis=2)
        d_logits[:, np.arange(len(y)), y] -= 1
        d_logits /= len(y)
        last = inputs[-1]
        gradients = [
            np.swapaxes(last, -1, -2) @ d_logits,
            d_logits.sum(axis=1, keepdims=True),
        ]
        if len(inputs) > 1:
            d_last = d_logits @ np.swapaxes(self.weights[2], 1, 2)
            d_sums = d_last * last * (1 - last)
            gradients = [x.T @ d_sums, d_sums.sum(axis=1, keepdims=True), *gradients]
        return gradients
