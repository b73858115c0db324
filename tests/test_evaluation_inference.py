"""SNLI and XNLI: their published layouts, and the classifier on known vectors."""

import csv
import io

import numpy as np
import pytest
from encoders import Table
from texts import write_lines

from cmlm.errors import UserError
from cmlm.evaluation import catalogue, classifier, means, report, results, run, tables
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import inference

LABELS = ("neutral", "entailment", "contradiction")
# XNLI-1.0's columns.
HEAD = (
    "language gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 promptID pairID genre label1 label2 label3 "
    "label4 label5 sentence1_tokenized sentence2_tokenized match"
).split()


def read(name, folder):
    (task,) = catalogue.select([name])
    return task, task.read(DataDir(str(folder)))


def pairs(language, count):
    return [
        (f"{language} premise {row}", f"{language} {LABELS[row % 3]} {row}")
        for row in range(count)
    ]


def write_published(folder, languages=("en", "de")):
    for part, count in (("dev", 30), ("test", 12)):
        rows = ["\t".join(HEAD)]
        for language in languages:
            for row, (first, second) in enumerate(pairs(language, count)):
                cells = dict.fromkeys(HEAD, "x")
                cells |= {"language": language, "gold_label": LABELS[row % 3]}
                cells |= {"sentence1": first, "sentence2": second}
                rows.append("\t".join(cells[name] for name in HEAD))
        write_lines(folder / "XNLI-1.0" / f"xnli.{part}.tsv", rows)


def write_by_language(folder):
    for language in ("en", "de"):
        for part, count in (("dev", 30), ("test", 12)):
            rows = [
                "\t".join([*pair, *([LABELS[row % 3]] if part == "dev" else [])])
                for row, pair in enumerate(pairs(language, count))
            ]
            write_lines(folder / "xnli" / f"{part}-{language}.tsv", rows)
    write_lines(
        folder / "xnli" / "test-labels.txt", [LABELS[row % 3] for row in range(12)]
    )


def write_labels_beside(folder):
    """By language, with the labels of the test files in their third column."""
    write_by_language(folder)
    (folder / "xnli" / "test-labels.txt").unlink()
    for language in ("en", "de"):
        rows = [
            "\t".join([*pair, LABELS[row % 3]])
            for row, pair in enumerate(pairs(language, 12))
        ]
        write_lines(folder / "xnli" / f"test-{language}.tsv", rows)


class Words:
    """A vector says which label its sentence names."""

    def encode(self, texts, language=""):
        del language
        return np.array([[label in text for label in LABELS] for text in texts], float)


@pytest.mark.parametrize(
    "layout", [write_published, write_by_language, write_labels_beside]
)
def test_xnli_learns_english_and_is_tested_on_all(tmp_path, layout):
    layout(tmp_path)
    task, data = read("xnli", tmp_path)
    assert set(data) == {"train", "en", "de"}
    assert data["train"].texts == pairs("en", 30)
    assert data["de"].texts == pairs("de", 12)
    assert data["de"].labels.tolist() == [1, 0, 2] * 4
    scores = task.score(data, Words().encode)
    assert scores["accuracy"] == scores["accuracy/de"] == scores["accuracy/en"] == 100
    assert scores["train_pairs"] == 30


def test_a_deviation_over_seeds_is_not_a_language(tmp_path):
    write_published(tmp_path)
    tasks = catalogue.select(["xnli"], seeds=[1, 2])
    for seed in (1, 2):
        tasks += catalogue.select(["xnli"], seeds=[seed])
    data = tasks[0].read(DataDir(str(tmp_path)))
    random = np.random.default_rng(0)
    texts = sorted(set(tasks[0].sentences(data)))
    vectors = Table({text: random.normal(size=4) for text in texts})
    both, *single = (task.score(data, vectors.encode) for task in tasks)
    values = [scores["accuracy/de"] for scores in single]
    assert len(set(values)) == 2, "the seed matters"
    assert both["accuracy/de"] == pytest.approx(np.mean(values))
    assert both["accuracy_std/de"] == pytest.approx(np.std(values, ddof=1))
    model = {"scores": {"xnli": both}}
    models = {"first": model, "mean": means.mean_of([model, model], ())}
    about = results.describe(run.TaskData(tasks[0], data, {}))
    found = {"tasks": {"xnli": about}, "models": models, "groups": {}}
    whole, languages = tables.tables(found)
    assert whole.columns == [("xnli", "accuracy")]
    assert languages.heads == ["en", "de"]
    _, first, _ = tables.details(found)
    assert [row.name for row in first.rows] == ["en", "de"]
    assert first.heads == ["accuracy", "accuracy_std"]
    file = io.StringIO()
    report.write_csv(file, found)
    parts = {row["part"] for row in csv.DictReader(io.StringIO(file.getvalue()))}
    assert parts == {"", "en", "de"}


