"""Predictions for single examples, and how sure the difference of two models is."""

import csv
import json

import commands
import numpy as np
import pytest
import testsets
from encoders import WordCounts
from scipy import stats
from texts import write_lines

from cmlm.evaluation import catalogue, differences, perceptron, report, run
from cmlm.evaluation.tasks import senteval
from cmlm.evaluation.tasks.base import Outcome, Predictions
from cmlm.evaluation.tasks.senteval_files import Examples

# The mean over ten folds is not the mean over the examples of folds of unequal size.
_FOLDS = 2.0


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return testsets.write(tmp_path_factory.mktemp("testsets"))


@pytest.mark.parametrize(
    "names",
    [
        *("sts12", "stsb-test", "stsb-multilingual", "multi-simlex-cross"),
        *("mr", "sst2", "trec", "xeval-sst2", "tatoeba", "geogranno", "amazon"),
    ],
)
def test_the_statistic_of_the_predictions_is_the_main_metric(sets, names):
    ((item,), _) = run.read(catalogue.select([names]), sets)
    found = run.score(WordCounts(), [item], with_predictions=True)
    expected = found.scores[names][item.task.main_metric]
    measured = differences._metric(found.predictions[names])
    within = _FOLDS if names == "mr" else 1e-6
    assert measured == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("kind", ["pairs", "bitext", "neighbours", "retrieval"])
def test_predictions_for_own_files_have_the_main_metric(kind, tmp_path):
    """For vectors that are right in a part of the cases."""
    rows = range(24)
    first = [f"cat {row} sat" for row in rows]
    second = [f"dog {row} sat" if row % 3 else f"{row} lies there" for row in rows]
    source = tmp_path / f"{kind}.tsv"
    if kind == "pairs":
        shown = zip(first, second[::-1], rows, strict=True)
        write_lines(source, [f"{a}\t{b}\t{int(row % 4 > 1)}" for a, b, row in shown])
    elif kind == "bitext":
        write_lines(source, ["\t".join(pair) for pair in zip(first, second)])
    elif kind == "neighbours":
        documents = ([*pair, ""] for pair in zip(first, second))
        write_lines(source, [line for document in documents for line in document])
    else:
        source = tmp_path / "own"
        for name, texts in (("corpus", second), ("queries", first)):
            ids = [f"{name[0]}{row}" for row in rows]
            columns = zip(ids, texts, strict=True)
            lines = [{"_id": each, "text": text} for each, text in columns]
            write_lines(source / f"{name}.jsonl", map(json.dumps, lines))
        judged = ["query-id\tcorpus-id\tscore", *(f"q{row}\tc{row}\t1" for row in rows)]
        write_lines(source / "qrels" / "test.tsv", judged)
    name = f"{kind}:{source}"
    ((item,), _) = run.read(catalogue.select([name]), str(tmp_path))
    found = run.score(WordCounts(), [item], with_predictions=True)
    expected = found.scores[name][item.task.main_metric]
    measured = differences._metric(found.predictions[name])
    assert 5 < expected < 95
    assert measured == pytest.approx(expected, abs=1e-6)


def test_a_prediction_is_the_share_of_the_seeds_that_are_right():
    examples = Examples([("a",), ("b",)], np.array([1, 0]))
    predicted = (np.array([1, 1]), np.array([0, 1]))
    each = [senteval.predictions_of(examples, labels) for labels in predicted]
    found = senteval.over_seeds([Outcome({}, {"": one}) for one in each])
    assert found.predictions[""].values.tolist() == [0.5, 0]
    assert found.predictions[""].answers == ["1", "1"], "those of the first seed"


def test_a_classifier_trains_once_for_its_scores_and_predictions(sets, monkeypatch):
    trained, fit = [], perceptron.fit_path
    monkeypatch.setattr(
        perceptron, "fit_path", lambda *a, **b: trained.append(1) or fit(*a, **b)
    )
    tasks = catalogue.select(["sst2"], seeds=[1, 2], classifier="logistic-adam")
    found, _ = run.read(tasks, sets)
    assert run.score(WordCounts(), found, with_predictions=True).predictions
    assert len(trained) == 2


def _paired(n=200):
    """The predictions of two models that are right in 80 % and 60 % of the cases."""
    random = np.random.default_rng(1)
    one, other = random.random((2, n)) < [[0.8], [0.6]]
    texts, gold = [[str(i) for i in range(n)]], ["x"] * n
    return [{"": Predictions(texts, gold, x.astype(float))} for x in (one, other)]


