"""Readers take the public files as they are; scores are those of other programs."""

import dataclasses
import hashlib
import json
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
from encoders import WordCounts
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlm.encoders import components_file, opening
from cmlm.errors import UserError
from cmlm.evaluation import (
    classifier,
    reading,
    run,
    senteval,
    sts,
)

ROOT = Path(__file__).resolve().parent.parent
TASKS = {task.name: task for task in [*sts.TASKS, *senteval.TASKS]}


def read(name, data_dir):
    return TASKS[name].read(reading.DataDir(str(data_dir)))


def write(path: Path, content, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))


# ----------------------------------------------------------------------- STS


def test_pearson_of_angular_similarity():
    """LaBSE's table 6: Pearson of 1 - arccos(cosine) / pi."""
    gold = np.array([5, 2, 0, 4.0])
    expected = 100 * np.corrcoef([1, 0.5, 0, 2 / 3], gold)[0, 1]
    found = sts.pair_scores(np.array([1, 0, -1, 0.5]), gold)
    assert found["pearson_arccos"] == pytest.approx(expected)
    assert abs(found["pearson_arccos"] - found["pearson"]) > 0.1


@pytest.fixture
def sts16(tmp_path):
    """STS16 in the original layout: tabs, further columns, blank gold lines."""
    random = np.random.default_rng(0)
    words = "one two three four five six seven".split()
    pairs = {}
    for subset in TASKS["sts16"]._subsets:
        rows, gold = [], []
        for number in range(9):
            rows.append([" ".join(random.choice(words, 4)) for _ in range(2)])
            gold.append("" if number % 3 == 1 else f"{random.integers(0, 6)}")
        pairs[subset] = (rows, gold)
        folder = tmp_path / "STS" / "STS16-en-test"
        lines = ["\t".join([*row, "http://source", "more"]) for row in rows]
        write(folder / f"STS.input.{subset}.txt", "\n".join(lines) + "\n")
        write(folder / f"STS.gs.{subset}.txt", "\n".join(gold) + "\n")
    return tmp_path, pairs


def test_sts_with_blank_gold_lines_and_both_aggregations(sts16):
    data_dir, pairs = sts16
    task, model = TASKS["sts16"], WordCounts()
    scores = task.score(read("sts16", data_dir), model.encode)
    cosines, gold = {}, {}
    for subset, (rows, golds) in pairs.items():
        rows = [row for row, score in zip(rows, golds, strict=True) if score]
        gold[subset] = [float(score) for score in golds if score]
        assert len(rows) == 6
        a, b = (WordCounts().encode(list(column)) for column in zip(*rows, strict=True))
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines[subset] = (a * b).sum(axis=1) / norms
    together = stats.spearmanr(
        np.concatenate(list(cosines.values())), np.concatenate(list(gold.values()))
    ).statistic
    each = [stats.spearmanr(cosines[name], gold[name]).statistic for name in pairs]
    assert scores["spearman"] == pytest.approx(100 * together, abs=1e-4)
    assert scores["spearman_mean"] == pytest.approx(100 * np.mean(each), abs=1e-4)
    assert scores["spearman/plagiarism"] == pytest.approx(100 * each[2], abs=1e-4)
    assert abs(scores["spearman"] - scores["spearman_mean"]) > 0.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + "5\n", "9 pairs, .* 10 scores"),
        (
            lambda text: text.replace("\n\n", "\n7\n", 1),
            "line 2: score '7'; allowed: 0",
        ),
        (lambda text: text.replace("\n\n", "\nx\n", 1), "line 2: score 'x'"),
    ],
)
def test_damaged_gold_is_refused(sts16, change, said):
    data_dir, _ = sts16
    gold = data_dir / "STS" / "STS16-en-test" / "STS.gs.headlines.txt"
    gold.write_text(change(gold.read_text()))
    with pytest.raises(UserError, match=said):
        read("sts16", data_dir)


def test_sts_benchmark_and_sick_files(tmp_path):
    row = 'main\tMSRvid\t2012test\t0001\t2.500\tA "girl".\tB\tlicence\tx\n'
    write(tmp_path / "stsbenchmark" / "sts-test.csv", row * 3)
    (pairs,) = read("stsb-test", tmp_path).values()
    assert pairs.first == ['A "girl".'] * 3 and pairs.second == ["B"] * 3
    assert list(pairs.gold) == [2.5] * 3
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    write(
        tmp_path / "senteval" / "SICK" / "SICK_test_annotated.txt",
        head + "6\tNo boy\tKids\t3.3\tNEUTRAL\r\n7\tA\tB\t1\tNEUTRAL\r\n",
    )
    (pairs,) = read("sick-r", tmp_path).values()
    assert pairs.first == ["No boy", "A"] and list(pairs.gold) == [3.3, 1]


