"""Sentences to vectors: order, batches, windows of a file, where models come from."""

import gc
import gzip
import json
import logging
import multiprocessing
import os
import resource
import shutil
import tracemalloc
import types
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import cmlm
from cmlm.common import arrays, checksums, files, identity
from cmlm.common.keras import keras
from cmlm.config import model_dir
from cmlm.encoders import (
    batching,
    by_language,
    locating,
    nearest_lines,
    opening,
    run_weights,
    vector_files,
)
from cmlm.encoders.encoder import Encoder
from cmlm.encoders.graph import SentenceGraph
from cmlm.errors import UserError
from cmlm.mining import encoded
from cmlm.modeling import export_layout, foreign
from cmlm.modeling.model import SentenceModel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def source(toy_export):
    return toy_export.source


@pytest.fixture(scope="module")
def encoder(source):
    return opening.open_encoder(source)


@pytest.fixture(scope="module")
def exported(toy_export):
    return Path(toy_export.path)


def no_vocabulary():
    raise UserError("no vocabulary")


class Recorder(Encoder):
    """An encoder of words by their length, which remembers its batches."""

    def __init__(self):
        self.batches = []
        graph = types.SimpleNamespace(
            vectors=self._record,
            lengths=tf.strings.length,
            open_tokenizer=no_vocabulary,
            seq_length=16,
        )
        super().__init__(graph, {"dim": 2}, "the recorder")

    def _record(self, text):
        self.batches.append([item.decode() for item in text.numpy()])
        lengths = tf.cast(tf.strings.length(text), tf.float32)
        return tf.stack([lengths, lengths * 0 + 1], axis=1)


# -------------------------------------------------------------------- encode


def test_each_vector_is_the_sentences_own(source, encoder):
    trained = run_weights.load(source)
    expected = []
    for text in model_dirs.SENTENCES:
        ids = trained.tokenizer.encode(tf.constant([text]), model_dirs.SEQ_LENGTH)
        inputs = {"input_word_ids": ids.to_tensor()}
        inputs["input_mask"] = tf.ones_like(inputs["input_word_ids"])
        expected.append(trained.encoder(inputs)["default"][0])
    encoded = encoder.encode(model_dirs.SENTENCES)
    assert encoded.dtype == np.float32
    model_dirs.assert_same(encoded, expected)
    # Or the order could not be told.
    assert len(np.unique(encoded.round(3), axis=0)) == len(set(model_dirs.SENTENCES))


def test_no_sentences_and_the_empty_one(encoder):
    assert encoder.encode([]).shape == (0, encoder.dim)
    assert encoder.encode([]).dtype == np.float32
    empty = encoder.encode([""])
    assert empty.shape == (1, encoder.dim) and np.abs(empty).max() > 0


def test_each_distinct_sentence_is_encoded_once_among_its_like():
    recorder = Recorder()
    sentences = ["ccc", "a", "ccc", "", "bb", "a"] * 3
    encoded = recorder.encode(sentences)
    np.testing.assert_array_equal(encoded[:, 0], [len(text) for text in sentences])
    assert recorder.batches == [["ccc", "bb", "a", ""]]


def test_repeated_sentences_take_no_second_array():
    def vectors(text):
        return tf.repeat(tf.strings.to_number(text)[:, tf.newaxis], 1000, 1)

    graph = types.SimpleNamespace(
        vectors=vectors,
        lengths=tf.strings.length,
        open_tokenizer=no_vocabulary,
        seq_length=16,
    )
    made = Encoder(graph, {"dim": 1000}, "numbers")
    numbers = [row % 4000 for row in range(5000)]
    sentences = [str(number) for number in numbers]
    tracemalloc.start()
    encoded = made.encode(sentences)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(encoded[:, 9], numbers)
    assert peak < 1.5 * encoded.nbytes


def test_batches_hold_every_row_once_within_the_budget(monkeypatch):
    monkeypatch.setattr(batching, "MOST_TOKENS", 100)
    monkeypatch.setattr(batching, "LEAST_TOKENS", 40)
    random = np.random.default_rng(0)
    lengths = np.concatenate([random.integers(0, 30, 500), [200]])
    batches = list(batching.length_batches(lengths))
    rows = np.concatenate(batches)
    assert sorted(rows) == list(range(len(lengths)))
    assert list(lengths[rows]) == sorted(lengths, reverse=True)
    assert len(batches[0]) == 1, "a row beyond the budget goes alone"
    assert max(len(batch) * lengths[batch].max() for batch in batches[1:]) <= 100
    for batch in batches[1:]:
        longest, shortest = lengths[batch].max(), lengths[batch].min()
        alike = 10 * shortest >= batching.NEARLY * longest
        assert alike or len(batch) * longest <= 40 or longest < 2
    # Whatever the lengths, batches are full.
    monkeypatch.setattr(batching, "LEAST_TOKENS", 100)
    full = list(batching.length_batches(lengths))
    costs = [len(batch) * lengths[batch].max() for batch in full[1:]]
    assert max(costs) <= 100 and np.mean(costs[:-5]) > 80


