"""An export gives the checkpoint's vectors in a program that knows nothing of us.

One clean process loads a moved export with TensorFlow, tensorflow-text and
tensorflow-hub only, and leaves its results for the tests to look at.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow.core.protobuf import saved_model_pb2

from cmlm import encoding, model_dir
from cmlm.errors import UserError
from cmlm.keras import keras
from export import preprocessor, saved_models

ROOT = Path(__file__).resolve().parent.parent
SAVED_MODELS = ("preprocessor", "encoder", "serving/1")
# The only ops beyond TensorFlow's own; TensorFlow Serving knows both from 2.12 on.
TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
TEXTS = [text.encode() for text in model_dirs.SENTENCES] + [
    b"the \xff\xfe cat",
    b"a cat , " * 20_000,
]

CLEAN_PROCESS = """
import sys
import numpy as np
import tensorflow as tf
import tensorflow_hub as hub
import tensorflow_text

out = sys.argv[1]
texts = [bytes.fromhex(line) for line in open(sys.argv[2]).read().split("\\n")]
text = tf.constant(texts)
preprocessor = hub.load(out + "/preprocessor")
encoder = hub.load(out + "/encoder")
serving = hub.load(out + "/serving/1")
sign = serving.signatures

results = {"modules": sorted({name.split(".")[0] for name in sys.modules})}
results["served"] = sign["serving_default"](text=text)["default"]
results["called"] = serving(text)
results["normalized"] = sign["normalized"](text=text)["normalized"]
results["alone"] = tf.concat([serving(text[i : i + 1]) for i in range(len(texts))], 0)
nothing = tf.constant([], tf.string)
results["nothing"] = sign["serving_default"](text=nothing)["default"]
results["nothing_normalized"] = sign["normalized"](text=nothing)["normalized"]
results["lengths"] = serving.lengths(text)

inputs = preprocessor(text)
for name, value in inputs.items():
    results["inputs/" + name] = value
outputs = encoder(inputs)
for name in ("default", "pooled_output", "sequence_output"):
    results["outputs/" + name] = outputs[name]
results["layers"] = len(outputs["encoder_outputs"])
results["signature"] = encoder.signatures["serving_default"](**inputs)["default"]
results["inference"] = encoder(inputs, training=False)["default"]
results["dropout_1"] = encoder(inputs, training=True)["default"]
results["dropout_2"] = encoder(inputs, training=True)["default"]
results["variables"] = len(encoder.variables)
results["trainable_variables"] = len(encoder.trainable_variables)
results["do_lower_case"] = encoder.do_lower_case
results["vocab_file"] = encoder.vocab_file.asset_path.numpy().decode()

tokens = preprocessor.tokenize(text)
results["tokens"], results["splits"] = tokens.values, tokens.row_splits
for name, value in preprocessor.tokenize.get_special_tokens_dict().items():
    results["special/" + name] = value
a = preprocessor.tokenize(tf.constant(["the cat sat", "dog"]))
b = preprocessor.tokenize(tf.constant(["a mat", "ran far away"]))
for name, value in preprocessor.bert_pack_inputs([a, b], seq_length=7).items():
    results["packed/" + name] = value
results["packed_default"] = preprocessor.bert_pack_inputs([a])["input_mask"]
words = tf.RaggedTensor.from_row_splits(a, [0, 1, 2])
results["packed_words"] = preprocessor.bert_pack_inputs([words], seq_length=6)[
    "input_word_ids"
]
np.savez(sys.argv[3], **results)
"""


def run(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )


def export_command(*flags):
    return run("-m", "export.tfhub", *flags, cwd=ROOT)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return model_dirs.write(tmp_path_factory.mktemp("source") / "model_dir")


@pytest.fixture(scope="module")
def trained(source):
    return model_dir.load_encoder(source)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """An export, written in one place and moved to another."""
    written = tmp_path_factory.mktemp("export") / "written"
    written.mkdir()
    saved_models.write(trained, str(written), model_dirs.SEQ_LENGTH)
    return str(written.rename(written.parent / "moved"))


@pytest.fixture(scope="module")
def loaded(exported, tmp_path_factory):
    """What the clean process found."""
    folder = tmp_path_factory.mktemp("clean")
    (folder / "texts").write_text("\n".join(text.hex() for text in TEXTS))
    (folder / "clean.py").write_text(CLEAN_PROCESS)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    arguments = [str(folder / name) for name in ("clean.py", "texts", "results.npz")]
    arguments.insert(1, exported)
    result = run(*arguments, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return np.load(folder / "results.npz")


@pytest.fixture(scope="module")
def expected(trained):
    """Vectors by numpy, from the checkpoint's weights: float64 [n, dim]."""
    weights = oracles.weights_by_name(trained.encoder)
    rows = []
    for text in TEXTS:
        ids = trained.tokenizer.encode(tf.constant([text]), model_dirs.SEQ_LENGTH)
        ids = ids.to_tensor().numpy()
        mask = np.ones_like(ids)
        tokens = oracles.bert(weights, ids, mask, trained.config.model.num_layers)
        rows.append(oracles.pool(tokens, mask, "mean")[0])
    return np.array(rows)


