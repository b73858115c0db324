"""SentEval's networks: a linear layer or a perceptron, trained with Adam.

It follows facebookresearch/SentEval, senteval/tools/classifier.py, without torch: the
mean cross-entropy, weights as `nn.Linear` draws them, L2 regularization as Adam's
`weight_decay` adds it to the gradient, biases included. After every few epochs, the
accuracy on the validation set is measured. Training ends at the sixth measurement
without an improvement or after 200 epochs, and the model keeps its best weights.

The toolkit trains one strength of the regularization after another, each from the same
seed: the same first weights, and the same batches. So here all strengths train at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

BATCH, EPOCHS = 64, 4
_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8
# The share of the training set that validates, without another validation set.
_DEV_SHARE = 0.05


def fit_path(
    train: tuple[np.ndarray, np.ndarray],
    dev: tuple[np.ndarray, np.ndarray] | None,
    tests: Sequence[np.ndarray],
    classes: int,
    strengths: Sequence[float],
    seed: int,
    hidden: int,
    batch_size: int = BATCH,
    epochs: int = EPOCHS,
) -> list[list[np.ndarray]]:
    """Trains a classifier for each strength of the regularization.

    Args:
        train: the features to train on, float [n, inputs], and their classes, int [n],
            from 0 on.
        dev: the features and classes to validate on; None: a random 20th of `train`.
        tests: the features of each test set.
        classes: the number of classes.
        strengths: the strengths, PyTorch's `weight_decay`.
        seed: the seed of the first weights and of the order of examples.
        hidden: the number of hidden units; 0 for a linear layer alone.
        batch_size: the examples of a batch.
        epochs: the epochs between two measurements.

    Returns:
        For each strength, the predicted classes of each test set, int [rows].
    """
    random = np.random.default_rng(seed)
    x, y = np.asarray(train[0], np.float32), train[1]
    if dev is None:
        order = random.permutation(len(x))
        count = max(1, int(_DEV_SHARE * len(x)))
        held, learnt = order[:count], order[count:]
        dev, x, y = (x[held], y[held]), x[learnt], y[learnt]
    widths = [x.shape[1], *([hidden] if hidden else []), classes]
    networks = Networks(widths, strengths, _cross_entropy_gradient, random)

    def predict(features: np.ndarray) -> np.ndarray:
        return networks.logits(np.asarray(features, np.float32)).argmax(axis=2)

    networks.train(
        x,
        y,
        lambda: (predict(dev[0]) == dev[1]).mean(axis=1),
        epochs_between=epochs,
        most_epochs=200,
        patience=5,
        batch_size=batch_size,
    )
    predicted = [predict(test) for test in tests]
    return [[labels[place] for labels in predicted] for place in range(len(strengths))]


def _cross_entropy_gradient(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the mean cross-entropy, [strengths, n, classes]."""
    gradient = special.softmax(logits, axis=2)
    gradient[:, np.arange(len(y)), y] -= 1
    return gradient / len(y)


class Networks:
    """One network for each strength; the first axis of an array is the strength.

    Args:
        widths: the numbers of inputs, of hidden units (if any) and of outputs.
        strengths: the strengths of the regularization.
        loss_gradient: the gradient of the loss, [strengths, n, outputs], as a function
            of logits of this shape and of n targets.
        random: draws the first weights and the order of examples.

    Attributes:
        weights: the kernel and the bias of each layer.
    """

    def __init__(
        self,
        widths: Sequence[int],
        strengths: Sequence[float],
        loss_gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
        random: np.random.Generator,
    ):
        self.weights: list[np.ndarray] = []
        for inputs, outputs in itertools.pairwise(widths):
            bound = 1 / np.sqrt(inputs)
            for shape in ((inputs, outputs), (1, outputs)):
                drawn = random.uniform(-bound, bound, shape).astype(np.float32)
                self.weights.append(np.repeat(drawn[np.newaxis], len(strengths), 0))
        self._strengths = np.array(strengths, np.float32)[:, np.newaxis, np.newaxis]
        self._loss_gradient, self._random = loss_gradient, random
        # The state of Adam.
        self._means = [np.zeros_like(part) for part in self.weights]
        self._variances = [np.zeros_like(part) for part in self.weights]
        self._step = 0

    def train(
        self,
        x: np.ndarray,
        targets: np.ndarray,
        measure: Callable[[], np.ndarray],
        epochs_between: int,
        most_epochs: int,
        patience: int,
        batch_size: int = BATCH,
    ) -> np.ndarray:
        """Trains each network until it no longer improves; it keeps its best weights.

        Args:
            x: the features, float32 [n, inputs].
            targets: the targets, [n, ...].
            measure: the quality of each network on the validation set, [strengths].
            epochs_between: the epochs between two measurements.
            most_epochs: the first measurement after this epoch is the last.
            patience: a network ends at the measurement after so many without an
                improvement.
            batch_size: the examples of a batch.

        Returns:
            The best quality of each network, float [strengths].
        """
        best = np.full(len(self._strengths), -np.inf)
        kept = [part.copy() for part in self.weights]
        in_vain = np.zeros(len(self._strengths), int)
        for _ in range(0, most_epochs + 1, epochs_between):
            for _ in range(epochs_between):
                order = self._random.permutation(len(x))
                for start in range(0, len(x), batch_size):
                    batch = order[start : start + batch_size]
                    self.update(x[batch], targets[batch])
            found = measure()
            better = (found > best) & (in_vain <= patience)
            best[better] = found[better]
            for part, own in zip(kept, self.weights, strict=True):
                part[better] = own[better]
            in_vain += ~better
            if (in_vain > patience).all():
                break
        self.weights = kept
        return best

    def logits(self, x: np.ndarray) -> np.ndarray:
        """The outputs, float [strengths, n, outputs]."""
        return self._forward(x)[1]

    def _forward(self, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The input of each layer, [strengths or none, n, width], and the logits."""
        inputs = [x]
        *before, kernel, bias = self.weights
        if before:
            inputs.append(special.expit(x @ before[0] + before[1]))
        return inputs, inputs[-1] @ kernel + bias

    def update(self, x: np.ndarray, targets: np.ndarray) -> None:
        """One step of Adam, as PyTorch computes it, down the loss of a batch."""
        self._step += 1
        for part, gradient, mean, variance in zip(
            self.weights,
            self._gradients(x, targets),
            self._means,
            self._variances,
            strict=True,
        ):
            gradient += self._strengths * part
            mean += (1 - _BETA1) * (gradient - mean)
            variance += (1 - _BETA2) * (gradient**2 - variance)
            unbiased = mean / (1 - _BETA1**self._step)
            spread = variance / (1 - _BETA2**self._step)
            part -= _RATE * unbiased / (np.sqrt(spread) + _EPSILON)

    def _gradients(self, x: np.ndarray, targets: np.ndarray) -> list[np.ndarray]:
        inputs, logits = self._forward(x)
        d_logits = self._loss_gradient(logits, targets)
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
