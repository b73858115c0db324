"""Matryoshka: the loss of nested vectors, by its formula and by hand.

`test_every_objective.py` has replicas, micro-batches and gradient caching.
"""

import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys
from oracles import unit

from cmlm.config import experiment
from cmlm.errors import UserError
from cmlm.objectives import OBJECTIVES
from cmlm.objectives.nested import NestedObjective

BATCH, DIM = 4, 16
SIZES = (DIM, 5, 2)
NESTED = [
    name for name, each in OBJECTIVES.items() if issubclass(each, NestedObjective)
]


def differences(loss, vectors) -> np.ndarray:
    """The gradient of a function of float64 vectors, by central differences."""
    gradient = np.zeros_like(vectors)
    for at in np.ndindex(*vectors.shape):
        step = np.zeros_like(vectors)
        step[at] = 1e-6
        gradient[at] = (loss(vectors + step) - loss(vectors - step)) / 2e-6
    return gradient


def assert_loss(objective, batch, vectors, of_size) -> None:
    """Loss and gradient are those of the sum of `of_size(first components)`."""

    def want(vectors):
        sizes = objective.config.dimensions
        return sum(of_size(vectors[..., :size]) for size in sizes)

    tensor = tf.constant(vectors, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss, metrics = objective.total_loss(tensor, batch)
    np.testing.assert_allclose(loss, want(vectors), rtol=1e-5)
    gradient = tape.gradient(loss, tensor)
    expected = differences(want, vectors)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)
    # All other metrics are those of the whole vectors.
    np.testing.assert_array_equal(metrics.pop("loss")[0], loss)
    whole = objective.embedding_loss(tensor, batch)[1]
    for key, value in metrics.items():
        np.testing.assert_array_equal(value, whole[key], key)


@pytest.mark.parametrize("sizes", [SIZES, (5, 2)])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_contrastive_loss_and_gradient_by_the_formula(similarity, sizes):
    batch = toys.bitext_batch(BATCH, negatives=1)
    values = {"similarity": similarity, "margin": 0.2, "scale": 3.0}
    objective = toys.objective("bitext", toys.model(), dimensions=sizes, **values)
    vectors = np.random.default_rng(1).normal(size=[BATCH, 3, DIM])
    if similarity == "cosine":
        # As `embed` returns them.
        vectors = unit(vectors)

    def of_size(first):
        # `embed` has scaled the whole vectors.
        if similarity == "cosine" and first.shape[-1] < DIM:
            first = unit(first)
        source, target, negative = first[:, 0], first[:, 1], first[:, 2]
        rest = (np.arange(BATCH), np.eye(BATCH, dtype=bool), 0.2, 3.0)
        positives, related, *settings = rest
        excluded = np.concatenate([related, np.zeros_like(related)], axis=1)
        candidates = np.concatenate([target, negative])
        loss = oracles.additive_margin_softmax
        forward = loss(source, candidates, positives, excluded, *settings)
        return forward.sum() + loss(target, source, positives, related, *settings).sum()

    assert_loss(objective, batch, vectors, of_size)


@pytest.mark.parametrize("loss", ["cosent", "cosine"])
def test_scored_loss_and_gradient_by_the_formula(loss):
    scores = np.array([0.1, 0.9, 0.4, 0.4], np.float32)
    batch = {"score": tf.constant(scores), "source_word_ids": tf.zeros([BATCH, 1])}
    values = {"loss": loss, "scale": 3.0, "dimensions": SIZES}
    objective = toys.objective("scored", toys.model(), **values)

    def of_size(first):
        cosines = np.sum(unit(first[:, 0]) * unit(first[:, 1]), axis=-1)
        if loss == "cosine":
            return np.sum((cosines - scores) ** 2)
        return BATCH * oracles.cosent(cosines, scores, 3.0)

    vectors = np.random.default_rng(1).normal(size=[BATCH, 2, DIM])
    assert_loss(objective, batch, vectors, of_size)


def test_one_component_by_hand():
    """Two pairs: whole, the cosines are 1 and 0; the first numbers are 1 and -1."""
    objective = toys.objective(
        "mirror", toys.model(hidden_size=2), dimensions=(2, 1), scale=1.0
    )
    batch = toys.mirror_batch(2)
    root = 0.5**0.5
    first, second = [root, root], [-root, root]
    vectors = tf.constant([[first, first], [second, second]])
    loss, _ = objective.total_loss(vectors, batch)
    # A text ranks its copy and the two views of the other text.
    want = 4 * np.log((np.e + 2) / np.e) + 4 * np.log((np.e + 2 / np.e) / np.e)
    np.testing.assert_allclose(loss, want, rtol=1e-6)


def test_the_whole_vectors_alone_are_the_plain_loss():
    batch = toys.bitext_batch(BATCH, negatives=1)
    vectors = tf.random.normal([BATCH, 3, DIM], seed=1)
    made = toys.model()
    plain, nested = (
        toys.objective("bitext", made, dimensions=sizes).total_loss(vectors, batch)[0]
        for sizes in ((), (DIM,))
    )
    assert float(plain) == float(nested)


def test_the_objectives_that_compare_vectors_are_nested():
    assert NESTED == ["bitext", "pairs", "scored", "quickthought", "mirror"]


@pytest.mark.parametrize(
    "sizes, said",
    [
        ([16, 17], r"is \[16, 17\]; allowed: sizes from 1 to model.hidden_size, 16"),
        ([16, 0], r"is \[16, 0\]; allowed: at least 1"),
        ([8, 8], r"is \[8, 8\]; allowed: each size once"),
        (8, "is 8; allowed: a list"),
        (["a"], "is 'a'; allowed: an integer"),
    ],
)
def test_a_size_that_does_not_fit_is_named(sizes, said):
    config = experiment.ExperimentConfig(model=toys.encoder_config())
    config.task.pairs.weight = 1.0
    data = config.task.pairs.train_data
    data.seq_length, data.global_batch_size = 8, 2
    config.task.pairs.dimensions = sizes
    with pytest.raises(UserError, match=f"task.pairs.dimensions {said}"):
        config.validate()