# ------------------------------------------------------------------- vectors


@pytest.mark.parametrize("name", ["served", "called", "outputs/default", "signature"])
def test_vectors_are_the_checkpoints(loaded, expected, name):
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(loaded[name], expected, atol=1e-5)


def test_nothing_of_ours_is_needed(loaded):
    ours = {"cmlm", "export", "official", "orbit"} & set(loaded["modules"])
    assert not ours


def test_a_vector_does_not_depend_on_its_batch(loaded):
    model_dirs.assert_same(loaded["alone"], loaded["served"])


def test_normalized_is_served_beside_the_raw_vector(loaded):
    lengths = np.linalg.norm(loaded["served"], axis=1)
    assert np.abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(
        loaded["normalized"], loaded["served"] / lengths[:, None], atol=1e-6
    )


def test_an_empty_request_gives_no_vectors(loaded, trained):
    shape = (0, trained.config.model.hidden_size)
    assert loaded["nothing"].shape == loaded["nothing_normalized"].shape == shape


def test_lengths_count_tokens_before_the_cut(loaded):
    # "The cat sat on the mat." is seven tokens, "dogs" two; two more are added.
    assert list(loaded["lengths"][:4]) == [9, 2, 11, 4]
    assert loaded["lengths"][-1] == 3 * 20_000 + 2


# ------------------------------------------------------------------- encoder


def test_encoder_outputs_have_the_published_names_and_shapes(loaded, trained):
    shape = (len(TEXTS), model_dirs.SEQ_LENGTH, trained.config.model.hidden_size)
    assert loaded["outputs/sequence_output"].shape == shape
    assert loaded["layers"] == trained.config.model.num_layers
    np.testing.assert_array_equal(
        loaded["outputs/pooled_output"], loaded["outputs/default"]
    )


def test_dropout_works_in_training_only(loaded):
    np.testing.assert_array_equal(loaded["inference"], loaded["outputs/default"])
    assert np.abs(loaded["dropout_1"] - loaded["inference"]).max() > 0.01
    assert np.abs(loaded["dropout_1"] - loaded["dropout_2"]).max() > 0.01


def test_encoder_attributes(loaded, trained, exported):
    assert loaded["variables"] == len(trained.encoder.variables)
    assert loaded["trainable_variables"] == len(trained.encoder.trainable_variables)
    assert bool(loaded["do_lower_case"]) is True
    vocab_file = Path(str(loaded["vocab_file"]))
    assert str(vocab_file).startswith(exported), "the asset did not move along"
    assert vocab_file.read_text().split("\n")[:-1] == model_dirs.VOCAB


@pytest.mark.large
def test_fine_tuning_through_keras_layers_lowers_a_loss(exported):
    import tensorflow_hub as hub

    sentences = keras.Input([], dtype=tf.string)
    inputs = hub.KerasLayer(f"{exported}/preprocessor")(sentences)
    layer = hub.KerasLayer(f"{exported}/encoder", trainable=True)
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


# -------------------------------------------------------------- preprocessor


