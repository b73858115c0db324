"""The client against a model server, real or standing in, over REST and gRPC."""

import json
import os
import subprocess
import sys
import threading
import types
from concurrent import futures
from http import server as http_server
from pathlib import Path

import commands
import grpc
import model_dirs
import numpy as np
import pytest
import servers
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2

from cmlm.encoders import grpc_client, model_server, rest_client, served_model
from cmlm.errors import UserError

HERE = Path(__file__).resolve().parent
SENTENCES = model_dirs.SENTENCES


@pytest.fixture(scope="module", params=["stand-in", servers.BINARY])
def addresses(request, toy_export):
    with servers.start(request.param, f"{toy_export.path}/serving") as started:
        yield dict(zip(("rest", "grpc"), started, strict=True))


@pytest.fixture(scope="module")
def expected(toy_export):
    return model_dirs.oracle_vectors(toy_export.trained, SENTENCES)


@pytest.fixture(params=["rest", "grpc"])
def connect(request, addresses):
    """connect(**kwargs) to the server, by either protocol."""

    def connect(**kwargs):
        return model_server.connect(addresses[request.param], **kwargs)

    return connect


def test_vectors(connect, expected):
    vectors = connect().encode(SENTENCES)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    normalized = connect(version=1).encode(SENTENCES, "normalized")
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(normalized, expected / lengths, atol=1e-5)


def test_languages(connect, expected, toy_export):
    languages = ["de"] * (len(SENTENCES) - 1) + ["fr"]
    vectors = connect().encode(SENTENCES, "pcr", languages)
    c = toy_export.components.languages["de"].components
    removed = expected - expected @ c.T @ c
    removed[-1] = expected[-1]
    np.testing.assert_allclose(vectors, removed, atol=1e-5)


def test_more_than_one_request(connect, expected, monkeypatch):
    # Two sentences a request, or less where they are long.
    monkeypatch.setattr(served_model, "_REQUEST_SENTENCES", 2)
    monkeypatch.setattr(served_model, "_REQUEST_BYTES", 40)
    languages = ["fr"] * len(SENTENCES)
    vectors = connect().encode(SENTENCES, "pcr", languages)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert connect().encode([]).shape == (0, 0)


def test_requests_are_slices_of_bounded_size(monkeypatch):
    monkeypatch.setattr(served_model, "_REQUEST_SENTENCES", 3)
    monkeypatch.setattr(served_model, "_REQUEST_BYTES", 10)
    texts = [b"a" * size for size in (1, 1, 1, 1, 9, 1, 1, 50, 0)]
    slices = list(served_model._requests(texts))
    assert [texts[rows] for rows in slices] == [
        texts[0:3],
        texts[3:5],
        texts[5:7],
        texts[7:8],
        texts[8:9],
    ]
    assert list(served_model._requests([])) == []


def test_text_without_utf8(connect):
    texts = ["the \udcff cat", "the \ufffd\ufffd\ufffd cat"]
    vectors = connect().encode(texts, "pcr", ["fr", "\udcff"])
    model_dirs.assert_same(vectors[0], vectors[1])


def test_the_version_of_the_first_answer_stays(connect):
    server = connect()
    vectors = server.encode(["a"])
    assert server._version == 1
    np.testing.assert_array_equal(server.encode(["a"]), vectors)
    server._version = 2
    with pytest.raises(UserError, match="model cmlm: .*ersion.* ?2"):
        server.encode(["a"])


def test_a_grpc_encoder_of_before_a_fork_is_refused(addresses, monkeypatch):
    server = model_server.connect(addresses["grpc"])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(UserError, match="gRPC was opened before this process forked"):
        server.encode(["a"])


def test_mistakes_are_one_line(connect):
    sentences = ["a", "b"]
    with pytest.raises(UserError, match="model other"):
        connect(model="other").encode(sentences)
    with pytest.raises(UserError, match="allowed: normalized, pcr, .*serving_default"):
        connect().encode(sentences, "tensors")
    with pytest.raises(UserError, match="languages is None; allowed with"):
        connect().encode(sentences, "pcr")
    with pytest.raises(UserError, match="got 1 language for 2 sentences"):
        connect().encode(sentences, "pcr", ["de"])
    with pytest.raises(UserError) as refused:
        connect(version=7).encode(sentences)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_languages_that_the_signature_does_not_take_are_refused(scheme):
    server = model_server.connect(f"{scheme}://localhost:{servers._free_port()}")
    for signature in ("serving_default", "normalized"):
        said = f"allowed: none with the signature {signature}"
        with pytest.raises(UserError, match=said):
            server.encode(["a"], signature, ["de"])