def test_few_sentences_are_not_padded_to_the_longest():
    lengths = np.array([75, 60, 40, 39, 38, 37, 20, 20, 20, 12, 9, 8] * 10)
    batches = list(batching.length_batches(lengths))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.1 * lengths.sum()
    # And not each length by itself.
    assert len(batches) <= 8


def test_normalize(encoder):
    raw = encoder.encode(model_dirs.SENTENCES)
    unit = encoder.encode(model_dirs.SENTENCES, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(
        unit * np.linalg.norm(raw, axis=1)[:, None], raw, rtol=1e-5, atol=1e-6
    )


def test_a_lone_surrogate_is_an_unknown_character(encoder):
    encoded = encoder.encode(["the \ud800", "the \ufffd\ufffd\ufffd"])
    model_dirs.assert_same(encoded[0], encoded[1])


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        ("a sentence", "single string"),
        (b"a sentence", "single string"),
        (["a", None], "item 1 of sentences is NoneType"),
        ([b"a"], "item 0 of sentences is bytes"),
        ((text for text in "ab"), "is a generator; allowed: a list of str"),
        # Both would give their columns or keys as items.
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), "is a DataFrame; allowed: a list of"),
        ({"text": ["x"]}, "is a dict; allowed: a list of str"),
        ({"x", "y"}, "is a set; allowed: a list of str"),
        (np.array("a"), "is a ndarray; allowed: a list of str"),
    ],
)
def test_what_is_no_list_of_str_is_refused(encoder, sentences, said):
    with pytest.raises(TypeError, match=said):
        encoder.encode(sentences)


def test_a_fork_is_refused_where_tensorflow_would_hang(encoder, exported, tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    np.save(tmp_path / "a.npy", np.ones([1, 2]))
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child():
        for compute in (
            lambda: encoder.encode(["the cat"]),
            lambda: encoder.lengths(["the cat"]),
            lambda: cmlm.load(exported),
            lambda: cmlm.fit(tmp_path, flagfile="quickstart"),
        ):
            try:
                compute()
            except UserError as error:
                sender.send(str(error))
        # These need no TensorFlow.
        stored = cmlm.load(f"vectors:{tmp_path}/a.txt:{tmp_path}/a.npy")
        sender.send(str(stored.encode(["a"]).tolist()))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        for name in (encoder.name, encoder.name, exported, tmp_path):
            assert receiver.poll(10)
            said = receiver.recv()
            assert said.startswith(f"{name} needs TensorFlow, which ran before this ")
            assert "spawn" in said
        assert receiver.poll(10)
        assert receiver.recv() == "[[1.0, 1.0]]"
    finally:
        process.kill()
        process.join()
    assert encoder.encode(["the cat"]).shape == (1, encoder.dim)


def test_a_fork_leaves_the_garbage_of_tensorflow_alone(encoder):
    encoder.encode(["the cat"])
    garbage = types.SimpleNamespace()
    garbage.cycle = garbage
    dataset = tf.data.Dataset.range(9).map(lambda x: x + 1, num_parallel_calls=2)
    garbage.iterator = iter(dataset.prefetch(2))
    next(garbage.iterator)

    process = multiprocessing.get_context("fork").Process(target=gc.collect)
    gc.disable()
    try:
        del garbage
        process.start()
        process.join(20)
        assert process.exitcode == 0
    finally:
        gc.enable()
        process.kill()
        process.join()


def test_an_array_of_strings_is_a_list(encoder):
    texts = ["the cat", "a"]
    encoded = encoder.encode(np.array(texts))
    series = pd.Series(texts, index=[7, 3])
    np.testing.assert_array_equal(encoder.encode(series), encoded)
    np.testing.assert_array_equal(encoded, encoder.encode(texts))
    assert list(encoder.lengths(np.array(texts))) == list(encoder.lengths(texts))
    assert encoder.encode(np.array([], str)).shape == (0, encoder.dim)


def test_lengths_are_those_before_the_cut(encoder):
    lengths = encoder.lengths(["", "the cat", "the " * 100])
    assert list(lengths) == [2, 4, 102]
    assert encoder.lengths([]).shape == (0,)


def test_many_unknown_words_give_one_warning(source, caplog):
    numbers = [f"{number} ran" for number in range(120)]
    encoder = opening.open_encoder(source)
    encoder.encode(numbers[:99])
    encoder.encode([f"ran{' ran' * number}" for number in range(120)])
    assert "[UNK]" not in caplog.text
    for _ in range(2):
        encoder.encode(numbers)
    said = f"{source}: more than 20% of the tokens of some texts are [UNK]: the "
    assert caplog.text.count(said) == 1


def test_tokens_are_those_after_the_cut(encoder, exported, tmp_path):
    texts = ["", "The dogs zzz.", "the " * 100]
    tokens = encoder.tokens(texts)
    assert tokens[0] == ["[CLS]", "[SEP]"]
    assert tokens[1] == ["[CLS]", "the", "dog", "##s", "[UNK]", ".", "[SEP]"]
    assert tokens[2] == ["[CLS]", *["the"] * (encoder.seq_length - 2), "[SEP]"]
    assert encoder.tokens([]) == []
    for part in ("", "serving/1"):
        assert opening.open_encoder(str(exported / part)).tokens(texts) == tokens
    alone = tmp_path / "served" / "1"
    shutil.copytree(exported / "serving" / "1", alone)
    with pytest.raises(UserError, match=f"{alone} lies outside of its export"):
        opening.open_encoder(str(alone)).tokens(texts)
    (tmp_path / "a.txt").write_text("a\n")
    np.save(tmp_path / "a.npy", np.ones([1, 2]))
    stored = cmlm.load(f"vectors:{tmp_path}/a.txt:{tmp_path}/a.npy")
    with pytest.raises(UserError, match="gives vectors and not tokens; allowed: the"):
        stored.tokens(texts)


# ---------------------------------------------------------------------- load


@pytest.mark.parametrize("part", ["", "serving", "serving/1"])
def test_an_export_gives_the_vectors_of_its_model_dir(encoder, exported, part):
    opened = opening.open_encoder(str(exported / part))
    assert opened.dim == encoder.dim and opened.info["step"] == 3
    model_dirs.assert_same(
        opened.encode(model_dirs.SENTENCES), encoder.encode(model_dirs.SENTENCES)
    )


def test_the_newest_version_is_opened(exported, tmp_path):
    for version in ("2", "10"):
        (tmp_path / version).symlink_to(exported / "serving" / "1")
    (tmp_path / "models.config").write_text("")
    assert locating.find_export(str(tmp_path)) == str(tmp_path / "10")


def test_versions_with_leading_zeros_are_versions(exported, tmp_path):
    for version in ("00002", "00010"):
        (tmp_path / version).symlink_to(exported / "serving" / "1")
    assert locating.find_export(str(tmp_path)) == str(tmp_path / "00010")
    assert locating.find_export(f"{tmp_path}/00002/") == f"{tmp_path}/00002"


def test_a_newer_version_that_is_not_whole_is_named(exported, tmp_path, caplog):
    (tmp_path / "1").symlink_to(exported / "serving" / "1")
    (tmp_path / "2").mkdir()
    for _ in range(2):
        assert locating.find_export(str(tmp_path)) == str(tmp_path / "1")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / '2'} is not a whole export; version 1 is used"
    ]


