"""Distillation: the teacher's vectors on disk, the losses, the width of the student."""

import json
import os
import re
import resource
import shutil
from pathlib import Path

import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys
from oracles import unit

from cmlm.config import model_dir
from cmlm.data import teacher_vectors
from cmlm.data.corpus import Corpus
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.objectives import Data, distill, losses
from cmlm.objectives.distill import DistillConfig, DistillObjective
from cmlm.objectives.distill_bitext import DistillBitextConfig, DistillBitextObjective
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.training import alignment, inputs, teachers
from cmlm.training.stages import Stage
from cmlm.training.start import Start

TEXTS = [f"sentence number {n} of the text ." for n in range(300)]
VOCABULARY = [*vocabulary_file.SPECIAL_TOKENS, "sentence", "##ing", "."]


@pytest.fixture
def folder(tmp_path):
    """Text, the vocabulary, and stored vectors as the teacher."""
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    words = ["ing" if token == "##ing" else token for token in VOCABULARY]
    (tmp_path / "taught.txt").write_text("\n".join([*TEXTS, *words]))
    random = np.random.default_rng(0)
    vectors = random.normal(size=[len(TEXTS) + len(words), 12])
    # Strong and weak directions, as real vectors have.
    vectors = vectors * np.geomspace(1, 1e-3, 12) + 0.2
    np.save(tmp_path / "taught.npy", vectors)
    return tmp_path


def settings(folder, **values) -> DistillConfig:
    config = DistillConfig(weight=1.0, **values)
    config.teacher = f"vectors:{folder}/taught.txt:{folder}/taught.npy"
    config.train_data.input_path = f"{folder}/text.txt"
    config.train_data.global_batch_size, config.train_data.seq_length = 8, 16
    return config


def taught(
    folder, directory="run", *, objectives, init_checkpoint="", width=16, **values
):
    """The data of some objectives, with the teachers' vectors; and the tokenizer."""
    run = toys.run_config(f"{folder}/text.txt")
    run.model.hidden_size = width
    run.init_checkpoint = init_checkpoint
    run.task.cmlm.weight = 0.0
    for name, objective in objectives.items():
        setattr(run.task, name, objective)
    tokenizer = WordPiece(str(folder / "vocab.txt"))
    data = {
        name: each.load_data(str(folder), False, name)
        for name, each in objectives.items()
    }
    start = Start(Stage(run, str(folder / directory)), None, **values)
    return teachers.prepare(start, data, tokenizer), tokenizer


def prepare(folder, config, directory="run", **values):
    found, tokenizer = taught(
        folder, directory, objectives={"distill": config}, **values
    )
    return found["distill"], tokenizer


def hashed_files(monkeypatch) -> list[str]:
    """The paths whose contents are hashed from now on."""
    hashed, sha256 = [], teachers.checksums.sha256

    def listed(path):
        hashed.append(str(path))
        return sha256(path)

    monkeypatch.setattr(teachers.checksums, "sha256", listed)
    return hashed


def student(folder, config, width):
    data, tokenizer = prepare(folder, config, width=width)
    model = toys.model(hidden_size=width, vocab_size=len(VOCABULARY))
    return DistillObjective("distill", config, model, tokenizer=tokenizer, data=data)


# ------------------------------------------------------------------ the store


def test_lookup_gives_the_teachers_unit_vectors(folder):
    data, _ = prepare(folder, settings(folder))
    rows = [7, 250, 0, 7]
    found = data.teacher.lookup(tf.constant([TEXTS[row] for row in rows]))
    wanted = unit(np.load(folder / "taught.npy")[rows])
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_lookup_refuses_an_unknown_text(folder):
    data, _ = prepare(folder, settings(folder))
    with pytest.raises(tf.errors.InvalidArgumentError, match="lacks a text"):
        data.teacher.lookup(tf.constant(["never seen"]))


def test_a_complete_store_needs_no_teacher(folder):
    config = settings(folder)
    before, _ = prepare(folder, config)
    (folder / "taught.npy").unlink()
    after, _ = prepare(folder, config)
    assert after == before


