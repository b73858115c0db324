"""The TF Hub text API, in a program that knows nothing of us.

One clean process loads a moved export with TensorFlow, tensorflow-text and
tensorflow-hub only, and leaves what it found for the tests to look at. Where
CMLM_OLDER_PYTHON names an interpreter with this project on an older TensorFlow, the
same is done with an export written there. A cased export is compared with one of Model
Garden's exporter, field by field.
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import model_dirs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tensorflow_text as tf_text

from cmlm.common.components import remove
from cmlm.common.keras import keras
from cmlm.encoders import components_file, opening, run_weights
from cmlm.modeling import weights
from cmlm.tokenization.base import trim
from export import saved_models

ROOT = Path(__file__).resolve().parent.parent
OLDER = "CMLM_OLDER_PYTHON"
TEXTS = [text.encode() for text in model_dirs.SENTENCES] + [
    b"the \xff\xfe cat",
    b"a cat , " * 20_000,
]


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    """Cased, and with the one activation that Model Garden's exporter knows as gelu."""
    settings = {"vocabulary.lower_case": False, "model.hidden_activation": "gelu_tanh"}
    folder = tmp_path_factory.mktemp("cased")
    source = model_dirs.write(folder / "model_dir", **settings)
    trained = run_weights.load(source)
    path = str(folder / "export")
    saved_models.Export(trained, path, model_dirs.SEQ_LENGTH).write()
    return model_dirs.Export(path, source, trained, components=None)


