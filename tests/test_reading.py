"""How vectors are read from trained weights: pooling, projections, length."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys

from cmlm.common import identity
from cmlm.common.keras import keras
from cmlm.config import experiment
from cmlm.encoders import opening, run_weights
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.opened_weights import (
    OpenedWeights,
    describe_cut,
    describe_limit,
    resolve_seq_length,
)
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling.model import SentenceModel

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ["The cat sat on the mat.", "A dog ran far away, far away!", ""]


def save(made: SentenceModel, source: str) -> None:
    checkpoint = tf.train.Checkpoint(model=made)
    manager = tf.train.CheckpointManager(checkpoint, source, max_to_keep=1)
    manager.save(checkpoint_number=4)


def with_projection(source: str) -> np.ndarray:
    """Adds a projection to a run's checkpoint, as CMLM trains one; gives its outputs.

    Returns:
        [n, dim], the mean over the views of the mean-pooled vectors of `TEXTS`.
    """
    trained = run_weights.load(source)
    made = SentenceModel(trained.config.model)
    made.projection()
    toys.randomize(made)
    made.encoder.set_weights(trained.encoder.get_weights())
    save(made, source)
    pooled = opening.open_encoder(source).encode(TEXTS)
    weights = [weight.numpy() for weight in made.projection().weights]
    networks = [
        list(zip(weights[i : i + 6 : 2], weights[i + 1 : i + 6 : 2], strict=True))
        for i in range(0, len(weights), 6)
    ]
    return oracles.project_views(networks, pooled).mean(axis=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return model_dirs.write(tmp_path_factory.mktemp("reading") / "run")


@pytest.mark.parametrize("mode", ["mean", "max", "cls"])
def test_pooling_can_be_chosen_for_a_trained_encoder(source, mode):
    trained = run_weights.load(source)
    weights = oracles.weights_by_name(trained.encoder)
    read = opening.open_encoder(source, Reading(pooling=mode))
    assert read.info["pooling"] == mode
    for text, vector in zip(TEXTS, read.encode(TEXTS), strict=True):
        ids = trained.tokenizer.encode(tf.constant([text]), 37).to_tensor().numpy()
        mask = np.ones_like(ids)
        tokens = oracles.bert(weights, ids, mask, trained.config.model.num_layers)
        expected = oracles.pool(tokens, mask, mode)[0]
        model_dirs.assert_same(vector, expected, 1e-5)


def test_a_reading_has_its_own_fingerprint(source):
    mean, cls = (
        opening.open_encoder(source, Reading(pooling=mode)).info["fingerprint"]
        for mode in ("mean", "cls")
    )
    assert mean != cls
    assert mean == opening.open_encoder(source).info["fingerprint"]


def test_projected_vectors_are_the_mean_of_the_views(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    expected = with_projection(source)
    reading = Reading(sentence_vector="projected")
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    read = opening.open_encoder(source, reading)
    assert np.abs(expected - opening.open_encoder(source).encode(TEXTS)).max() > 0.1
    model_dirs.assert_same(read.encode(TEXTS), expected, 1e-5)


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (
            Reading(pooling="first"),
            "--pooling is 'first'; allowed: mean, max, cls, pooler$",
        ),
        (Reading(sentence_vector="p"), "'p'; allowed: pooled, projected"),
        (Reading(sentence_vector="projected"), "has no projection"),
        (Reading(dimensions=-1), "--dimensions is -1; allowed: an int from 0"),
        (Reading(dimensions=True), "--dimensions is True; allowed: an int from 0"),
        (Reading(dimensions=17), "is 17; allowed: 1 to 16, .* encoder, or 0 for all"),
        (Reading(seq_length=38), "38; allowed: 3 to 37 tokens .40 positions minus"),
    ],
)
def test_what_the_weights_lack_is_named(source, reading, said):
    with pytest.raises(UserError, match=said):
        opening.open_encoder(source, reading)


def test_a_precision_that_does_not_exist_is_named_for_a_bag_of_words(source):
    with pytest.raises(UserError, match="--precision is 'int8'; allowed: float32"):
        opening.open_encoder(f"bow:{source}", Reading(precision="int8"))


def test_a_pooler_that_nothing_trained_is_refused(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    trained = run_weights.load(source)
    made = SentenceModel(trained.config.model)
    made.encoder.bert.pooler_layer.bias.assign(tf.zeros([16]))
    save(made, source)
    with pytest.raises(UserError, match="allowed: mean, max, cls, as nothing has"):
        opening.open_encoder(source, Reading(pooling="pooler"))


def test_vectors_of_an_export_are_fixed(toy_export):
    with pytest.raises(UserError, match="--pooling is 'max'; allowed .*: 'mean'"):
        opening.open_encoder(toy_export.path, Reading(pooling="max"))
    with pytest.raises(UserError, match="--seq_length is 9; allowed .*: 37"):
        opening.open_encoder(toy_export.path, Reading(seq_length=9))
    with pytest.raises(UserError, match="--prompt is 'q: '; allowed .*: no --prompt"):
        opening.open_encoder(toy_export.path, Reading(prompt="q: "))
    with pytest.raises(UserError, match="--dimensions is 5; allowed .*: 16, because"):
        opening.open_encoder(toy_export.path, Reading(dimensions=5))
    same = Reading(pooling="mean", seq_length=37, prompt="", dimensions=16)
    encoder = opening.open_encoder(toy_export.path, same)
    described = opening.described(toy_export.path, same)
    assert identity.of(described) == identity.of(encoder)
    assert (described.dim, described.prompts) == (encoder.dim, encoder.prompts)


@pytest.mark.parametrize("form", ["{}", "untrained:{}", "bow:{}", "best:{}"])
def test_the_first_components_of_vectors(tmp_path, form):
    settings = {"trainer.best_checkpoint_metric": "cmlm/loss"}
    source = model_dirs.write(tmp_path / "run", **settings)
    shutil.copytree(source, f"{source}/best", dirs_exist_ok=True)
    model = form.format(source)
    whole = opening.open_encoder(model)
    short = opening.open_encoder(model, Reading(dimensions=5))
    assert (short.dim, short.info["dim"], short.info["dimensions"]) == (5, 5, 5)
    np.testing.assert_array_equal(short.encode(TEXTS), whole.encode(TEXTS)[:, :5])
    unit = np.linalg.norm(short.encode(TEXTS[:2], normalize=True), axis=1)
    np.testing.assert_allclose(unit, 1, rtol=1e-6)
    assert identity.revision(short) != identity.revision(whole)
    for dimensions in (0, 16):
        same = opening.open_encoder(model, Reading(dimensions=dimensions))
        assert same.info == whole.info and same.dim == 16


def test_a_run_states_the_dimensions_of_its_vectors(tmp_path):
    """The same encoder as by the flag, and PCR knows it from the whole one."""
    source = model_dirs.write(tmp_path / "a")
    stated = model_dirs.write(tmp_path / "b", **{"model.dimensions": 5})
    whole, short = map(opening.open_encoder, (source, stated))
    flagged = opening.open_encoder(source, Reading(dimensions=5))
    assert identity.of(short) == identity.of(flagged) != identity.of(whole)
    again = opening.open_encoder(stated, Reading(dimensions=0))
    np.testing.assert_array_equal(again.encode(TEXTS), whole.encode(TEXTS))
    assert identity.of(again) == identity.of(whole)
    components = model_dirs.fit(run_weights.load(stated))
    components.check_model(short.info["fingerprint"], short.dim, "pcr.npz")
    with pytest.raises(UserError, match="the model .*--dimensions, --sif and prompt"):
        components.check_model(whole.info["fingerprint"], whole.dim, "pcr.npz")


def test_the_first_components_of_projected_vectors(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    expected = with_projection(source)
    reading = Reading(sentence_vector="projected", dimensions=5)
    read = opening.open_encoder(source, reading)
    model_dirs.assert_same(read.encode(TEXTS), expected[:, :5], 1e-5)
    # The network of the training reads them, too: `evals` and exports use it.
    opened = opening.open_weights(source, reading)
    graph = SentenceGraph(opened.tokenizer, opened.encoder, opened.seq_length)
    vectors = graph.vectors(tf.constant(TEXTS))
    model_dirs.assert_same(vectors, expected[:, :5], 1e-5)


@pytest.mark.parametrize("trained", [9, 21])
def test_sentences_are_cut_where_training_cut_them(tmp_path, trained):
    settings = {"task.cmlm.train_data.seq_length": trained}
    source = model_dirs.write(tmp_path / "run", **settings)
    assert opening.open_encoder(source).seq_length == trained
    other = opening.open_encoder(source, Reading(seq_length=30))
    assert other.seq_length == 30
    assert other.info["trained_seq_length"] == trained


def test_a_run_of_more_than_128_tokens_is_not_cut_there(tmp_path):
    source = model_dirs.write(
        tmp_path / "run",
        **{
            "task.cmlm.train_data.seq_length": 200,
            "model.max_position_embeddings": 203,
        },
    )
    assert opening.open_encoder(source).seq_length == 200


def test_positions_are_the_limit():
    config = experiment.ExperimentConfig()
    config.model.max_position_embeddings, config.model.num_views = 40, 3
    long = OpenedWeights(None, None, config, "", "", 512, trained_seq_length=512)
    assert resolve_seq_length(long) == 37
    foreign = dataclasses.replace(long, trained_seq_length=None)
    assert describe_limit(foreign, 37) == "37 tokens"
    with pytest.raises(UserError, match="--seq_length is 38; allowed: 3 to 37 tokens$"):
        resolve_seq_length(foreign, 38)
    assert (
        describe_limit(long, 37) == "37 tokens (40 positions minus 3, model.num_views)"
    )
    assert describe_limit(long, 36) == "36 tokens"
    config.model.num_views = 0
    assert describe_limit(long, 40) == "40 tokens (40 positions)"


def test_the_length_of_the_training_is_named_beside_that_of_its_start():
    config = experiment.ExperimentConfig()
    config.task.mirror.weight, config.task.mirror.train_data.seq_length = 1, 50
    run = OpenedWeights(None, None, config, "", "", seq_length=256, run="run")
    assert describe_cut(run, 256) == (
        "sentences are cut at 256 tokens; trained at 50 tokens, from weights with a "
        "limit of 256"
    )
    # Another program's weights do not say how long their training texts were.
    other = dataclasses.replace(run, run=None)
    cut = "sentences are cut at"
    assert describe_cut(other, 256) == f"{cut} 256 tokens"
    assert describe_cut(other, 50) == f"{cut} 50 tokens; by default at 256"


@pytest.mark.large
def test_encode_takes_the_flags(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    with_projection(source)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS) + "\n")
    done = commands.run(
        "cmlm.encode",
        *(f"--model={source}", f"--input={text}", f"--output={tmp_path / 'v.npy'}"),
        *("--pooling=max", "--sentence_vector=projected", "--seq_length=11"),
    )
    assert done.returncode == 0, done.stderr
    read = opening.open_encoder(source, Reading("max", "projected", 11))
    model_dirs.assert_same(np.load(tmp_path / "v.npy"), read.encode(TEXTS), 1e-5)


@pytest.mark.large
def test_the_flags_are_read_without_the_warnings_of_libraries():
    code = (
        "from absl import flags\nfrom cmlm.encoders import reading_flags\n"
        "reading_flags.define()\nflags.FLAGS(['command'])\n"
        "reading_flags.reading(with_precision=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