def test_a_copied_store_of_the_same_text_needs_no_teacher(folder, monkeypatch):
    config = settings(folder)
    before, _ = prepare(folder, config)
    shutil.copytree(folder / "run", folder / "copy")
    for name in ("taught.txt", "taught.npy"):
        (folder / name).unlink()
    (folder / "text.txt").rename(folder / "moved.txt")
    config.train_data.input_path = f"{folder}/moved.txt"
    after, _ = prepare(folder, config, "copy")
    text = tf.constant(TEXTS)
    np.testing.assert_array_equal(
        after.teacher.lookup(text), before.teacher.lookup(text)
    )
    # The next start knows the file and does not hash it.
    hashed = hashed_files(monkeypatch)
    assert prepare(folder, config, "copy")[0] == after
    assert config.train_data.input_path not in hashed
    with (folder / "moved.txt").open("a") as file:
        file.write("\nA new line.")
    with pytest.raises(UserError):
        prepare(folder, config, "copy")


def test_a_missing_text_is_hashed_once(folder, monkeypatch):
    prepare(folder, settings(folder))
    hashed = hashed_files(monkeypatch)
    prepare(folder, settings(folder, init_words=True))
    assert hashed.count(f"{folder}/text.txt") == 1


def test_a_killed_preparation_goes_on(folder):
    config = settings(folder)
    whole, _ = prepare(folder, config, "whole")
    killed, _ = prepare(folder, config, "killed")
    store = folder / "killed" / "teacher"
    # The last keys are lost, and the file of vectors ends within a row.
    for name, keep in (("keys", 8 * 100 + 3), ("vectors", 2 * 12 * 101 + 5)):
        (store / name).write_bytes((store / name).read_bytes()[:keep])
    (store / "texts.json").unlink()
    again, _ = prepare(folder, config, "killed")
    text = tf.constant(TEXTS)
    np.testing.assert_array_equal(
        again.teacher.lookup(text), whole.teacher.lookup(text)
    )
    assert again.teacher.rows == len(TEXTS)