def damage_german(directory, layout):
    """Damages the German test pairs that `layout` has written."""
    for path in directory.glob("*/*test*.tsv"):
        path.write_text(path.read_text().replace("de premise 0", "de\tpremise"))
        path.write_text(path.read_text().replace("de\tneutral", "de\tno label", 1))
    if layout is write_by_language:
        path = directory / "xnli" / "test-de.tsv"
        path.write_text(path.read_text().split("\n", 1)[1])


@pytest.mark.parametrize("layout", [write_published, write_by_language])
def test_one_language_of_xnli_is_read_and_tested_alone(tmp_path, layout):
    layout(tmp_path)
    task, data = read("xnli-de", tmp_path)
    assert list(data) == ["train", "de"] and data["train"].texts == pairs("en", 30)
    assert catalogue.family(task) == "inference"
    scores = task.score(data, Words().encode)
    assert scores == {"accuracy": 100, "dev_accuracy": 100, "train_pairs": 30}
    with pytest.raises(UserError, match="no 'fr'; there are (en, de|de, en)"):
        read("xnli-fr", tmp_path)
    damage_german(tmp_path, layout)
    found, failed = run.read(catalogue.select(["xnli-en", "xnli-de"]), str(tmp_path))
    assert [item.task.name for item in found] == ["xnli-en"]
    assert list(failed) == ["xnli-de"] and failed["xnli-de"].startswith("damaged: ")


def test_snli_learns_from_its_training_set_if_there_is_one(tmp_path):
    for part, count in (("dev", 30), ("test", 12)):
        both = list(zip(*pairs("en", count), strict=True))
        labels = [LABELS[row % 3] for row in range(count)]
        # No agreement of the annotators: the pair does not count.
        write_lines(tmp_path / "SNLI" / f"labels.{part}", [*labels, "-"])
        for name, column in zip(("s1", "s2"), both, strict=True):
            write_lines(tmp_path / "SNLI" / f"{name}.{part}", [*column, "left out"])
    task, data = read("snli", tmp_path)
    assert len(data["train"].texts) == 30 and data["en"].texts == pairs("en", 12)
    assert task.score(data, Words().encode)["accuracy"] == 100
    write_lines(tmp_path / "SNLI" / "s1.train", ["a"] * 20)
    write_lines(tmp_path / "SNLI" / "s2.train", ["b"] * 20)
    write_lines(tmp_path / "SNLI" / "labels.train", ["neutral", "entailment"] * 10)
    _, data = read("snli", tmp_path)
    assert data["train"].texts == [("a", "b")] * 20
    write_lines(tmp_path / "SNLI" / "labels.train", ["neutral"] * 20)
    with pytest.raises(UserError, match="of one class; allowed: two or more"):
        read("snli", tmp_path)


@pytest.mark.parametrize("name", ["snli", "snli-en"])
def test_the_development_set_of_snli_chooses_the_regularization(tmp_path, name):
    """Against the classifier on features made by hand."""
    random = np.random.default_rng(0)
    table, labels = {}, {}
    for part, count in (("train", 60), ("dev", 45), ("test", 30)):
        labels[part] = np.arange(count) % 3
        names = [list(inference.LABELS)[label] for label in labels[part]]
        write_lines(tmp_path / "SNLI" / f"labels.{part}", names)
        for side in ("s1", "s2"):
            texts = [f"{side} {part} {row}" for row in range(count)]
            write_lines(tmp_path / "SNLI" / f"{side}.{part}", texts)
            for text, label in zip(texts, labels[part], strict=True):
                table[text] = np.eye(3)[label] + random.normal(size=3)
    task, data = read(name, tmp_path)
    assert list(data) == ["train", "dev", "en"]
    assert set(task.sentences(data)) == set(table)
    x = {}
    for part in labels:
        rows = range(len(labels[part]))
        u, v = (
            np.array([table[f"{side} {part} {row}"] for row in rows])
            for side in ("s1", "s2")
        )
        x[part] = np.concatenate([u, v, np.abs(u - v), u * v], axis=1)
    rows = [classifier.Rows(x[part], np.array(labels[part])) for part in x]
    model = classifier.Classifier("logistic", 1111, 1)
    predicted, dev_accuracy = model.tested_by(*rows)
    assert task.score(data, Table(table).encode) == {
        "accuracy": 100 * np.mean(predicted == labels["test"]),
        "dev_accuracy": dev_accuracy,
        "train_pairs": 60,
    }
    with pytest.raises(MissingData, match="no 'dev'; there are en"):
        read("snli-dev", tmp_path)


