"""Vectors from a running server and from files look like those of an encoder."""

import http.server
import json
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from cmlm.common import numbered_tasks
from cmlm.encoders import external, model_server, opening, rest_client
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.mining import texts, vectors


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as a model server: the length of a text, and 1."""

    last = 1.0
    version = 1
    status = b""

    def do_GET(self):
        """The state of the model `upgraded`."""
        known = self.path == "/v1/models/upgraded" and self.version
        states = [(str(self.version), "AVAILABLE"), (str(self.version + 1), "LOADING")]
        rows = [{"version": version, "state": state} for version, state in states]
        self.send_response(200 if known else 404)
        self.end_headers()
        status = json.dumps({"model_version_status": rows}).encode()
        self.wfile.write(self.status or status)

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        texts = json.loads(self.rfile.read(length))["inputs"]["text"]
        rows = [[float(len(text)), self.last] for text in texts]
        outputs = {
            "toy": rows,
            "foreign": {"pooled": rows, "all": rows},
            "classes": {"label": texts, "probabilities": rows},
            "short": rows[1:],
            "flat": [1.0 for _ in rows],
            "words": texts,
            "nested": [],
            "cut": rows,
            "infinite": [[float("inf"), 1.0] for _ in rows],
            "growing": [[1.0] * len(texts[0]) for _ in rows],
            "upgraded": rows,
            f"upgraded/versions/{self.version}": rows,
        }
        if not self.version:
            outputs = {}
        name = self.path.removeprefix("/v1/models/").removesuffix(":predict")
        found = name in outputs
        answer = {"error": "Servable not found"}
        if name == "object":
            answer = {"error": {"code": 404, "message": "no such route"}}
        if found:
            answer = {"outputs": outputs[name]}
        if name == "stalled":
            self.send_response(500)
            self.send_header("Content-Length", "99")
            self.end_headers()
            time.sleep(0.5)
            return
        content = json.dumps(answer).encode()
        if name == "nested":
            content = b"[" * 100_000
        self.send_response(200 if found else 404)
        if name == "cut":
            self.send_header("Content-Length", f"{len(content) + 9}")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.HTTPServer(("localhost", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{running.server_port}"
        running.shutdown()


def test_a_model_server_is_an_encoder(server):
    encoder = opening.open_encoder(f"{server}/v1/models/toy")
    assert (encoder.dim, encoder.seq_length) == (2, None)
    encoded = encoder.encode(["a", "bcd"])
    np.testing.assert_array_equal(encoded, np.array([[1, 1], [3, 1]], np.float32))
    unit = encoder.encode(["bcd"], normalize=True)
    np.testing.assert_allclose(unit, np.array([[3, 1]]) / 10**0.5, rtol=1e-6)
    assert encoder.encode([]).shape == (0, 2)
    with pytest.raises(UserError, match="Servable not found"):
        opening.open_encoder(f"{server}/v1/models/other")
    with pytest.raises(UserError, match="HOST:PORT/v1/models/NAME"):
        opening.open_encoder(server)


@pytest.mark.parametrize(
    "model, said",
    [
        ("foreign", "gave the outputs all, pooled; allowed: default"),
        ("classes", "gave the outputs label, probabilities; allowed: default"),
        ("short", r"default has the shape \[0\]; allowed: \[1, dim\]"),
        ("flat", r"default has the shape \[1\]; allowed: \[1, dim\]"),
        ("words", "an output is not an array of numbers: "),
        ("nested", "no valid answer of a model server: its lists nest too deeply"),
        (
            "cut",
            r"cannot be reached: IncompleteRead\(.* 9 more expected\)",
        ),
        ("infinite", "the vector of 'a' is not finite"),
        ("object", 'HTTP 404 Not Found: .*"message": "no such route"'),
    ],
)
def test_an_answer_of_another_kind_of_model_is_refused(server, model, said):
    encoder = model_server.connect(server, model)
    with pytest.raises(UserError, match=f"{server}, model {model}: .*{said}"):
        encoder.encode(["a"])


def test_an_answer_without_end_is_refused(server, monkeypatch):
    monkeypatch.setattr(rest_client, "MOST_BYTES", 20)
    with pytest.raises(UserError, match="model toy: no valid .*: it has over 20 bytes"):
        model_server.connect(server, "toy").encode(["a"])


@pytest.mark.parametrize("version", ["Infinity", "1e999"])
def test_a_version_without_end_counts_as_none(server, monkeypatch, version):
    states = f'[{{"version": {version}, "state": "AVAILABLE"}}]'
    status = f'{{"model_version_status": {states}}}'.encode()
    monkeypatch.setattr(Server, "status", status)
    assert model_server.connect(server, "upgraded").encode(["a"]).shape == (1, 2)


@pytest.mark.parametrize(
    "shape, content, dtype, said",
    [
        ([1, 1 << 40], b"", tf.float32, "has 1 value for the shape .*; allowed: a sha"),
        ([1, 3], b"1234", tf.float32, "cannot reshape array of size 1"),
        ([1, 1], b"", tf.resource, "default has the type 20 of TensorFlow"),
    ],
)
def test_a_tensor_that_does_not_fit_its_shape_is_refused(shape, content, dtype, said):
    encoder = model_server.connect("grpc://localhost:1", "toy")
    answer = predict_pb2.PredictResponse()
    tensor = answer.outputs["default"]
    tensor.CopyFrom(tf.make_tensor_proto([1.0], tf.float32))
    tensor.dtype = dtype.as_datatype_enum
    tensor.tensor_content = content
    del tensor.tensor_shape.dim[:]
    for size in shape:
        tensor.tensor_shape.dim.add().size = size
    encoder._stub = types.SimpleNamespace(Predict=lambda request, **_: answer)
    message = f"model toy: an output is not an array .*{said}"
    with pytest.raises(UserError, match=message):
        encoder.encode(["a"])


def test_vectors_of_two_models_are_not_mixed(server, monkeypatch):
    encoder = opening.open_encoder(f"{server}/v1/models/upgraded")
    assert encoder.encode(["a"]).shape == (1, 2)
    monkeypatch.setattr(Server, "version", 2)
    with pytest.raises(UserError, match="model upgraded: Servable not found"):
        encoder.encode(["a"])
    assert opening.open_encoder(encoder.name).encode(["a"]).shape == (1, 2)
    # A server that tells no version.
    encoder = model_server.connect(server, "growing")
    encoder.encode(["two"])
    with pytest.raises(UserError, match="default has the width 5, and had 3 before"):
        encoder.encode(["three"])


def test_a_server_that_starts_tells_its_version_later(server, monkeypatch):
    encoder = model_server.connect(server, "upgraded")
    # No model is loaded.
    monkeypatch.setattr(Server, "version", 0)
    with pytest.raises(UserError, match="model upgraded: Servable not found"):
        encoder.encode(["a"])
    monkeypatch.setattr(Server, "version", 1)
    encoder.encode(["a"])
    monkeypatch.setattr(Server, "version", 2)
    with pytest.raises(UserError, match="model upgraded: Servable not found"):
        encoder.encode(["a"])


def test_a_silent_server_is_asked_once(server, monkeypatch):
    asked = []

    def silent(request, timeout):
        asked.append(request)
        raise TimeoutError("timed out")

    monkeypatch.setattr("urllib.request.urlopen", silent)
    with pytest.raises(UserError, match="model toy: cannot be reached: timed out"):
        model_server.connect(server, "toy").encode(["a"])
    assert len(asked) == 1


def test_an_error_whose_text_does_not_come_is_one_line(server):
    encoder = model_server.connect(server, "stalled", timeout=0.2)
    with pytest.raises(UserError, match=f"{server}, model stalled: HTTP 500 "):
        encoder.encode(["a"])


def test_an_open_bracket_in_an_address_is_refused():
    with pytest.raises(UserError, match=r"server is 'http://\[::1'; allowed: http://"):
        model_server.connect("http://[::1")
    assert model_server.parse_address("http://[::1]:8501").server == "http://[::1]:8501"


def test_stored_vectors_are_an_encoder(tmp_path):
    text, npy = tmp_path / "a.txt", tmp_path / "a.npy"
    text.write_text("one\n two \nthree\n")
    np.save(npy, np.arange(6, dtype=np.float64).reshape(3, 2))
    encoder = opening.open_encoder(f"vectors:{text}:{npy}")
    encoded = encoder.encode(["three", "one", " two "])
    np.testing.assert_array_equal(encoded, [[4, 5], [0, 1], [2, 3]])
    assert encoded.dtype == np.float32
    with pytest.raises(UserError, match="lacks 2 of 3 sentences, such as 'two'"):
        encoder.encode(["one", "two", "four"])
    with pytest.raises(UserError, match="allowed: vectors:SENTENCES.txt:VECTORS.npy"):
        opening.open_encoder(f"vectors:{text}")
    with pytest.raises(UserError, match="allowed: vectors:SENTENCES.txt:VECTORS.npy"):
        opening.open_encoder(f"vectors:{npy}:{text}")
    with pytest.raises(UserError, match="^vectors:no.txt:no.npy: no file matches 'no"):
        opening.open_encoder("vectors:no.txt:no.npy")
    with pytest.raises(UserError, match="^vectors:no.txt:no.npy: no file matches 'no"):
        external.check("vectors:no.txt:no.npy")
    np.save(npy, np.zeros([2, 2], np.float32))
    with pytest.raises(UserError, match="3 lines, .* has 2 vectors"):
        external.StoredVectors(str(text), str(npy))
    np.save(npy, np.array([{}] * 3), allow_pickle=True)
    with pytest.raises(UserError, match="cannot read"):
        external.StoredVectors(str(text), str(npy))


@pytest.fixture(params=["served", "stored"])
def encoder(request, tmp_path):
    if request.param == "served":
        url = request.getfixturevalue("server")
        return opening.open_encoder(f"{url}/v1/models/toy")
    text, npy = tmp_path / "a.txt", tmp_path / "a.npy"
    text.write_text("a\nbcd\n")
    np.save(npy, np.array([[1, 1], [3, 1]], np.float32))
    return opening.open_encoder(f"vectors:{text}:{npy}")


def test_a_reading_of_vectors_that_are_fixed_is_refused(encoder):
    said = "--pooling is 'mean'; allowed with .*: no --pooling, because its vectors"
    with pytest.raises(UserError, match=said):
        opening.open_encoder(encoder.name, Reading(pooling="mean"))


def test_weights_of_an_external_encoder_are_refused(encoder):
    with pytest.raises(UserError, match="gives vectors and not weights; allowed: an"):
        opening.open_weights(encoder.name)


def test_a_single_string_is_refused_and_an_array_is_a_list(encoder):
    with pytest.raises(
        TypeError, match="sentences is a single string; allowed: a list"
    ):
        encoder.encode("a")
    with pytest.raises(TypeError, match="item 1 of sentences is int"):
        encoder.encode(["a", 3])
    encoded = encoder.encode(np.array(["a", "bcd"]))
    np.testing.assert_array_equal(encoded, [[1, 1], [3, 1]])
    assert encoder.encode(np.array([], str)).shape == (0, 2)


def test_mining_goes_on_with_vectors_of_the_same_model_only(
    server, tmp_path, monkeypatch
):
    lines = texts.gather(lambda: iter(["a", "bc"]), f"{tmp_path}/t", "--source", 1000)

    def encode(model, directory):
        reader = vectors.Reader(opening.open_encoder(model))
        return vectors.encode(lines, reader, f"{tmp_path}/{directory}").read(0, 2)

    served = f"{server}/v1/models/toy"
    first = encode(served, "served")
    # Rounding, as on another processor.
    monkeypatch.setattr(Server, "last", 1.0001)
    np.testing.assert_array_equal(encode(served, "served"), first)
    monkeypatch.setattr(Server, "last", 2.0)
    with pytest.raises(
        UserError, match="run .model: the vectors of its server changed"
    ):
        encode(served, "served")
    # A process of its own may meet another model than the first process did.
    reader = vectors.Reader(
        opening.open_encoder(served), lambda: opening.open_encoder(served)
    )
    reopen = reader.opener(numbered_tasks.Workers(number=2))
    reopen()
    monkeypatch.setattr(Server, "last", 3.0)
    with pytest.raises(UserError, match="models/toy changed while its vectors were"):
        reopen()
    # A directory of version 0.1.0 has no probe.
    about = tmp_path / "served" / "about.json"
    former = json.loads(about.read_text())
    del former["model"]["probe"]
    about.write_text(json.dumps(former))
    encode(served, "served")

    text, npy = tmp_path / "a.txt", tmp_path / "a.npy"
    text.write_text("a\nbc\n")
    np.save(npy, np.eye(2))
    stored = f"vectors:{text}:{npy}"
    first = encode(stored, "stored")
    np.testing.assert_array_equal(encode(stored, "stored"), first)
    for change in (
        lambda: np.save(npy, np.eye(2)[::-1]),
        lambda: (np.save(npy, np.eye(2)), text.write_text("bc\na\n")),
    ):
        change()
        with pytest.raises(UserError, match="run .model: checksums .*, now "):
            encode(stored, "stored")


def test_a_vector_that_is_not_finite_is_refused_with_its_text(tmp_path):
    text, npy = tmp_path / "a.txt", tmp_path / "a.npy"
    text.write_text("one\ntwo\n")
    for value in (np.nan, np.inf, 1e300):
        np.save(npy, np.array([[1, 2], [value, 0]]))
        model = f"vectors:{text}:{npy}"
        encoder = opening.open_encoder(model)
        encoder.encode(["one"])
        with pytest.raises(UserError, match=f"{model}: the vector of 'two' is not"):
            encoder.encode(["one", "two"], normalize=True)