def test_a_full_disk_is_named(tmp_path):
    writer = teacher_vectors.Writer(str(tmp_path), 4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            writer.append([1, 2], np.ones([2, 4], np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / "vectors")


def test_a_second_text_is_added(folder):
    cache = str(folder / "cache")
    first, _ = prepare(folder, settings(folder, teacher_cache=cache))
    with_words, _ = prepare(
        folder, settings(folder, teacher_cache=cache, init_words=True)
    )
    assert with_words.teacher.rows == len(TEXTS) + len(VOCABULARY)
    text = tf.constant(TEXTS[:5])
    np.testing.assert_array_equal(
        first.teacher.lookup(text), with_words.teacher.lookup(text)
    )


def test_a_worker_waits_for_every_file_of_the_teacher(folder, monkeypatch):
    monkeypatch.setattr(inputs, "_SHARED_STORAGE_SECONDS", 0)
    data, _ = prepare(folder, settings(folder))
    inputs.await_data({"distill": data})
    store = folder / "run" / "teacher"
    rows = len(TEXTS)
    for path in (
        *(store / "vectors", Path(data.teacher.basis)),
        *(store / f"sorted-{rows}.keys", store / f"sorted-{rows}.rows"),
    ):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match=f"{path} of worker 0 is missing"):
            inputs.await_data({"distill": data})
        path.write_bytes(content[:-1])
        with pytest.raises(UserError, match=f"{path} of worker 0 differs"):
            inputs.await_data({"distill": data})
        path.write_bytes(content)
    inputs.await_data({"distill": data})


def test_the_vectors_of_another_teacher_are_refused(folder):
    config = settings(folder, teacher_cache=str(folder / "cache"))
    prepare(folder, config)
    teacher = config.teacher
    np.save(folder / "other.npy", np.load(folder / "taught.npy")[:, :10])
    config.teacher = f"vectors:{folder}/taught.txt:{folder}/other.npy"
    said = r"taught.npy \(dim 12, now 10\); allowed: another --teacher_cache"
    with pytest.raises(UserError, match=said):
        prepare(folder, config)
    # Known texts need no teacher; more texts do.
    config.teacher, config.init_words = teacher, True
    os.replace(folder / "other.npy", folder / "taught.npy")
    with pytest.raises(UserError, match=said):
        prepare(folder, config)


def test_other_vectors_in_the_file_of_the_teacher_are_refused(folder):
    """The name and the width stay, so only the content tells them apart."""
    config = settings(folder, teacher_cache=str(folder / "cache"))
    prepare(folder, config)
    rows = np.load(folder / "taught.npy")
    rows[-1, -1] += 1
    np.save(folder / "taught.npy", rows)
    config.init_words = True
    with pytest.raises(UserError, match=r"taught.npy \(checksums .*; allowed: another"):
        prepare(folder, config)


def test_files_of_the_teacher_that_changed_are_told(folder, caplog):
    config = settings(folder)
    first, _ = prepare(folder, config)
    again, _ = prepare(folder, config)
    assert again == first and "changed" not in caplog.text
    np.save(folder / "taught.npy", np.load(folder / "taught.npy")[:, ::-1])
    # TensorFlow tells the times of files in seconds.
    os.utime(folder / "taught.npy", (0, 0))
    assert prepare(folder, config)[0] == first
    told = f"files of {config.teacher} changed after the cache {folder}/run/teacher"
    assert told in caplog.text


@pytest.mark.parametrize(
    "steps, epochs, warns", [(18, 0, True), (19, 0, False), (18, 1, False)]
)
def test_texts_that_the_run_does_not_learn_are_told(
    folder, caplog, steps, epochs, warns
):
    """300 texts, of which a step learns 8."""
    config = settings(folder)
    run = toys.run_config(f"{folder}/text.txt")
    run.trainer.train_steps, run.trainer.epochs = steps, epochs
    start = Start(Stage(run, str(folder / "run")), None)
    data = config.load_data(str(folder), False, "distill")
    teachers._warn_of_unlearnt(start, config, data)
    said = "encodes all 300 training texts, but the run learns at most 144 (trainer."
    assert (said in caplog.text) == bool(caplog.text) == warns


def test_a_teacher_that_reads_otherwise_is_refused(folder):
    """Exports of one model have one fingerprint in every precision and length."""
    config = settings(folder, teacher_cache=str(folder / "cache"))
    prepare(folder, config)
    config.init_words = True
    record = folder / "cache" / "teacher.json"
    about = json.loads(record.read_text())
    teacher = about["teacher"]
    basis = teacher_vectors.fingerprint(str(record.parent))
    for other, said in (
        ({"seq_length": 12}, "seq_length 12, now None"),
        ({"precision": "bfloat16"}, "precision bfloat16, now None"),
    ):
        changed = {**teacher, "vectors": {**teacher["vectors"], **other}}
        record.write_text(json.dumps(about | {"teacher": changed}))
        assert teacher_vectors.fingerprint(str(record.parent)) == basis
        with pytest.raises(UserError, match=rf"\({said}\); allowed: another --tea"):
            prepare(folder, config)


def test_a_wrong_cache_is_refused_before_a_vocabulary_is_learnt(folder, one_device):
    config = settings(folder, teacher_cache=str(folder / "cache"))
    prepare(folder, config)
    np.save(folder / "other.npy", np.load(folder / "taught.npy")[:, :10])
    run = toys.run_config(f"{folder}/text.txt")
    run.task.cmlm.weight, run.task.distill = 0.0, config
    # A section is copied.
    config = run.task.distill
    teacher = config.teacher

    def refused(said, directory=f"{folder}/run"):
        with pytest.raises(UserError, match=said):
            inputs.prepare(Start(Stage(run, directory), one_device))
        assert not tf.io.gfile.exists(f"{directory}/vocab.txt")

    config.teacher = f"vectors:{folder}/taught.txt:{folder}/other.npy"
    refused(r"taught.npy \(dim 12, now 10\); allowed: another --teacher_cache")
    config.teacher = teacher
    (folder / "cache" / "texts.json").write_text("{")
    refused("texts.json is not JSON")
    for config.teacher_cache, cache in (
        ("", "ram://run/teacher"),
        ("ram://cache", "ram://cache"),
    ):
        refused(f"^--teacher_cache is {cache}; allowed: a local direc", "ram://run")


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("texts.json", "{", "is not JSON"),
        ("texts.json", '{"a": "1"}', "has a='1'; allowed: int from 0"),
        ("teacher.json", "[]", "does not hold a JSON dict"),
        ("teacher.json", '{"teacher": {}, "dim": 0}', "has dim=0; allowed: int from 1"),
        ("teacher.json", '{"teacher": {"model": "a"}, "dim": 12}', "has no vectors"),
        ("checksums-300.json", '{"keys": 5}', "is damaged: "),
    ],
)
def test_a_damaged_store_is_refused(folder, name, content, said):
    config = settings(folder)
    prepare(folder, config)
    store = folder / "run" / "teacher"
    (store / name).write_text(content)
    with pytest.raises(UserError) as caught:
        prepare(folder, config)
    assert f"{store}/{name} {said}" in str(caught.value)
    assert str(caught.value).endswith(f"; delete {store}")