def test_bag_of_words_is_the_mean_of_the_embeddings(source):
    table = run_weights.load(source).encoder.embedding_table.numpy()
    rows = [
        table[[model_dirs.VOCAB.index(word) for word in words]]
        for words in (
            ["the", "cat", "sat"],
            ["dog", "##s"],
            ["[UNK]", "."],
        )
    ]
    bag = opening.open_encoder(f"bow:{source}").encode(
        ["The cat sat", "dogs", "xyz .", ""]
    )
    np.testing.assert_allclose(bag[:3], [row.mean(axis=0) for row in rows], atol=1e-6)
    np.testing.assert_array_equal(bag[3], 0)


def test_a_process_with_many_encoders_gets_no_warning(source, caplog):
    # The imports have set it to errors.
    caplog.set_level(logging.WARNING, logger="tensorflow")
    tokenizer = run_weights.load(source).tokenizer
    tf.get_logger().addHandler(caplog.handler)
    for _ in range(8):
        graph = SentenceGraph(tokenizer, None, model_dirs.SEQ_LENGTH)
        assert graph.lengths(tf.constant(["a cat"])).numpy() == [4]
    tf.get_logger().removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


def test_a_bag_of_narrow_word_embeddings_is_narrow(tmp_path):
    settings = {"model.embedding_size": 6, **model_dirs.MASKED_LM}
    source = model_dirs.write(tmp_path / "run", **settings)
    bag = opening.open_encoder(f"bow:{source}")
    assert bag.encode(["The cat sat"]).shape == (1, bag.dim) == (1, 6)