def test_damage_is_named(tmp_path):
    write_by_language(tmp_path)
    write_lines(tmp_path / "xnli" / "test-labels.txt", ["neutral"])
    with pytest.raises(UserError, match="not line by line"):
        read("xnli", tmp_path)
    (tmp_path / "xnli" / "test-labels.txt").unlink()
    with pytest.raises(MissingData, match="missing: .*test-labels.txt"):
        read("xnli", tmp_path)
    write_published(tmp_path)
    path = tmp_path / "XNLI-1.0" / "xnli.dev.tsv"
    path.write_text(path.read_text().replace("entailment", "yes", 1))
    with pytest.raises(UserError, match="label 'yes'; allowed: entailment, neutral"):
        read("xnli", tmp_path)
    write_lines(path, ["a\t" * 8])
    with pytest.raises(UserError, match="columns 'a', .*, ''; allowed: language, "):
        read("xnli", tmp_path)


def test_a_set_without_enough_labels_is_refused(tmp_path):
    for part in ("dev", "test"):
        for name in ("s1", "s2"):
            write_lines(tmp_path / "snli" / f"{name}.{part}", ["a", "b"])
    write_lines(tmp_path / "snli" / "labels.dev", ["neutral", "entailment"])
    write_lines(tmp_path / "snli" / "labels.test", ["-", "-"])
    with pytest.raises(UserError, match="labels.test has no labelled pair"):
        read("snli", tmp_path)
    write_lines(tmp_path / "snli" / "labels.test", ["-", "neutral"])
    with pytest.raises(UserError, match="each class: 1, 1; allowed: two classes"):
        read("snli", tmp_path)
    for name in ("s1", "s2", "labels"):
        write_lines(tmp_path / "snli" / f"{name}.dev", ["neutral"] * 30)
    with pytest.raises(UserError, match="each class: 30; allowed: two classes"):
        read("snli", tmp_path)


def test_real_files(shared_data):
    _, data = read("xnli", shared_data / "eval")
    assert len(data) == 16 and {len(part.texts) for part in data.values()} == {
        2490,
        5010,
    }
    for part in data.values():
        counts = np.bincount(part.labels, minlength=len(inference.LABELS))
        assert len(set(counts)) == 1, "a third of the pairs has each label"
    _, data = read("snli", shared_data / "eval")
    assert (len(data["train"].texts), len(data["en"].texts)) == (9842, 9824)


@pytest.mark.parametrize("layout", [write_published, write_labels_beside])
def test_a_truncated_language_is_left_out(tmp_path, layout):
    layout(tmp_path)
    (path,) = {*tmp_path.glob("*/xnli.test.tsv"), *tmp_path.glob("*/test-de.tsv")}
    path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")
    found, failed = run.read(catalogue.select(["xnli"]), str(tmp_path))
    assert set(found[0].data) == {"train", "en"} and list(failed) == ["xnli-de"]
    said = "damaged: xnli's test file has 11 pairs in de, and 12 in en"
    assert failed["xnli-de"].startswith(said)
    with pytest.raises(UserError, match="11 pairs in de"):
        read("xnli-de", tmp_path)
    assert set(read("xnli-en", tmp_path)[1]) == {"train", "en"}


@pytest.mark.parametrize("layout", [write_published, write_by_language])
def test_a_damaged_language_is_left_out_but_english(tmp_path, layout):
    layout(tmp_path)
    damage_german(tmp_path, layout)
    found, failed = run.read(catalogue.select(["xnli"]), str(tmp_path))
    assert set(found[0].data) == {"train", "en"} and list(failed) == ["xnli-de"]
    assert failed["xnli-de"].startswith("damaged: ")
    for path in tmp_path.glob("*/*dev*.tsv"):
        path.write_text(path.read_text().replace("neutral", "odd"))
    found, failed = run.read(catalogue.select(["xnli"]), str(tmp_path))
    assert not found and "'odd'" in failed["xnli"]