def test_a_byte_of_the_store_that_changed_is_noticed(folder):
    config = settings(folder, teacher_cache=str(folder / "cache"))
    more = settings(folder, teacher_cache=config.teacher_cache, init_words=True)
    first, _ = prepare(folder, config)
    sums = folder / "cache" / "checksums-300.json"
    for name in json.loads(sums.read_text()):
        whole = (folder / "cache" / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        (folder / "cache" / name).write_bytes(damaged)
        # It is neither read nor carried into the sums of a longer store.
        for each in (config, more):
            with pytest.raises(UserError, match=f"cache/{name} is damaged: it differs"):
                prepare(folder, each)
        (folder / "cache" / name).write_bytes(whole)
    # The first texts keep their sums when others have come behind them, and a store of
    # an earlier version has none.
    prepare(folder, more)
    assert prepare(folder, config)[0] == first
    sums.unlink()
    assert prepare(folder, config)[0] == first


def test_the_teacher_must_know_every_text(folder):
    (folder / "text.txt").write_text("\n".join([*TEXTS, "a new sentence"]))
    with pytest.raises(UserError, match="'a new sentence'"):
        prepare(folder, settings(folder))


def test_the_teacher_reads_one_side_of_a_bitext(tmp_path):
    (tmp_path / "pairs.tsv").write_text("one\teins\ntwo\tzwei\n")
    files = [str(tmp_path / "pairs.tsv")]
    for side, wanted in (("source", [b"one", b"two"]), ("target", [b"eins", b"zwei"])):
        texts = DistillBitextConfig(teacher_side=side).taught_texts(files)
        assert list(texts.as_numpy_iterator()) == wanted


# ----------------------------------------------------------------- the losses


def test_losses_against_numpy():
    random = np.random.default_rng(0)
    own, targets = random.normal(size=[5, 4]), random.normal(size=[5, 4])
    more, more_targets = random.normal(size=[9, 4]), random.normal(size=[9, 4])
    distance = np.sum((unit(own) - unit(targets)) ** 2, axis=1) / 2
    np.testing.assert_allclose(
        losses.cosine_distance(own, targets), distance, atol=1e-6
    )
    found = unit(own) @ unit(more).T
    wanted = unit(targets) @ unit(more_targets).T
    np.testing.assert_allclose(
        losses.similarity_error(own, more, targets, more_targets),
        np.mean((found - wanted) ** 2, axis=1),
        atol=1e-6,
    )


@pytest.mark.parametrize("weight, similarity", [(0.0, 0.5), (0.5, 0.0)])
def test_translations_rank_each_other_beside_the_teacher(folder, weight, similarity):
    """All losses read the vectors of one batch; a repeated text is no negative."""
    random = np.random.default_rng(0)
    translations = [f"satz {n % 5} ." for n in range(300)]
    pairs = zip(TEXTS, translations, strict=True)
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    config = DistillBitextConfig(weight=1.0, retrieval_weight=weight, margin=0.2)
    config.scale, config.teacher = 7.0, settings(folder).teacher
    config.similarity_weight = similarity
    config.train_data.input_path = f"{folder}/pairs.tsv"
    config.train_data.global_batch_size, config.train_data.seq_length = 8, 16
    found, tokenizer = taught(folder, objectives={"distill_bitext": config}, width=12)
    objective = DistillBitextObjective(
        "distill_bitext",
        config,
        toys.model(hidden_size=12, vocab_size=len(VOCABULARY)),
        tokenizer=tokenizer,
        data=found["distill_bitext"],
    )
    batch = next(iter(objective.train_dataset(tf.distribute.InputContext())))
    own = random.normal(size=[8, 2, 12]).astype(np.float32)
    loss, metrics = objective.embedding_loss(tf.constant(own), batch)
    vectors = unit(own.astype(np.float64))
    taught_vectors = batch["teacher_vectors"].numpy()
    distances = 1 - np.sum(vectors * taught_vectors[:, np.newaxis], axis=2)
    texts, teacher = vectors.reshape([16, 12]), np.repeat(taught_vectors, 2, axis=0)
    error = np.mean((texts @ texts.T - teacher @ teacher.T) ** 2, axis=1).sum()
    np.testing.assert_allclose(metrics["similarity_error"][0], error, rtol=1e-4)
    wanted = distances.sum() + similarity * error
    assert {*objective.train_metrics} == {*metrics}
    if weight:
        source, target = (
            batch[f"{side}_hash"].numpy() for side in ("source", "target")
        )
        equal = target[:, np.newaxis] == target
        # The batch has repeated translations, and the texts of the teacher differ.
        assert equal.sum() > 8 and len({*source}) == 8
        both = [
            oracles.additive_margin_softmax(*sides, np.arange(8), equal, 0.2, 7.0)
            for sides in (
                (vectors[:, 0], vectors[:, 1]),
                (vectors[:, 1], vectors[:, 0]),
            )
        ]
        # A sum over 16 texts and a sum over 8 pairs.
        wanted += weight * 2 * np.sum(both)
        np.testing.assert_allclose(metrics["retrieval_loss"][0], np.sum(both), 1e-4)
        assert metrics["retrieval_loss"][1] == 8
    else:
        assert "source_hash" not in batch
    np.testing.assert_allclose(loss, wanted, rtol=1e-4)
    assert objective.divisor(batch) == 16 == metrics["loss"][1]


def test_translations_that_rank_need_a_second_pair(folder):
    (folder / "pairs.tsv").write_text("one\teins\n")
    data = Data(Corpus({"": [f"{folder}/pairs.tsv"]}, {"": 1}))
    config = DistillBitextConfig(weight=1.0)
    config.check_data(data, None)
    config.retrieval_weight = 0.1
    with pytest.raises(UserError, match="has 1 example; allowed: at least 2"):
        config.check_data(data, None)


# ------------------------------------------------------- the student's width


@pytest.mark.parametrize("width", [16, 8])
def test_projection_keeps_the_teachers_cosines(folder, width):
    """A wider student is filled up with zeros; a narrower one loses little."""
    objective = student(folder, settings(folder), width)
    taught = objective._vectors.lookup(tf.constant(TEXTS))
    projected = objective._teach(taught).numpy()
    assert projected.shape == (len(TEXTS), width)
    np.testing.assert_allclose(
        projected @ projected.T, taught @ tf.transpose(taught), atol=2e-3
    )


def test_a_run_keeps_the_basis_of_its_first_start(folder, caplog):
    """More texts would turn it, and the student has learnt vectors in it."""
    config = settings(folder)
    first = prepare(folder, config)[0].teacher.directions()
    config.init_words = True

    def later(**values):
        begun = toys.run_config(f"{folder}/text.txt")
        data, _ = prepare(folder, config, begun=begun, **values)
        return data.teacher.directions()

    np.testing.assert_array_equal(later(), first)
    np.testing.assert_array_equal(later(writes=False), first)
    # A run that has lost its basis keeps the present one.
    (kept,) = (folder / "run" / "teacher_bases").iterdir()
    kept.unlink()
    other = later(writes=False)
    assert np.abs(other - first).max() > 1e-3 and not kept.exists()
    np.testing.assert_array_equal(later(), other)
    assert kept.exists()
    # A run that begins again behind a kill, and another teacher, have their own.
    config.init_words = False
    np.testing.assert_array_equal(
        prepare(folder, config)[0].teacher.directions(), first
    )
    np.save(folder / "other.npy", np.load(folder / "taught.npy")[:, ::-1])
    config.teacher = f"vectors:{folder}/taught.txt:{folder}/other.npy"
    config.teacher_cache = str(folder / "cache")
    assert "bases" not in caplog.text
    assert np.abs(later(writes=False) - first).max() > 1e-3
    said = f"learnt another teacher's vectors ({folder}/run/teacher_bases); "
    assert f"{said}this command validates with new principal" in caplog.text
    later()
    assert f"{said}the run goes on with new principal" in caplog.text


def test_a_run_from_another_run_keeps_its_directions(folder, caplog):
    """The weights that it starts from give vectors in them."""
    caplog.set_level("INFO")
    config = settings(folder)
    first = prepare(folder, config)[0].teacher.directions()
    model_dir.write_config(f"{folder}/run", toys.run_config(f"{folder}/text.txt"))
    (folder / "run" / "best").mkdir()
    config.init_words = True

    def directions(directory, source, **values):
        data, _ = prepare(
            folder, config, directory, init_checkpoint=str(source), **values
        )
        return data.teacher.directions()

    assert np.abs(directions("alone", "") - first).max() > 1e-3
    for source in (folder / "run", folder / "run" / "best" / "ckpt-5"):
        assert "keeps the principal directions" not in caplog.text
        found = directions(f"from {source.name}", source)
        np.testing.assert_array_equal(found, first)
        said = f"teacher: the run keeps the principal directions of {folder}/run"
        assert said in caplog.text
        caplog.clear()
    # Those of the new run are its own.
    shutil.rmtree(folder / "run" / "teacher_bases")
    begun = toys.run_config(f"{folder}/text.txt")
    found = directions("from run", folder / "run", begun=begun)
    np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize("width", [8, 12, 16])
def test_mixed_directions_keep_cosines_and_even_out_the_variance(width):
    random = np.random.default_rng(0)
    vectors = random.normal(size=[2000, 12]) * 2.0 ** -np.arange(12)
    directions = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1].astype(np.float32)
    found = alignment.mixed(directions, width)
    np.testing.assert_array_equal(found, alignment.mixed(directions, width))
    before, after = (
        vectors @ distill.projected(each, width) for each in (directions, found)
    )
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-4)
    shares = [np.square(each).sum(axis=0)[:8].max() for each in (before, after)]
    assert shares[1] < 0.7 * shares[0]
    np.testing.assert_array_equal(found[:, width:], directions[:, width:])