def test_token_ids_are_the_tokenizers(loaded, trained):
    tokens = trained.tokenizer.tokenize(tf.constant(TEXTS))
    np.testing.assert_array_equal(loaded["tokens"], tokens.values)
    np.testing.assert_array_equal(loaded["splits"], tokens.row_splits)
    packed = trained.tokenizer.encode(tf.constant(TEXTS), model_dirs.SEQ_LENGTH)
    shape = [None, model_dirs.SEQ_LENGTH]
    ids = packed.to_tensor(trained.tokenizer.pad_id, shape=shape)
    np.testing.assert_array_equal(loaded["inputs/input_word_ids"], ids)
    mask = tf.ones_like(packed).to_tensor(shape=shape)
    np.testing.assert_array_equal(loaded["inputs/input_mask"], mask)
    assert not loaded["inputs/input_type_ids"].any()
    for name in ("input_word_ids", "input_mask", "input_type_ids"):
        assert loaded[f"inputs/{name}"].dtype == np.int32


def test_special_tokens(loaded):
    special = {
        name.removeprefix("special/"): int(loaded[name])
        for name in loaded.files
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
    word = model_dirs.VOCAB.index
    cls, sep, pad = word("[CLS]"), word("[SEP]"), word("[PAD]")
    # Room for four tokens: two of "the cat sat", both of "a mat".
    first = [cls, word("the"), word("cat"), sep, word("a"), word("mat"), sep]
    second = [cls, word("dog"), sep, word("ran"), word("far"), word("away"), sep]
    np.testing.assert_array_equal(loaded["packed/input_word_ids"], [first, second])
    np.testing.assert_array_equal(loaded["packed/input_mask"], np.ones([2, 7]))
    np.testing.assert_array_equal(
        loaded["packed/input_type_ids"], [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    )
    assert loaded["packed_default"].shape == (2, model_dirs.SEQ_LENGTH)
    assert list(loaded["packed_default"].sum(axis=1)) == [5, 3]
    np.testing.assert_array_equal(
        loaded["packed_words"],
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
        trimmed = preprocessor.trim_round_robin(segments, budget)
        assert [t.to_list() for t in trimmed] == [t.to_list() for t in oracle]


# ------------------------------------------------------------------- serving


@pytest.mark.parametrize("name", SAVED_MODELS)
def test_model_servers_know_every_op(exported, name):
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(Path(exported, name, "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    ops = {node.op for node in graph.node}
    ops |= {
        node.op for function in graph.library.function for node in function.node_def
    }
    functions = {function.signature.name for function in graph.library.function}
    foreign = {op for op in ops - functions if not hasattr(tf.raw_ops, op)}
    assert foreign <= TEXT_OPS
    assert not any("Py" in op for op in ops), "Python is needed to run it"


# ------------------------------------------------------------------- command


def test_what_differs_from_the_checkpoint_is_not_exported(
    source, exported, tmp_path_factory
):
    changed = model_dir.load_encoder(source)
    gamma = next(v for v in changed.encoder.variables if "gamma" in v.name)
    gamma.assign_add(tf.fill(gamma.shape, 1e-3))
    with pytest.raises(UserError, match="differs"):
        saved_models.compare(changed, exported, model_dirs.SEQ_LENGTH)


def test_export_says_what_it_is(exported, source):
    with open(os.path.join(exported, "export.json")) as file:
        said = json.load(file)
    assert said["checkpoint"] == os.path.join(source, "ckpt-3")
    assert (said["step"], said["dim"], said["pooling"]) == (3, 16, "mean")
    assert said["seq_length"] == model_dirs.SEQ_LENGTH
    assert said["versions"]["tensorflow"] == tf.__version__
    assert said["config"]["model"]["num_layers"] == 2
    beside = Path(exported, "serving", "1", encoding.PROVENANCE).read_text()
    assert json.loads(beside) == said


def test_command_replaces_an_export_only_when_told_to(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    flags = [f"--model_dir={source}", f"--export_dir={out}"]
    refused = export_command(*flags)
    assert refused.returncode == 1
    assert "--overwrite" in refused.stderr and str(out) in refused.stderr
    assert [path.name for path in out.iterdir()] == ["old"]

    done = export_command(*flags, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "largest difference to the checkpoint" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        *("encoder", "export.json", "preprocessor", "serving")
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "leftovers"


def test_a_mistake_is_one_line_and_leaves_nothing(source, tmp_path):
    result = export_command(
        f"--model_dir={source}", f"--export_dir={tmp_path / 'out'}", "--seq_length=38"
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "--seq_length is 38; allowed: 3 to 37" in result.stderr
    assert not list(tmp_path.iterdir())