@pytest.mark.large
def test_untrained_is_where_the_seed_starts(source, encoder):
    opened = opening.open_encoder(f"untrained:{source}").encode(model_dirs.SENTENCES)
    config = model_dir.read_config(source)
    tokenizer = run_weights.load(source).tokenizer
    keras.utils.set_random_seed(config.trainer.seed)
    fresh = SentenceModel(config.model).encoder
    graph = SentenceGraph(tokenizer, fresh, model_dirs.SEQ_LENGTH)
    model_dirs.assert_same(opened, graph.vectors(tf.constant(model_dirs.SENTENCES)))
    assert np.abs(opened - encoder.encode(model_dirs.SENTENCES)).max() > 0.1


@pytest.mark.parametrize("where", ["the run", "its checkpoint"])
def test_untrained_is_where_a_warm_start_begins(source, encoder, tmp_path, where):
    start = source if where == "the run" else f"{source}/ckpt-3"
    settings = {"model.num_layers": 2, "init_checkpoint": start}
    run = model_dirs.write(tmp_path / "run", seed=6, **settings)
    opened = opening.open_encoder(f"untrained:{run}")
    want = encoder.encode(model_dirs.SENTENCES)
    model_dirs.assert_same(opened.encode(model_dirs.SENTENCES), want)
    assert opened.info["step"] == 0
    trained = opening.open_encoder(run).encode(model_dirs.SENTENCES)
    assert np.abs(trained - want).max() > 0.1


def test_a_start_that_cannot_be_repeated_is_named(source, tmp_path):
    gone = {"init_checkpoint": str(tmp_path / "gone")}
    words = {"task.cmlm.weight": 0, "task.distill.weight": 1}
    words["trainer.best_checkpoint_metric"] = ""
    words |= {"task.distill.init_words": True, "task.distill.teacher": "there"}
    words |= {"task.distill.train_data.seq_length": 16}
    form = {"model.embedding_size": 6, **model_dirs.MASKED_LM}
    narrow = model_dirs.write(tmp_path / "narrow", **form)
    for settings, said in (
        (
            gone,
            f"started from {tmp_path}/gone, which no longer exists; allowed: .*--model",
        ),
        (words, "task.distill.init_words set the weights .*; allowed: "),
        ({"init_checkpoint": narrow}, f"untrained:.*: {narrow}/ckpt-3 is damaged, or"),
    ):
        run = model_dirs.write(tmp_path / "run", **settings)
        with pytest.raises(UserError, match=said):
            opening.open_encoder(f"untrained:{run}")


@pytest.mark.large
def test_only_the_first_stage_of_stacking_has_untrained_weights(tmp_path):
    first, middle, last = (
        model_dirs.write(tmp_path / folder, **{"model.num_layers": layers})
        for folder, layers in (
            ("run/stages/1-layers", 1),
            ("run/stages/2-layers", 2),
            ("run", 4),
        )
    )

    def refuses(stage, before, allowed):
        said = f"untrained:{stage}: it started from the layers of {before}, .*allowed: "
        with pytest.raises(UserError, match=f"{said}{allowed}"):
            opening.open_encoder(f"untrained:{stage}")

    # The runs of an earlier version do not name the stages before.
    refuses(last, middle, f"untrained:{first}, or {last}, best:{last} or")
    refuses(f"{middle}/", first, f"untrained:{first}, or {middle}/, best:")
    opening.open_encoder(f"untrained:{first}")
    for stage, before in ((last, middle), (middle, first)):
        model_dir.write_config(stage, model_dir.read_config(stage))
        assert f"stacked_on: {before}\n" in Path(stage, model_dir.PARAMS).read_text()
    shutil.rmtree(first)
    refuses(last, middle, f"{last}, best:{last} or bow:")
    refuses(middle, first, f"{middle}, best:{middle} or bow:")
    shutil.rmtree(f"{last}/stages")
    refuses(last, middle, f"{last}, best:{last} or bow:")


@pytest.mark.parametrize("folder", ["serving", "serving/1"])
def test_the_graph_for_servers_has_no_weights_to_train(exported, folder):
    opening.open_weights(str(exported))
    with pytest.raises(UserError, match=f"{folder} is a graph for servers, "):
        opening.open_weights(str(exported / folder))


def test_what_cannot_be_opened_is_named(source, exported, tmp_path):
    cases = {
        str(tmp_path / "nothing"): "does not exist",
        str(exported.parent): "holds no weights; allowed: an export",
        f"best:{source}": "has no best checkpoint: no validation has chosen one",
    }
    damaged = tmp_path / "serving" / "1"
    (damaged / "assets.extra").mkdir(parents=True)
    for name in ("saved_model.pb", export_layout.PROVENANCE):
        content = (exported / "serving" / "1" / name).read_bytes()
        (damaged / name).write_bytes(content[:1000] if name.endswith("pb") else content)
    cases[str(damaged)] = "not a whole SavedModel"
    for model, said in cases.items():
        with pytest.raises(UserError, match=said):
            opening.open_encoder(model)


