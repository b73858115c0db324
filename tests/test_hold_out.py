"""A run says before its first step what it validates by, and what has changed."""

import itertools
import types
from pathlib import Path

import pytest
import tensorflow as tf
import toys

from cmlm.common import distributed, versions
from cmlm.config import loading, model_dir
from cmlm.data import inspection, streams
from cmlm.data.corpus import Corpus
from cmlm.errors import UserError
from cmlm.objectives import OBJECTIVES
from cmlm.objectives.base import Data
from cmlm.training import building, engine, hold_out, inputs, metrics_log
from cmlm.training.stages import Stage

FRACTION = "task.cmlm.train_data.hold_out_fraction"


@pytest.fixture
def small(tmp_path):
    return toys.write_corpus(tmp_path / "text.txt", documents=30)


def build(text, directory, **values):
    steps = {"trainer.train_steps": 2, "trainer.validation_interval": 2}
    return building.build(
        Stage(toys.run_config(text, **steps | values), str(directory))
    )


def said_by(caplog, words: str) -> str:
    """The level of the message that holds the words."""
    (level,) = [r.levelname for r in caplog.records if words in r.getMessage()]
    return level


@pytest.mark.usefixtures("eager")
def test_a_small_text_holds_out_more(small, tmp_path, caplog):
    caplog.set_level("INFO", "cmlm")
    run = build(small, tmp_path / "run", **{FRACTION: 0.005})
    share = run.config.task.cmlm.train_data.hold_out_fraction
    assert 0.005 < share <= 0.2
    assert f"holds out too little; the run holds out {share:g}" in caplog.text
    metrics = engine.train(run)
    assert metrics["cmlm/loss"] > 0
    # A resumed run holds out the same text.
    again = build(small, tmp_path / "run", **{FRACTION: 0.005})
    assert again.config.task.cmlm.train_data.hold_out_fraction == share


def test_batches_of_one_shape_hold_out_a_whole_batch(small, tmp_path, monkeypatch):
    """A TPU drops a smaller batch, so it would validate by nothing."""
    values = {FRACTION: 0.02, "task.cmlm.train_data.global_batch_size": 32}
    monkeypatch.setattr(distributed, "is_tpu", lambda strategy: False)
    run = build(small, tmp_path / "any", **values)
    objective = run.trainer.objectives["cmlm"]
    held_out = list(objective.held_out_examples())
    assert 0 < len(held_out) < 32
    monkeypatch.setattr(distributed, "is_tpu", lambda strategy: True)
    run = build(small, tmp_path / "static", **values)
    objective = run.trainer.objectives["cmlm"]
    held_out = list(objective.held_out_examples())
    whole = tf.distribute.InputContext()
    batches = list(objective.validation_dataset(whole))
    assert len(batches) == len(held_out) // 32 > 0
    assert {batch["input_word_ids"].shape[0] for batch in batches} == {32}


def test_objectives_of_one_text_hold_out_the_same(small, tmp_path, caplog):
    values = {
        FRACTION: 0.005,
        "task.mlm.weight": 1,
        "task.mlm.train_data.input_path": small,
        "task.mlm.train_data.hold_out_fraction": 0.005,
        "task.mlm.train_data.global_batch_size": 8,
        "task.mlm.train_data.seq_length": 16,
    }
    task = build(small, tmp_path / "run", **values).config.task
    share = task.cmlm.train_data.hold_out_fraction
    assert task.mlm.train_data.hold_out_fraction == share > 0.005
    assert "trains on text" not in caplog.text
    # A share of 0 stays, and then masked LM reads what CMLM validates by.
    values["task.mlm.train_data.hold_out_fraction"] = 0
    build(small, tmp_path / "other", **values)
    assert "mlm trains on text that cmlm holds out for validation: " in caplog.text


