"""GLUE's files: read as they are given out, refused where wrong, handed in."""

import io

import numpy as np
import pytest

from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.finetuning import catalogue, glue

# What the public files look like: header and row with labels, header and row of tests.
_PARSED = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse"
_PARSED = f"{_PARSED} sentence1_parse sentence2_parse sentence1 sentence2".split()
LAYOUTS = {
    "cola": ("", "gj04\t{label}\t*\t{a}", "index\tsentence", "{i}\t{a}"),
    "sst2": ("sentence\tlabel", "{a}\t{label}", "index\tsentence", "{i}\t{a}"),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{label}\t70\t71\t{a}\t{b}",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{i}\t70\t71\t{a}\t{b}",
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "13\t21\t22\t{a}\t{b}\t{label}",
        "id\tquestion1\tquestion2",
        "{i}\t{a}\t{b}",
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        "\tscore",
        "0\tnews\tMSRvid\t2012\t1\tnone\tnone\t{a}\t{b}\t{label}",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "{i}\tnews\tMSRvid\t2012\t1\tnone\tnone\t{a}\t{b}",
    ),
    "mnli": (
        "\t".join([*_PARSED, "label1", "gold_label"]),
        "0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\t{a}\t{b}\tneutral\t{label}",
        "\t".join(_PARSED),
        "{i}\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\t{a}\t{b}",
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel",
        "0\t{a}\t{b}\t{label}",
        "index\tquestion\tsentence",
        "{i}\t{a}\t{b}",
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel",
        "0\t{a}\t{b}\t{label}",
        "index\tsentence1\tsentence2",
        "{i}\t{a}\t{b}",
    ),
}
LAYOUTS["wnli"] = LAYOUTS["rte"]


def write(path, task: str, rows, with_labels: bool = True) -> str:
    """Writes a file of a task's layout; `rows` are (first, second, label)."""
    header, row, test_header, test_row = LAYOUTS[task]
    header, row = (header, row) if with_labels else (test_header, test_row)
    lines = [header] if header else []
    for i, (a, b, label) in enumerate(rows):
        # Indices from 7 on, so that they are not taken for row numbers.
        lines.append(row.format(a=a, b=b, label=label, i=i + 7))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_are_read_as_they_are(tmp_path, name):
    task = glue.TASKS[name]
    labels = task.labels or ("0.000", "4.750")
    texts = [('He said "no', "a \u2028 b"), ("x", ""), ('" quoted "', "it's \u00e9")]
    rows = [(*pair, labels[i % 2]) for i, pair in enumerate(texts)]
    path = write(tmp_path / "train.tsv", name, rows)
    want = [text[: len(task.texts)] for text in texts]
    found = list(task.read(path))
    assert [row.texts for row in found] == want
    numbers = (0, 4.75, 0) if task.is_regression else (0, 1, 0)
    assert [row.label for row in found] == list(numbers)

    path = write(tmp_path / "test.tsv", name, rows, with_labels=False)
    found = list(task.read(path, with_labels=False))
    assert [row.texts for row in found] == want
    assert [row.index for row in found] == ["7", "8", "9"]
    assert all(row.label is None for row in found)


def test_every_task_has_a_layout_here():
    assert LAYOUTS.keys() == glue.TASKS.keys()


def test_rows_of_qqp_that_are_damaged_are_left_out(tmp_path):
    path = write(tmp_path / "q.tsv", "qqp", [("a", "b", "1"), ("c", "d", "0")])
    with open(path, "a") as file:
        file.write("\n12\t21\t22\tonly one question\n13\t1\t2\te\tf\t1\n")
    assert [row.label for row in glue.TASKS["qqp"].read(path)] == [1, 0, 1]


@pytest.mark.parametrize(
    "name, rows, message",
    [
        (
            "rte",
            [("a", "b", "neutral")],
            "line 2: label 'neutral'; allowed: entailment",
        ),
        ("cola", [("a", "", "0"), ("a", "", "2")], "line 2: label '2'; allowed: 0, 1"),
        ("mnli", [("a", "b", "-")], "label '-'; allowed: entailment, neutral, contra"),
        ("stsb", [("a", "b", "5.5")], "score '5.5'; allowed: 0 to 5"),
        ("stsb", [("a", "b", "high")], "line 2: score 'high'"),
        ("sst2", [], "has no examples; allowed: at least 1"),
        ("rte", [("a", "b", "entailment"), ("a\n", "b", "")], "line 3: 2 columns"),
    ],
)
def test_a_wrong_row_is_one_line(tmp_path, name, rows, message):
    path = write(tmp_path / "train.tsv", name, rows)
    with pytest.raises(UserError, match=message) as error:
        list(glue.TASKS[name].read(path))
    assert "train.tsv" in str(error.value) and "\n" not in str(error.value)