def test_a_name_without_a_file_may_mean_a_server():
    for look_for in (opening.open_encoder, opening.check):
        with pytest.raises(UserError, match="not exist; allowed: .*; or http://H.*npy"):
            look_for("localhost:8501")
    with pytest.raises(UserError, match="not exist; allowed: .* folder$"):
        opening.open_weights("localhost:8501")


@pytest.mark.parametrize("name", ["config.json", "modules.json", "bert_model.index"])
def test_an_export_in_the_folder_of_weights_is_not_loaded(exported, tmp_path, name):
    (tmp_path / "serving").symlink_to(exported / "serving")
    opening.check(str(tmp_path))
    (tmp_path / name).write_text("{}")
    said = f"{tmp_path} holds an export beside other weights; allowed: "
    for work in (opening.check, opening.open_encoder, locating.find_export):
        with pytest.raises(UserError, match=said):
            work(str(tmp_path))
    assert locating.find_export(f"{tmp_path}/serving") == f"{tmp_path}/serving/1"
    # The weights of an export lie in `encoder/`.
    (tmp_path / "encoder").symlink_to(exported / "encoder")
    with pytest.raises(UserError, match=f"{said}{tmp_path}/encoder, or"):
        foreign.find(str(tmp_path))
    foreign.find(f"{tmp_path}/encoder")
    version = tmp_path / "version"
    shutil.copytree(exported / "serving" / "1", version)
    (version / name).write_text("{}")
    said = f"^{version}/? holds an export beside other weights; allowed: a folder with"
    for model in (str(version), f"{version}/"):
        with pytest.raises(UserError, match=said):
            opening.check(model)