@pytest.mark.usefixtures("eager")
def test_validation_data_of_its_own_leaves_all_text_to_training(
    small, tmp_path, caplog
):
    caplog.set_level("INFO", "cmlm")
    other = toys.write_corpus(tmp_path / "other.txt", documents=3, seed=1)
    run = build(small, tmp_path / "run", **{"task.cmlm.validation_data": other})
    objective = run.trainer.objectives["cmlm"]
    # Documents of eight sentences.
    assert objective.count_examples() == 30 * 7
    assert "held out" not in caplog.text and "holds out" not in caplog.text

    found = []
    for batch in objective.validation_dataset(tf.distribute.InputContext()):
        batch = {name: values.numpy() for name, values in batch.items()}
        second = batch["input_word_ids"]
        rows, columns = batch["masked_lm_weights"].nonzero()
        positions = batch["masked_lm_positions"][rows, columns]
        second[rows, positions] = batch["masked_lm_ids"][rows, columns]
        for sides in zip(batch["context_word_ids"], second, strict=True):
            found.append(sorted(side[side > 0].tolist() for side in sides))
    lines = Path(other).read_text().split("\n")
    want = [
        sorted(objective.tokenizer.encode(tf.constant(pair), 16).to_list())
        for pair in itertools.pairwise(lines)
        if all(pair)
    ]
    assert len(found) == 3 * 7 and sorted(found) == sorted(want)

    validation = engine.train(run)
    rows = metrics_log.read_metrics(str(tmp_path / "run" / model_dir.METRICS))
    assert rows[0]["train/cmlm/loss"] > 0 and validation["cmlm/loss"] > 0


def test_validation_data_of_one_objective_leaks_the_text_of_another(
    small, tmp_path, caplog
):
    other = toys.write_corpus(tmp_path / "other.txt", documents=3, seed=1)
    values = {
        "task.mlm.weight": 1,
        "task.mlm.validation_data": other,
        "task.mlm.train_data.input_path": small,
        "task.mlm.train_data.hold_out_fraction": 0.2,
        "task.mlm.train_data.global_batch_size": 8,
        "task.mlm.train_data.seq_length": 16,
    }
    build(small, tmp_path / "run", **values)
    (told,) = [each for each in caplog.messages if "trains on text" in each]
    assert told == (
        "mlm trains on text that cmlm holds out for validation: "
        "task.mlm.validation_data is given, so mlm holds out nothing; with "
        "task.cmlm.validation_data, too, no text serves both"
    )
    caplog.clear()
    build(small, tmp_path / "both", **values, **{"task.cmlm.validation_data": other})
    assert "trains on text" not in caplog.text


def test_a_share_that_is_not_empty_stays(small, tmp_path):
    run = build(small, tmp_path / "run", **{FRACTION: 0.35})
    assert run.config.task.cmlm.train_data.hold_out_fraction == 0.35