# ------------------------------------------------------------------ SentEval


def test_latin_1_and_control_characters_stay_in_their_line(tmp_path):
    write(tmp_path / "MR" / "rt-polarity.pos", "caf\xe9 good\x85 film\n", "latin-1")
    write(tmp_path / "MR" / "rt-polarity.neg", "bad\nvery , very bad \n", "latin-1")
    examples = read("mr", tmp_path)["train"]
    # In the toolkit's order: by words, then by label.
    assert examples.texts == [("bad",), ("caf\xe9 good film",), ("very , very bad",)]
    assert list(examples.labels) == [0, 1, 0]


def test_trec_files(tmp_path):
    write(
        tmp_path / "TREC" / "train_5500.label",
        "NUM:dist How far is it ?\nABBR:exp What is \xa3 ?\n",
        "latin-1",
    )
    write(tmp_path / "TREC" / "TREC_10.label", "LOC:city Where ?\nHUM:ind Who : him ?")
    data = read("trec", tmp_path)
    assert data["train"].texts == [("What is \xa3 ?",), ("How far is it ?",)]
    assert list(data["train"].labels) == [0, 5]
    assert data["test"].texts == [("Where ?",), ("Who : him ?",)]
    assert list(data["test"].labels) == [4, 3]
    write(tmp_path / "TREC" / "TREC_10.label", "XXX:city Where ?\nHUM:ind Who ?\n")
    with pytest.raises(UserError, match="line 1: label 'XXX'; allowed: ABBR"):
        read("trec", tmp_path)


def test_mrpc_files_and_pair_features(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = '1\t7\t8\tHe said " yes "\tYes , he said\n0\t9\t9\tA b\tA\n'
    for part in ("train", "test"):
        write(tmp_path / "MRPC" / f"msr_paraphrase_{part}.txt", head + rows)
    data = read("mrpc", tmp_path)
    assert data["train"].texts == [("A b", "A"), ('He said " yes "', "Yes , he said")]
    assert list(data["train"].labels) == [0, 1]
    u, v = WordCounts().encode(["A b", "A"])
    features = senteval.features(data["train"], WordCounts().encode)
    np.testing.assert_array_equal(features[0], [*abs(u - v), *(u * v)])


def test_sst_uses_the_validation_file(tmp_path):
    for part, text in {"train": "good\t1\nbad\t0\n", "dev": "fine\t1\nno\t0\n"}.items():
        write(tmp_path / "SST" / "binary" / f"sentiment-{part}", text * 4)
    with pytest.raises(reading.MissingData, match="sentiment-test"):
        read("sst2", tmp_path)
    write(tmp_path / "SST" / "binary" / "sentiment-test", "good one\t1\n\t0\n")
    data = read("sst2", tmp_path)
    scores = TASKS["sst2"].score(data, WordCounts().encode)
    assert set(scores) == {"accuracy", "dev_accuracy", "f1"}
    write(tmp_path / "SST" / "binary" / "sentiment-test", "good one\nbad\t0\n")
    with pytest.raises(UserError, match="line 1: 1 columns"):
        read("sst2", tmp_path)


# ---------------------------------------------------------------- classifier


def blobs(count, classes, seed, dim=6):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count)
    centres = np.random.default_rng(9).normal(0, 0.7, [classes, dim])
    return (centres[y] + random.normal(size=[count, dim])).astype(np.float32), y


def fit(x, y, c):
    return LogisticRegression(C=c, tol=1e-8, max_iter=5000).fit(x.astype(float), y)


def best_c(x, y, seed, grid=(0.25, 0.5, 1, 2, 4, 8)):
    """SentEval's choice, loop by loop."""
    folds = StratifiedKFold(10, shuffle=True, random_state=seed)
    means = []
    for c in grid:
        scores = [fit(x[a], y[a], c).score(x[b], y[b]) for a, b in folds.split(x, y)]
        means.append(round(100 * np.mean(scores), 2))
    return grid[int(np.argmax(means))], max(means)


@pytest.mark.large
def test_nested_cross_validation_is_the_toolkits():
    x, y = blobs(150, 2, seed=0)
    found = classifier.nested_cross_validation(x, y, seed=3)
    tests, devs = [], []
    folds = StratifiedKFold(10, shuffle=True, random_state=3)
    for train, test in folds.split(x, y):
        c, dev = best_c(x[train], y[train], seed=3)
        devs.append(dev)
        tests.append(100 * fit(x[train], y[train], c).score(x[test], y[test]))
    assert 60 < found["accuracy"] < 97
    assert found["accuracy"] == pytest.approx(np.mean(tests), abs=0.1)
    assert found["dev_accuracy"] == pytest.approx(np.mean(devs), abs=0.1)