def test_an_export_with_a_version_of_another_model_is_refused(exported, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    version = shutil.copytree(copy / "serving" / "1", copy / "serving" / "2")
    path = version / export_layout.PROVENANCE
    about = json.loads(path.read_text())
    opening.check(str(copy))
    path.write_text(json.dumps({**about, "fingerprint": "another"}))
    works = (opening.check, locating.find_export, opening.open_weights, foreign.find)
    said = f"^{copy} holds two models; allowed: {version}, or {copy}/encoder$"
    for work in works:
        with pytest.raises(UserError, match=said):
            work(f"{copy}/")
    foreign.find(f"{copy}/encoder")
    (version / export_layout.PROVENANCE).unlink()
    foreign.find(str(copy))


def test_a_language_with_two_models_is_refused():
    with pytest.raises(UserError, match="en=A,en=B'; allowed: one model of en, not tw"):
        by_language.models("languages:en=A,en=B")


@pytest.mark.large
def test_a_check_refuses_names_without_an_encoder_alone(source, exported, tmp_path):
    (tmp_path / "a.txt").write_text("One.\n")
    np.save(tmp_path / "a.npy", np.ones([1, 3], np.float32))
    good = [
        *(source, f"untrained:{source}", f"bow:{source}", f"{source}/ckpt-3"),
        *(str(exported), f"{exported}/serving/1", f"{exported}/encoder"),
        f"vectors:{tmp_path}/a.txt:{tmp_path}/a.npy",
    ]
    bad = [
        *(f"{source}/nothing", f"best:{source}", f"bow:{tmp_path}", f"{source}/ckpt-4"),
        *(str(exported.parent), str(tmp_path / "a.npy"), "http://localhost:1"),
        f"vectors:{tmp_path}/a.txt:{tmp_path}/b.npy",
        f"vectors:{tmp_path}/b.txt:{tmp_path}/a.npy",
    ]
    for model in good:
        opening.check(model)
        opening.open_encoder(model)
    for model in bad:
        with pytest.raises(UserError) as refused:
            opening.check(model)
        with pytest.raises(UserError) as later:
            opening.open_encoder(model)
        assert str(refused.value) == str(later.value)


def test_only_a_name_of_the_hub_gets_the_command_to_download(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="hf download exports/frist"):
        opening.open_encoder("exports/frist")
    (tmp_path / "exports" / "first").mkdir(parents=True)
    with pytest.raises(UserError, match="exports/frist does not exist; allowed: an"):
        opening.open_encoder("exports/frist")


# --------------------------------------------------------------------- files


def test_windows_give_every_line_in_order(tmp_path, monkeypatch):
    lines = ["first", "", "\u2028 inside", " x ", "last"]
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_bytes("\r\n".join(lines).encode())
    packed.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    monkeypatch.setattr(files, "_WINDOW_LINES", 3)
    paths = [str(plain), str(packed)]
    found = list(files.windows(paths))
    assert [len(window) for window in found] == [3, 3, 3, 1]
    assert sum(found, []) == lines * 2
    assert files.count_lines(paths) == 10
    monkeypatch.setattr(files, "_WINDOW_CHARACTERS", 6)
    assert max(sum(map(len, window[:-1])) for window in files.windows(paths)) < 6


def test_npy_is_whole_or_not_there(tmp_path):
    path, rows = str(tmp_path / "x.npy"), np.arange(12, dtype=np.float32).reshape(4, 3)
    with arrays.npy_writer(path, (4, 3)) as write:
        write(rows[:3])
        write(rows[3:])
    loaded = np.load(path, mmap_mode="r")
    np.testing.assert_array_equal(loaded, rows)
    assert loaded.dtype == np.float32
    with pytest.raises(RuntimeError), arrays.npy_writer(path, (9, 9)) as write:
        write(rows)
        raise RuntimeError
    np.testing.assert_array_equal(np.load(path), rows)
    assert [file.name for file in tmp_path.iterdir()] == ["x.npy"]


def test_a_difference_is_refused_beyond_rounding_and_as_nan():
    expected = np.array([[4.0, -8.0]], np.float32)
    found = arrays.difference(expected + np.float32(0.5), expected)
    assert found == (0.5, 8.0)
    arrays.check_difference(found, 0.0625, "a differs from b")
    said = "^a differs from b by 5.0e-01; allowed: at most 4e-01; nothing is written$"
    with pytest.raises(UserError, match=said):
        arrays.check_difference(found, 0.05, "a differs from b", "; nothing is written")
    with pytest.raises(UserError, match="by nan"):
        found = arrays.difference(np.full([1, 2], np.nan), expected)
        arrays.check_difference(found, 1.0, "a differs from b")


def test_float16_rounds_and_refuses_larger_numbers(tmp_path):
    rows = np.array([[0.1, 65504], [1 + 2**-11, -3]], np.float32)
    path = str(tmp_path / "x.npy")
    with arrays.npy_writer(path, (2, 2), "float16") as write:
        write(rows)
    loaded = np.load(path)
    assert loaded.dtype == np.float16
    np.testing.assert_array_equal(loaded, [[np.float16(0.1), 65504], [1, -3]])
    said = "a vector has the number 70000; allowed in float16: up to 65504"
    with pytest.raises(UserError, match=said):
        with arrays.npy_writer(path, (1, 2), "float16") as write:
            write(np.array([[1, -70000]], np.float32))
    np.testing.assert_array_equal(np.load(path), loaded)


def test_a_full_disk_is_noticed_at_the_last_rows(tmp_path, monkeypatch):
    flush, calls = tf.io.gfile.GFile.flush, []
    monkeypatch.setattr(
        tf.io.gfile.GFile, "flush", lambda file: (calls.append(file), flush(file))
    )
    path, rows = str(tmp_path / "x.npy"), np.ones([4, 3], np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(RuntimeError), arrays.npy_writer(path, (4, 3)) as write:
        write(rows[:3])
        assert not calls
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        try:
            with pytest.raises(tf.errors.OpError):
                write(rows[3:])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        raise RuntimeError
    assert len(calls) == 1 and not os.listdir(tmp_path)


def test_nearest_lines_are_those_of_brute_force():
    random = np.random.default_rng(1)
    lines = [f"line {row}" for row in range(60)]
    matrix = random.normal(size=[60, 5]).astype(np.float32)
    queries = random.normal(size=[2, 5]).astype(np.float32)
    nearest = nearest_lines.NearestLines(queries, 4)
    for start in range(0, 60, 20):
        rows = [*range(start, start + 20), *range(3)]  # lines 0 to 2 again and again
        nearest.add([lines[row] for row in rows] + [" "], matrix[[*rows, 0]])
    for query, found in zip(queries, nearest.found, strict=True):
        cosines = matrix @ query / np.linalg.norm(query)
        cosines /= np.linalg.norm(matrix, axis=1)
        best = np.argsort(-cosines)[:4]
        assert [line for _, line in found] == [lines[row] for row in best]
        np.testing.assert_allclose([score for score, _ in found], cosines[best], 1e-5)


def test_command_writes_vectors_and_prints_neighbours(encoder, exported, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(model_dirs.SENTENCES) + "\n", "utf-8")
    output = tmp_path / "vectors.npy"
    result = commands.run(
        *("cmlm.encode", f"--model={exported}"),
        *(f"--input={text}", f"--output={output}", "--normalize"),
        *("--query=The cat sat on the mat.", "--neighbours=2"),
    )
    assert result.returncode == 0, result.stderr
    model_dirs.assert_same(
        np.load(output), encoder.encode(model_dirs.SENTENCES, normalize=True)
    )
    lines = result.stdout.splitlines()
    assert lines[:2] == ["The cat sat on the mat.", "  1.000  The cat sat on the mat."]
    assert len(lines) == 4
    revision = identity.revision(encoder)
    assert lines[-1] == f"{output}  float32 [7, 16], encoder {revision}"
    about = json.loads((tmp_path / "vectors.npy.json").read_text())
    assert about == {
        "model": identity.of(encoder),
        "normalized": True,
        "shape": [7, 16],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("text.txt", "vectors.npy", "vectors.npy.json")
    ]
    result = commands.run(
        *("cmlm.encode", f"--model={exported}", f"--input={text}"),
        *(f"--output={output}", "--dtype=float16", "--overwrite"),
    )
    assert result.stdout.startswith(f"{output}  float16 [7, 16], encoder"), result
    expected = encoder.encode(model_dirs.SENTENCES)
    assert np.load(output).dtype == np.float16
    np.testing.assert_allclose(np.load(output), expected, 2**-10, 1e-6)


def test_command_fills_a_folder_and_goes_on(encoder, exported, tmp_path):
    text, output = tmp_path / "text.txt", tmp_path / "folder"
    text.write_text("\n".join(model_dirs.SENTENCES) + "\n", "utf-8")
    command = ("cmlm.encode", f"--model={exported}", f"--input={text}")
    result = commands.run(*command, f"--output={output}")
    assert result.returncode == 0, result.stderr
    said = f"{output}  6 lines with text, 5 distinct; float32 [5, 16], unit length\n"
    assert result.stdout == said
    read, stored = encoded.read(str(output), "--input")
    distinct = list(filter(None, dict.fromkeys(map(str.strip, model_dirs.SENTENCES))))
    assert read.take(range(5)) == distinct
    model_dirs.assert_same(stored.read(0, 5), encoder.encode(distinct, normalize=True))
    assert commands.run(*command, f"--output={output}").stdout == said
    text.write_text("another\n")
    exports = tmp_path / "exports"
    for name in ("english", "vectors.tmp-0a1b2c3d", "english.old-a01b2c3d"):
        (exports / name).mkdir(parents=True)
    for arguments, reason in (
        ([f"--output={output}"], "holds another text than --input now"),
        (["--query=a", "--dtype=float16"], "--dtype=float16 is given; allowed: with"),
        (["--query=a", "--normalize"], "--normalize is given; allowed: with --output"),
        (
            [f"--output={tmp_path}/x.npy", "--neighbours=4"],
            "--neighbours=4 is given; allowed: with --query",
        ),
        ([f"--output={tmp_path}/x.npy", "--workers=2"], "a folder, without .npy"),
        ([f"--output={output}", "--query=a"], "a path that ends in .npy"),
        (["--query=a", "--workers=2"], "--output is not given; allowed with --workers"),
        (
            [f"--output={exports}"],
            "english; allowed: a new folder or an earlier output",
        ),
    ):
        refused = commands.run(*command, *arguments)
        assert refused.returncode == 1
        assert reason in refused.stderr.splitlines()[-1], refused.stderr
    assert len(os.listdir(exports)) == 3


def test_the_name_of_another_file_is_no_folder(tmp_path):
    result = commands.run(
        *("cmlm.encode", "--model=nothing", "--input=a.txt", "--output=vectors.txt"),
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert "--output is vectors.txt; allowed: an .npy file, or a" in result.stderr


def test_a_command_without_a_result_is_refused(tmp_path):
    result = commands.run("cmlm.encode", "--model=m", "--input=a.txt", cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "--output and --query are not given; allowed: --output=FILE" in result.stderr


def test_an_input_without_lines_is_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    result = commands.run(
        *("cmlm.encode", "--model=nothing", "--input=a.txt", "--output=a.npy"),
        cwd=tmp_path,
    )
    assert "--input=a.txt is empty; allowed: at least one line" in result.stderr


# ------------------------------------------------- vectors that cannot be right


@pytest.mark.large
@pytest.mark.parametrize(
    "value, fault",
    [
        (np.nan, "is not finite"),
        (np.inf, "is not finite"),
        (1e30, "is longer than 1.8e19"),
    ],
)
def test_a_vector_that_cannot_be_right_is_refused_with_its_text(source, value, fault):
    trained = run_weights.load(source)
    opened = opening.from_weights(trained, opening.AS_TRAINED, "the run")
    opened.encode(["the cat", "a dog"])
    # The graph holds its own copy of the weights, except of the table.
    table = trained.encoder.embedding_table
    row = model_dirs.VOCAB.index("dog")
    table[row].assign(np.full(table.shape[1], value, np.float32))
    bag = opening._bag_of_words(trained, opening.AS_TRAINED, "bow:run")
    said = f"bow:run: the vector of 'a dog' {fault}"
    for normalize in (False, True):
        with pytest.raises(UserError, match=said):
            bag.encode(["the cat", "a dog", "dog"], normalize)
    assert np.isfinite(bag.encode(["the cat"])).all()


def test_a_description_of_vectors_is_an_output_too(tmp_path, commands):
    text, npy, output = (tmp_path / name for name in ("a.txt", "a.npy", "out.npy"))
    text.write_text("one\ntwo\n")
    np.save(npy, np.eye(2, dtype=np.float32))
    about = vector_files.path_of(str(output))
    command = ("cmlm.encode", f"--model=vectors:{text}:{npy}", f"--input={text}")
    Path(about).write_text("the user's")
    result = commands.run(*command, f"--output={output}", cwd=tmp_path)
    assert result.code == 1 and f"{about} exists; allowed: another" in result.stderr
    assert Path(about).read_text() == "the user's" and not output.exists()
    command += (f"--output={output}", "--overwrite")
    result = commands.run(*command, cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert json.loads(Path(about).read_text())["model"]["vectors"] == str(npy)
    # Another program has added a row.
    opening.open_encoder(f"vectors:{text}:{output}")
    text.write_text("one\ntwo\nthree\n")
    np.save(output, np.ones([3, 2], np.float32))
    said = f"{output} holds .3, 2., and {about} describes .2, 2.; allowed: "
    for work in (opening.check, opening.open_encoder):
        with pytest.raises(UserError, match=said):
            work(f"vectors:{text}:{output}")


def test_a_command_names_the_model_and_leaves_no_file(tmp_path, commands):
    text, npy = tmp_path / "a.txt", tmp_path / "a.npy"
    text.write_text("one\ntwo\nthree\n")
    np.save(npy, np.array([[1, 2], [np.nan, 1], [np.inf, 0]], np.float32))
    model = f"vectors:{text}:{npy}"
    result = commands.run(
        *("cmlm.encode", f"--model={model}", f"--input={text}", "--output=out.npy"),
        cwd=tmp_path,
    )
    assert result.code == 1
    said = f"error: {model}: the vector of 'two' is not finite"
    assert result.stderr.splitlines()[-1] == said
    assert not (tmp_path / "out.npy").exists()


# ------------------------------------------------------------ damaged exports


@pytest.mark.parametrize(
    "part, name",
    [
        ("serving/1", "saved_model.pb"),
        ("serving/1", "variables/variables.data-00000-of-00001"),
        ("serving/1", export_layout.PROVENANCE),
        ("encoder", "saved_model.pb"),
        ("encoder", "variables/variables.index"),
        ("encoder", "assets/vocab.txt"),
        # The encoder's description is that of the whole export.
        ("encoder", "../export.json"),
    ],
)
def test_a_flipped_bit_in_an_export_is_named(exported, tmp_path, part, name):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    path = Path(os.path.normpath(copy / part / name))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    open_it = opening.open_encoder if part == "serving/1" else opening.open_weights
    with pytest.raises(UserError, match=f"{path} is damaged: .* checksum"):
        open_it(str(copy / part))


def test_an_export_without_checksums_opens(exported, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    for path in copy.rglob(checksums.FILE_NAME):
        path.unlink()
    opening.open_encoder(str(copy))
    opening.open_weights(str(copy / "encoder"))


def test_an_export_of_projected_vectors_asks_for_its_run(exported, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    (copy / checksums.FILE_NAME).unlink()
    path = copy / "export.json"
    about = json.loads(path.read_text())
    about["config"]["model"]["sentence_vector"] = "projected"
    path.write_text(json.dumps(about))
    said = f"^{path} has sentence_vector='projected'.*; allowed: its model_dir$"
    with pytest.raises(UserError, match=said):
        opening.open_weights(str(copy / "encoder"))
    # Its vectors and tokens need no projection.
    version = copy / "serving" / "1"
    (version / export_layout.PROVENANCE).write_text(json.dumps(about))
    (version / export_layout.CHECKSUMS).unlink()
    assert opening.open_encoder(str(copy)).tokens(["dogs"]) == [
        ["[CLS]", "dog", "##s", "[SEP]"]
    ]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"dim": "16"}, "dim='16'"),
        ({"dim": 17}, "dim=17.*16"),
        ({"dim": None}, "has no dim"),
        ({"seq_length": -1}, "seq_length=-1"),
        ({"seq_length": True}, "seq_length=True"),
        ({"fingerprint": 5}, "fingerprint=5"),
        ({"fingerprint": None}, "has no fingerprint"),
        ([], "does not hold a JSON dict"),
        ("{", "is not JSON"),
    ],
)
def test_a_description_of_other_types_is_named(exported, tmp_path, change, said):
    copy = tmp_path / "1"
    shutil.copytree(exported / "serving" / "1", copy)
    (copy / "assets.extra" / checksums.FILE_NAME).unlink()
    path = copy / export_layout.PROVENANCE
    if isinstance(change, dict):
        change = {**json.loads(path.read_text()), **change}
    path.write_text(change if isinstance(change, str) else json.dumps(change))
    with pytest.raises(UserError, match=said) as refused:
        opening.open_encoder(str(copy))
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)
