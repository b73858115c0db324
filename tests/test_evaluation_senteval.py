"""STS and SentEval: public files as they are, scores learnt from scores, XEVAL."""

import numpy as np
import pytest
from encoders import WordCounts
from scipy import optimize, special, stats
from texts import write

from cmlm.errors import UserError
from cmlm.evaluation import catalogue, perceptron, public_sizes, relatedness, run
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base, senteval, senteval_files, sts, xeval

TASKS = {task.name: task for task in [*sts.TASKS, *senteval.TASKS]}


def read(name, data_dir):
    return TASKS[name].read(DataDir(str(data_dir)))


# -------------------------------------------------------------------- training


def test_scores_are_spread_over_whole_numbers():
    expected = [[1, 0, 0, 0, 0], [0, 0.75, 0.25, 0, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_allclose(relatedness.spread([1, 2.25, 5]), expected)
    # As the toolkit: below 1 only a part is left.
    np.testing.assert_allclose(relatedness.spread([0, 0.5])[:, 0], [0, 0.5])


def test_one_update_is_adams_first_step_down_the_loss():
    random = np.random.default_rng(0)
    gradient_of_loss = relatedness._squared_error_gradient
    model = perceptron.Networks([3, 5], [0.0], gradient_of_loss, random)
    x = random.normal(size=[8, 3]).astype(np.float32)
    target = relatedness.spread(random.uniform(1, 5, 8))

    def weights():
        return np.concatenate([part[0] for part in model.weights]).astype(np.float64)

    before = weights()

    def loss(parts):
        w = parts.reshape(before.shape)
        p = special.softmax(x @ w[:-1] + w[-1], axis=1)
        return np.mean((p - target) ** 2)

    gradient = optimize.approx_fprime(before.ravel(), loss, 1e-7)
    model.update(x, target)
    moved = (weights() - before).ravel()
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
    def over_seeds(*scores):
        return senteval.over_seeds([*map(base.Outcome, scores)]).scores

    scores = over_seeds({"accuracy": 60.0}, {"accuracy": 64.0})
    assert scores == {"accuracy": 62, "accuracy_std": pytest.approx(8**0.5)}
    assert over_seeds({"accuracy": 60.0}) == {"accuracy": 60}
    by_part = [{"parts": 2.0, "accuracy/fr": value} for value in (60.0, 64.0)]
    assert over_seeds(*by_part) == {
        **{"parts": 2, "accuracy/fr": 62, "accuracy_std/fr": pytest.approx(8**0.5)}
    }


@pytest.mark.parametrize("english", ["xeval/en", "senteval", "."])
def test_xeval_is_scored_by_language(tmp_path, english):
    for language in ("xeval/de", english):
        folder = tmp_path / language / "SST" / "binary"
        folder.mkdir(parents=True)
        for part in ("train", "dev", "test"):
            rows = [f"{word} {'x' * n}\t{n % 2}" for n in range(8) for word in "ab"]
            (folder / f"sentiment-{part}").write_text("\n".join(rows), "utf-8")
    (task,) = catalogue.select(["xeval-sst2"], seeds=[1, 2])
    data = task.read(DataDir(str(tmp_path)))
    assert list(data) == ["de", "en"]
    scores = task.score(data, WordCounts().encode)
    assert scores["accuracy"] == scores["accuracy/de"] == scores["accuracy/en"] >= 50
    assert "accuracy_std/de" in scores and scores["parts"] == 2

    class Swings(senteval.ClassificationTask):
        """The seed moves German up and English down, and their mean stays."""

        def _of_seed(self, data, x, seed):
            value = 50.0 + (seed if self.language == "de" else -seed)
            return base.Outcome({"accuracy": value})

    swings = xeval.XevalTask(Swings("sst2", senteval_files.sst2), "SST/binary")
    swings.seeds = (1, 3)
    scores = swings.score(data, WordCounts().encode)
    assert (scores["accuracy"], scores["accuracy_std"]) == (50, 0)
    assert (scores["accuracy/de"], scores["accuracy/en"]) == (52, 48)
    assert scores["accuracy_std/de"] == scores["accuracy_std/en"] == np.sqrt(2)
    (german,) = catalogue.select(["xeval-sst2-de"])
    assert list(german.read(DataDir(str(tmp_path)))) == ["de"]
    (trec,) = catalogue.select(["xeval-trec"])
    with pytest.raises(MissingData, match="xeval/./TREC"):
        trec.read(DataDir(str(tmp_path)))


def test_translations_are_read_as_utf_8_alone(tmp_path):
    """SentEval's own files may be Latin-1."""
    for language in ("de", "en"):
        for name in ("custrev.pos", "custrev.neg"):
            path = tmp_path / "xeval" / language / "CR" / name
            write(path, "caf\xe9\n", "latin-1")
    (found,), failed = run.read(catalogue.select(["xeval-cr"]), str(tmp_path))
    assert found.data["en"]["train"].texts[0] == ("caf\xe9",)
    assert "xeval/de/CR/custrev.pos is not utf-8-sig text" in failed["xeval-cr-de"]


def test_sst5_and_sick_files(tmp_path):
    (tmp_path / "SST" / "fine").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        path = tmp_path / "SST" / "fine" / f"sentiment-{part}"
        path.write_text("4 very good\n0 bad\n", "utf-8")
    (sst5,) = catalogue.select(["sst5"])
    data = sst5.read(DataDir(str(tmp_path)))
    assert data["test"].texts == [("bad",), ("very good",)]
    assert list(data["test"].labels) == [0, 4]
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (tmp_path / "SICK").mkdir()
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        rows = "1\tA dog\tA\t4.5\tNEUTRAL\n2\tB\tB\t1\tCONTRADICTION\n"
        (tmp_path / "SICK" / f"{name}.txt").write_text(head + rows, "utf-8")
    entailment, related = catalogue.select(["sick-e", "sick-r-trained"])
    parts = entailment.read(DataDir(str(tmp_path)))
    assert parts["dev"].texts == [("B", "B"), ("A dog", "A")]
    assert list(parts["dev"].labels) == [0, 1]
    parts = related.read(DataDir(str(tmp_path)))
    assert list(parts["train"].labels) == [1, 4.5]


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
        (lambda text: text + "5\n", "9 lines, .* 10 lines"),
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
    rows = row * 2 + row.replace("2.5", "0.5")
    write(tmp_path / "stsbenchmark" / "sts-test.csv", rows)
    (pairs,) = read("stsb-test", tmp_path).values()
    assert pairs.first == ['A "girl".'] * 3 and pairs.second == ["B"] * 3
    assert list(pairs.gold) == [2.5, 2.5, 0.5]
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    write(
        tmp_path / "senteval" / "SICK" / "SICK_test_annotated.txt",
        head + "6\tNo boy\tKids\t3.3\tNEUTRAL\r\n" + "7\tA\tB\t1\tNEUTRAL\r\n" * 2,
    )
    (pairs,) = read("sick-r", tmp_path).values()
    assert pairs.first == ["No boy", "A", "A"] and list(pairs.gold) == [3.3, 1, 1]


# ------------------------------------------------------------------ SentEval


def test_bytes_of_utf_16_are_not_latin_1(tmp_path):
    write(tmp_path / "MR" / "rt-polarity.pos", "a good film\n" * 20, "utf-16")
    write(tmp_path / "MR" / "rt-polarity.neg", "a bad film\n" * 20)
    _, failed = run.read(catalogue.select(["mr"]), str(tmp_path))
    said = "rt-polarity.pos, line 1: a NUL; allowed: utf-8-sig or latin-1 text"
    assert failed["mr"].startswith("damaged: ") and failed["mr"].endswith(said)


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
    with pytest.raises(MissingData, match="sentiment-test"):
        read("sst2", tmp_path)
    write(tmp_path / "SST" / "binary" / "sentiment-test", "good one\t1\n\t0\n")
    data = read("sst2", tmp_path)
    scores = TASKS["sst2"].score(data, WordCounts().encode)
    assert set(scores) == {"accuracy", "dev_accuracy", "f1"}
    write(tmp_path / "SST" / "binary" / "sentiment-test", "good one\nbad\t0\n")
    with pytest.raises(UserError, match="line 1: 1 column;"):
        read("sst2", tmp_path)


# ----------------------------------------------------------------- real data


@pytest.mark.large
def test_public_files_have_their_published_sizes(shared_data):
    # Not among the shared data.
    absent = {"cr", "subj", "sts17"}
    tasks = catalogue.select(sorted(public_sizes.SIZES.keys() - absent))
    found, failed = run.read(tasks, str(shared_data / "eval"))
    assert len(found) == len(tasks) and not failed
    for item in found:
        assert item.task.other_sizes(item.data) == []
    sizes = {
        item.task.name: [len(part) for part in item.data.values()] for item in found
    }
    assert sizes["stsb-multilingual"] == 5 * [1379] and sum(sizes["sts12"]) == 3108
    assert sizes["sst5"] == [8544, 1101, 2210] and sizes["mr"] == [10662]


# ----------------------------------------------------------------- other sizes


@pytest.mark.parametrize(
    "task, data, said",
    [
        ("trec", {"train": 5452, "test": 500}, []),
        ("trec", {"train": 5000, "test": 500}, ["train: 5,000 examples; the public s"]),
        ("sts13", {"FNWN": 189, "headlines": 750, "OnWN": 561}, []),
        ("sts13", {"FNWN": 189, "headlines": 750}, ["939 examples; the public set ha"]),
        ("stsb-multilingual-de", {"de": 1379}, []),
        ("stsb-multilingual-de", {"de": 1378}, ["de: 1,378 examples; the public set "]),
        ("stsb-multilingual", {"de": 7, "fr": 1379}, ["de: 7 examples; the public s"]),
        ("sts:mine.tsv", {"mine.tsv": 7}, []),
    ],
)
def test_a_copy_of_another_size_is_named(task, data, said):
    data = {
        part: base.Pairs([], [], np.zeros(size))
        if task.startswith("sts")
        else senteval_files.Examples([("a",)] * size, np.zeros(size))
        for part, size in data.items()
    }
    (chosen,) = catalogue.select([task])
    found = chosen.other_sizes(data)
    assert [line[: len(text)] for line, text in zip(found, said, strict=True)] == said
    # A reader of the report sees it.
    assert set(found) <= set(chosen.remarks(data))


def test_a_truncated_test_set_is_scored_with_a_warning(tmp_path, caplog):
    rows = [f"main\tMSRpar\t2012\t{i}\t{i / 2}\ta b{i}\ta c" for i in range(5)]
    text = "\n".join(rows) + "\n"
    write(tmp_path / "STS" / "STSBenchmark" / "sts-test.csv", text)
    found, failed = run.read(catalogue.select(["stsb-test"]), str(tmp_path))
    assert [item.task.name for item in found] == ["stsb-test"] and not failed
    assert caplog.messages == [
        "stsb-test: 5 examples; the public set has 1,379, so do not compare the scores "
        "with published ones"
    ]
