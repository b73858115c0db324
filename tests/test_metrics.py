"""Metrics and margins by hand, and against scipy and scikit-learn."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics.pairwise import paired_cosine_distances

from cmlm.errors import UserError
from cmlm.evaluation import catalogue, classifier, metrics
from cmlm.evaluation.data_dir import DataDir
from cmlm.mining import margins


def test_cosine_by_hand():
    a = np.array([[3, 4], [1, 0], [0, 0], [1, 1], [2, 0]])
    b = np.array([[4, 3], [0, 5], [1, 2], [-2, -2], [0, 0]])
    found = metrics.cosine(a, b)
    np.testing.assert_allclose(found, [24 / 25, 0, 0, -1, 0], atol=1e-12)
    assert found.dtype == np.float64


def test_equal_rows_have_the_cosine_1_and_tie_in_ranks():
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 500, 384)).astype(np.float32)
    gold = random.normal(size=500)
    b[::3] = a[::3]
    a[0] = b[0] = 0
    want = paired_cosine_distances(a[1:].astype(np.float64), b[1:].astype(np.float64))
    want = np.concatenate([[0], 1 - want])
    want[3::3] = 1
    found = metrics.cosine(a, b)
    np.testing.assert_allclose(found, want, atol=1e-12)
    assert set(found[::3]) == {0, 1}
    spearman = 100 * stats.spearmanr(want, gold).statistic
    assert metrics.correlations(found, gold)["spearman"] == pytest.approx(spearman)


def test_angular_similarity_by_hand():
    # Rounding may give cosines just beyond 1 and -1.
    cosines = np.array([1, 1 + 1e-9, 0, 0.5, -1, -1 - 1e-9])
    found = metrics.angular_similarity(cosines)
    np.testing.assert_allclose(found, [1, 1, 1 / 2, 2 / 3, 0, 0], atol=1e-12)


def test_correlations_are_scipys_times_100():
    random = np.random.default_rng(0)
    gold = random.normal(size=50)
    predicted = np.exp(gold) + random.normal(size=50)
    found = metrics.correlations(predicted, gold)
    ranks = [stats.rankdata(values) for values in (predicted, gold)]
    assert found["spearman"] == pytest.approx(100 * np.corrcoef(*ranks)[0, 1])
    assert found["pearson"] == pytest.approx(100 * np.corrcoef(predicted, gold)[0, 1])
    assert metrics.correlations(np.array([1, 2]), np.array([-3, -4])) == {
        "spearman": pytest.approx(-100),
        "pearson": pytest.approx(-100),
    }


@pytest.mark.parametrize(
    "predicted, gold", [([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [2, 2, 2])]
)
def test_a_constant_side_correlates_with_nothing(predicted, gold):
    found = metrics.correlations(np.array(predicted), np.array(gold))
    assert found == {"spearman": 0.0, "pearson": 0.0}


@pytest.mark.parametrize(
    "gold, said",
    [
        ([5], "1 example with 1 distinct score"),
        ([5, 0], "2 examples with 2 distinct scores"),
        ([2, 2, 2], "3 examples with 1 distinct score"),
    ],
)
def test_scores_that_nothing_correlates_with_are_refused(gold, said, tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("".join(f"a\tb\t{score}\n" for score in gold))
    (task,) = catalogue.select([f"sts:{path}"])
    with pytest.raises(UserError, match=f"own.tsv has {said}; allowed for a corr"):
        task.read(DataDir(str(tmp_path)))


def test_accuracy_and_f1_by_hand():
    predicted, gold = [1, 1, 0, 2, 1], [1, 0, 1, 2, 1]
    assert metrics.accuracy(predicted, gold) == pytest.approx(60)
    # 2 hits, 3 predicted, 3 true: 2 * 2 / 6.
    assert metrics.f1(predicted, gold) == pytest.approx(200 / 3)
    assert metrics.f1([1], [1]) == 100
    assert metrics.f1([1, 0], [0, 1]) == 0
    assert metrics.f1([0, 2], [0, 2]) == 0


def test_margins_by_hand():
    cosines = np.array([[0.9, 0.2], [0.5, 0.3]], np.float32)
    of_x, of_y = np.array([[0.6], [-0.4]]), np.array([[0.4, 0.2], [0.4, 0.2]])
    # Means: (0.6 + 0.4) / 2, (0.6 + 0.2) / 2; (-0.4 + 0.4) / 2, (-0.4 + 0.2) / 2.
    expected = {
        "ratio": [[0.9 / 0.5, 0.2 / 0.4], [0, 0]],
        "distance": [[0.9 - 0.5, 0.2 - 0.4], [0.5, 0.3 + 0.1]],
        "absolute": cosines,
    }
    for margin, scores in expected.items():
        found = margins.score(cosines, of_x, of_y, margin)
        np.testing.assert_allclose(found, scores, atol=1e-6, err_msg=margin)
        assert found.dtype == np.float64
    default = margins.score(cosines, of_x, of_y)
    np.testing.assert_allclose(default, expected["ratio"], atol=1e-6)
    with pytest.raises(ValueError, match="'other'; allowed: "):
        margins.score(cosines, of_x, of_y, "other")
    # NumPy would take a mean of each x for a mean of each candidate.
    with pytest.raises(
        ValueError, match=r"of_x .* \[2\]; allowed: \[2, 2\] or \[2, 1\]"
    ):
        margins.score(cosines, of_x[:, 0], of_y)
    with pytest.raises(ValueError, match=r"of_y has the shape \[1, 2\]; allowed: "):
        margins.score(cosines, of_x, of_y[:1], "distance")


def test_too_few_examples_for_the_folds_are_named():
    x, model = np.eye(12), classifier.Classifier("logistic", 0, 1)
    for most, least in ((9, 3), (11, 1)):
        y = np.array([0] * most + [1] * least)
        rows = classifier.Rows(x, y)
        said = f"largest class has {most} examples, the next {least}; .*at least"
        with pytest.raises(UserError, match=f"{said} 12 and 3"):
            model.cross_validated(rows)
        with pytest.raises(UserError, match=f"{said} 10 and 2"):
            model.tested(rows, rows)
