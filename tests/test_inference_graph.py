"""The inference graph computes what the encoder does, and fuses what it was made to."""

import collections
import platform

import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.eager import context

from cmlm import encoding, model_dir
from cmlm.modeling import inference
from export import saved_models

LAYERS, BATCH, SEQ = 2, 5, 9


def batch(types=False) -> dict[str, tf.Tensor]:
    """Rows of every length, the last without any token."""
    random = np.random.default_rng(3)
    lengths = np.array([SEQ, 4, 7, 1, 0])
    mask = (np.arange(SEQ) < lengths[:, None]).astype(np.int32)
    ids = random.integers(5, toys.VOCAB_SIZE, mask.shape) * mask
    inputs = {"input_word_ids": ids, "input_mask": mask}
    if types:
        inputs["input_type_ids"] = random.integers(0, 2, mask.shape)
    return {name: tf.constant(value, tf.int32) for name, value in inputs.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "mean"},
        {"pooling": "max", "hidden_activation": "relu"},
        {"pooling": "cls", "layer_norm_epsilon": 0.1},
        {"pooling": "pooler", "hidden_activation": "gelu_tanh"},
        {"pooling": "mean", "sentence_vector": "projected"},
    ],
)
def test_vectors_are_the_encoders(settings):
    model = toys.model(**settings)
    graph = tf.function(inference.build(model.encoder, model.config))
    for types in (False, True):
        inputs = batch(types)
        expected = model.encoder(inputs, training=False)["default"]
        assert np.abs(expected).max() > 0.1
        actual = graph(inputs)["default"]
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_vectors_are_numpys():
    model = toys.model()
    inputs = {name: value[:3] for name, value in batch().items()}
    ids, mask = inputs["input_word_ids"].numpy(), inputs["input_mask"].numpy()
    tokens = oracles.bert(oracles.weights_by_name(model.encoder), ids, mask, LAYERS)
    actual = tf.function(inference.build(model.encoder, model.config))(inputs)
    expected = oracles.pool(tokens, mask, "mean")
    np.testing.assert_allclose(actual["default"], expected, atol=1e-5)


def test_bfloat16_is_near_and_comes_out_as_float32():
    model = toys.model()
    inputs = {name: value[:4] for name, value in batch().items()}
    graph = tf.function(inference.build(model.encoder, model.config, "bfloat16"))
    actual = graph(inputs)["default"]
    assert actual.dtype == tf.float32
    expected = model.encoder(inputs, training=False)["default"]
    cosines = tf.reduce_sum(
        tf.math.l2_normalize(actual, -1) * tf.math.l2_normalize(expected, -1), axis=-1
    )
    # 8 bits: more would be float32 after all, less something else.
    assert 0.999 < tf.reduce_min(cosines) < 1 - 1e-7


def test_no_rows_give_no_vectors():
    model = toys.model()
    graph = tf.function(inference.build(model.encoder, model.config))
    nothing = tf.zeros([0, 3], tf.int32)
    vectors = graph({"input_word_ids": nothing, "input_mask": nothing})["default"]
    assert vectors.shape == (0, model.config.hidden_size)


# ------------------------------------------------------------- what is fused


def executed(function, *arguments) -> collections.Counter:
    """The ops that TensorFlow runs for a function, `fused_ops` after their name."""
    function(*arguments)
    context.enable_run_metadata()
    try:
        function(*arguments)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    return collections.Counter(
        "+".join([node.op, *(op.decode() for op in node.attr["fused_ops"].list.s)])
        for graph in metadata.partition_graphs
        for node in graph.node
    )


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="oneDNN is TensorFlow's default on x86 only"
)
@pytest.mark.parametrize("precision", inference.PRECISIONS)
def test_every_fusion_is_there(precision):
    # Perturbed weights: zero biases and unit gammas would be folded away first.
    model = toys.model()
    graph = inference.build(model.encoder, model.config, precision)
    inputs = batch(types=True)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in inputs}
    function = tf.function(graph, input_signature=[spec], autograph=False)
    ops = executed(function, inputs)
    matmul = "_MklNativeFusedMatMul+BiasAdd"
    assert ops[f"{matmul}+GeluExact"] == LAYERS
    assert ops[f"{matmul}+Add"] == 2 * LAYERS, "residuals"
    assert ops[matmul] == 3 * LAYERS, "query, key and value"
    assert ops["_MklFusedBatchMatMulV2+Mul+Add"] == LAYERS, "scores"
    assert ops["_MklLayerNorm"] == 2 * LAYERS + 1
    assert ops["_MklSoftmax"] == LAYERS
    # What any lost fusion would leave behind.
    left = {"Erf", "FusedBatchNormV3", "_MklNativeFusedBatchNormV3", "BiasAdd", "Rsqrt"}
    assert not left & set(ops)


def test_only_tables_are_variables():
    model = toys.model()
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in batch(types=True)}
    function = tf.function(
        inference.build(model.encoder, model.config), input_signature=[spec]
    ).get_concrete_function()
    names = {variable.name.split(":")[0] for variable in function.graph.variables}
    assert names == {
        "word_embeddings/embeddings",
        "position_embedding/embeddings",
        "type_embeddings/embeddings",
    }


def test_exported_loop_calls_the_graph_instead_of_holding_it(tmp_path):
    # Inlined into the loop over portions of a request, GELU, layer norm and the scores
    # lose their fusions.
    trained = model_dir.load_encoder(model_dirs.write(tmp_path / "run"))
    (tmp_path / "out").mkdir()
    saved_models.write(trained, str(tmp_path / "out"), model_dirs.SEQ_LENGTH)
    saved = saved_model_pb2.SavedModel()
    path = tmp_path / "out" / "serving" / "1" / "saved_model.pb"
    saved.ParseFromString(path.read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    heavy = [
        function
        for function in functions
        if any(node.op == "FusedBatchNormV3" for node in function.node_def)
    ]
    assert len(heavy) == 1, "the layers are in the export once"
    assert heavy[0].attr["_noinline"].b


def test_bfloat16_export_is_compared_with_its_source(tmp_path):
    trained = model_dir.load_encoder(model_dirs.write(tmp_path / "run"))
    (tmp_path / "out").mkdir()
    out = str(tmp_path / "out")
    saved_models.write(trained, out, model_dirs.SEQ_LENGTH, precision="bfloat16")
    difference = saved_models.compare(
        trained, out, model_dirs.SEQ_LENGTH, precision="bfloat16"
    )
    assert difference > saved_models.TOLERANCE
    served = encoding.load(out)
    assert served.info["precision"] == "bfloat16"
    assert served.encode(["the cat"]).dtype == np.float32