@pytest.mark.usefixtures("unconverted")
@pytest.mark.parametrize(
    "name, line",
    [
        ("pairs", "query {0}\tpassage {0}\n"),
        # A pair shares its passage with the first one.
        ("bitext", "query {0}\tpassage {2}\n"),
        ("scored", "a {0}\tb {0}\t{1}\n"),
    ],
)
def test_examples_that_are_compared_are_held_out_together(
    name, line, tmp_path, one_device
):
    """A pair alone always finds its partner, and its score has no order."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(line.format(n, n % 4, n // 10) for n in range(160)))
    corpus = Corpus({"": [str(path)]}, {"": 160})
    config = OBJECTIVES[name].config_class(weight=1.0)
    objective = OBJECTIVES[name](name, config, toys.model(), None, Data(corpus))

    def held_out():
        found = objective.held_out_examples().as_numpy_iterator()
        return [row[0] if name == "pairs" else row[-1] for row in found]

    for share in (0.01, 0.02, 0.04, 0.08):
        config.train_data.hold_out_fraction = share
        if len(set(held_out())) == 1:
            break
    assert len(set(held_out())) == 1
    hold_out.ensure({name: objective}, one_device)
    assert len(set(held_out())) > 1
    assert share < config.train_data.hold_out_fraction <= 0.2


def test_a_text_of_one_block_stays_for_training(tmp_path, caplog):
    text = toys.write_corpus(tmp_path / "one.txt", documents=1, sentences=60)
    run = build(text, tmp_path / "run", **{FRACTION: 0.001})
    assert run.config.task.cmlm.train_data.hold_out_fraction == 0.001
    assert said_by(caplog, "too little is held out to validate cmlm;") == "WARNING"


def test_each_language_keeps_text_for_training(tmp_path, caplog):
    """Two languages of a block each; a larger share would hold out one of them."""
    found = {}
    for seed in range(40):
        path = toys.write_corpus(tmp_path / f"{seed}.txt", 1, 60, seed)
        part = streams.Portion([path], part="train", hold_out_fraction=0.2)
        found.setdefault(any(True for _ in streams.sentences(part)), path)
    text = f"en={found[True]},de={found[False]}"
    run = build(text, tmp_path / "run", **{FRACTION: 0.001})
    assert run.config.task.cmlm.train_data.hold_out_fraction == 0.001
    assert said_by(caplog, "too little is held out to validate cmlm;") == "WARNING"
    objective = run.trainer.objectives["cmlm"]
    counts = [len(list(objective.training_examples(each))) for each in ("en", "de")]
    assert counts == [59, 59]


@pytest.mark.parametrize("german, is_read", [(0, True), (1, False)])
def test_a_large_text_is_not_read_before_the_run(german, is_read):
    read = []

    def can_validate(examples):
        read.append(list(examples))
        return False

    objective = types.SimpleNamespace(
        data=Data(Corpus({}, {"en": 999_999, "de": german})),
        held_out_examples=lambda: tf.data.Dataset.range(3),
        static_shapes=False,
        can_validate=can_validate,
    )
    assert hold_out._unable([objective]) == [objective] * is_read
    assert read == [[0, 1, 2]] * is_read


def test_only_the_objective_that_cannot_validate_is_named(
    small, tmp_path, monkeypatch, caplog
):
    """Batches of one shape: no share of this text has 512 pairs for CMLM."""
    values = {
        FRACTION: 0.15,
        "task.cmlm.train_data.global_batch_size": 512,
        "task.mlm.weight": 1,
        "task.mlm.train_data.input_path": small,
        "task.mlm.train_data.hold_out_fraction": 0.15,
        "task.mlm.train_data.global_batch_size": 4,
        "task.mlm.train_data.seq_length": 16,
    }
    monkeypatch.setattr(distributed, "is_tpu", lambda strategy: True)
    task = build(small, tmp_path / "run", **values).config.task
    assert said_by(caplog, "too little is held out to validate cmlm;") == "WARNING"
    shares = {part.train_data.hold_out_fraction for part in (task.cmlm, task.mlm)}
    assert shares == {0.15}


def test_nothing_to_validate_by_is_said_before_training(small, tmp_path, caplog):
    caplog.set_level("INFO", "cmlm")
    build(small, tmp_path / "run", **{FRACTION: 0})
    # No warning: Mirror-BERT's recipe holds out nothing.
    assert said_by(caplog, "nothing is held out to validate cmlm;") == "INFO"


@pytest.mark.parametrize(
    "name, setting",
    [
        ("pairs", "--pair_validation_data"),
        # It has no flag.
        ("bitext", "task.bitext.validation_data"),
    ],
)
def test_the_validation_data_to_name_is_that_of_the_objective(
    name, setting, one_device, caplog
):
    caplog.set_level("INFO", "cmlm")
    config = OBJECTIVES[name].config_class(weight=1.0)
    config.train_data.hold_out_fraction = 0
    data = Data(Corpus({}, {}))
    objective = OBJECTIVES[name](name, config, toys.model(), None, data)
    hold_out.ensure({name: objective}, one_device)
    assert f"name validation data with {setting}, or raise" in caplog.text


@pytest.mark.usefixtures("eager")
def test_resuming_says_which_settings_changed(small, tmp_path, caplog):
    caplog.set_level("INFO", "cmlm")
    engine.train(build(small, tmp_path / "run"), validate=False)
    build(small, tmp_path / "run")
    assert "resuming with other settings" not in caplog.text
    values = {"trainer.train_steps": 4, "trainer.optimizer.learning_rate": 1e-4}
    size = {"vocabulary.size": 9000}
    build(small, tmp_path / "run", **values, **size)
    (told,) = [m for m in caplog.messages if m.startswith("resuming with other")]
    assert "trainer.train_steps 2 -> 4" in told
    assert "trainer.optimizer.learning_rate 0.001 -> 0.0001" in told
    assert "-> 9000 (no effect: the run keeps its vocabulary)" in told
    assert "model." not in told and told.count("vocabulary.") == 1
    assert "batches of the new size" not in caplog.text


@pytest.mark.usefixtures("eager")
def test_resuming_says_which_packages_changed(small, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", "cmlm")
    engine.train(build(small, tmp_path / "run"), validate=False)
    build(small, tmp_path / "run", **{"trainer.train_steps": 4})
    assert "other packages" not in caplog.text
    installed = versions.installed()
    other = installed | {"numpy": "1.0", "scipy": "9.9"}
    monkeypatch.setattr(versions, "installed", lambda: other)
    build(small, tmp_path / "run", **{"trainer.train_steps": 4})
    (told,) = [m for m in caplog.messages if "other packages" in m]
    assert f"numpy {installed['numpy']} -> 1.0" in told
    assert "tensorflow" not in told


@pytest.mark.usefixtures("eager")
def test_resuming_with_another_batch_size_is_told(small, tmp_path, caplog):
    engine.train(build(small, tmp_path / "run"), validate=False)
    size = "task.cmlm.train_data.global_batch_size"
    # A start that has left no checkpoint does not count for the next one.
    for now, effect in (
        (4, "it reads examples again"),
        (16, "it leaves out examples that it has not read"),
    ):
        caplog.clear()
        build(small, tmp_path / "run", **{"trainer.train_steps": 4, size: now})
        assert (
            f"{size} has changed from 8 to {now}, and the run skips as many batches of "
            f"the new size as it has read (2): {effect}"
        ) in caplog.messages


@pytest.mark.parametrize(
    "text, said",
    [
        ("a line\n" * 1000, "without a blank line"),
        ("a line\n\n" * 20, "a blank line ends"),
        ("a line\nand another\n\n" * 500, None),
        ("a line\n" * 20, None),
    ],
)
def test_a_text_of_another_layout_is_told(text, said, tmp_path):
    (tmp_path / "t.txt").write_text(text)
    report = inspection.inspect([str(tmp_path / "t.txt")]).describe(True)
    hints = ("without a blank line", "a blank line ends")
    assert [hint in report for hint in hints] == [hint == said for hint in hints]


@pytest.mark.parametrize(
    "task, tells",
    [
        ({"task.mlm.weight": 1}, False),
        ({"task.mlm.weight": 1, "task.cmlm.weight": 1}, True),
        ({"task.mlm.weight": 1, "task.mlm.passages": "true"}, True),
        ({"task.nsp.weight": 1}, True),
        ({"task.quickthought.weight": 1}, True),
    ],
)
def test_pairs_are_told_if_an_objective_reads_them(task, tells, tmp_path, caplog):
    """Masked LM and CMLM share their text, which is inspected once."""
    caplog.set_level("INFO", "cmlm")
    text = tmp_path / "text.txt"
    text.write_text("the small boat .\n" * 1000)
    config = loading.load(
        "cmlm/english",
        (),
        [f"{k}={v}" for k, v in {"task.cmlm.weight": 0, **task}.items()],
    )
    for objective in config.task.enabled().values():
        objective.train_data.input_path = str(text)
    inputs.prepare_data(config, str(tmp_path))
    (told,) = [m for m in caplog.messages if m.startswith("text: ")]
    assert "1 document, 1,000 sentences" in told
    assert ("999 pairs" in told) == ("without a blank line" in told) == tells


def test_many_documents_without_a_pair_of_passages_are_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the small boat .\nthe old river .\n\n" * 2100)
    with pytest.raises(UserError, match="no document of more than one passage.*false"):
        run = build(str(text), tmp_path / "run", **{"task.cmlm.passages": "true"})
        run.trainer.objectives["cmlm"].train_dataset(tf.distribute.InputContext())


def test_forgotten_data_is_asked_for():
    config = loading.load("cmlm/english")
    with pytest.raises(UserError, match="or builtin:python-docs .--train_data"):
        config.require_data()
