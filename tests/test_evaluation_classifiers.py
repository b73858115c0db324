"""SentEval's classifiers against its algorithms, written again with other libraries."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlm.evaluation import catalogue, classifier, perceptron
from cmlm.evaluation.data_dir import DataDir


def logistic(seed, jobs=1):
    return classifier.Classifier("logistic", seed, jobs)


def fit(x, y, c):
    """The toolkit's call, but up to the optimum."""
    model = LogisticRegression(C=c, random_state=1111, tol=1e-8, max_iter=1000)
    return model.fit(x.astype(np.float64), y)


def blobs(count, classes, seed, dim=6):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count)
    centres = np.random.default_rng(9).normal(0, 0.7, [classes, dim])
    return (centres[y] + random.normal(size=[count, dim])).astype(np.float32), y


def choose(x, y, seed, powers, number=10):
    """The C that the folds choose, and its accuracy: the toolkit's loops."""
    folds = StratifiedKFold(number, shuffle=True, random_state=seed)
    grid, means = [2.0**power for power in powers], []
    for c in grid:
        scores = [fit(x[a], y[a], c).score(x[b], y[b]) for a, b in folds.split(x, y)]
        means.append(round(100 * np.mean(scores), 2))
    return grid[int(np.argmax(means))], max(means)


def toolkit_inner_folds(x, y, number=10):
    """InnerKFoldClassifier of SentEval's validation.py, with scikit-learn."""
    folds = StratifiedKFold(number, shuffle=True, random_state=1111)
    dev, test = [], []
    for train_rows, test_rows in folds.split(x, y):
        x_train, y_train = x[train_rows], y[train_rows]
        c, best = choose(x_train, y_train, 1111, range(-2, 4), number)
        dev.append(best)
        model = fit(x_train, y_train, c)
        test.append(round(100 * model.score(x[test_rows], y[test_rows]), 2))
    return round(np.mean(dev), 2), round(np.mean(test), 2)


def hashed(texts):
    """Counts of hashed words, at length 1, float32 [n, 8]."""
    made = HashingVectorizer(n_features=8, norm="l2").transform(texts)
    return made.toarray().astype(np.float32)


@pytest.mark.large
def test_nested_cross_validation_is_the_toolkits_on_public_data(
    shared_data, monkeypatch
):
    """In three folds; `test_nested_cross_validation_is_the_toolkits` has ten."""
    monkeypatch.setattr(classifier, "FOLDS", 3)
    (task,) = catalogue.select(["mpqa"])
    data = task.read(DataDir(str(shared_data / "eval")))
    part = data["train"]
    # Every 60th example, in the toolkit's order.
    part.texts, part.labels = part.texts[::60], part.labels[::60]
    scores = task.score(data, lambda texts, language: hashed(texts))
    x = hashed([text for (text,) in part.texts])
    dev, test = toolkit_inner_folds(x, part.labels, 3)
    # The toolkit rounds the figure of each fold.
    assert scores["accuracy"] == pytest.approx(test, abs=0.02)
    assert scores["dev_accuracy"] == pytest.approx(dev, abs=0.02)


def test_vectors_whose_hessian_is_singular_are_classified_without_warnings():
    """Threads share the filters of warnings, which scikit-learn's solver changes."""
    x, y = blobs(60, 2, seed=0, dim=20)
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        rows = classifier.Rows(1e9 * x, y)
        found = [logistic(0, jobs).tested(rows, rows) for jobs in (1, 8)]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] and np.mean(found[0][0] == y) > 0.8
    assert not given and warnings.filters == before


@pytest.mark.large
def test_nested_cross_validation_is_the_toolkits():
    x, y = blobs(150, 2, seed=0)
    _, found = logistic(1111).cross_validated(classifier.Rows(x, y))
    dev, test = toolkit_inner_folds(x, y)
    assert 60 < found["accuracy"] < 97
    assert found["accuracy"] == pytest.approx(test, abs=0.02)
    assert found["dev_accuracy"] == pytest.approx(dev, abs=0.02)


@pytest.mark.large
def test_cross_validation_then_test_is_the_toolkits():
    (x, y), (x_test, _) = blobs(120, 3, seed=1), blobs(80, 3, seed=2)
    test = classifier.Rows(x_test)
    predicted, dev = logistic(3).tested(classifier.Rows(x, y), test)
    c, best = choose(x, y, 3, range(-1, 6))
    np.testing.assert_array_equal(predicted, fit(x, y, c).predict(x_test))
    assert dev == pytest.approx(best, abs=0.1)


@pytest.mark.large
def test_folds_of_a_training_set_have_the_toolkits_grid():
    """Classes of different size want a C that InnerKFold's grid lacks."""
    random = np.random.default_rng(0)
    y = (np.arange(100) % 5 == 0).astype(int)
    x = (0.1 * random.normal(size=[100, 4])).astype(np.float32)
    x[:, 0] += 0.3 * y
    c, best = choose(x, y, 1, range(-1, 6))
    assert c > max(classifier.GRID)
    rows = classifier.Rows(x, y)
    predicted, dev = logistic(1).tested(rows, rows)
    np.testing.assert_array_equal(predicted, fit(x, y, c).predict(x))
    assert dev == pytest.approx(best)


def test_validation_then_test_chooses_on_the_validation_set():
    (x, y), (x_dev, y_dev) = blobs(60, 2, seed=1), blobs(40, 2, seed=2)
    x_test, _ = blobs(50, 2, seed=3)
    parts = classifier.Rows(x, y), classifier.Rows(x_dev, y_dev)
    predicted, dev = logistic(3).tested_by(*parts, classifier.Rows(x_test))
    scores = [100 * fit(x, y, c).score(x_dev, y_dev) for c in classifier.GRID]
    assert dev == pytest.approx(max(scores))
    chosen = classifier.GRID[int(np.argmax(scores))]
    np.testing.assert_array_equal(predicted, fit(x, y, chosen).predict(x_test))