def test_an_answer_of_another_version_is_refused():
    """A server may load a new version between two requests."""
    server = model_server.connect("grpc://localhost:1")
    answer = predict_pb2.PredictResponse()
    answer.outputs["default"].dtype = 1
    answer.outputs["default"].float_val.extend([1.0, 2.0])
    for size in (1, 2):
        answer.outputs["default"].tensor_shape.dim.add().size = size
    server._stub = types.SimpleNamespace(Predict=lambda request, **_: answer)
    answer.model_spec.version.value = 3
    np.testing.assert_array_equal(server.encode(["a"]), [[1, 2]])
    answer.model_spec.version.value = 4
    with pytest.raises(UserError, match="model cmlm: version 4 answered, not 3"):
        server.encode(["a"])


def test_flags_that_contradict_each_other_are_one_line(tmp_path):
    (tmp_path / "in.txt").write_text("dogs\n")
    text, file = "--text=dogs", f"--input={tmp_path}/in.txt"
    cases = [
        ([], "--text and --input are not given; allowed: one of them"),
        ([text, file], "--text and --input are both given; allowed: one of them"),
        (
            [text, "--signature=pcr"],
            "--language is not given; allowed with --signature=pcr: a language such as "
            "de",
        ),
        (
            [text, "--signature=tensors"],
            "--signature is 'tensors'; allowed: normalized, pcr, serving_default, or "
            "the name of a prompt",
        ),
        (
            [text, "--language=de"],
            "--language is de; allowed: with --signature=pcr, which an export with "
            "--pcr has",
        ),
        (
            [text, "--output=vectors.txt"],
            "--output is vectors.txt; allowed: a path that ends in .npy",
        ),
    ]
    # No server is there: the flags are refused before any request.
    server = f"--server=http://localhost:{servers._free_port()}"
    arguments = [[server, *given] for given, _ in cases]
    answers = commands.repeatedly("export.client", arguments)
    for (given, said), answer in zip(cases, answers, strict=True):
        assert answer == (1, "", f"error: {said}\n"), given


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_single_string_is_refused_before_any_request(scheme):
    server = model_server.connect(f"{scheme}://localhost:{servers._free_port()}")
    with pytest.raises(
        TypeError, match="sentences is a single string; allowed: a list"
    ):
        server.encode("Hi!")
    with pytest.raises(
        TypeError, match="languages is a single string; allowed: a list"
    ):
        server.encode(["a", "b"], "pcr", "de")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_is_not_there(scheme):
    address = f"{scheme}://localhost:{servers._free_port()}"
    with pytest.raises(UserError, match=f"{address}, model cmlm: "):
        model_server.connect(address, timeout=5).encode(["a"])


@pytest.mark.parametrize("wrong, scheme", [("grpc", "http"), ("rest", "grpc")])
def test_the_port_of_the_other_protocol_is_named(addresses, wrong, scheme):
    port = addresses[wrong].rpartition(":")[2]
    server = model_server.connect(f"{scheme}://localhost:{port}", timeout=20)
    with pytest.raises(UserError, match="http:// with the port of REST") as refused:
        server.encode(["a"])
    assert str(refused.value).isprintable()


@pytest.fixture
def guarded():
    """The address of a REST server that demands a token, and of one it redirects to."""
    seen = []

    class Guard(http_server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.server.server_port, self.headers["Authorization"]))
            self.send_response(307)
            self.send_header("Location", f"http://localhost:{ports[1]}{self.path}")
            self.end_headers()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            known = self.headers["Authorization"] == "Bearer s3cret"
            answer = {"outputs": [[1.0, 2.0]]} if known else {"error": "who are you?"}
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_):
            pass

    class Other(Guard):
        def do_GET(self):
            seen.append((self.server.server_port, self.headers["Authorization"]))
            self.send_error(404)

    started = [
        http_server.HTTPServer(("localhost", 0), each) for each in (Guard, Other)
    ]
    ports = [each.server_port for each in started]
    for each in started:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield f"http://localhost:{ports[0]}", ports, seen
    for each in started:
        each.shutdown()
        each.server_close()


