"""Losses by hand."""

import numpy as np
import oracles
import pytest
import tensorflow as tf

from cmlm.modeling import step_mode
from cmlm.objectives import losses


@pytest.mark.parametrize("compiled", [False, True])
def test_masked_lm_by_hand(compiled):
    # p(label) is 0.75 and 0.5; the third prediction is padding.
    logits = tf.math.log([[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]])
    labels = tf.constant([0, 1, 1])
    weights = tf.constant([1.0, 1.0, 0.0])
    with step_mode.fusing(compiled):
        loss, right = losses.masked_lm(logits, labels, weights)
    np.testing.assert_allclose(loss, -np.log(0.75) - np.log(0.5), rtol=1e-6)
    assert float(right) == 1.0


def test_masked_lm_of_nothing_is_zero():
    loss, right = losses.masked_lm(
        tf.zeros([0, 5]), tf.zeros([0], tf.int32), tf.zeros([0])
    )
    assert float(loss) == 0.0 and float(right) == 0.0


def unit_rows(random, rows, dim=6):
    vectors = random.normal(size=[rows, dim])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("with_positive", [True, False])
@pytest.mark.parametrize("margin, scale", [(0.0, 1.0), (0.3, 1.0), (0.3, 20.0)])
def test_additive_margin_softmax_by_its_formula(margin, scale, with_positive):
    random = np.random.default_rng(0)
    queries, candidates = unit_rows(random, 4), unit_rows(random, 9)
    positives = np.array([5, 0, 8, 3])
    excluded = random.random([4, 9]) < 0.3
    excluded[0, 5] = True  # a positive stays, whatever is said of it
    loss, similarities = losses.additive_margin_softmax(
        tf.constant(queries, tf.float32),
        tf.constant(candidates, tf.float32),
        tf.constant(positives, tf.int32),
        tf.constant(excluded),
        margin,
        scale,
        with_positive,
    )
    want = oracles.additive_margin_softmax(
        queries, candidates, positives, excluded, margin, scale, with_positive
    )
    np.testing.assert_allclose(loss, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(similarities, queries @ candidates.T, atol=1e-5)


@pytest.mark.parametrize("with_positive", [True, False])
def test_a_query_whose_candidates_are_all_excluded_has_no_loss_and_a_gradient(
    with_positive,
):
    vectors = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        loss, _ = losses.additive_margin_softmax(
            *(vectors, vectors, tf.constant([0, 1]), tf.ones([2, 2], tf.bool)),
            *(0.3, 20.0, with_positive),
        )
    np.testing.assert_allclose(loss, [0.0, 0.0], atol=1e-6)
    assert np.isfinite(tape.gradient(loss, vectors)).all()


def test_cosent_by_its_formula():
    random = np.random.default_rng(0)
    cosines = random.uniform(-1, 1, 9).astype(np.float32)
    scores = random.integers(0, 4, 9).astype(np.float32)
    got = losses.cosent(tf.constant(cosines), tf.constant(scores), 20.0)
    np.testing.assert_allclose(got, oracles.cosent(cosines, scores, 20.0), rtol=1e-5)


def test_cosent_of_equal_scores_is_zero_with_a_gradient_of_zero():
    cosines = tf.constant([0.1, 0.9])
    with tf.GradientTape() as tape:
        tape.watch(cosines)
        loss = losses.cosent(cosines, tf.ones([2]), 20.0)
    assert float(loss) == 0
    np.testing.assert_array_equal(tape.gradient(loss, cosines), [0, 0])


@pytest.mark.parametrize("form", losses.MISAD_FORMS)
def test_misad_by_hand(form):
    """Rows and columns differ in number; lengths of the inputs do not count."""
    part = np.array([[3.0, 0, 0], [0, 2, 0]], np.float32)
    rest = np.array([[0.0, 5, 0], [0, 0, 7]], np.float32)
    whole = np.array([[1.0, 0, 0], [0, 4, 4]], np.float32)
    loss, cosine = losses.misad(*map(tf.constant, (part, rest, whole)), form)
    root = 0.5**0.5
    if form == "paper":
        # (1, 1, 0) - (1, 0, 0); (0, 1, 1) - (0, root, root).
        expected = [1 / 3, 2 * (1 - root) ** 2 / 3]
    else:
        # (root, root, 0) - (1, 0, 0); no difference.
        expected = [((1 - root) ** 2 + 0.5) / 3, 0]
    np.testing.assert_allclose(loss, expected, atol=1e-6)
    np.testing.assert_allclose(cosine, [root, 1], atol=1e-6)


def test_a_form_of_misad_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="form is 'papr'; allowed: paper, released"):
        losses.misad(*[tf.ones([1, 2])] * 3, "papr")


def test_cosines_and_their_distance_by_hand():
    vectors = tf.constant([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    targets = tf.constant([[30.0, 0.0], [0.0, 5.0], [-7.0, 0.0]])
    np.testing.assert_allclose(
        losses.cosine_distance(vectors, targets), [0.4, 0, 2], atol=1e-6
    )
    np.testing.assert_allclose(
        losses.cosines(vectors, targets), [0.6, 1, -1], atol=1e-6
    )


def test_similarity_error_by_hand():
    """Two rows here of three in all; the targets have another width."""
    vectors = tf.constant([[2.0, 0], [0, 3.0], [3.0, 4.0]])
    targets = tf.constant([[0.0, 0, 5], [0, 1, 1], [0, 0, -2]])
    root = 0.5**0.5
    expected = [
        ((1 - 1) ** 2 + (0 - root) ** 2 + (0.6 + 1) ** 2) / 3,
        ((0 - root) ** 2 + (1 - 1) ** 2 + (0.8 + root) ** 2) / 3,
    ]
    got = losses.similarity_error(vectors[:2], vectors, targets[:2], targets)
    np.testing.assert_allclose(got, expected, atol=1e-6)