def use(folder: Path, **exports) -> dict:
    """What the clean process found, by export and name."""
    (folder / "texts").write_text("\n".join(text.hex() for text in TEXTS))
    program = Path(__file__).with_name("hub_program.py")
    result = subprocess.run(
        [
            *(sys.executable, "-P", str(program)),
            *(str(folder / "texts"), str(folder / "results.npz")),
            *(f"{name}={path}" for name, path in exports.items()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert result.returncode == 0, result.stderr
    results = np.load(folder / "results.npz")
    found = {"modules": set(results["modules"])}
    for name in results.files:
        export, _, key = name.partition("/")
        if key:
            found.setdefault(export, {})[key] = results[name]
    return found


@pytest.fixture(scope="module")
def older(toy_export, tmp_path_factory) -> Path:
    """The same model_dir exported under an older TensorFlow."""
    interpreter = os.environ.get(OLDER)
    if not interpreter:
        pytest.skip(f"{OLDER} names no Python with this project on an older TensorFlow")
    folder = tmp_path_factory.mktemp("older")
    pcr = str(folder / "pcr.npz")
    components_file.save(pcr, toy_export.components)
    done = subprocess.run(
        [
            *(interpreter, "-m", "export.tfhub"),
            *(f"--model_dir={toy_export.source}", f"--export_dir={folder / 'out'}"),
            f"--pcr={pcr}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def clean(toy_export, tmp_path_factory, request):
    """What was found in an export, and in the older one if there is one."""
    exports = {"uncased": toy_export.path}
    if os.environ.get(OLDER):
        exports["older"] = request.getfixturevalue("older")
    return use(tmp_path_factory.mktemp("clean"), **exports)


@pytest.fixture(params=["uncased", "older"])
def loaded(request):
    """What was found in an export, and the export it was found in."""
    clean = request.getfixturevalue("clean")
    if request.param not in clean:
        pytest.skip(f"{OLDER} names no Python with this project on an older TensorFlow")
    toy = request.getfixturevalue("toy_export")
    if request.param == "older":
        path = request.getfixturevalue("older")
        toy = model_dirs.dataclasses.replace(toy, path=str(path))
    return clean[request.param], toy


# ------------------------------------------------------------------- vectors


def test_nothing_of_ours_is_needed(clean):
    assert not {"cmlm", "export", "official", "orbit"} & clean["modules"]
    assert "tensorflow_hub" in clean["modules"]


def test_vectors_are_the_checkpoints(loaded):
    found, made = loaded
    expected = model_dirs.oracle_vectors(made.trained, TEXTS)
    assert np.abs(expected).max() > 0.1
    for name in ("served", "called", "outputs/default", "signature"):
        np.testing.assert_allclose(found[name], expected, atol=1e-5, err_msg=name)
    components = made.components.languages["de"].components
    np.testing.assert_allclose(
        found["pcr"],
        remove(np.array(expected), components),
        atol=1e-5,
    )


def test_an_older_export_is_of_an_older_tensorflow(older, clean):
    saved = (older / "serving" / "1" / "saved_model.pb").read_bytes()
    assert clean["older"]["tensorflow"] == tf.__version__
    # The version that wrote it stands in the file, and is not this one.
    assert tf.__version__.encode() not in saved


def test_lengths_count_tokens_before_the_cut(loaded):
    found, _ = loaded
    # "The cat sat on the mat." is seven tokens, "dogs" two; two more are added.
    assert list(found["lengths"][:4]) == [9, 2, 11, 4]
    assert found["lengths"][-1] == 3 * 20_000 + 2


# ------------------------------------------------------------------- encoder


def test_encoder_outputs_have_the_published_names_and_shapes(loaded):
    found, made = loaded
    model = made.trained.config.model
    shape = (len(TEXTS), model_dirs.SEQ_LENGTH, model.hidden_size)
    assert found["outputs/sequence_output"].shape == shape
    assert found["layers"] == model.num_layers
    np.testing.assert_array_equal(
        found["outputs/pooled_output"], found["outputs/default"]
    )


def test_dropout_works_in_training_only(loaded):
    found, _ = loaded
    np.testing.assert_array_equal(found["inference"], found["outputs/default"])
    assert np.abs(found["dropout_1"] - found["inference"]).max() > 0.01
    assert np.abs(found["dropout_1"] - found["dropout_2"]).max() > 0.01


def test_no_token_has_the_position_of_a_condition(loaded):
    found, made = loaded
    most = made.trained.config.model.token_positions
    assert most == model_dirs.SEQ_LENGTH
    for name in ("called", "training", "signature", "layer"):
        assert f"allowed: at most {most}" in str(found[f"wider/{name}"]), name
    assert found["padded"] < 1e-5


def test_encoder_attributes(loaded):
    found, made = loaded
    assert found["variables"] == len(made.trained.encoder.variables)
    trainable = len(made.trained.encoder.trainable_variables)
    assert found["trainable_variables"] == trainable
    assert bool(found["do_lower_case"]) is made.trained.tokenizer.rules.lower_case
    vocab_file = Path(str(found["vocab_file"]))
    assert str(vocab_file).startswith(made.path), "the asset did not move along"
    assert vocab_file.read_text().split("\n")[:-1] == model_dirs.VOCAB


@pytest.mark.large
def test_fine_tuning_through_keras_layers_lowers_a_loss(toy_export, tmp_path):
    sentences = keras.Input([], dtype=tf.string)
    inputs = hub.KerasLayer(f"{toy_export.path}/preprocessor")(sentences)
    layer = hub.KerasLayer(f"{toy_export.path}/encoder", trainable=True)
    logits = keras.layers.Dense(1)(layer(inputs)["default"])
    model = keras.Model(sentences, logits)
    assert len(layer.trainable_weights) > 10
    before = [weight.numpy() for weight in layer.trainable_weights]
    model.compile(
        keras.optimizers.Adam(3e-3), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    x = tf.constant(["the cat sat", "a cat", "the dog ran", "dog", "cats", "dogs"] * 8)
    y = tf.constant([0.0, 0, 1, 1, 0, 1] * 8)
    first = model.evaluate(x, y, verbose=0)
    model.fit(x, y, batch_size=16, epochs=8, verbose=0)
    assert model.evaluate(x, y, verbose=0) < 0.7 * first
    moved = [
        np.abs(weight.numpy() - old).max() > 0
        for weight, old in zip(layer.trainable_weights, before, strict=True)
    ]
    assert all(moved)
    # The saved model has the tuned weights, not those of the export.
    model.save(tmp_path / "tuned")
    again = keras.models.load_model(tmp_path / "tuned")
    np.testing.assert_allclose(again(x), model(x), atol=1e-5)


def test_a_loaded_keras_model_trains_the_same_weights(toy_export, tmp_path):
    """The pooler, which mean pooling does not use, stays fixed."""
    inputs = {
        name: keras.Input([None], dtype=tf.int32, name=name)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    }
    layer = hub.KerasLayer(f"{toy_export.path}/encoder", trainable=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)["default"]))
    model.save(tmp_path / "saved")
    loaded = keras.models.load_model(tmp_path / "saved")
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    assert len(loaded.weights) == len(model.weights)


# -------------------------------------------------------------- preprocessor


def test_token_ids_are_the_tokenizers(loaded):
    found, made = loaded
    tokenizer = made.trained.tokenizer
    tokens = tokenizer.tokenize(tf.constant(TEXTS))
    np.testing.assert_array_equal(found["tokens"], tokens.values)
    np.testing.assert_array_equal(found["splits"], tokens.row_splits)
    packed = tokenizer.encode(tf.constant(TEXTS), model_dirs.SEQ_LENGTH)
    shape = [None, model_dirs.SEQ_LENGTH]
    ids = packed.to_tensor(tokenizer.pad_id, shape=shape)
    np.testing.assert_array_equal(found["inputs/input_word_ids"], ids)
    mask = tf.ones_like(packed).to_tensor(shape=shape)
    np.testing.assert_array_equal(found["inputs/input_mask"], mask)
    assert not found["inputs/input_type_ids"].any()
    for name in ("input_word_ids", "input_mask", "input_type_ids"):
        assert found[f"inputs/{name}"].dtype == np.int32


def test_special_tokens(loaded):
    found, _ = loaded
    special = {
        name.removeprefix("special/"): int(value)
        for name, value in found.items()
        if name.startswith("special/")
    }
    assert special == {
        "vocab_size": len(model_dirs.VOCAB),
        "padding_id": 0,
        "start_of_sequence_id": 2,
        "end_of_segment_id": 3,
        "mask_id": 4,
    }


def test_two_segments_are_packed_into_the_length_asked_for(loaded):
    found, _ = loaded
    word = model_dirs.VOCAB.index
    cls, sep, pad = word("[CLS]"), word("[SEP]"), word("[PAD]")
    # Room for four tokens: two of "the cat sat", both of "a mat".
    first = [cls, word("the"), word("cat"), sep, word("a"), word("mat"), sep]
    second = [cls, word("dog"), sep, word("ran"), word("far"), word("away"), sep]
    np.testing.assert_array_equal(found["packed/input_word_ids"], [first, second])
    np.testing.assert_array_equal(found["packed/input_mask"], np.ones([2, 7]))
    np.testing.assert_array_equal(
        found["packed/input_type_ids"], [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    )
    assert found["packed_default"].shape == (2, model_dirs.SEQ_LENGTH)
    assert list(found["packed_default"].sum(axis=1)) == [5, 3]
    np.testing.assert_array_equal(
        found["packed_words"],
        [
            [cls, word("the"), word("cat"), word("sat"), sep, pad],
            [cls, word("dog"), sep, pad, pad, pad],
        ],
    )


@pytest.mark.parametrize("budget", [0, 1, 4, 7, 30])
def test_trimming_is_round_robin(budget):
    random = np.random.default_rng(budget)

    def ragged():
        lengths = [0, 1, 9, *random.integers(0, 12, 40)]
        return tf.RaggedTensor.from_row_lengths(
            random.integers(0, 99, sum(lengths)).astype(np.int32), lengths
        )

    for segments in ([ragged()], [ragged(), ragged()]):
        oracle = tf_text.RoundRobinTrimmer(budget).trim(segments)
        trimmed = trim(segments, budget)
        assert [t.to_list() for t in trimmed] == [t.to_list() for t in oracle]


# --------------------------------------------- Model Garden's own exporter


@pytest.fixture(scope="module")
def model_garden(cased, tmp_path_factory):
    """The same weights and vocabulary, written by Model Garden's exporter."""
    from official.nlp.configs import encoders
    from official.nlp.tools import export_tfhub_lib

    folder = tmp_path_factory.mktemp("model_garden")
    config = encoders.EncoderConfig(type="bert")
    for name in (
        *("vocab_size", "hidden_size", "num_layers", "num_attention_heads"),
        *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
    ):
        setattr(config.get(), name, getattr(cased.trained.config.model, name))
    network = encoders.build_encoder(config)
    network.set_weights(cased.trained.encoder.bert.get_weights())
    checkpoint = tf.train.Checkpoint(model=network, encoder=network)
    vocabulary = {"vocab_file": cased.trained.vocab_file, "do_lower_case": False}
    with pytest.MonkeyPatch.context() as patch:
        # With Python 3.11, typing_extensions 4.16 and wrapt 1.14 Keras cannot save a
        # model that holds a dict: looking for an attribute raises another error than
        # the one expected.
        check = inspect._check_instance

        def tolerant(instance, name):
            try:
                return check(instance, name)
            except TypeError:
                return inspect._sentinel

        patch.setattr(inspect, "_check_instance", tolerant)
        export_tfhub_lib.export_preprocessing(
            str(folder / "preprocessor"),
            **vocabulary,
            tokenize_with_offsets=False,
            default_seq_length=model_dirs.SEQ_LENGTH,
        )
        export_tfhub_lib.export_model(
            str(folder / "encoder"),
            encoder_config=config,
            model_checkpoint_path=checkpoint.save(str(folder / "checkpoint")),
            with_mlm=False,
            **vocabulary,
        )
    return folder


def assert_alike(actual, expected):
    """The same structure, types and, for whole numbers, values."""
    tf.nest.assert_same_structure(actual, expected, expand_composites=True)
    for one, other in zip(
        tf.nest.flatten(actual, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
    ):
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.is_integer:
            np.testing.assert_array_equal(one, other)


@pytest.mark.large
def test_preprocessor_field_by_field(cased, model_garden):
    ours = hub.load(f"{cased.path}/preprocessor")
    theirs = hub.load(str(model_garden / "preprocessor"))
    text = tf.constant(model_dirs.SENTENCES)
    assert_alike(ours(text), theirs(text))
    tokens = ours.tokenize(text), theirs.tokenize(text)
    # The vocabulary of the uncased export has it, too.
    assert model_dirs.VOCAB[tokens[0].values[0]] == "The"
    # They keep the pieces of a word together, [batch, (words), (pieces)]; both are
    # allowed, and both pack either.
    assert_alike(tokens[0], tokens[1].merge_dims(1, -1))
    assert_alike(
        ours.tokenize.get_special_tokens_dict(),
        theirs.tokenize.get_special_tokens_dict(),
    )
    a, b = tokens[1], tokens[1][::-1]
    for segments in ([a], [a, b], [tokens[0]], [tokens[0], tokens[0][::-1]]):
        for length in ({}, {"seq_length": 9}):
            assert_alike(
                ours.bert_pack_inputs(segments, **length),
                theirs.bert_pack_inputs(segments, **length),
            )
    for number, least in ((1, 2), (2, 3)):
        ours.bert_pack_inputs([a, b][:number], seq_length=least)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"at least {least}"):
            ours.bert_pack_inputs([a, b][:number], seq_length=least - 1)
    for name in ("variables", "trainable_variables", "regularization_losses"):
        assert len(getattr(ours, name)) == len(getattr(theirs, name)) == 0
    signatures = [loaded.signatures["serving_default"] for loaded in (ours, theirs)]
    inputs = [signature.structured_input_signature for signature in signatures]
    assert inputs[0] == inputs[1]


@pytest.mark.large
def test_encoder_field_by_field(cased, model_garden):
    ours = hub.load(f"{cased.path}/encoder")
    theirs = hub.load(str(model_garden / "encoder"))
    inputs = hub.load(f"{cased.path}/preprocessor")(tf.constant(model_dirs.SENTENCES))
    for call in ({}, {"training": True}):
        outputs = ours(inputs, **call), theirs(inputs, **call)
        assert_alike(
            *(
                {**found, "encoder_outputs": list(found["encoder_outputs"])}
                for found in outputs
            )
        )
    outputs = ours(inputs), theirs(inputs)
    expected = outputs[1]["sequence_output"].numpy()
    np.testing.assert_allclose(outputs[0]["sequence_output"], expected, atol=1e-5)
    mask = inputs["input_mask"].numpy()[:, :, np.newaxis]
    mean = (expected * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(outputs[0]["default"], mean, atol=1e-5)
    assert bool(ours.do_lower_case) is bool(theirs.do_lower_case) is False
    files = [
        Path(found.vocab_file.asset_path.numpy().decode()) for found in (ours, theirs)
    ]
    assert files[0].read_text() == files[1].read_text()
    # They count do_lower_case among the variables.
    shapes = [
        sorted(
            str(variable.shape) for variable in found.variables if variable.shape.rank
        )
        for found in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]
    # Theirs trains the pooler too, which no output of ours depends on.
    assert len(theirs.trainable_variables) == len(ours.trainable_variables) + 2
    assert len(ours.regularization_losses) == len(theirs.regularization_losses) == 0
    signatures = [found.signatures["serving_default"] for found in (ours, theirs)]
    given = [signature.structured_input_signature for signature in signatures]
    assert given[0] == given[1]
    # Their signature's outputs are named after Keras layers.
    assert set(signatures[0].structured_outputs) == {
        *("default", "pooled_output", "sequence_output")
    }


@pytest.mark.large
def test_an_export_of_model_garden_is_read(cased, model_garden):
    read = opening.open_weights(str(model_garden / "encoder"))
    assert read.config.model.pooling == "pooler"
    assert read.config.model.hidden_activation == "gelu_tanh"
    assert not read.tokenizer.rules.lower_case
    arrays = weights.read(read.encoder, read.config.model)
    stored = weights.read(cased.trained.encoder, cased.trained.config.model)
    for name, array in stored.items():
        # Rows of positions after those of the source are for conditions.
        same = arrays[name][: len(array)]
        np.testing.assert_array_equal(same, array, err_msg=name)