@pytest.mark.parametrize("width", [12, 16, 20])
def test_turned_directions_keep_cosines_and_find_a_rotation(width):
    """Against a rotation that is known, for a narrow, an equal and a wide encoder."""
    random = np.random.default_rng(0)
    taught = unit(random.normal(size=[300, 16]))
    directions = np.linalg.eigh(taught.T @ taught)[1][:, ::-1]
    basis = distill.projected(directions, width)
    rotation = np.linalg.qr(random.normal(size=[width, width]))[0]
    own = taught @ basis @ rotation
    found = alignment.turned(directions, taught, own)
    assert found.shape == (16, max(16, width))
    np.testing.assert_allclose(taught @ found[:, :width], own, atol=1e-9)
    np.testing.assert_array_equal(found[:, width:], directions[:, width:])


@pytest.fixture
def encoder(tmp_path):
    """A model_dir of width 16, and 400 texts of its words."""
    source = model_dirs.write(tmp_path / "source")
    shutil.copy(f"{source}/vocab.txt", tmp_path)
    random = np.random.default_rng(0)
    lines = {" ".join(random.choice(model_dirs.VOCAB[5:15], 6)) for _ in range(400)}
    (tmp_path / "text.txt").write_text("\n".join(sorted(lines)))
    shutil.copy(tmp_path / "text.txt", tmp_path / "taught.txt")
    return source