def test_another_tasks_file_is_refused(tmp_path):
    path = write(tmp_path / "train.tsv", "rte", [("a", "b", "entailment")])
    message = "line 1 has the columns 'index', 'sentence1', .*; allowed: question, sent"
    with pytest.raises(UserError, match=message):
        list(glue.TASKS["qnli"].read(path))
    # Test files have no labels.
    path = write(tmp_path / "test.tsv", "rte", [("a", "b", "")], with_labels=False)
    with pytest.raises(UserError, match="columns .*; allowed: sentence1, .*, label$"):
        list(glue.TASKS["rte"].read(path))


def test_unknown_tasks_and_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="--task is 'ner'; allowed: cola, sst2, mrpc"):
        catalogue.find_tasks(["ner"])
    (task,) = catalogue.find_tasks(["rte"])
    with pytest.raises(MissingData, match="RTE/train.tsv"):
        task.find(DataDir(str(tmp_path)), "train.tsv")
    # In GLUE's folder, beside it, or in the task's own.
    path = write(tmp_path / "glue" / "RTE" / "dev.tsv", "rte", [("a", "b", "c")])
    for folder in (tmp_path, tmp_path / "glue", tmp_path / "glue" / "RTE"):
        assert task.find(DataDir(str(folder)), "dev.tsv") == [path]


def test_figures_by_their_definitions():
    gold = np.array([1, 1, 1, 0, 0, 0, 0, 1.0])
    predicted = np.array([1, 1, 0, 0, 0, 1, 0, 1])
    tp, tn, fp, fn = 3, 3, 1, 1
    found = glue.TASKS["cola"].score({"dev.tsv": predicted}, {"dev.tsv": gold})
    assert found["matthews"] == pytest.approx(
        100
        * (tp * tn - fp * fn)
        / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    )
    found = glue.TASKS["mrpc"].score({"dev.tsv": predicted}, {"dev.tsv": gold})
    f1 = 100 * 2 * tp / (2 * tp + fp + fn)
    assert found == pytest.approx({"accuracy": 75, "f1": f1, "score": (75 + f1) / 2})
    found = glue.TASKS["stsb"].score(
        {"dev.tsv": np.array([1.0, 2, 3, 10])},
        {"dev.tsv": np.array([0.0, 1, 2, 3])},
    )
    assert found["spearman"] == pytest.approx(100) and 80 < found["pearson"] < 99
    parts = [name for _, name in glue.TASKS["mnli"].dev]
    found = glue.TASKS["mnli"].score(
        {parts[0]: np.array([2, 1]), parts[1]: np.array([0, 0, 0, 0])},
        {parts[0]: np.array([2, 1]), parts[1]: np.array([0, 1, 2, 1])},
    )
    assert found == {
        "accuracy/matched": 100,
        "accuracy/mismatched": 25,
        "score": 62.5,
    }


def test_who_has_seen_no_text_scores_nothing():
    labels = np.array([1, 1, 0, 1.0])
    guess = glue.TASKS["cola"].constant(labels)
    guesses = {"dev.tsv": np.full(4, guess)}
    assert guess == 1
    found = glue.TASKS["cola"].score(guesses, {"dev.tsv": labels})
    assert found["matthews"] == 0
    assert glue.TASKS["stsb"].constant(np.array([1, 4.0])) == 2.5


def test_predictions_are_handed_in_as_glue_wants_them():
    def written(name, logits):
        file = io.StringIO()
        glue.TASKS[name].write_predictions(file, ["0", "5", "9"], logits)
        return file.getvalue().splitlines()

    head = "index\tprediction"
    logits = np.array([[2.0, 1.0], [1.0, 2.0], [-2.0, -1.0]])
    assert written("rte", logits) == [
        head,
        "0\tentailment",
        "5\tnot_entailment",
        "9\tnot_entailment",
    ]
    assert written("mrpc", logits) == [head, "0\t0", "5\t1", "9\t1"]
    scores = np.array([[-0.25], [2.34567], [5.5]], np.float32)
    assert written("stsb", scores) == [head, "0\t0.000", "5\t2.346", "9\t5.000"]
    # The names that https://gluebenchmark.com asks for.
    names = {name for task in glue.TASKS.values() for name, _ in task.tests}
    assert names == {
        f"{name}.tsv"
        for name in "CoLA SST-2 MRPC QQP STS-B MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    }


@pytest.mark.parametrize(
    "name, file, rows, first",
    [
        ("cola", "dev.tsv", 1043, ("The sailors rode the breeze clear of the rocks.",)),
        ("cola", "test.tsv", 1063, ("Bill whistled past the house.",)),
        ("rte", "dev.tsv", 277, None),
        ("rte", "test.tsv", 3000, None),
        ("qnli", "dev.tsv", 5463, None),
        ("qnli", "test.tsv", 5463, None),
    ],
)
def test_the_public_files_have_their_published_size(
    shared_data, name, file, rows, first
):
    task = glue.TASKS[name]
    (path,) = task.find(DataDir(str(shared_data / "eval")), file)
    found = list(task.read(path, with_labels=file != "test.tsv"))
    assert len(found) == rows
    assert first is None or found[0].texts == first
    if file == "test.tsv":
        assert [row.index for row in found] == [str(i) for i in range(rows)]