def test_a_protected_rest_server_gets_the_token_alone(guarded, monkeypatch):
    address, ports, seen = guarded
    with pytest.raises(UserError, match="who are you?"):
        model_server.connect(address).encode(["a"])
    monkeypatch.setenv("CMLM_SERVER_TOKEN", "s3cret")
    seen.clear()
    assert model_server.connect(address).encode(["a"]).tolist() == [[1, 2]]
    assert seen == [(ports[0], "Bearer s3cret"), (ports[1], None)]


def test_a_protected_grpc_server_gets_the_token(monkeypatch):
    class Guard(grpc.GenericRpcHandler):
        def service(self, details):
            known = ("authorization", "Bearer s3cret") in details.invocation_metadata

            def predict(request, context):
                if not known:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
                answer = predict_pb2.PredictResponse()
                answer.outputs["default"].CopyFrom(tf.make_tensor_proto([[1.0, 2.0]]))
                return answer.SerializeToString()

            return grpc.unary_unary_rpc_method_handler(predict)

    server = grpc.server(futures.ThreadPoolExecutor(1), [Guard()])
    address = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    try:
        with pytest.raises(UserError, match="unauthenticated: who are you?"):
            model_server.connect(f"grpc://{address}").encode(["a"])
        monkeypatch.setenv("CMLM_SERVER_TOKEN", "s3cret")
        client = model_server.connect(f"grpc://{address}")
        assert client.encode(["a"]).tolist() == [[1, 2]]
        # TLS, which this server does not speak.
        with pytest.raises(UserError, match="unavailable"):
            model_server.connect(f"grpcs://{address}", timeout=20).encode(["a"])
    finally:
        server.stop(None)


@pytest.mark.parametrize("token", ["two words", "line\n", "\u00e9"])
def test_a_token_that_no_header_can_hold_is_not_printed(token, monkeypatch):
    monkeypatch.setenv("CMLM_SERVER_TOKEN", token)
    with pytest.raises(UserError, match="CMLM_SERVER_TOKEN has a space") as refused:
        model_server.connect("http://localhost:1")
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    "tail, model, version",
    [
        ("", "cmlm", None),
        ("/", "cmlm", None),
        ("/v1/models/other", "other", None),
        ("/v1/models/other:predict", "other", None),
        ("/v1/models/two%20words/versions/3", "two words", 3),
        ("/v1/models/other/versions/3:predict/", "other", 3),
    ],
)
@pytest.mark.parametrize(
    "server", ["http://a:1", "https://a/behind", "grpc://[::1]:2", "grpcs://a:2"]
)
def test_an_address_may_name_the_model(server, tail, model, version):
    found = model_server.connect(server + tail)
    assert (found._address, found._model, found._version) == (server, model, version)


def test_an_address_and_an_argument_may_not_disagree():
    address = "http://a:1/v1/models/cmlm/versions/2"
    assert model_server.connect(address, "cmlm", 2)._version == 2
    with pytest.raises(UserError, match="model is 'b'; allowed with .*: 'cmlm'"):
        model_server.connect(address, "b")
    with pytest.raises(UserError, match="version is 3; allowed with .*: 2"):
        model_server.connect(address, version=3)
    with pytest.raises(UserError, match=f"version is {1 << 63}; allowed: 0 to "):
        model_server.connect("grpc://a:1", version=1 << 63)


def test_the_server_tells_which_languages_have_components(connect):
    assert connect().has_components("DE")
    assert not connect().has_components("ger")


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:8501", "ftp://a", "http://", "", "http:///v1/models/a"),
        *("http://a/v1/models/", "http://a/v1/models/a/b", "http://a/v1/models/a:b"),
        *(
            "grpc://a",
            "grpc://a/v1/models/b",
            "grpc://[::1]",
            "grpc://a:b",
            "grpcs://a",
        ),
    ],
)
def test_what_is_no_address(address):
    with pytest.raises(UserError, match="allowed: http://HOST:PORT"):
        model_server.connect(address)


def test_a_host_in_other_letters_is_refused():
    with pytest.raises(UserError, match="allowed: a host in ASCII"):
        model_server.connect("http://b\u00fccher:8501/v1/models/a")
    address = "http://a:8501/v1/models/gr\u00f6\u00dfe"
    assert model_server.parse_address(address).model == "gr\u00f6\u00dfe"


