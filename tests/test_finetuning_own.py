"""Fine-tuning on one's own files: scores, predictions, the saved model, mistakes."""

import csv
import gzip
import io
import json
import os
import urllib.error
import urllib.request

import commands
import model_dirs
import numpy as np
import pytest
import servers
import tensorflow as tf
from sklearn import metrics

from cmlm.encoders import locating, opening
from cmlm.errors import UserError
from cmlm.evaluation import labelled_files
from cmlm.evaluation.data_dir import DataDir
from cmlm.finetuning import catalogue, finished, labelled, run, training
from cmlm.finetuning.tasks import Row
from export import dev_server, session_model

WORDS = "the cat sat on a mat ran far away".split()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    # What is learnt must be clearly better than a constant.
    settings = {"model.num_layers": 2}
    return model_dirs.write(tmp_path_factory.mktemp("own") / "model_dir", **settings)


def examples(n: int, seed: int) -> list[dict[str, str]]:
    """Texts, and labels of every kind that follow from their words."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        first, second = (
            random.choice(WORDS, random.integers(1, 9)).tolist() for _ in "ab"
        )
        animals = [word for word in ("cat", "mat") if word in first]
        rows.append(
            {
                "text": " ".join(first),
                "text1": " ".join(first),
                "text2": " ".join(second),
                "labels": "|".join(animals),
            }
        )
    return rows


def marked(n: int) -> list[dict[str, str]]:
    """Texts, half of them with a dog, which the label and the score tell."""
    rows = examples(n, 0)
    for number, row in enumerate(rows):
        is_marked = number % 2 == 0
        row["text"] = f"dog {row['text']}" if is_marked else row["text"]
        row["label"] = "dog" if is_marked else "none"
        row["score"] = "130" if is_marked else "100"
    return rows


def write(path, rows, columns) -> str:
    with open(path, "w", newline="") as file:
        tabs = path.suffix == ".tsv"
        kwargs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
        table = csv.writer(file, **kwargs)
        table.writerow(columns)
        table.writerows([row[column] for column in columns] for row in rows)
    return str(path)


def main(*arguments: str):
    """Runs the command, which succeeds."""
    done = commands.run("cmlm.finetune", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.large
def test_labels_become_a_model_that_predicts(directory, tmp_path):
    """Two texts with several labels: the file, the command and the SavedModel agree."""
    columns = ("text1", "text2", "labels")
    train = write(tmp_path / "train.csv", examples(60, 0), columns)
    dev_rows = examples(30, 1)
    dev = write(tmp_path / "dev.tsv", dev_rows, columns)
    new = write(tmp_path / "new.tsv", dev_rows, columns[:2])
    out = tmp_path / "out"
    settings = ("--epochs=10", "--batch_size=8", "--learning_rate=0.01")
    main(
        f"--model={directory}",
        f"--task=file:{train}",
        f"--dev={dev}",
        # A file to score on may be predicted, too.
        f"--predict={new},{dev}",
        f"--output={out}",
        *settings,
    )
    results = json.loads((out / "results.json").read_text())
    with open(out / "predictions-new.tsv") as file:
        found = list(csv.DictReader(file, delimiter="\t"))
    assert [row["text1"] for row in found] == [row["text1"] for row in dev_rows]

    def chosen(rows):
        return np.array([[name in row["labels"] for name in WORDS] for row in rows])

    gold, predicted = chosen(dev_rows), chosen(found)
    seed = results["seeds"]["0"]
    for average in ("micro", "macro"):
        want = metrics.f1_score(
            *(each[:, [1, 5]] for each in (gold, predicted)), average=average
        )
        assert seed[f"f1_{average}"] == pytest.approx(100 * want)
    assert seed["f1_micro"] > results["constant"]["f1_micro"]
    for row in found:
        shares = {name: float(row[f"p({name})"]) for name in ("cat", "mat")}
        over = [name for name, share in shares.items() if share > 0.5]
        assert row["labels"] == "|".join(over)

    of_dev = (out / "predictions-dev.tsv").read_text()
    assert of_dev == (out / "predictions-new.tsv").read_text()

    # The same predictions without training, and by the signature.
    main(f"--model={out}", f"--predict={new}", f"--output={tmp_path / 'again'}")
    again = (tmp_path / "again" / "predictions-new.tsv").read_text()
    assert again == (out / "predictions-new.tsv").read_text()
    saved = out / "model" / "1"
    served = tf.saved_model.load(str(saved)).signatures["serving_default"]
    columns = {name: [row[name] for row in found] for name in ("text1", "text2")}
    answers = served(**{name: tf.constant(column) for name, column in columns.items()})
    labels = [answer.decode() for answer in answers["labels"].numpy()]
    assert labels == [row["labels"] for row in found]

    requests = servers.warm_up(saved)
    assert [name for name, _ in requests] == ["serving_default"] * 2
    assert len(served(**requests[1][1])["labels"]) == 4

    # A server gives them, and refuses the page of encoders.
    assert locating.find_tuned(str(out)) == str(saved)
    server = dev_server.Server(session_model.SessionModel(str(saved)))
    server.start()
    try:
        body = json.dumps({"inputs": columns}).encode()
        address = f"{server.rest}/v1/models/cmlm:predict"
        with urllib.request.urlopen(address, body, timeout=60) as answer:
            assert json.load(answer)["outputs"]["labels"] == labels
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{server.rest}/", timeout=60)
        with pytest.raises(UserError, match="inputs are .*; allowed: .*'text1'"):
            opening.open_encoder(f"{server.rest}/v1/models/cmlm")
    finally:
        server.stop()

    # The model is no encoder.
    for use in (opening.check, opening.open_weights, opening.open_encoder):
        with pytest.raises(UserError, match="out is a tuned model, which gives labels"):
            use(str(out))

    # A damaged model is named.
    (saved / "saved_model.pb").write_bytes(b"")
    done = commands.run(
        *("cmlm.finetune", f"--model={out}", f"--predict={new}"),
        f"--output={tmp_path / 'more'}",
    )
    assert done.returncode == 1 and "saved_model.pb" in done.stderr
    assert not (tmp_path / "more").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_training(
    directory, tmp_path
):
    train = write(tmp_path / "train.tsv", marked(60), ("text", "label"))
    (tmp_path / "file").touch()
    output = f"{tmp_path}/file/out"
    done = commands.run(
        *("cmlm.finetune", f"--model={directory}", f"--task=file:{train}"),
        f"--output={output}",
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --output is {output}; allowed: ")


@pytest.mark.large
@pytest.mark.parametrize("column", ["label", "score"])
def test_classes_and_scores_are_learnt(directory, tmp_path, column):
    """Without --dev, a tenth is held out; nothing of it is trained on."""
    train = write(tmp_path / "train.tsv", marked(150), ("text", column))
    main(
        f"--model={directory}",
        f"--task=file:{train}",
        f"--output={tmp_path / 'out'}",
        "--epochs=8",
        "--batch_size=8",
        "--learning_rate=0.01",
    )
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    sizes = [part["examples"] for part in results["data"].values()]
    assert sum(sizes) == 150 and 5 < sizes[1] < 40
    (task,) = catalogue.find_tasks([f"file:{train}"])
    parts = [
        {row.texts[0] for row in task.examples(name, task.find(None, name))}
        for name in (task.train, task.dev[0][1])
    ]
    assert not parts[0] & parts[1]
    assert results["mean"]["score"] > results["constant"]["score"] + 10
    if column == "score":
        # In the units of the file.
        logits = np.array([[0.0], [1.0]], np.float32)
        center, spread = task.decide(logits) - [0, task.center]
        assert 112 < center < 118 and 14 < spread < 16


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "a\tb\n",
            "line 1 has the columns 'a', 'b'; allowed: text, or text1 and text2",
        ),
        ("text\tlabel\nx\ty\nz\ty\n", r"the labels \['y'\]; allowed: at least two"),
        ("", "is empty; allowed: a line of names, then examples"),
        ("\n\n", "is empty; allowed: a line of names, then examples"),
        ("text\tlabel\nx\n", "line 2: 1 column; allowed: 2"),
        ("text\tlabel\nx\t\n", "line 2: no label; allowed: one in each line"),
        ("text\tscore\nx\thigh\n", "line 2: score 'high'; allowed: a number"),
        ("text\tscore\nx\t1e39\n", "score '1e39'; allowed: -3.4e.38 to 3.4e.38"),
        ("text\tscore\n", "has no examples; allowed: at least 1"),
        ("text\tlabel\tlabel\nx\ty\tz\n", "has 2 columns 'label'; allowed: one$"),
        # Lines that end in carriage returns alone are one line.
        (
            "text\tlabel" + "\rx\ty" * 1000 + "\n",
            r"'text', 'label\\rx', .* and 982 more; allowed: text, or",
        ),
        (f"text\t{'y' * 1000}\n", r"y\.\.\. .1,002 characters.; allowed: text, or"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path, text, said):
    path = tmp_path / "train.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        labelled.find_task(str(path), dev=str(path))


def test_an_unknown_label_is_named_beside_the_first_known_ones(tmp_path):
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("text\tlabel\n" + "".join(f"x\t{n:03}\n" for n in range(999)))
    dev.write_text("text\tlabel\ny\tnone\n")
    task = labelled.find_task(str(train), dev=str(dev))
    with pytest.raises(UserError, match="'none'; allowed: 000, .*, 019 and 979 more$"):
        list(task.read(str(dev)))


@pytest.mark.parametrize(
    "cell, warns",
    [
        ('"He said ""no"""', True),
        ('"no"', False),
        ('"no" and ""', False),
        ('""', False),
        ('a ""b""', False),
    ],
)
def test_quoted_cells_of_a_tsv_give_a_warning(tmp_path, caplog, cell, warns):
    """As text, their quotes would differ from the texts that a server reads."""
    header, rows = "text\tlabel\n", f"{cell}\tb\n{cell}\tc\n"
    (tmp_path / "train.tsv").write_text(f"{header}x\ta\n{rows}")
    found = list(labelled_files.read(str(tmp_path / "train.tsv"), ["text"], "label"))
    assert found[1][1] == (cell,)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns and all("line 3 is quoted as in CSV" in s for s in said)