@pytest.mark.parametrize("hidden", [0, 5])
def test_a_step_is_that_of_pytorchs_adam(hidden):
    """Gradients by TensorFlow's tape; Adam with weight decay by its definition."""
    random = np.random.default_rng(0)
    strengths = [0.0, 0.3]
    gradient_of_loss = perceptron._cross_entropy_gradient
    widths = [4, hidden, 3] if hidden else [4, 3]
    made = perceptron.Networks(widths, strengths, gradient_of_loss, random)
    first = [part.copy() for part in made.weights]
    batches = [
        (random.normal(size=[8, 4]).astype(np.float32), random.integers(0, 3, 8))
        for _ in range(3)
    ]
    for x, y in batches:
        made.update(x, y)
    for place, strength in enumerate(strengths):
        weights = [part[place].astype(np.float64) for part in first]
        mean = [np.zeros_like(part) for part in weights]
        square = [np.zeros_like(part) for part in weights]
        for step, (x, y) in enumerate(batches, 1):
            parts = [tf.constant(part) for part in weights]
            with tf.GradientTape() as tape:
                tape.watch(parts)
                z = tf.constant(x, tf.float64) @ parts[0] + parts[1]
                if hidden:
                    z = tf.sigmoid(z) @ parts[2] + parts[3]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
                loss = tf.reduce_mean(losses)
            for i, gradient in enumerate(tape.gradient(loss, parts)):
                g = gradient.numpy() + strength * weights[i]
                mean[i] = 0.9 * mean[i] + 0.1 * g
                square[i] = 0.999 * square[i] + 0.001 * g**2
                root = np.sqrt(square[i] / (1 - 0.999**step)) + 1e-8
                weights[i] = weights[i] - 1e-3 * mean[i] / (1 - 0.9**step) / root
        for found, expected in zip(made.weights, weights, strict=True):
            np.testing.assert_allclose(found[place], expected, rtol=1e-3, atol=1e-5)


def test_a_perceptron_learns_what_no_line_separates():
    random = np.random.default_rng(0)
    x = random.choice([-2.0, 2.0], [1200, 2]).astype(np.float32)
    x += 0.2 * random.normal(size=x.shape).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    (train, dev, test) = (slice(1000), slice(1000, 1100), slice(1100, 1200))
    parts = [classifier.Rows(x, y, rows) for rows in (train, dev, test)]
    found = {
        kind: np.mean(classifier.Classifier(kind, 1, 1).tested_by(*parts)[0] == y[test])
        for kind in classifier.ABOUT
    }
    assert found["mlp"] > 0.95
    assert max(found[kind] for kind in found.keys() - {"mlp"}) < 0.9


@pytest.mark.parametrize(
    ("kind", "batches", "epochs"),
    [
        ("logistic-adam", [64, 36], 4),
        ("logistic-cmlm", [16] * 6 + [4], 6),
        ("mlp", [64, 36], 4),
    ],
)
def test_a_network_has_its_batches_and_epochs(monkeypatch, kind, batches, epochs):
    """The published settings: `batch_size`, and `epoch_size` before a measurement."""
    sizes, predictions = [], []
    update, logits = perceptron.Networks.update, perceptron.Networks.logits

    def counting_update(networks, x, targets):
        sizes.append(len(x))
        update(networks, x, targets)

    def counting_logits(networks, x):
        predictions.append(len(x))
        return logits(networks, x)

    monkeypatch.setattr(perceptron.Networks, "update", counting_update)
    monkeypatch.setattr(perceptron.Networks, "logits", counting_logits)
    x, y = blobs(100, 2, seed=0)
    rows = classifier.Rows(x, y)
    classifier.Classifier(kind, 0, 1).tested_by(rows, rows, rows)
    measurements = len(predictions) - 2  # After training, it predicts both parts.
    assert measurements >= 6
    assert sizes == batches * epochs * measurements


@pytest.mark.filterwarnings("error")
def test_long_vectors_do_not_overflow_a_perceptron():
    x, y = blobs(60, 2, seed=0)
    long = 1e4 * x
    train, dev = (long[:40], y[:40]), (long[40:], y[40:])
    ((found,),) = perceptron.fit_path(train, dev, [long], 2, [1e-5], 0, 5)
    assert np.mean(found == y) > 0.6


def test_the_strength_counts_and_a_seed_repeats():
    random = np.random.default_rng(1)
    x = random.normal(size=[1300, 3]).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5] > 0.8).astype(int)
    train, dev = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    arguments = (train, dev, [dev[0]], 2, [1e-5, 10.0], 3, 0)
    (weak,), (strong,) = perceptron.fit_path(*arguments)
    assert np.mean(weak == dev[1]) > 0.9 and (weak != strong).any()
    np.testing.assert_array_equal(perceptron.fit_path(*arguments)[0][0], weak)
    # Without examples to validate on, a 20th of the training examples validates.
    ((own,),) = perceptron.fit_path(train, None, [dev[0]], 2, [1e-5], 3, 0)
    assert np.mean(own == dev[1]) > 0.8


def test_reports_name_the_classifier():
    for kind, about in classifier.ABOUT.items():
        names = ("trec", "xeval-trec", "amazon", "xnli", "snli", "xnli-de")
        for task in catalogue.select(names, classifier=kind):
            assert about in task.protocol
    assert "Pearson" in catalogue.select(["sick-r-trained"])[0].protocol
