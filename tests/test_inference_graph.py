"""The inference graph computes what the encoder does, and fuses what it was made to."""

import collections
import os

import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.eager import context

from cmlm.common import choices, machine
from cmlm.encoders import opening, run_weights
from cmlm.modeling import inference_graph
from export import saved_models

LAYERS, BATCH, SEQ = 2, 5, 9
WITH_ONEDNN = pytest.mark.skipif(
    "avx2" not in machine.cpu_flags() or os.environ["TF_ENABLE_ONEDNN_OPTS"] != "1",
    reason="TensorFlow computes without oneDNN's layers here",
)


def perturbed(**settings):
    """A model without a zero bias or a unit gamma, as training leaves it."""
    model = toys.model(**settings)
    random = np.random.default_rng(8)
    for weight in model.encoder.bert.weights:
        weight.assign_add(random.normal(0, 0.1, weight.shape).astype(np.float32))
    return model


def in_a_graph(model, precision="float32"):
    graph = inference_graph.build(model.encoder, model.config, precision)
    return tf.function(graph.__call__, autograph=False)


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
        {"pooling": "cls", "relative_positions": True},
        {"pooling": "pooler", "hidden_activation": "gelu_tanh"},
        {"pooling": "mean", "sentence_vector": "projected"},
        {"pooling": "pooler", "embedding_size": 6},
        {"pooling": "mean", "embedding_size": 24},
    ],
)
def test_vectors_are_the_encoders(settings):
    model = perturbed(**settings)
    graph = in_a_graph(model)
    for types in (False, True):
        inputs = batch(types)
        expected = model.encoder(inputs, training=False)["default"]
        assert np.abs(expected).max() > 0.1
        actual = graph(inputs)["default"]
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_vectors_are_numpys():
    model = perturbed()
    inputs = {name: value[:3] for name, value in batch().items()}
    ids, mask = inputs["input_word_ids"].numpy(), inputs["input_mask"].numpy()
    tokens = oracles.bert(oracles.weights_by_name(model.encoder), ids, mask, LAYERS)
    actual = in_a_graph(model)(inputs)
    expected = oracles.pool(tokens, mask, "mean")
    np.testing.assert_allclose(actual["default"], expected, atol=1e-5)


def test_bfloat16_is_near_and_comes_out_as_float32():
    model = perturbed()
    inputs = {name: value[:4] for name, value in batch().items()}
    actual = in_a_graph(model, "bfloat16")(inputs)["default"]
    assert actual.dtype == tf.float32
    expected = model.encoder(inputs, training=False)["default"]
    cosines = tf.reduce_sum(
        tf.math.l2_normalize(actual, -1) * tf.math.l2_normalize(expected, -1), axis=-1
    )
    # 8 bits: more would be float32 after all, less something else.
    assert 0.999 < tf.reduce_min(cosines) < 1 - 1e-7


def test_no_rows_give_no_vectors():
    model = perturbed()
    graph = in_a_graph(model)
    nothing = tf.zeros([0, 3], tf.int32)
    vectors = graph({"input_word_ids": nothing, "input_mask": nothing})["default"]
    assert vectors.shape == (0, model.config.hidden_size)


# ------------------------------------------------------------- what is fused


def executed(function, *arguments) -> collections.Counter:
    """The ops that TensorFlow runs for a function, `fused_ops` after their name."""
    context.enable_run_metadata()
    try:
        # TensorFlow goes on recording after `disable_run_metadata`, so the first export
        # may hold graphs of the tests since the last call.
        context.export_run_metadata()
        function(*arguments)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    # The others are what was evaluated while the graph was optimised, and pipelines of
    # earlier tests that still run.
    graph = max(metadata.partition_graphs, key=lambda graph: len(graph.node))
    return collections.Counter(
        "+".join([node.op, *(op.decode() for op in node.attr["fused_ops"].list.s)])
        for node in graph.node
    )


@WITH_ONEDNN
@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize("precision", choices.PRECISIONS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("make", [perturbed, toys.model], ids=["trained", "untrained"])
def test_every_fusion_is_there(make, pooling, precision):
    """An untrained model has zeros and ones, which TensorFlow would fold away."""
    if precision == "bfloat16" and "avx512bw" not in machine.cpu_flags():
        pytest.skip("without AVX-512, oneDNN has no layers in bfloat16")
    model = make(pooling=pooling)
    graph = inference_graph.build(model.encoder, model.config, precision)
    inputs = batch(types=True)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in inputs}
    function = tf.function(graph.__call__, input_signature=[spec], autograph=False)
    ops = executed(function, inputs)
    matmul = "_MklNativeFusedMatMul+BiasAdd"
    assert ops[f"{matmul}+GeluExact"] == LAYERS
    assert ops[f"{matmul}+Add"] == 2 * LAYERS, "residuals"
    assert ops[matmul] == LAYERS, "query, key and value together"
    assert ops["_MklFusedBatchMatMulV2+Mul+Add"] == LAYERS, "scores"
    assert ops["_MklLayerNorm"] == 2 * LAYERS + 1
    assert ops["_MklSoftmax"] == LAYERS
    # What any lost fusion would leave behind.
    left = {"Erf", "FusedBatchNormV3", "_MklNativeFusedBatchNormV3", "BiasAdd", "Rsqrt"}
    assert not left & set(ops)