def turned_teacher(folder, source, dim):
    """Stores an encoder's vectors in other directions; returns them as they were."""
    texts = (folder / "taught.txt").read_text().split("\n")
    own = opening.open_encoder(source).encode(texts, normalize=True)
    vectors = np.pad(own, [(0, 0), (0, 8)])
    random = np.random.default_rng(0)
    vectors = vectors @ np.linalg.qr(random.normal(size=[24, 24]))[0]
    if dim < 24:
        vectors = vectors @ np.linalg.svd(vectors)[2][:dim].T
    np.save(folder / "taught.npy", vectors)
    return texts, own


@pytest.mark.parametrize("dim", [12, 16, 24])
def test_an_aligned_teacher_begins_near_the_encoder(tmp_path, encoder, dim):
    """The teacher is the encoder itself, in other directions and of another width."""
    source = encoder
    texts, own = turned_teacher(tmp_path, source, dim)
    config = settings(tmp_path, projection="aligned")
    data, tokenizer = prepare(tmp_path, config, init_checkpoint=source)
    model = toys.model(vocab_size=len(model_dirs.VOCAB))
    objective = DistillObjective(
        "distill", config, model, tokenizer=tokenizer, data=data
    )
    taught = objective._teach(data.teacher.lookup(tf.constant(texts))).numpy()
    cosines = np.einsum("nd,nd->n", unit(taught), own)
    assert cosines.mean() > (0.9 if dim < 16 else 0.999)
    # A later start learns in the same directions, whatever its weights.
    begun = toys.run_config("text.txt")
    begun.task.distill.weight, begun.task.distill.projection = 1.0, "aligned"
    later, _ = prepare(tmp_path, config, init_checkpoint="gone", begun=begun)
    np.testing.assert_array_equal(later.teacher.directions(), data.teacher.directions())