@pytest.mark.parametrize("name", ["new.tsv", "new.csv"])
@pytest.mark.parametrize("blank, warns", [("\n", True), ("", False)])
def test_blank_lines_between_texts_give_a_warning(tmp_path, caplog, name, blank, warns):
    """Else a user who counts lines takes the next text's prediction."""
    (tmp_path / name).write_text(f"text\nx\n{blank}y\n{blank}z\n\n")
    path = str(tmp_path / name)
    rows = labelled_files.read(path, ["text"], "label", with_labels=False)
    assert [texts for _, texts, _ in rows] == [("x",), ("y",), ("z",)]
    said = [record.getMessage() for record in caplog.records]
    assert said == warns * [f"{path} has blank lines, line 3 first: left out"]


def test_predictions_keep_texts_but_for_the_ends_of_cells(tmp_path):
    """So a user finds the texts of a file in its predictions."""
    path = tmp_path / "train.csv"
    path.write_text(
        'text,label\n"one  ""two""\nthree","a\tb"\nfour,"c\r\nd"\n', newline=""
    )
    task = labelled.find_task(str(path), dev=str(path))
    indices = [row.index for row in task.read(str(path))]
    file = io.StringIO()
    task.write_predictions(file, indices, np.array([[9.0, -9.0], [-9.0, 9.0]]))
    assert file.getvalue().splitlines() == [
        "text\tlabel\tp(a b)\tp(c  d)",
        'one  "two" three\ta b\t1.0000\t0.0000',
        "four\tc  d\t0.0000\t1.0000",
    ]


