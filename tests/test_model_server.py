"""What a model server does with an export: loads it, warms up, answers over the wire.

In a session, and by TensorFlow's C API in a program that imports nothing of this
project. Then the ops against what each TensorFlow Serving knows, the server's own
files, and stored requests with their answers, which were computed in numpy.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import model_dirs
import numpy as np
import pytest
import servers
import tensorflow as tf
import tensorflow_text
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2

from cmlm.encoders import locating

HERE = Path(__file__).resolve().parent
REQUESTS = sorted((HERE / "server_requests").glob("*.json"))
SAVED_MODELS = ("preprocessor", "encoder", "serving/1")

# ----------------------------------------------------------------- ops known

TOKENIZER = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
# Ops of tensorflow-text by version of TensorFlow Serving: 2.17 to 2.19 still embed
# tensorflow-text 2.12.1, 2.20 embeds 2.20.0. Those that matter here only.
TEXT_OPS = {
    **dict.fromkeys((f"2.{minor}" for minor in range(12, 20)), TOKENIZER),
    "2.20": TOKENIZER | {"TFText>RoundRobinTrim"},
}


def core_ops() -> set[str]:
    lines = (HERE / "tensorflow_2_12_ops.txt").read_text().splitlines()
    return set(" ".join(line for line in lines if line[0] != "#").split())


def unknown_ops(saved_model: Path, version: str) -> set[str]:
    """Ops of a SavedModel that a TensorFlow Serving does not know."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((saved_model / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    ops = {node.op for node in graph.node}
    for function in graph.library.function:
        ops |= {node.op for node in function.node_def}
    ops -= {function.signature.name for function in graph.library.function}
    return ops - core_ops() - TEXT_OPS[version]


@pytest.mark.parametrize("version", TEXT_OPS)
def test_every_op_is_known_to_the_server(toy_export, version):
    for name in SAVED_MODELS:
        assert not unknown_ops(Path(toy_export.path, name), version), name


def test_an_op_that_servers_lack_is_found(tmp_path):
    trimmer = tf.Module()
    trimmer.trim = tf.function(
        lambda tokens: tensorflow_text.RoundRobinTrimmer(5).trim([tokens])[0],
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
    )
    tf.saved_model.save(trimmer, str(tmp_path))
    unknown = unknown_ops(tmp_path, "2.19")
    assert unknown == {"TFText>RoundRobinTrim"}
    assert not unknown_ops(tmp_path, "2.20")


# ---------------------------------------------- a session, a program of others


def run_program(arguments, request, folder):
    result = subprocess.run(
        [sys.executable, "-P", *arguments],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert not {"cmlm", "export", "official", "orbit"} & set(answer["modules"])
    return answer


@pytest.fixture(scope="module")
def expected(toy_export):
    return model_dirs.oracle_vectors(toy_export.trained, model_dirs.SENTENCES)


@pytest.fixture(scope="module")
def session(toy_export):
    """The export as a server loads it."""
    return servers.session(locating.find_export(toy_export.path))


@pytest.mark.large
def test_a_session_serves_every_signature(toy_export, session, expected):
    text = model_dirs.SENTENCES
    tensors = model_dirs.tensors(toy_export.trained, text)
    request = {
        "serving_default": {"text": text},
        "normalized": {"text": text},
        "tensors": tensors,
        "pcr": {"text": text, "language": ["de"] * len(text)},
        "pcr_tensors": {**tensors, "language_index": [0] * len(text)},
    }
    answers = {name: session.predict(name, each) for name, each in request.items()}
    c = toy_export.components.languages["de"].components.astype(np.float64)
    removed = expected - expected @ c.T @ c
    length = np.linalg.norm(expected, axis=1, keepdims=True)
    for name, output, vectors in (
        ("serving_default", "default", expected),
        ("normalized", "normalized", expected / length),
        ("tensors", "default", expected),
        ("pcr", "pcr", removed),
        ("pcr_tensors", "pcr", removed),
    ):
        np.testing.assert_allclose(answers[name][output], vectors, atol=1e-5)
    assert list(answers["pcr"]["language_index"]) == [0] * len(text)


def test_the_c_api_serves(toy_export, expected, tmp_path):
    saved = saved_model_pb2.SavedModel()
    path = Path(toy_export.path, "serving", "1")
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    request = {
        "inputs": [[signature.inputs["text"].name, model_dirs.SENTENCES]],
        "output": signature.outputs["default"].name,
    }
    text_ops = Path(tensorflow_text.__file__).parent / "python" / "ops"
    libraries = Path(tf.__file__).parent
    arguments = [HERE / "c_api.py", libraries, text_ops, path]
    answer = run_program(map(str, arguments), request, tmp_path)
    assert not {"tensorflow", "numpy"} & set(answer["modules"])
    np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)


# ------------------------------------------------------- the server's files


def test_warm_up_requests_are_answered(toy_export, session):
    path = Path(toy_export.path, "serving", "1")
    counts = {}
    for name, inputs in servers.warm_up(path):
        rows = {len(value) for value in inputs.values()}
        assert len(rows) == 1
        outputs = session.predict(name, inputs)
        assert all(len(value) in rows for value in outputs.values())
        counts.setdefault(name, []).append(*rows)
    # One sentence and several, for each signature.
    assert counts == {
        name: [1, 4] for name in session.signatures if not name.startswith("__")
    }