@pytest.mark.large
def test_cross_validation_then_test_is_the_toolkits():
    (x, y), (x_test, _) = blobs(120, 3, seed=1), blobs(80, 3, seed=2)
    predicted, dev = classifier.cross_validation_then_test(x, y, x_test, seed=3)
    c, best = best_c(x, y, 3, (0.5, 1, 2, 4, 8, 16, 32))
    np.testing.assert_array_equal(predicted, fit(x, y, c).predict(x_test))
    assert dev == pytest.approx(best, abs=0.1)


def test_validation_then_test_chooses_on_the_validation_set():
    (x, y), (x_dev, y_dev) = blobs(60, 2, seed=1), blobs(40, 2, seed=2)
    x_test, _ = blobs(50, 2, seed=3)
    predicted, dev = classifier.validation_then_test(x, y, x_dev, y_dev, x_test, seed=3)
    scores = [100 * fit(x, y, c).score(x_dev, y_dev) for c in classifier.GRID]
    assert dev == pytest.approx(max(scores))
    chosen = classifier.GRID[int(np.argmax(scores))]
    np.testing.assert_array_equal(predicted, fit(x, y, chosen).predict(x_test))


# ----------------------------------------------------------------- real data


@pytest.mark.large
def test_public_files_have_their_published_sizes(shared_data):
    data_dir = str(shared_data / "eval")
    sizes = {}
    # Not among the shared data.
    absent = {"cr", "subj", "sts17", "sts-ru"}
    for name in TASKS.keys() - absent:
        parts = read(name, data_dir).values()
        sizes[name] = [
            len(getattr(part, "texts", None) or part.first) for part in parts
        ]
    assert {name: sum(size) for name, size in sizes.items() if name[:3] == "sts"} == {
        **{"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186},
        **{"stsb-dev": 1500, "stsb-test": 1379, "stsb-multilingual": 5 * 1379},
        "stsb-trained": 5749 + 1500 + 1379,
    }
    assert sizes["sst5"] == [8544, 1101, 2210]
    assert sizes["sick-e"] == sizes["sick-r-trained"] == [4500, 500, 4927]
    assert sizes["sick-r"] == [4927]
    assert sizes["mr"] == [10662] and sizes["mpqa"] == [10606]
    assert sizes["sst2"] == [67349, 872, 1821]
    assert sizes["trec"] == [5452, 500] and sizes["mrpc"] == [4076, 1725]


# ------------------------------------------------------------------- command


def test_command_scores_what_is_there_and_names_what_is_not(tmp_path):
    source = model_dirs.write(tmp_path / "model_dir", **{"model.num_layers": 1})
    data, output = tmp_path / "data", tmp_path / "report"
    texts = ["the cat", "a dog ran", "far away", "the mat . " * 20, "sat on the mat"]
    rows = [
        f"a\tb\tc\td\t{score}\t{text}\tthe dog ran"
        for score, text in zip([0, 1, 2, 3, 4], texts, strict=True)
    ]
    write(data / "stsbenchmark" / "sts-test.csv", "\n".join(rows) + "\n")
    train = data / "stsbenchmark" / "sts-train.csv"
    write(train, "\n".join(rows) + "\n")
    write(data / "stsb-de-test.csv", "the cat,a dog\n")
    arguments = [
        f"--model={source}",
        *(f"--model=bow:{source}", f"--data_dir={data}", f"--output={output}"),
        f"--cache_dir={tmp_path / 'cache'}",
        *("--tasks=stsb-test,mr,stsb-multilingual,geometry", "--repeats=2"),
    ]
    # The older name.
    assert "--repeats=0: 0 is not a positive integer" in evaluate("--seeds=0").stderr

    missing = evaluate(*arguments, f"--data_dir={tmp_path}/sets")
    assert missing.returncode == 1
    assert missing.stderr.startswith(f"error: --data_dir is {tmp_path}/sets, and there")
    assert missing.stderr.count("\n") == 1

    # The second model is refused before the first is scored.
    for typo, said in (("nothing", "does not exist"), ("best:", "no params.yaml")):
        models = [f"--model={source}", f"--model={typo}"]
        refused = evaluate(*models, f"--data_dir={data}", "--tasks=stsb-test")
        assert refused.returncode == 1 and said in refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr

    result = evaluate(*arguments)
    assert result.returncode == 1
    assert str(data / "MR" / "rt-polarity.pos") in result.stderr
    assert "stsb-de-test.csv, line 1: 2 columns; allowed: 3" in result.stderr
    assert result.stderr.endswith("\nerror: not scored: stsb-multilingual, mr\n")
    results = json.loads((output / "results.json").read_text())
    assert list(results["not_scored"]) == ["stsb-multilingual", "mr"]
    assert list(results["models"]) == [source, f"bow:{source}"]
    model = results["models"][source]
    assert model["truncated_sentences"] == 1 and model["sentences"] == 6
    assert (model["pooling"], model["seq_length"], model["step"]) == ("mean", 37, 3)
    assert results["seeds"] == [1111, 1112] and results["versions"]["scipy"]
    content = (data / "stsbenchmark" / "sts-test.csv").read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    assert results["tasks"]["stsb-test"]["sha256"] == {
        "stsbenchmark/sts-test.csv": checksum
    }
    shown = f"{model['scores']['stsb-test']['spearman']:.2f}"
    heads = [f"\u2026{source[-33:]}", f"bow:\u2026{source[-29:]}"]
    rows = [line for line in result.stdout.splitlines() if "\u2026" in line]
    assert [row.startswith(head) for row, head in zip(rows, heads * 2)] == [True] * 4
    assert rows[0].split()[-1] == shown
    page = (output / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3, (
        "cosines of two models, scores"
    )
    assert 'src="http' not in page and "<link" not in page
    assert f"**{source}** | {shown} |" in (output / "report.md").read_text()
    # Again, out of the cache: the same numbers, nothing encoded. But not over it.
    # Killed runs left scores, for a run with --overwrite, and what they were deleting.
    kept, deleted = (output.with_name(output.name + end) for end in WORK_OF_KILLED_RUNS)
    kept.mkdir()
    deleted.mkdir()
    assert "exists: name another" in evaluate(*arguments).stderr
    assert kept.exists() and not deleted.exists()
    arguments.append("--overwrite")
    assert evaluate(*arguments).returncode == 1
    again = json.loads((output / "results.json").read_text())
    for name, model in again["models"].items():
        assert model["encoded"] == 0
        assert model["scores"] == results["models"][name]["scores"]


WORK_OF_KILLED_RUNS = (".work", ".work.tmp-0a1b2c3d")
SIDES = {
    "deu": ["the cat", "a dog ran", "far away", "on the mat", "sat"],
    "eng": ["a cat", "the dog ran away", "far", "the mat", "ran on"],
}


def accuracy(x, y):
    """How often row i of y is the nearest to row i of x, times 100."""
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    return 100 * np.mean((x @ y.T).argmax(axis=1) == np.arange(len(x)))


def evaluate(*arguments):
    return commands.run("cmlm.evaluate", *arguments)


@pytest.fixture
def tatoeba(tmp_path):
    for side, texts in SIDES.items():
        path = tmp_path / "data" / "tatoeba" / f"tatoeba.deu-eng.{side}"
        write(path, "\n".join(texts) + "\n")
    return f"--data_dir={tmp_path / 'data'}", "--tasks=tatoeba"


@pytest.mark.large
def test_averages_are_in_every_file_of_a_report(tmp_path, tatoeba):
    """Two of XTREME's languages; a published row's average is over the same two."""
    for side, texts in (("fra", SIDES["deu"][::-1]), ("eng", SIDES["eng"])):
        path = tmp_path / "data" / "tatoeba" / f"tatoeba.fra-eng.{side}"
        write(path, "\n".join(texts) + "\n")
    source, output = (
        model_dirs.write(tmp_path / "model_dir", **{"model.num_layers": 1}),
        tmp_path / "report",
    )
    result = evaluate(*tatoeba, f"--model=bow:{source}", f"--output={output}")
    assert result.returncode == 0, result.stderr
    results = json.loads((output / "results.json").read_text())
    (model,) = results["models"].values()
    scores = [
        model["scores"]["tatoeba"][f"accuracy_forward/{name}"] for name in ("de", "fr")
    ]
    assert scores[0] != scores[1]
    group = "tatoeba/xtreme36"
    assert model["averages"][group] == pytest.approx(np.mean(scores))
    assert results["averages"][group]["scored"] == ["de", "fr"]
    for name in ("report.md", "report.html"):
        page = (output / name).read_text()
        assert f"{group} (2 of 36)" in page
        # CMLM+BR has 97.7 and 96.1.
        assert f"{np.mean(scores):.2f}" in page and "96.90" in page


@pytest.mark.large
def test_command_removes_components_of_a_file(tmp_path, tatoeba):
    source = model_dirs.write(tmp_path / "model_dir", **{"model.num_layers": 1})
    trained = opening.open_trained(source)
    fitted = model_dirs.fit(trained)
    components_file.save(str(tmp_path / "pcr.npz"), fitted)
    output = tmp_path / "out.json"
    result = evaluate(
        *(*tatoeba, f"--model={source}", f"--pcr={tmp_path / 'pcr.npz'}"),
        f"--output={output}",
    )
    assert result.returncode == 0, result.stderr
    model = json.loads(output.read_text())["models"][f"{source} + PCR"]
    assert model["pcr"]["languages"] == list(fitted.languages)
    assert model["pcr"]["unchanged"] == ["en"]
    note = "note: --pcr has no components for en: their vectors are unchanged"
    assert note in result.stderr.splitlines()
    x, y = (model_dirs.oracle_vectors(trained, texts) for texts in SIDES.values())
    # Of the two languages the file has components of German, and of English or not.
    sides = []
    for language, vectors in (("de", x), ("en", y)):
        known = fitted.languages.get(language)
        if known is not None:
            for c in known.components.astype(float):
                vectors = vectors - np.outer(vectors @ c, c)
        sides.append(vectors)
    assert model["scores"]["tatoeba"]["accuracy_forward"] == pytest.approx(
        accuracy(*sides)
    )
    # Where no side has components, nothing is removed and the label does not say so.
    rest = dataclasses.replace(
        fitted, languages={"zh-hant": fitted.languages["zh-hant"]}
    )
    components_file.save(str(tmp_path / "rest.npz"), rest)
    result = evaluate(
        *(*tatoeba, f"--model={source}", f"--pcr={tmp_path / 'rest.npz'}"),
        *(f"--output={output}", "--overwrite"),
    )
    assert result.returncode == 0, result.stderr
    (name,) = json.loads(output.read_text())["models"]
    assert name == source and "no components for de, en:" in result.stderr
    # Components of another model are refused.
    other = evaluate(
        *(*tatoeba, f"--model=bow:{source}", f"--pcr={tmp_path / 'pcr.npz'}")
    )
    assert other.returncode == 1 and "fitted with another model" in other.stderr


def test_a_deviation_over_runs_replaces_those_over_seeds():
    """CMLM's table 11: five encoders, each scored with five seeds."""
    runs = [
        {"scores": {"mr": {"accuracy": value, "accuracy_std": 0.1}}, "averages": {}}
        for value in (80.0, 82.0, 87.0)
    ]
    found = run.mean_of(runs)["scores"]["mr"]
    # Mean 83; (9 + 1 + 16) / 2 = 13.
    assert found == {"accuracy": 83, "accuracy_std": pytest.approx(13**0.5)}


def test_the_mean_of_models_is_over_tasks_that_all_have():
    runs = [
        {"scores": {"a": {"x": 1.0}, "b": {"x": 2.0}}, "averages": {"m": 1.0}},
        {"scores": {"b": {"x": 4.0}}, "averages": {}},
    ]
    for order in (runs, runs[::-1]):
        found = run.mean_of(order)
        assert list(found["scores"]) == ["b"] and found["scores"]["b"]["x"] == 3
        assert found["averages"] == {}


@pytest.mark.large
def test_mean_of_models_is_that_of_runs_with_different_seeds(tmp_path, tatoeba):
    first = model_dirs.write(tmp_path / "first", **{"model.num_layers": 1})
    both = f"languages:de={first},en=bow:{first}"
    output = tmp_path / "out.json"
    names = [first, f"bow:{first}", both]
    result = evaluate(
        *(*tatoeba, *(f"--model={name}" for name in names)),
        *("--mean_of_models", f"--output={output}"),
    )
    assert result.returncode == 0, result.stderr
    models = json.loads(output.read_text())["models"]
    assert list(models) == [*names, "mean of 3 models"]
    for metric in ("accuracy", "accuracy_forward/de"):
        name, slash, part = metric.partition("/")
        values = [models[model]["scores"]["tatoeba"][metric] for model in names]
        mean = models["mean of 3 models"]["scores"]["tatoeba"]
        assert mean[metric] == pytest.approx(np.mean(values))
        std = np.std(values, ddof=1)
        assert mean[f"{name}_std{slash}{part}"] == pytest.approx(std)
    # German by the model, English by its bag of words.
    german, english = (
        opening.open_encoder(name).encode(SIDES[side])
        for name, side in ((first, "deu"), (f"bow:{first}", "eng"))
    )
    expected = accuracy(german, english)
    assert models[both]["scores"]["tatoeba"]["accuracy_forward"] == expected