def test_the_interval_of_a_mean_is_scipys():
    first, second = _paired()
    found = differences.between(first, second)
    one, other = first[""].values, second[""].values
    expected = stats.bootstrap(
        (one, other),
        lambda x, y, axis: 100 * (y.mean(axis) - x.mean(axis)),
        paired=True,
        n_resamples=9999,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert found["difference"] == pytest.approx(100 * (other.mean() - one.mean()))
    assert found["low"] == pytest.approx(expected.low, abs=1)
    assert found["high"] == pytest.approx(expected.high, abs=1)
    assert found["high"] < 0
    again = differences.between(second, first)
    assert again["difference"] == -found["difference"] and again["low"] > 0
    same = differences.between(first, first)
    assert same == {"difference": 0, "low": 0, "high": 0}


def test_the_interval_of_a_correlation_is_scipys():
    random = np.random.default_rng(2)
    gold = random.integers(0, 6, 150)
    one, other = (gold + random.normal(scale=s, size=150) for s in (1, 4))
    first, second = (
        {"": Predictions([[""] * 150] * 2, gold, values, "spearman")}
        for values in (one, other)
    )

    def difference(x, y, scores):
        of_x, of_y = (stats.spearmanr(each, scores).statistic for each in (x, y))
        return 100 * (of_y - of_x)

    found = differences.between(first, second)
    expected = stats.bootstrap(
        (one, other, gold),
        difference,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert found["difference"] == pytest.approx(difference(one, other, gold))
    assert found["low"] == pytest.approx(expected.low, abs=2)
    assert found["high"] == pytest.approx(expected.high, abs=2)


def test_parts_are_averaged_and_a_resample_without_positives_is_left_out():
    texts = [[""] * 4, [""] * 4]
    few = {
        part: Predictions(texts, [0, 0, 0, 1], np.array(cosines), "ap")
        for part, cosines in (("a", [0.1, 0.2, 0.3, 0.4]), ("b", [0.4, 0.3, 0.2, 0.1]))
    }
    assert differences._metric(few) == pytest.approx(100 * (1 + 0.25) / 2)
    found = differences.between(few, few)
    assert found == {"difference": 0, "low": 0, "high": 0}


def test_half_of_a_surrogate_pair_does_not_stop_a_report(tmp_path):
    found = {"": Predictions([["a \ud800"]], ["b"], np.ones(1), answers=["b"])}
    with open(tmp_path / "predictions.csv", "w", encoding="utf-8") as file:
        report.write_predictions(file, {"model": {"task": found}})
    rows = (tmp_path / "predictions.csv").read_text("utf-8").splitlines()
    assert rows[1] == "task,,1,a ?,,b,1,b"


def test_a_report_has_the_predictions_and_the_differences(tmp_path):
    texts = [f"word{i} text" for i in range(24)]
    lines = [f"{text}\t{'odd' if i % 2 else 'even'}\n" for i, text in enumerate(texts)]
    own = tmp_path / "own.tsv"
    own.write_text("text\tlabel\n" + "".join(lines))
    pairs = tmp_path / "pairs.tsv"
    rows = (f"{text}\t{texts[i - 1]}\t{i % 5}\n" for i, text in enumerate(texts))
    pairs.write_text("".join(rows))
    tasks = f"--tasks=classification:{own},sts:{pairs}"
    sentences, output = tmp_path / "sentences.txt", tmp_path / "report"
    commands.run("cmlm.evaluate", tasks, f"--sentences={sentences}")
    count = len(sentences.read_text().splitlines())
    models = []
    for name, seed in (("new", 0), ("old", 1)):
        vectors = tmp_path / f"{name}.npy"
        random = np.random.default_rng(seed)
        np.save(vectors, random.normal(size=[count, 5]).astype("float32"))
        models.append(f"--model={name}=vectors:{sentences}:{vectors}")
    refused = commands.run("cmlm.evaluate", tasks, *models, "--predictions")
    assert refused.stderr == (
        "error: --output is not given; allowed with --predictions: a folder\n"
    )
    done = commands.run(
        "cmlm.evaluate", tasks, *models, "--predictions", f"--output={output}"
    )
    assert done.returncode == 0, done.stderr
    assert "minus new" in done.stdout and "paired bootstrap" in done.stdout
    found = json.loads((output / "results.json").read_text())
    scores = {name: entry["scores"] for name, entry in found["models"].items()}
    (differing,) = found["differences"]["models"].values()
    name = f"sts:{pairs}"
    expected = scores["old"][name]["spearman"] - scores["new"][name]["spearman"]
    assert differing[name]["difference"] == pytest.approx(expected)
    assert differing[name]["low"] < expected < differing[name]["high"]
    assert "## Differences" in (output / "report.md").read_text()
    assert "<h2>Differences</h2>" in (output / "report.html").read_text()
    with open(output / "predictions.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 48 and rows[0]["task"] == f"classification:{own}"
    labelled = {row["first"]: row for row in rows if row["gold"] in ("odd", "even")}
    assert {text: row["gold"] for text, row in labelled.items()} == {
        text: "odd" if i % 2 else "even" for i, text in enumerate(texts)
    }
    for row in labelled.values():
        assert float(row["old"]) == (row["old answer"] == row["gold"])
    assert rows[-1]["second"] == texts[-2] and rows[-1]["old answer"] == ""