@pytest.mark.usefixtures("optimized_graphs")
def test_only_the_function_in_question_is_looked_at():
    """TensorFlow records graphs between two measurements too."""

    def chain(length):
        def multiply(x):
            for _ in range(length):
                x = tf.matmul(x, x)
            return x

        return tf.function(multiply, autograph=False)

    square = tf.eye(3)
    executed(chain(2), square)
    chain(200)(square)
    ops = executed(chain(3), square)
    assert sum(count for op, count in ops.items() if "MatMul" in op) == 3


@WITH_ONEDNN
@pytest.mark.usefixtures("optimized_graphs")
def test_every_fusion_is_there_in_a_server(tmp_path):
    """A server knows the shape of no variable and of no argument of a function."""
    model = perturbed()
    inputs = batch(types=True)
    module = tf.Module()
    module.graph = inference_graph.build(model.encoder, model.config)
    options = {
        "input_signature": [tf.TensorSpec([None, None], tf.int32, n) for n in inputs],
        "autograph": False,
    }

    @tf.function(**options, experimental_attributes={"_noinline": True})
    def token_vectors(*tensors):
        return module.graph(dict(zip(inputs, tensors, strict=True)))["default"]

    module.serve = tf.function(lambda *tensors: token_vectors(*tensors), **options)
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)

    traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    metadata = tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
        signature = loaded.signature_def["serving_default"]
        feed = {signature.inputs[n].name: value.numpy() for n, value in inputs.items()}
        (vectors,) = signature.outputs.values()
        session.run(vectors.name, feed, options=traced, run_metadata=metadata)
    ops, of_floats = collections.Counter(), collections.Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            op = node.timeline_label.partition(" = ")[2].partition("(")[0]
            ops[op] += 1
            of_floats[op] += any(
                output.tensor_description.dtype == tf.float32 for output in node.output
            )
    assert ops["_MklLayerNorm"] == 2 * LAYERS + 1
    assert ops["_MklNativeFusedMatMul"] == 4 * LAYERS
    assert ops["_MklFusedBatchMatMulV2"] == LAYERS
    # The sum of the three embeddings: every residual is fused.
    assert of_floats["AddV2"] == 2
    assert not {"Erf", "BiasAdd", "FusedBatchNormV3"} & set(ops)


def test_matrices_are_variables():
    model = perturbed()
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in batch(types=True)}
    graph = inference_graph.build(model.encoder, model.config)
    function = tf.function(graph.__call__, input_signature=[spec], autograph=False)
    traced = function.get_concrete_function().graph
    assert len(traced.variables) == 3 + 4 * LAYERS
    # Held once by every function around this one, and by every copy of the graph.
    constants = [node for node in traced.as_graph_def().node if node.op == "Const"]
    sizes = [tf.make_ndarray(node.attr["value"].tensor).size for node in constants]
    assert max(sizes) == 3 * model.config.hidden_size


@pytest.mark.large
def test_export_in_bfloat16_is_compared_and_holds_the_layers_once(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    trained = run_weights.load(source)
    out = tmp_path / "out"
    out.mkdir()
    options = {"seq_length": model_dirs.SEQ_LENGTH, "precision": "bfloat16"}
    saved_models.Export(trained, str(out), **options).write()
    difference = saved_models.Export(trained, str(out), **options).compare()
    assert difference > saved_models.TOLERANCE
    served = opening.open_encoder(str(out))
    assert served.info["precision"] == "bfloat16"
    assert served.encode(["the cat"]).dtype == np.float32

    # Inlined into the loop over portions of a request, GELU, layer norm and the scores
    # would lose their fusions.
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((out / "serving" / "1" / "saved_model.pb").read_bytes())
    heavy = [
        function
        for function in saved.meta_graphs[0].graph_def.library.function
        if any(node.op == "FusedBatchNormV3" for node in function.node_def)
    ]
    assert len(heavy) == 1
    assert heavy[0].attr["_noinline"].b
