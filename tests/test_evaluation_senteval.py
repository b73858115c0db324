"""The trained tasks: scores learnt from scores, seeds, XEVAL's folders."""

import numpy as np
import pytest
from encoders import WordCounts
from scipy import optimize, special, stats

from cmlm.evaluation import catalogue, reading, relatedness, senteval


def test_scores_are_spread_over_whole_numbers():
    expected = [[1, 0, 0, 0, 0], [0, 0.75, 0.25, 0, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_allclose(relatedness.spread([1, 2.25, 5]), expected)
    # As the toolkit: below 1 only a part is left.
    np.testing.assert_allclose(relatedness.spread([0, 0.5])[:, 0], [0, 0.5])


def test_one_update_is_adams_first_step_down_the_loss():
    random = np.random.default_rng(0)
    model = relatedness._SoftmaxRegression(3, random)
    x = random.normal(size=[8, 3]).astype(np.float32)
    target = relatedness.spread(random.uniform(1, 5, 8))
    before = model.weights.astype(np.float64)

    def loss(weights):
        w = weights.reshape(before.shape)
        p = special.softmax(x @ w[:-1] + w[-1], axis=1)
        return np.mean((p - target) ** 2)

    gradient = optimize.approx_fprime(before.ravel(), loss, 1e-7)
    model._update(x, target)
    moved = (model.weights - before).ravel()
    clear = np.abs(gradient) > 1e-4
    # The first step of Adam is the rate, against the sign of the gradient.
    np.testing.assert_allclose(
        moved[clear], -1e-3 * np.sign(gradient[clear]), rtol=1e-2
    )
    assert clear.sum() > 10


def test_scores_are_learnt_and_a_seed_repeats():
    random = np.random.default_rng(0)
    x = random.normal(size=[400, 8]).astype(np.float32)
    gold = 1 + 4 * special.expit(x @ np.linspace(-1, 1, 8))
    parts = x[:250], gold[:250], x[250:320], gold[250:320], x[320:]
    predicted, dev = relatedness.train_and_predict(*parts, seed=1)
    assert stats.pearsonr(predicted, gold[320:]).statistic > 0.95 and dev > 95
    again, _ = relatedness.train_and_predict(*parts, seed=1)
    np.testing.assert_array_equal(predicted, again)
    other, _ = relatedness.train_and_predict(*parts, seed=2)
    assert np.abs(other - predicted).max() > 0


def test_mean_and_deviation_over_seeds():
    scores = senteval.over_seeds([{"accuracy": 60.0}, {"accuracy": 64.0}])
    assert scores == {"accuracy": 62, "accuracy_std": pytest.approx(8**0.5)}
    assert senteval.over_seeds([{"accuracy": 60.0}]) == {"accuracy": 60}


def test_xeval_is_scored_by_language(tmp_path):
    for language in ("de", "en"):
        folder = tmp_path / "xeval" / language / "SST" / "binary"
        folder.mkdir(parents=True)
        for part in ("train", "dev", "test"):
            rows = [f"{word} {'x' * n}\t{n % 2}" for n in range(8) for word in "ab"]
            (folder / f"sentiment-{part}").write_text("\n".join(rows), "utf-8")
    (task,) = catalogue.select(["xeval-sst2"], seeds=[1, 2])
    data = task.read(reading.DataDir(str(tmp_path)))
    assert list(data) == ["de", "en"]
    scores = task.score(data, WordCounts().encode)
    assert scores["accuracy"] == scores["accuracy/de"] == scores["accuracy/en"] >= 50
    assert "accuracy_std/de" in scores and scores["parts"] == 2
    (german,) = catalogue.select(["xeval-sst2-de"])
    assert list(german.read(reading.DataDir(str(tmp_path)))) == ["de"]
    (trec,) = catalogue.select(["xeval-trec"])
    with pytest.raises(reading.MissingData, match="xeval/./TREC"):
        trec.read(reading.DataDir(str(tmp_path)))


def test_sst5_and_sick_files(tmp_path):
    (tmp_path / "SST" / "fine").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        path = tmp_path / "SST" / "fine" / f"sentiment-{part}"
        path.write_text("4 very good\n0 bad\n", "utf-8")
    (sst5,) = catalogue.select(["sst5"])
    data = sst5.read(reading.DataDir(str(tmp_path)))
    assert data["test"].texts == [("bad",), ("very good",)]
    assert list(data["test"].labels) == [0, 4]
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (tmp_path / "SICK").mkdir()
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        rows = "1\tA dog\tA\t4.5\tNEUTRAL\n2\tB\tB\t1\tCONTRADICTION\n"
        (tmp_path / "SICK" / f"{name}.txt").write_text(head + rows, "utf-8")
    entailment, related = catalogue.select(["sick-e", "sick-r-trained"])
    parts = entailment.read(reading.DataDir(str(tmp_path)))
    assert parts["dev"].texts == [("B", "B"), ("A dog", "A")]
    assert list(parts["dev"].labels) == [0, 1]
    parts = related.read(reading.DataDir(str(tmp_path)))
    assert list(parts["train"].labels) == [1, 4.5]
