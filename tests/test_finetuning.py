"""Fine-tuning: the head and its losses by numpy, batches, seeds, what a run leaves."""

import json
import re
from pathlib import Path

import commands
import model_dirs
import numpy as np
import oracles
import pytest
from test_finetuning_glue import write

from cmlm.common import fields
from cmlm.common.keras import keras
from cmlm.encoders import opening
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.finetuning import catalogue, examples, glue, report, training
from cmlm.finetuning import run as finetuning
from cmlm.finetuning.glue import Row
from cmlm.tokenization.base import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
WORDS = "the cat sat on a mat ran far away".split()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    return model_dirs.write(tmp_path_factory.mktemp("finetuning") / "model_dir")


@pytest.fixture(scope="module")
def trained(directory) -> OpenedWeights:
    return opening.open_weights(directory)


@pytest.fixture(scope="module")
def tokenizer(trained) -> Tokenizer:
    return trained.tokenizer


def sentences(n: int, seed: int = 0) -> list[Row]:
    """Sentences that are right if they have a dog in them."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(n):
        words = random.choice(WORDS, random.integers(2, 9)).tolist()
        label = number % 2
        if label:
            words.insert(random.integers(len(words) + 1), "dog")
        rows.append(Row((" ".join(words),), label, str(number)))
    return rows


def pairs(n: int) -> list[Row]:
    """Pairs with a score: how many words they share."""
    random = np.random.default_rng(1)
    rows = []
    for number in range(n):
        a, b = (random.choice(WORDS, random.integers(1, 9)).tolist() for _ in "ab")
        score = 5 * len(set(a) & set(b)) / len(set(a) | set(b))
        rows.append(Row((" ".join(a), " ".join(b)), score, str(number)))
    return rows


# --------------------------------------------------------------- examples


def test_examples_are_token_ids_with_types(tokenizer):
    rows = [
        Row(("the cat", "unable"), 1, "a"),
        Row(("", "dogs ran . "), 0, "b"),
        Row(("the cat sat on the mat", "a dog ran far away"), 0, "c"),
    ]
    found = examples.encode(rows, tokenizer, seq_length=9)
    assert len(found) == 3 and found.truncated == 1 and found.indices == ["a", "b", "c"]
    batch = found.batch(np.array([2, 0, 1]))
    words = [
        [tokenizer.vocab[token] for token in row] for row in batch["input_word_ids"]
    ]
    pad = "[PAD]"
    assert words == [
        "[CLS] the cat sat [SEP] a dog ran [SEP]".split(),
        ["[CLS]", "the", "cat", "[SEP]", "un", "##able", "[SEP]", pad, pad],
        ["[CLS]", "[SEP]", "dog", "##s", "ran", ".", "[SEP]", pad, pad],
    ]
    assert batch["input_type_ids"].tolist() == [
        [0, 0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 1, 0, 0],
    ]
    with pytest.raises(UserError, match="--seq_length is 4; allowed: at least 5"):
        examples.encode(rows, tokenizer, seq_length=4)
    assert batch["input_mask"].tolist() == [
        [int(word != pad) for word in row] for row in words
    ]
    single = examples.encode(sentences(5), tokenizer, 12)
    assert not single.batch(np.arange(5))["input_type_ids"].any()
    assert single.truncated == 0


def test_many_rows_are_encoded_in_pieces(tokenizer, monkeypatch):
    want = examples.encode(pairs(50), tokenizer, 12)
    monkeypatch.setattr(examples, "_ROWS_AT_ONCE", 7)
    got = examples.encode(pairs(50), tokenizer, 12)
    for name in ("ids", "starts", "second", "labels"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    assert got.truncated == want.truncated > 0


def test_an_epoch_is_every_example_once_among_its_like():
    random = np.random.default_rng(0)
    lengths = random.integers(3, 120, 1003)

    def draw(seed):
        return list(examples.epoch(lengths, 8, np.random.default_rng(seed)))

    batches = draw(1)
    assert sorted(np.concatenate(batches)) == list(range(1003))
    sizes = sorted(len(batch) for batch in batches)
    assert sizes == [3, *[8] * 125]
    padding = 1 - lengths.sum() / sum(len(b) * lengths[b].max() for b in batches)
    assert padding < 0.1
    assert all((a == b).all() for a, b in zip(batches, draw(1)))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(batches, draw(2)))


# ---------------------------------------------------------------- training


def classifier(trained, task, seed=0, **values) -> training.SentenceClassifier:
    settings = training.Settings(**values)
    start = training.StartWeights(trained)
    return training.SentenceClassifier(start, glue.TASKS[task], settings, seed)


@pytest.mark.parametrize("task", ["cola", "stsb"])
def test_outputs_and_losses_are_those_of_numpy(trained, tokenizer, task):
    rows = sentences(6) if task == "cola" else pairs(6)
    data = examples.encode(rows, tokenizer, 14)
    made = classifier(trained, task, dropout_rate=0.0)
    batch = data.batch(np.arange(6))
    weights = oracles.weights_by_name(made.model.encoder)
    tokens = oracles.bert(
        weights,
        batch["input_word_ids"],
        batch["input_mask"],
        num_layers=1,
        type_ids=batch["input_type_ids"],
    )
    head = oracles.weights_by_name(made.model.parts["head"])
    hidden = np.tanh(
        tokens[:, 0] @ head["pooler_dense/kernel"] + head["pooler_dense/bias"]
    )
    want = hidden @ head["logits/kernel"] + head["logits/bias"]
    np.testing.assert_allclose(made._predict(batch), want, atol=2e-5)
    labels = data.labels
    if task == "cola":
        wanted = -np.log(oracles.softmax(want)[np.arange(6), labels.astype(int)])
        predicted = want.argmax(1)
    else:
        wanted = (want[:, 0] - labels) ** 2
        predicted = want[:, 0]
    np.testing.assert_allclose(made._losses(batch, labels), wanted, rtol=1e-4)
    # Whatever the batches of prediction are.
    found = glue.TASKS[task].decide(made.outputs(data))
    np.testing.assert_allclose(found, predicted, atol=2e-5)


@pytest.mark.large
def test_a_task_is_learnt_and_every_seed_starts_anew(trained, tokenizer):
    train = examples.encode(sentences(64), tokenizer, 14)
    dev = examples.encode(sentences(40, seed=1), tokenizer, 14)
    steps = []

    def run(seed):
        made = classifier(
            trained, "cola", seed, epochs=10, batch_size=8, learning_rate=1e-2
        )
        steps.clear()
        made.train(train, lambda *step: steps.append(step))
        weights = [part.get_weights() for part in made.model.parts.values()]
        found = glue.TASKS["cola"].decide(made.outputs(dev))
        return found, [array for part in weights for array in part]

    before = trained.encoder.get_weights()
    predicted, weights = run(0)
    assert np.mean(predicted == dev.labels) > 0.9
    numbers, losses, rates = zip(*steps)
    assert numbers == tuple(range(1, 81)) and np.mean(losses[-8:]) < losses[0] / 3
    # Warm-up to the full rate in a tenth of the steps, then linear to 0.
    assert rates[0] == 0 and np.argmax(rates) == 8
    assert rates[8] == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-2 / 72, rel=1e-4)

    _, others = run(1)
    again, same = run(0)
    np.testing.assert_array_equal(predicted, again)
    for a, b in zip(weights, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(weights, others, strict=True))
    for a, b in zip(before, trained.encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.large
def test_berts_pooler_is_the_head_where_it_was_trained(trained):
    # What `model_dirs` writes has random numbers everywhere, here too.
    kernel, bias = trained.encoder.bert.pooler_layer.get_weights()
    made = classifier(trained, "rte")
    got = made.model.parts["head"].dense.get_weights()
    np.testing.assert_array_equal(got[0], kernel)
    np.testing.assert_array_equal(got[1], bias)
    assert (
        training.StartWeights(trained).head(glue.TASKS["rte"]) == "from BERT's pooler"
    )
    trained.encoder.bert.pooler_layer.set_weights([kernel, np.zeros_like(bias)])
    try:
        start = training.StartWeights(trained)
        made = training.SentenceClassifier(
            start, glue.TASKS["rte"], training.Settings(), seed=0
        )
        assert start.head(glue.TASKS["rte"]) == "new"
        assert (made.model.parts["head"].dense.get_weights()[0] != kernel).any()
    finally:
        trained.encoder.bert.pooler_layer.set_weights([kernel, bias])


@pytest.mark.large
def test_a_loss_that_is_no_number_is_one_line(trained, tokenizer):
    data = examples.encode(sentences(16), tokenizer, 14)
    made = classifier(trained, "cola", epochs=1, batch_size=8)
    head = made.model.parts["head"]
    head.set_weights([np.full_like(array, np.nan) for array in head.get_weights()])
    with pytest.raises(UserError, match="loss is not finite in step 1, seed 0"):
        made.train(data, lambda *step: None)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"epochs": 0}, "--epochs is 0; allowed: at least 1"),
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"learning_rate": 0.0}, "--learning_rate is 0.0; allowed: above 0"),
        ({"learning_rate": float("nan")}, "--learning_rate is nan"),
        ({"warmup_share": 1.0}, "--warmup_share is 1.0; allowed: 0 to below 1"),
        ({"dropout_rate": -0.1}, "--dropout_rate is -0.1"),
        ({"weight_decay": -1.0}, "--weight_decay is -1.0"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(UserError, match=message):
        fields.check(training.Settings(**values), "--")


# ----------------------------------------------------------------- command


def run(*arguments):
    return commands.run("cmlm.finetune", *arguments)


@pytest.mark.parametrize(
    "task, message",
    [
        ("train.tsv", "--task is 'train.tsv'; allowed: .*, glue, file:FILE"),
        ("rte", "--data_dir is not given; allowed: the folder of the task's files"),
    ],
)
def test_a_task_without_its_folder_is_one_line(task, message):
    done = run("--model=m", f"--task={task}")
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(f"error: {message}\n", done.stderr)


def test_a_file_in_the_place_of_the_tasks_folder_is_one_line(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    done = run("--model=m", "--task=rte", f"--data_dir={tmp_path}/train.tsv")
    assert done.returncode == 1 and not done.stdout
    said = f"error: --data_dir is {tmp_path}/train.tsv; allowed: a folder\n"
    assert done.stderr == said


def test_a_folder_beside_own_files_is_refused(tmp_path):
    done = run("--model=m", "--task=file:train.tsv", f"--data_dir={tmp_path}")
    said = f"error: --data_dir={tmp_path} is given; allowed: with public tasks;"
    assert done.returncode == 1 and done.stderr.startswith(said)


def test_the_command_leaves_results_and_predictions(directory, tmp_path):
    rows = [
        (*row.texts, "entailment" if row.label > 2 else "not_entailment")
        for row in pairs(60)
    ]
    folder = tmp_path / "glue" / "RTE"
    write(folder / "train.tsv", "rte", rows[:40])
    write(folder / "dev.tsv", "rte", rows[40:])
    write(folder / "test.tsv", "rte", rows[40:], with_labels=False)
    output = tmp_path / "out"
    arguments = (
        f"--model={directory}",
        "--task=rte",
        f"--data_dir={tmp_path}/glue",
        "--seeds=3,1",
        "--batch_size=8",
        "--epochs=1",
        f"--output={output}",
    )
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "examples: 40 in train.tsv, 20 in dev.tsv, 20 in test.tsv" in done.stderr
    assert "5 steps of 8" in done.stderr and "step 5/5" in done.stderr
    results = json.loads((output / "results.json").read_text())
    names = ["RTE.tsv", "report.html", "report.md", "results.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    scores = [results["seeds"][seed]["accuracy"] for seed in ("3", "1")]
    assert results["mean"]["accuracy"] == pytest.approx(np.mean(scores))
    assert results["std"]["accuracy"] == pytest.approx(np.std(scores, ddof=1))
    majority = np.mean([row[2] == "not_entailment" for row in rows[40:]])
    assert results["constant"]["accuracy"] == pytest.approx(100 * majority)
    assert results["best_seed"] == (3 if scores[0] >= scores[1] else 1)
    assert results["data"]["dev.tsv"]["examples"] == 20
    assert results["settings"]["seq_length"] == model_dirs.SEQ_LENGTH
    # Dev and test are the same texts here: predictions give the best seed's score.
    lines = (output / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 21
    right = [
        line == f"{number}\t{row[2]}"
        for number, (line, row) in enumerate(zip(lines[1:], rows[40:]), 7)
    ]
    assert 100 * np.mean(right) == pytest.approx(max(scores))
    for title in ("seed 3", "seed 1", "mean", "std", "constant"):
        assert any(line.startswith(title) for line in done.stdout.splitlines())
    # Rows of ULR's tables 5 and 7 for this task, without an average, by test server
    # and on the development set.
    text = (output / "report.md").read_text()
    for name, number, place in (
        ("NSP-BERT base", "66.10", 1),
        ("ULR-BERT base, random spans", "66.10", 2),
    ):
        assert re.search(rf"\({name}\) \[{place}\] +{number}", done.stdout)
        assert f"| *{name}* [{place}] | {number} |" in text
    for place, note in ((1, "GLUE's test server"), (2, "development sets")):
        for shown in (done.stdout, text):
            assert re.search(rf"^.*\[{place}\] Li & Zhao, .*; {note}$", shown, re.M)

    # What exists is not replaced; what is wrong leaves nothing.
    again = run(*arguments)
    assert again.returncode == 1 and "exists" in again.stderr
    write(folder / "dev.tsv", "rte", [("a", "b", "maybe")])
    wrong = run(*arguments[:-1], f"--output={tmp_path / 'other'}")
    assert wrong.returncode == 1 and not (tmp_path / "other").exists()
    (line,) = [at for at in wrong.stderr.splitlines() if at.startswith("error: ")]
    assert "dev.tsv, line 2: label 'maybe'; allowed: entailment, not_entail" in line


@pytest.mark.parametrize("name", ["rte", "amazon", "cola"])
def test_texts_that_share_a_sequence_need_two_segments(tmp_path, name):
    directory = model_dirs.write(tmp_path / "one", **{"model.type_vocab_size": 1})
    source = DataDir(str(tmp_path))
    task = catalogue.TASKS[name]
    # The other tasks get as far as their files.
    error = UserError if name == "rte" else MissingData
    with pytest.raises(error) as raised:
        finetuning.finetune(directory, task, source, training.Settings(), [0])
    if name == "rte":
        assert str(raised.value) == (
            f"model.type_vocab_size of {directory} is 1; allowed: at least 2 for "
            "--task=rte, whose texts share a sequence"
        )


@pytest.mark.large
def test_several_tasks_have_glues_average_and_a_report(directory, tmp_path):
    for name, folder in (("rte", "RTE"), ("stsb", "STS-B")):
        rows = [
            (*row.texts, f"{row.label:.1f}" if name == "stsb" else label)
            for row in pairs(24)
            for label in ["entailment" if row.label > 2 else "not_entailment"]
        ]
        write(tmp_path / "glue" / folder / "train.tsv", name, rows[:16])
        write(tmp_path / "glue" / folder / "dev.tsv", name, rows[16:])
    output = tmp_path / "out"
    done = run(
        *(f"--model={directory}", "--task=stsb,rte", f"--data_dir={tmp_path}/glue"),
        *("--batch_size=8", "--epochs=1", "--seeds=0,1", f"--output={output}"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((output / "results.json").read_text())
    single = {
        name: json.loads((output / name / "results.json").read_text())
        for name in ("rte", "stsb")
    }
    for results in single.values():
        scores = [results["seeds"][seed]["score"] for seed in ("0", "1")]
        assert results["max"]["score"] == max(scores)
    glue_average = summary["averages"]["glue"]
    assert glue_average["scored"] == ["rte accuracy", "stsb pearson"]
    assert len(glue_average["missing"]) == 7
    means = [single["rte"]["mean"]["accuracy"], single["stsb"]["mean"]["pearson"]]
    assert glue_average["mean"] == pytest.approx(np.mean(means))
    text = (output / "report.md").read_text()
    # Published: BERT base on the development sets, over the same two parts.
    assert "glue (2 of 9)" in text and "ULR-BERT base" in text
    assert "ULR-BERT base" in (output / "report.html").read_text()


def test_a_report_tells_test_sets_from_development_sets(tmp_path):
    reviews = {"accuracy/dev": 80.0, "accuracy/en": 79.0, "accuracy/fr": 70.0}
    for scores, tests in (
        ({"rte": {"accuracy": 60.0}, "amazon": reviews}, True),
        ({"rte": {"accuracy": 60.0}, "wnli": {"accuracy": 50.0}}, False),
    ):
        report.write_table(str(tmp_path), report.table("mine", scores))
        for name in ("report.md", "report.html"):
            text = (tmp_path / name).read_text()
            note = " Test sets: amazon accuracy/en, amazon accuracy/fr."
            assert "Ours: mean over the seeds, development sets; x 100." in text
            assert (note in text) == tests


def test_several_seeds_stand_beside_ulrs_table_6(tmp_path):
    """Deviation, mean and maximum of CoLA, RTE and MRPC."""
    results = {
        "mean": {"matthews": 50.0, "score": 50.0},
        "std": {"matthews": 2.0, "score": 2.0},
        "max": {"matthews": 52.0, "score": 52.0},
    }
    scores = report.scores_of(results)
    assert scores["matthews_std"] == 2 and scores["matthews_max"] == 52
    table = report.table("mine", {"cola": scores})
    assert table.heads == ["cola matthews", "cola matthews_std", "cola matthews_max"]
    rows = {(row.name, row.source): row.numbers for row in table.rows}
    assert rows["mine", ""] == [50, 2, 52]
    (source,) = (source for source in table.sources if "table 6" in source)
    assert rows["BERT base", source] == [57.0, 1.51, 58.3]
    report.write_table(str(tmp_path), table)
    said = "METRIC_std and METRIC_max: deviation and maximum over the seeds."
    assert said in (tmp_path / "report.md").read_text()
    # A part's name stays at the end.
    by_part = {"mean": {"accuracy/fr": 1.0}, "std": {"accuracy/fr": 2.0}}
    assert report.scores_of(by_part) == {"accuracy/fr": 1, "accuracy_std/fr": 2}
    alone = report.table("mine", {"cola": report.scores_of({"mean": results["mean"]})})
    assert alone.heads == ["cola"] and len(alone.rows) > 10


@pytest.mark.large
def test_a_task_that_diverges_leaves_the_finished_tasks(directory, tmp_path):
    for name, folder, count in (("rte", "RTE", 8), ("wnli", "WNLI", 24)):
        labels = {"rte": ["entailment", "not_entailment"], "wnli": ["0", "1"]}[name]
        rows = [(*row.texts, labels[n % 2]) for n, row in enumerate(pairs(count))]
        for file in ("train.tsv", "dev.tsv", "test.tsv"):
            path = tmp_path / "glue" / folder / file
            write(path, name, rows, with_labels=file != "test.tsv")
    # The rate of the first step is 0, and RTE takes no other.
    settings = ("--learning_rate=1e30", "--warmup_share=0.9", "--epochs=1")
    settings += ("--batch_size=8", f"--model={directory}")
    output = tmp_path / "out"
    arguments = (*settings, f"--data_dir={tmp_path}/glue", f"--output={output}")
    done = run(*arguments, "--task=rte,wnli", "--seeds=3")
    assert done.returncode == 1 and "not finite in step" in done.stderr
    assert not output.exists()
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(names) == ["glue", "out.work"]

    again = run(*arguments, "--task=rte", "--seeds=3")
    assert again.returncode == 0 and "step 1/1" not in again.stderr, again.stderr
    assert not (tmp_path / "out.work").exists()
    straight = tmp_path / "straight"
    anew = run(*arguments[:-1], f"--output={straight}", "--task=rte", "--seeds=3")
    assert "step 1/1" in anew.stderr and again.stdout.startswith(anew.stdout[:300])
    assert (output / "RTE.tsv").read_bytes() == (straight / "RTE.tsv").read_bytes()
    found, want = (
        json.loads((path / "results.json").read_text()) for path in (output, straight)
    )
    assert {**found, "date": ""} == {**want, "date": ""}


def test_files_of_all_tasks_are_read_before_the_first_one_trains(tmp_path):
    """Hours of training would be lost."""
    rows = [("a dog", "a cat", "entailment")] * 2
    for name in ("train.tsv", "dev.tsv"):
        write(tmp_path / "glue" / "RTE" / name, "rte", rows)
    arguments = (f"--model={tmp_path}/model", f"--data_dir={tmp_path}/glue")
    missing = run(*arguments, "--task=rte,wnli", f"--output={tmp_path}/out")
    assert missing.returncode == 1 and "WNLI/train.tsv" in missing.stderr
    for name in ("train.tsv", "dev.tsv"):
        write(tmp_path / "glue" / "WNLI" / name, "wnli", [("a", "b", "1")])
    write(tmp_path / "glue" / "WNLI" / "test.tsv", "rte", [], with_labels=False)
    damaged = run(*arguments, "--task=rte,wnli", f"--output={tmp_path}/out")
    assert damaged.returncode == 1 and "WNLI/test.tsv has no examples" in damaged.stderr
    # The name of a task is no path.
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "results.json").touch()
    arguments = ("--model=model", "--data_dir=glue", "--task=rte", "--output=rte")
    again = commands.run("cmlm.finetune", *arguments, "--overwrite", cwd=tmp_path)
    assert again.returncode == 1 and "model does not exist" in again.stderr


@pytest.mark.usefixtures("eager")
def test_weight_decay_shrinks_kernels_and_no_biases(trained, tokenizer):
    data, ends = examples.encode(sentences(8), tokenizer, 14), []
    for decay in (0.0, 0.5):
        settings = {"epochs": 1, "batch_size": 8, "warmup_share": 0.0}
        settings |= {"learning_rate": 0.01, "dropout_rate": 0.0}
        made = classifier(trained, "cola", weight_decay=decay, **settings)
        dense = made.model.parts["head"].dense
        before, _ = dense.get_weights()
        made.train(data, lambda *step: None)
        ends.append(dense.get_weights())
    (kernel, bias), (shrunk, same) = ends
    want = 0.01 * 0.5 * before
    np.testing.assert_allclose(kernel - shrunk, want, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(bias, same)


@pytest.mark.usefixtures("eager")
def test_gradients_are_clipped_to_length_1(trained, tokenizer, monkeypatch):
    """By SGD, whose update shows the gradient; unclipped it is longer."""

    def build(*_):
        return keras.optimizers.legacy.SGD(1.0)

    monkeypatch.setattr(training.optimization, "build_optimizer", build)
    made = classifier(trained, "stsb", epochs=1, batch_size=8, dropout_rate=0.0)
    parts = [made.model.parts[name] for name in ("encoder", "head")]
    before = [array for part in parts for array in part.get_weights()]
    made.train(examples.encode(pairs(8), tokenizer, 14), lambda *step: None)
    after = [array for part in parts for array in part.get_weights()]
    total = sum(((a - b) ** 2).sum() for a, b in zip(before, after, strict=True))
    assert np.sqrt(total) == pytest.approx(1, rel=1e-4)