def test_models_config_is_what_the_server_reads(toy_export):
    content = Path(toy_export.path, "serving", "models.config").read_text()
    config = text_format.Parse(content, model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("cmlm", "/models/cmlm")
    assert model.model_platform == "tensorflow"


def test_batching_parameters_are_what_the_server_reads(toy_export):
    content = Path(toy_export.path, "serving", "batching_parameters.txt").read_text()
    parameters = servers.read_batching(content)
    assert parameters.max_batch_size.value == 16_384
    assert parameters.max_enqueued_batches.value == 100
    # The server would pad a mask with ones.
    assert not parameters.pad_variable_length_inputs


# ------------------------------------------------------- requests put together

# A batch waits for the threads of its graph, of which the tests have one only.
TOGETHER = """
import json
import sys
from concurrent import futures

from cmlm import cli

with cli.quiet_imports():
    import numpy as np
    import servers
    import tensorflow as tf
    import tensorflow_text

    from cmlm.encoders import locating

folder, tensors = sys.argv[1], json.loads(sys.argv[2])
path = locating.find_export(folder)
with open(f"{folder}/batching_parameters.txt") as file:
    parameters = servers.read_batching(file.read())
parameters.batch_timeout_micros.value = 5_000_000


# A batch of five rows waits for no other request.
parameters.max_batch_size.value = 5
model = servers.BatchingModel(path, parameters)


def together(*requests):
    # The answer to each request, or the error.
    # Tracing would take longer than a batch waits.
    model._functions[requests[0][0]][0].get_concrete_function()

    def ask(request):
        try:
            return model.predict(*request)
        except tf.errors.InvalidArgumentError as error:
            return error

    with futures.ThreadPoolExecutor(len(requests)) as pool:
        return [*pool.map(ask, requests)]


# The vectors do not depend on the requests of others.
alone = servers.session(path)
texts = [["the cat sat on the mat", "dog"], ["cats"], ["the dog " * 9, ""]]
requests = [("normalized", {"text": each}) for each in texts]
for (name, inputs), answer in zip(requests, together(*requests), strict=True):
    vectors = alone.predict(name, inputs)["normalized"]
    assert answer["normalized"].shape == vectors.shape
    np.testing.assert_allclose(answer["normalized"], vectors, atol=1e-5)
# Tensors of one width join, tensors of two widths do not.
two, three, narrow = (("tensors", each) for each in tensors)
assert [len(answer["default"]) for answer in together(two, three)] == [2, 3]
assert any(isinstance(answer, Exception) for answer in together(two, narrow))
# A request may not be larger than a batch.
(refused,) = together(("serving_default", {"text": ["dog"] * 6}))
assert isinstance(refused, Exception)
"""


@pytest.mark.large  # a process of its own, with threads
def test_requests_that_a_server_puts_together(toy_export):
    wide = "the cat sat on the mat"
    tensors = [
        model_dirs.tensors(toy_export.trained, texts)
        for texts in ([wide] * 2, [wide] * 3, ["dog"] * 3)
    ]
    folder = f"{toy_export.path}/serving"
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, folder, json.dumps(tensors)],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------- stored requests


@pytest.fixture(scope="module", params=["stand-in", servers.BINARY])
def server(request, toy_export):
    with servers.start(request.param, f"{toy_export.path}/serving") as addresses:
        yield addresses


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_rest_requests_have_the_stored_answers(server, path):
    stored = json.loads(path.read_text())
    request = urllib.request.Request(
        server[0] + stored["path"], data=json.dumps(stored["request"]).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            code, answer = response.status, json.load(response)
    except urllib.error.HTTPError as error:
        code, answer = error.code, json.load(error)
    assert code == stored["status"]
    if code != 200:
        assert list(answer) == ["error"] and answer["error"]
        return
    assert_close(answer, stored["response"])


def assert_close(answer, stored):
    """Nested JSON of the same shape, numbers within rounding."""
    if isinstance(stored, dict):
        assert set(answer) == set(stored)
        for key, value in stored.items():
            assert_close(answer[key], value)
    elif isinstance(stored, list):
        assert len(answer) == len(stored)
        for one, other in zip(answer, stored):
            assert_close(one, other)
    elif isinstance(stored, int):
        assert answer == stored
    else:
        assert answer == pytest.approx(stored, abs=1e-5)


GRPC_REQUESTS = [path for path in REQUESTS if "grpc" in json.loads(path.read_text())]


@pytest.mark.parametrize("path", GRPC_REQUESTS, ids=lambda path: path.stem)
def test_grpc_requests_have_the_stored_answers(server, path):
    stored = json.loads(path.read_text())["grpc"]
    request = text_format.Parse(stored["request"], predict_pb2.PredictRequest())
    expected = text_format.Parse(stored["response"], predict_pb2.PredictResponse())
    with grpc.insecure_channel(server[1].removeprefix("grpc://")) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = stub.Predict(request, timeout=60)
    assert set(answer.outputs) == set(expected.outputs)
    for name, value in expected.outputs.items():
        assert answer.outputs[name].dtype == value.dtype
        np.testing.assert_allclose(
            tf.make_ndarray(answer.outputs[name]), tf.make_ndarray(value), atol=1e-5
        )