def test_vectors_are_turned_by_texts_of_each_pair_of_languages(tmp_path):
    """One file has hard negatives in further columns, the others have two columns."""
    files, config = {}, DistillBitextConfig()
    for pair, negatives in (("en-es", "\tno\tnever"), ("en-de", ""), ("en-fr", "")):
        path = tmp_path / f"{pair}.tsv"
        path.write_text("".join(f"{pair} {n}\tx{negatives}\n" for n in range(20)))
        files[pair] = [str(path)]
    data = Data(Corpus(files, dict.fromkeys(files, 20)))
    found = [text.decode() for text in alignment._sample(config, data, 30)]
    assert found == [f"{pair} {n}" for pair in files for n in range(0, 20, 2)]


@pytest.mark.parametrize("dim", [16, 24])
def test_a_teacher_with_other_directions_is_told(tmp_path, encoder, dim, caplog):
    turned_teacher(tmp_path, encoder, dim)
    config = settings(tmp_path)
    said = "point in other directions than those of .*source .mean cosine -?0"

    def told(directory, **values):
        caplog.clear()
        prepare(tmp_path, config, directory, **values)
        return bool(re.search(said, caplog.text))

    begun = toys.run_config("text.txt")
    assert told("warm", init_checkpoint=encoder)
    assert "task.distill.projection=aligned rotates the teacher's" in caplog.text
    assert not told("warm", init_checkpoint=encoder, begun=begun)
    assert not told("new")
    # A copy of the encoder has its directions.
    config.teacher = shutil.copytree(encoder, tmp_path / "copy").as_posix()
    assert not told("itself", init_checkpoint=encoder)


def test_a_teacher_of_two_paths_has_one_projection(tmp_path, encoder):
    config = settings(tmp_path, projection="aligned")
    config.teacher = encoder
    (tmp_path / "pairs.tsv").write_text("one\ttwo")
    other = DistillBitextConfig(weight=1.0)
    other.train_data.input_path = f"{tmp_path}/pairs.tsv"
    other.teacher = shutil.copytree(encoder, tmp_path / "copy").as_posix()
    other.teacher_cache = f"{tmp_path}/other"
    objectives = {"distill": config, "distill_bitext": other}
    said = "distill_bitext.projection is 'pca'; allowed: aligned, as task.distill has"
    with pytest.raises(UserError, match=said):
        taught(tmp_path, objectives=objectives, init_checkpoint=encoder)


def test_a_run_from_aligned_vectors_stays_aligned(tmp_path, encoder):
    """With `pca` it would learn the teacher's own directions, which it never learnt."""
    turned_teacher(tmp_path, encoder, 16)
    run = toys.run_config(f"{tmp_path}/text.txt")
    run.task.distill = settings(tmp_path, projection="aligned")
    prepare(tmp_path, run.task.distill, init_checkpoint=encoder)
    model_dir.write_config(f"{tmp_path}/run", run)
    said = "projection is 'pca'; allowed: aligned, as the run in .*run has with this"
    with pytest.raises(UserError, match=said):
        prepare(tmp_path, settings(tmp_path), "next", init_checkpoint=f"{tmp_path}/run")


def test_an_alignment_that_cannot_be_is_refused(folder):
    config = settings(folder, projection="aligned")
    said = "task.distill.projection is 'aligned'; allowed: pca or linear, or an encoder"
    with pytest.raises(UserError, match=said):
        prepare(folder, config)
    begun = toys.run_config("text.txt")
    begun.task.distill.weight = 1.0
    with pytest.raises(UserError, match="'aligned'; allowed: pca, as the run in .*run"):
        prepare(folder, config, begun=begun)
    bitext = DistillBitextConfig(weight=1.0, teacher=config.teacher)
    said = "distill_bitext.projection is 'pca'; allowed: aligned, as task.distill has"
    with pytest.raises(UserError, match=said):
        prepare_both(folder, config, bitext, init_checkpoint="encoder")