def test_texts_to_score_on_that_are_trained_on_are_counted(tmp_path, caplog):
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("text1\ttext2\tlabel\nx\ty\ta\nx\tz\tb\n")
    dev.write_text("text1\ttext2\tlabel\nx\ty\ta\nz\tx\tb\nw\tw\ta\n")
    labelled.find_task(str(train), str(dev))
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{dev} shares 1 of its 3 examples with {train}: the scores flatter the model"
    )


@pytest.mark.parametrize(
    "name, between", [("t.csv", "commas"), ("t.CSV.gz", "commas"), ("t.tsv", "tabs")]
)
def test_another_separator_is_named(tmp_path, name, between):
    path = tmp_path / name
    with (gzip.open if name.endswith(".gz") else open)(path, "wt") as file:
        file.write("text;label\nx;a\ny;b\n")
    with pytest.raises(UserError, match=f"score, with {between} between the columns$"):
        labelled.find_task(str(path), dev=str(path))


@pytest.mark.parametrize(
    "cell", ['"It broke, he said', "one\rtwo", "x" * 200_000], ids=lambda cell: cell[:4]
)
def test_damaged_csv_swallows_no_rows(tmp_path, cell):
    path = tmp_path / "train.csv"
    path.write_text(
        f"label,text\npos,good\nneg,{cell}\npos,fine\nneg,bad\n", newline=""
    )
    with pytest.raises(UserError, match="train.csv, line 3: .*each quote closed"):
        labelled.find_task(str(path), dev=str(path))