@pytest.mark.parametrize("name", ["default", "pcr", "normalized"])
def test_requests_are_the_stored_ones(name):
    stored = json.loads((HERE / "server_requests" / f"{name}.json").read_text())
    signature = stored["request"]["signature_name"]
    inputs = {
        key: [text.encode() for text in values]
        for key, values in stored["request"]["inputs"].items()
    }
    assert json.loads(rest_client.rest_body(signature, inputs)) == stored["request"]
    request = grpc_client.grpc_request("cmlm", None, signature, inputs)
    expected = text_format.Parse(
        stored["grpc"]["request"], predict_pb2.PredictRequest()
    )
    assert request == expected


def test_bytes_travel_in_base64():
    body = rest_client.rest_body("serving_default", {"text": [b"the \xff cat", b"a"]})
    stored = json.loads((HERE / "server_requests" / "bytes.json").read_text())
    (broken,) = stored["request"]["inputs"]["text"]
    assert json.loads(body)["inputs"] == {"text": [broken, "a"]}
    text = ("\u042f" * 1000).encode()
    assert len(rest_client.rest_body("normalized", {"text": [text]})) < 2100


def test_the_command_asks_over_rest_without_tensorflow(addresses, expected):
    # A module that is None in `sys.modules` cannot be imported.
    program = (
        "import runpy, sys\n"
        "sys.modules['tensorflow'] = None\n"
        "runpy.run_module('export.client', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"--server={addresses['rest']}", "--text=dogs"],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    row = expected[SENTENCES.index("dogs")]
    np.testing.assert_allclose(answer["vector"], row, atol=1e-5)


def test_the_description_of_a_replaced_array_goes(addresses, tmp_path):
    (tmp_path / "in.txt").write_text("dogs\n")
    about = tmp_path / "out.npy.json"
    about.write_text('{"model": {"fingerprint": "another"}, "shape": [1, 16]}')
    command = ["export.client", f"--server={addresses['rest']}", "--output=out.npy"]
    command.append("--input=in.txt")
    refused = commands.run(*command, cwd=tmp_path)
    assert (
        refused.returncode == 1 and f"{about.name} exists; allowed: " in refused.stderr
    )
    done = commands.run(*command, "--overwrite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.npy"]


@pytest.mark.large
def test_command(addresses, expected, toy_export, tmp_path):
    sentences = [text for text in SENTENCES if text]
    (tmp_path / "in.txt").write_text("\n".join(sentences) + "\n")

    def command(*flags):
        return commands.run("export.client", *flags)

    server = f"--server={addresses['grpc']}"
    output = tmp_path / "vectors.npy"
    done = command(server, f"--input={tmp_path / 'in.txt'}", f"--output={output}")
    assert done.returncode == 0, done.stderr
    rows = [row for row, text in enumerate(SENTENCES) if text]
    np.testing.assert_allclose(np.load(output), expected[rows], atol=1e-5)
    assert f"float32 [{len(sentences)}, 16]" in done.stdout

    server = f"--server={addresses['rest']}"
    done = command(server, "--text=dogs", "--signature=pcr", "--language=de")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"] == "dogs"
    row = expected[SENTENCES.index("dogs")]
    c = toy_export.components.languages["de"].components
    np.testing.assert_allclose(answer["vector"], row - row @ c.T @ c, atol=1e-5)

    for flags, said in (
        (["--language=ger"], "--language is ger; allowed: a language with components"),
        (["--language=de", "--timeout=0"], "--timeout is 0; allowed: seconds, above 0"),
        (
            ["--language=de", "--timeout=nan"],
            "--timeout is nan; allowed: a finite number",
        ),
        (["--language=de", "--version=0"], "--version=0"),
    ):
        refused = command(server, "--text=dogs", "--signature=pcr", *flags)
        assert refused.returncode == 1 and not refused.stdout
        (line,) = refused.stderr.splitlines()
        assert said in line
    (tmp_path / "empty.txt").write_text("")
    for output in ([], [f"--output={tmp_path / 'none.npy'}"]):
        refused = command(server, f"--input={tmp_path / 'empty.txt'}", *output)
        assert refused.returncode == 1
        said = f"error: --input={tmp_path}/empty.txt is empty; allowed: at least one li"
        assert refused.stderr.startswith(said)