def prepare_both(folder, distill, bitext, **values):
    """Two objectives; the second one has more texts."""
    more = [f"{text}\t{text}" for text in [*TEXTS, *VOCABULARY[:5]]]
    (folder / "pairs.tsv").write_text("\n".join(more))
    bitext.train_data.input_path = f"{folder}/pairs.tsv"
    objectives = {"distill": distill, "distill_bitext": bitext}
    found, _ = taught(folder, objectives=objectives, **values)
    return found["distill"].teacher, found["distill_bitext"].teacher


def test_objectives_with_one_teacher_share_its_basis(folder):
    distill = settings(folder)
    bitext = DistillBitextConfig(weight=1.0, teacher=distill.teacher)
    one, both = prepare_both(folder, distill, bitext)
    assert one.basis == both.basis and one.rows < both.rows
    whole = np.fromfile(f"{both.directory}/directions-{both.rows}", "<f4")
    mixed = alignment.mixed(whole.reshape([12, 12]), 16)
    np.testing.assert_array_equal(one.directions(), mixed)


def test_one_linear_map_needs_teachers_of_one_width(folder):
    np.save(folder / "narrow.npy", np.load(folder / "taught.npy")[:, :10])
    distill = settings(folder, projection="linear")
    bitext = DistillBitextConfig(
        weight=1.0,
        projection="linear",
        teacher=f"vectors:{folder}/taught.txt:{folder}/narrow.npy",
        teacher_cache=str(folder / "narrow"),
    )
    message = "widths are distill 12, distill_bitext 10; allowed: teachers of one width"
    with pytest.raises(UserError, match=message):
        prepare_both(folder, distill, bitext)


def test_the_stages_of_a_run_share_text_and_vectors(folder, one_device):
    run = toys.run_config(f"{folder}/text.txt")
    run.vocabulary.file = f"{folder}/vocab.txt"
    run.vocabulary.max_unknown_share = 1
    run.task.cmlm.weight, run.task.distill = 0.0, settings(folder)
    stage = f"{folder}/run/stages/1-layers"
    start = Start(Stage(run, stage, whole=f"{folder}/run"), one_device)
    data, _ = inputs.prepare(start)
    assert data["distill"].teacher.directory == f"{folder}/run/teacher"
    assert os.listdir(stage) == ["vocab.txt", "vocab.txt.json"]


def test_linear_map_is_trained_and_not_part_of_the_encoder(folder):
    objective = student(folder, settings(folder, projection="linear"), 8)
    assert objective.trained_parts == ["encoder", "teacher_map"]
    assert objective.model.parts["teacher_map"].kernel.shape == (8, 12)


def test_word_embeddings_begin_as_the_teachers_vectors(folder):
    objective = student(folder, settings(folder, init_words=True), 8)
    objective.set_initial_weights()
    vectors = unit(np.load(folder / "taught.npy")[len(TEXTS) :])
    table = objective.model.encoder.embedding_table.numpy()
    np.testing.assert_allclose(table @ table.T, vectors @ vectors.T, atol=2e-3)


def test_word_embeddings_need_the_width_of_the_teacher(folder, one_device):
    """The run says so before the teacher reads, and with complete vectors too."""
    run = toys.run_config(f"{folder}/text.txt")
    run.vocabulary.file = f"{folder}/vocab.txt"
    run.vocabulary.max_unknown_share = 1
    run.task.cmlm.weight = 0.0
    run.task.distill = settings(folder, init_words=True, projection="linear")

    start = Start(Stage(run, f"{folder}/run"), one_device)

    def refused():
        with pytest.raises(UserError, match="init_words is True; allowed: false"):
            inputs.prepare(start)

    refused()
    assert not (folder / "run" / "teacher").exists()
    prepare(folder, settings(folder, init_words=True))
    refused()
    run.task.distill.init_words = False
    inputs.prepare(start)


def test_a_teacher_must_be_named():
    config = DistillConfig(weight=1.0)
    config.train_data.input_path = "text.txt"
    said = r"^--teacher is not given; allowed: an encoder \(task.distill.teacher\)$"
    with pytest.raises(UserError, match=said):
        config.require_input("task.distill.")


def test_the_store_names_its_teacher(folder):
    prepare(folder, settings(folder))
    about = json.loads((folder / "run" / "teacher" / "teacher.json").read_text())
    assert about["teacher"]["model"].startswith("vectors:") and about["dim"] == 12