@pytest.mark.parametrize("flag", ["task", "dev", "predict"])
def test_the_flag_of_a_file_that_is_missing_is_named(tmp_path, flag):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\nx\ta\ny\tb\n")
    given = {"task": str(path), "dev": str(path), "predict": str(path)}
    given[flag] = "no.tsv"
    said = f"^--{flag} has no.tsv, which does not exist; allowed: a .tsv or .csv file"
    with pytest.raises(UserError, match=said):
        labelled.find_task(given["task"], given["dev"], [given["predict"]])


def test_a_file_too_small_to_hold_out_asks_for_another(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\nx\ta\nx\tb\n")
    with pytest.raises(UserError, match="more examples, or --dev=FILE"):
        labelled.find_task(str(path))


def test_a_tenth_that_takes_a_whole_class_asks_for_another(tmp_path):
    path = tmp_path / "train.tsv"
    texts = [f"text {number}" for number in range(40)]
    held = [text for text in texts if labelled._is_held_out(Row((text,), None, ""))]
    rows = [f"{text}\t{'rare' if text in held[:1] else 'usual'}" for text in texts]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    with pytest.raises(UserError, match="all examples have the label 'usual'; allowed"):
        labelled.find_task(str(path))


def test_scores_that_nothing_correlates_with_are_refused(directory, tmp_path):
    """Else each seed would have the correlation 0, and the first would be the best."""
    rows = [f"{word} {number}\t{number}\n" for number in range(4) for word in WORDS]
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    header = "text\tscore\n"
    train.write_text(header + "".join(rows[:10]))
    with pytest.raises(UserError, match="the tenth to score on has [12] of the 3"):
        labelled.find_task(str(train))
    train.write_text(header + "".join(rows))
    dev.write_text(header + "one\t1\n" * 3)
    task = labelled.find_task(str(train), dev=str(dev))
    settings = training.Settings(epochs=1)
    with pytest.raises(UserError, match="dev.tsv .dev. has 3 examples with 1 distinct"):
        run.finetune(directory, task, DataDir("."), settings, [0])


def test_a_stopped_run_goes_on_after_its_finished_seeds(
    directory, tmp_path, eager, capsys
):
    train = write(tmp_path / "train.tsv", marked(8), ("text", "label"))
    new = write(tmp_path / "new.tsv", marked(5), ("text",))
    task, answer = labelled.find_task(train, train, [new]), "predictions-new.tsv"

    settings = training.Settings(epochs=1, learning_rate=1e-2, batch_size=8)

    def finetuned(seeds, work):

        def keep(model, tokenizer, seq_length, outputs, folder):
            os.makedirs(folder, exist_ok=True)
            np.save(os.path.join(folder, "new.npy"), outputs[answer])

        capsys.readouterr()
        work.mkdir(exist_ok=True)
        source = DataDir(".")
        outcome = run.finetune(
            directory, task, source, settings, seeds, keep, str(work)
        )
        said = capsys.readouterr().err.splitlines()
        assert "labels to train on: 'dog' 4, 'none' 4" in said
        _, answers = outcome.predictions[answer]
        kept = np.load(os.path.join(outcome.kept, "new.npy"))
        np.testing.assert_array_equal(kept, answers)
        return outcome, [line[5] for line in said if "kept by" in line]

    straight, known = finetuned([1, 0], tmp_path / "straight")
    assert not known
    finetuned([1], tmp_path / "work")
    resumed, known = finetuned([1, 0], tmp_path / "work")
    assert known == ["1"] and resumed.results == straight.results
    np.testing.assert_array_equal(
        *(each.predictions[answer][1] for each in (resumed, straight))
    )


def test_prompts_take_no_place_of_a_text(tmp_path, eager):
    """Nor are they part of the record, as no text gets one."""
    stated = {"model.prompts": ["query=" + 20 * "the "], "model.prompt": 20 * "a "}
    model = model_dirs.write(tmp_path / "model_dir", **stated)
    train = write(tmp_path / "train.tsv", marked(8), ("text", "label"))
    task = labelled.find_task(train, train)
    settings = training.Settings(epochs=1, seq_length=8)
    outcome = run.finetune(model, task, DataDir("."), settings, [0])
    assert outcome.results["model"]["seq_length"] == 8
    assert not {"prompt", "prompts"} & outcome.results["model"].keys()


def test_seeds_of_anything_else_are_not_taken(tmp_path):
    about = {
        "model": {"fingerprint": "f"},
        "pooler": [np.ones([2, 3], np.float32)],
        "task": "rte",
        "settings": {"epochs": 3},
        "data": {"dev.tsv": {"path": "a/dev.tsv", "sha256": "00", "examples": 2}},
    }
    scores = {seed: {"score": float(seed)} for seed in (5, 6)}
    outputs = {"test.tsv": np.array([[0.1, 1e-30]], np.float32)}

    def known(seed=5, before=(), with_model=False, **changed):
        found = finished.Finished(str(tmp_path), **{**about, **changed})
        earlier = {each: scores[each] for each in before}
        return found.read(seed, earlier, with_model)

    assert known() is None
    one = finished.Finished(str(tmp_path), **about)
    one.write(5, scores[5], outputs)
    read, arrays = known()
    assert read == scores[5] and arrays["test.tsv"].dtype == np.float32
    np.testing.assert_array_equal(arrays["test.tsv"], outputs["test.tsv"])
    moved = {"dev.tsv": {**about["data"]["dev.tsv"], "path": "b/dev.tsv"}}
    assert known(data=moved)
    assert not known(6)
    assert not known(model={"fingerprint": "g"})
    assert not known(pooler=[np.zeros([2, 3], np.float32)])
    assert not known(task="cola")
    assert not known(settings={"epochs": 4})
    assert not known(data={"dev.tsv": {**moved["dev.tsv"], "sha256": "11"}})
    # The best seed needs its model, which a seed has if it was the best in its run.
    assert not known(with_model=True)
    assert known(with_model=True, before=[6])
    os.mkdir(one.folder(5))
    assert known(with_model=True)


def test_what_belongs_to_ones_own_task_is_refused_elsewhere():
    with pytest.raises(UserError, match="--dev is 'x' with --task=rte; allowed: with"):
        catalogue.find_tasks(["rte"], dev="x")
    with pytest.raises(UserError, match="would both be predictions-new.tsv"):
        labelled.answers(["a/new.tsv", "b/new.csv"])
    with pytest.raises(UserError, match="--predict is 'new.tsv,'; allowed: files, "):
        labelled.answers(["new.tsv", ""])
    assert list(labelled.answers(["a/new", "b.c.tsv.gz"])) == [
        "predictions-new.tsv",
        "predictions-b.c.tsv",
    ]


@pytest.mark.parametrize("flag", ["--dev=d.tsv", "--seeds=0,1", "--epochs=4"])
def test_a_prediction_alone_refuses_the_flags_of_a_training(flag):
    given = ("--model=tuned", "--predict=new.tsv", "--output=out", flag)
    done = commands.run("cmlm.finetune", *given)
    assert done.stderr == f"error: {flag} is given; allowed: with --task\n"


@pytest.mark.parametrize(
    "examples, least, epochs",
    [
        (100_000, 500, 3),
        # 19 steps in an epoch: 26 epochs have 494.
        (600, 500, 27),
        (20, 500, 30),
        (600, 0, 3),
    ],
)
def test_a_small_file_has_more_epochs(examples, least, epochs):
    settings = training.Settings(batch_size=32)
    assert settings.with_epochs(least, examples).epochs == epochs
    stated = training.Settings(epochs=2)
    assert stated.with_epochs(least, examples) == stated


@pytest.mark.large
def test_the_command_has_more_epochs_for_a_small_file(directory, tmp_path):
    train = write(tmp_path / "train.tsv", marked(40), ("text", "label"))
    for flags, steps in (((), 30), (("--epochs=2",), 2)):
        found = commands.run(
            "cmlm.finetune",
            *(f"--model={directory}", f"--task=file:{train}", f"--dev={train}"),
            *("--batch_size=64", *flags),
        )
        assert found.returncode == 0, found.stderr
        assert f"model_dir: {steps} steps of 64," in found.stderr
