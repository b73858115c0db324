"""The server for development, beyond what is asked of every server.

`test_model_server` and `test_client` run the stored requests and the client against it.
"""

import json
import re
import shlex
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures

import commands
import grpc
import numpy as np
import pytest
import servers
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from cmlm.encoders import grpc_client, locating, model_server
from cmlm.errors import UserError
from cmlm.modeling import export_layout
from export import dev_server, rest_service, session_model


@pytest.fixture(scope="module")
def model(toy_export):
    return servers.session(locating.find_export(toy_export.path))


@pytest.fixture(scope="module")
def server(model):
    made = dev_server.Server(model)
    made.start()
    yield made
    made.stop()


def ask(address: str, body: bytes | None = None) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(address, data=body, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_state_and_signatures(server):
    base = f"{server.rest}/v1/models/cmlm"
    code, answer = ask(base)
    (version,) = answer["model_version_status"]
    assert (code, version["version"], version["state"]) == (200, "1", "AVAILABLE")
    code, answer = ask(f"{base}/versions/1/metadata")
    found = answer["metadata"]["signature_def"]["signature_def"]
    assert {"serving_default", "normalized", "pcr"} <= set(found)
    assert "__saved_model_init_op" not in found
    assert found["serving_default"]["inputs"]["text"]["dtype"] == "DT_STRING"
    with grpc.insecure_channel(server.grpc.removeprefix("grpc://")) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = get_model_metadata_pb2.GetModelMetadataRequest()
        request.model_spec.name = "cmlm"
        request.metadata_field.append("signature_def")
        told = stub.GetModelMetadata(request, timeout=60)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        told.metadata["signature_def"].Unpack(signatures)
        assert set(signatures.signature_def) == set(found)
        request.metadata_field.append("more")
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as error:
                stub.GetModelMetadata(request, timeout=60)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "allowed: ['signature_def']" in error.value.details()
            del request.metadata_field[:]
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "cmlm"
        request.model_spec.signature_name = "tensors"
        for name in signatures.signature_def["tensors"].inputs:
            request.inputs[name].CopyFrom(tf.make_tensor_proto(np.ones([1, 3], int)))
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "has the type int64; allowed: int32" in error.value.details()
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "other"
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        assert "model 'other'; allowed: cmlm" in error.value.details()
        request.model_spec.name = "cmlm"
        request.model_spec.version.value = 7
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=60)
        assert "version 7; allowed: 1" in error.value.details()


@pytest.mark.parametrize(
    "path, body, code",
    [
        (":predict", b"no json", 400),
        (":predict", b"[]", 400),
        (":predict", b"{}", 400),
        (":predict", b'{"instances": []}', 400),
        (":predict", b'{"inputs": {"text": ["a"], "more": ["b"]}}', 400),
        (":predict", b'{"inputs": [["a"], ["b", "c"]]}', 400),
        (":predict", b'{"instances": [3]}', 400),
        (":predict", b"[" * 100_000, 400),
        (":predict", b'{"instances": [{"text": "a"}, {}]}', 400),
        (":classify", b"{}", 400),
        ("/", None, 400),
        ("/versions/2:predict", b'{"inputs": ["a"]}', 404),
        (":predict", None, 400),
    ],
)
def test_a_wrong_request_has_an_error_and_harms_nothing(server, path, body, code):
    got, answer = ask(f"{server.rest}/v1/models/cmlm{path}", body)
    assert got == code and list(answer) == ["error"] and answer["error"]
    got, answer = ask(f"{server.rest}/v1/models/cmlm:predict", b'{"inputs": ["a"]}')
    assert got == 200 and len(answer["outputs"]) == 1


def test_a_number_in_the_place_of_a_text_is_named(server):
    body = b'{"instances": ["a", 3]}'
    _, answer = ask(f"{server.rest}/v1/models/cmlm:predict", body)
    assert answer["error"] == "text[1] is 3; allowed: a string"


_BYTES = 'allowed: a string, or {"b64": BASE64}'


@pytest.mark.parametrize(
    "asked, error",
    [
        (
            {"instances": [{"text": "a"}, {"text": "b", "more": "c"}]},
            "row 1 of 'instances' has ['more', 'text']; allowed: an object with "
            "['text']",
        ),
        (
            {"instances": [{"text": "a"}, {}]},
            "row 1 of 'instances' has []; allowed: an object with ['text']",
        ),
        (
            {"instances": [{"text": "a"}, "b"]},
            "row 1 of 'instances' has 'b'; allowed: an object with ['text']",
        ),
        (
            {"signature_name": "pcr", "instances": [{"text": "a"}]},
            "row 0 of 'instances' has ['text']; allowed: an object with ['language', "
            "'text']",
        ),
        (
            {"signature_name": "pcr", "instances": ["a"]},
            "'instances' has no names; allowed: ['language', 'text']",
        ),
        (
            {"inputs": ["a", {"b64": "!!!"}]},
            f"text[1] is {{'b64': '!!!'}}; {_BYTES}",
        ),
        (
            {"inputs": {"text": [{"b64": "YQ==", "more": 1}]}},
            f"text[0] is {{'b64': 'YQ==', 'more': 1}}; {_BYTES}",
        ),
        ({"inputs": {"text": [{"b64": 3}]}}, f"text[0] is {{'b64': 3}}; {_BYTES}"),
        ({"inputs": {"text": [{}]}}, f"text[0] is {{}}; {_BYTES}"),
        ({"inputs": {"text": "a"}}, "text has the shape []; allowed: [n]"),
        ({"instances": []}, "'instances' is not a list with values"),
        ({"instances": "a"}, "'instances' is not a list with values"),
        (
            {"inputs": ["a"], "signature_name": "x"},
            'Serving signature name: "x" not found',
        ),
        (
            {"inputs": {"text": ["a"]}, "signature_name": "x"},
            'Serving signature name: "x" not found',
        ),
        ({"instances": [["a"], ["b"]]}, "text has the shape [2, 1]; allowed: [n]"),
        ({"inputs": {"text": [None]}}, "text[0] is None; allowed: a string"),
        ({"inputs": ["a"], "signature_name": []}, None),
        (
            {"inputs": ["a"], "signature_name": [3]},
            "signature_name is [3]; allowed: a string",
        ),
        (
            {
                "signature_name": "tensors",
                "inputs": dict.fromkeys(
                    ("input_word_ids", "input_mask", "input_type_ids"), [[1], [1, 2]]
                ),
            },
            "input_word_ids has rows of several lengths; allowed: one",
        ),
        (
            {
                "signature_name": "pcr",
                "inputs": {"text": ["a", "b"], "language": ["de"]},
            },
            "text has the shape [2], language [1]; allowed: equal lengths",
        ),
        (
            {
                "signature_name": "pcr_tensors",
                "inputs": {
                    **{"input_word_ids": [[1, 2]], "input_mask": [[1, 1]]},
                    **{"input_type_ids": [[0]], "language_index": [0]},
                },
            },
            "input_mask has the shape [1, 2], input_type_ids [1, 1]; allowed: equal "
            "lengths",
        ),
    ],
)
def test_an_error_names_the_place_and_what_is_allowed(server, asked, error):
    body = json.dumps(asked).encode()
    code, answer = ask(f"{server.rest}/v1/models/cmlm:predict", body)
    if error is None:
        assert code == 200
    else:
        assert (code, answer) == (400, {"error": error})


def test_bytes_are_rows_too(server):
    url = f"{server.rest}/v1/models/cmlm:predict"
    body = b'{"instances": [{"b64": "YQ=="}, "a", {"text": "a"}]}'
    assert ask(url, body)[0] == 400
    code, answer = ask(url, body.replace(b', {"text": "a"}', b""))
    assert code == 200
    np.testing.assert_allclose(*answer["predictions"], atol=1e-6)


@pytest.mark.parametrize(
    "number, reason",
    [
        (2**40, "input_word_ids has a number outside of int32"),
        (2**70, "input_word_ids has values that are not int32"),
        (1.7, "input_word_ids has values that are not int32"),
        (True, "input_word_ids has values that are not int32"),
    ],
)
def test_numbers_are_neither_rounded_nor_wrapped_around(server, number, reason):
    inputs = {"input_word_ids": [[number]], "input_mask": [[1]]}
    inputs["input_type_ids"] = [[0]]
    body = json.dumps({"signature_name": "tensors", "inputs": inputs}).encode()
    code, answer = ask(f"{server.rest}/v1/models/cmlm:predict", body)
    assert code == 400 and answer["error"].startswith(reason)


def test_the_last_value_of_a_tensor_fills_its_shape_within_memory(server):
    texts = {"text": [b"a", b"a"]}
    request = grpc_client.grpc_request("cmlm", None, "serving_default", texts)
    del request.inputs["text"].string_val[1:]
    with grpc.insecure_channel(server.grpc.removeprefix("grpc://")) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        vectors = tf.make_ndarray(stub.Predict(request).outputs["default"])
        assert vectors.shape[0] == 2 and np.isfinite(vectors).all()
        request.output_filter.append("default")
        assert list(stub.Predict(request).outputs) == ["default"]
        request.output_filter.append("other")
        with pytest.raises(grpc.RpcError, match="output_filter has .'other'.; allowed"):
            stub.Predict(request)
        del request.output_filter[:]
        for size, said in (
            (1 << 40, "text has 1 value for the shape .*; allowed: a shape of at most"),
            (-1, r"text has the shape \[-1\]; allowed: sizes from 0"),
        ):
            request.inputs["text"].tensor_shape.dim[0].size = size
            with pytest.raises(grpc.RpcError, match=said) as error:
                stub.Predict(request)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_request_that_is_too_long_or_stalls_ends(server, monkeypatch):
    # The limits that docs/serving.md states.
    assert (rest_service.MOST_BYTES, session_model._MOST_ROWS) == (64 << 20, 65_536)
    monkeypatch.setattr(rest_service, "MOST_BYTES", 100)
    model = f"{server.rest}/v1/models/cmlm:predict"
    assert ask(model, b'{"instances": ["a"]}')[0] == 200
    code, answer = ask(model, json.dumps({"instances": ["a" * 100]}).encode())
    said = "the request has 119 bytes; allowed: at most 100 bytes in a request"
    assert (code, answer) == (413, {"error": said})
    monkeypatch.setattr(dev_server._Handler, "timeout", 0.2)
    with socket.create_connection(("localhost", server.port), timeout=60) as stalled:
        stalled.sendall(b"POST /v1/models/cmlm:predict HTTP/1.1\r\nContent-Length: 9")
        assert stalled.recv(10_000) == b""


def test_a_request_of_grpc_that_is_too_long_or_has_many_rows_is_refused(
    server, model, monkeypatch
):
    monkeypatch.setattr(session_model, "_MOST_ROWS", 3)
    said = "text has 4 rows; allowed: 3 in a request"
    address = f"{server.rest}/v1/models/cmlm:predict"
    assert ask(address, b'{"inputs": ["a", "b", "c"]}')[0] == 200
    assert ask(address, b'{"inputs": ["a", "b", "c", "d"]}') == (400, {"error": said})
    monkeypatch.setattr(rest_service, "MOST_BYTES", 1000)
    small = dev_server.Server(model)
    small.start()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "cmlm"
    try:
        with grpc.insecure_channel(small.grpc.removeprefix("grpc://")) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            for texts, code, why in (
                (["a"] * 4, grpc.StatusCode.INVALID_ARGUMENT, said),
                (["a" * 1000], grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
            ):
                request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
                with pytest.raises(grpc.RpcError) as error:
                    stub.Predict(request, timeout=60)
                assert error.value.code() == code and why in error.value.details()
    finally:
        small.stop()


def test_requests_at_once_have_their_own_answers(server):
    texts = [f"the cat sat {'on ' * number}" for number in range(16)]
    model = f"{server.rest}/v1/models/cmlm:predict"

    def vectors(some):
        code, answer = ask(model, json.dumps({"inputs": some}).encode())
        assert code == 200
        return np.array(answer["outputs"])

    expected, got = vectors(texts), {}

    def work(number):
        got[number] = vectors([texts[number]])[0]

    threads = [threading.Thread(target=work, args=[n]) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, vector in got.items():
        np.testing.assert_allclose(vector, expected[number], atol=1e-5)
    assert len(got) == len(texts)


def test_the_page_belongs_to_the_model_and_loads_nothing_else(server):
    with urllib.request.urlopen(f"{server.rest}/", timeout=60) as answer:
        page = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
    assert 'fetch("v1/models/cmlm:predict"' in page and "MODEL_NAME" not in page
    assert "default-src 'none'" in policy and "tensorflow_model_server" in page
    assert "http://" not in page and "https://" not in page
    assert page.count('vectors("serving_default", ') == 3 and "SIGNATURE_" not in page


def test_a_port_in_use_and_a_folder_without_export_are_named(server, model, tmp_path):
    port = int(server.rest.rpartition(":")[2])
    with pytest.raises(UserError, match=f"--port={port} cannot be used on localhost"):
        dev_server.Server(model, port=port)
    port = int(server.grpc.rpartition(":")[2])
    with pytest.raises(UserError, match=f"--grpc_port={port} cannot be used on local"):
        dev_server.Server(model, grpc_port=port)
    with pytest.raises(UserError, match="is not an export; allowed: a folder"):
        locating.find_export(str(tmp_path))
    (tmp_path / "params.yaml").touch()
    command = f"export.tfhub --model_dir={tmp_path} --export_dir={tmp_path}_export"
    with pytest.raises(UserError, match=re.escape(command)):
        locating.find_export(str(tmp_path))


def test_ports_are_checked_before_a_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for ports, flag in (((port, 0), "port"), ((0, port), "grpc_port")):
            said = f"--{flag}={port} is taken; allowed: another port, or 0"
            with pytest.raises(UserError, match=said):
                dev_server.check_ports("localhost", *ports)
    dev_server.check_ports("localhost", port, 0)
    with pytest.raises(UserError, match=f"--grpc_port and --port are {port}"):
        dev_server.check_ports("localhost", port, port)
    for host in ("nowhere.invalid", "192.0.2.1"):
        with pytest.raises(UserError, match=f"--host={host}: .*; allowed: an address"):
            dev_server.check_ports(host, 0, 0)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_request_under_way_is_answered_before_the_server_stops(model, protocol):
    begun, answered = threading.Event(), []

    class Slow:
        signatures = model.signatures

        def predict(self, name, inputs):
            begun.set()
            # Longer than the half second after which a server of REST notices.
            time.sleep(0.8)
            answered.append(name)
            return {"default": np.ones([1, 2], np.float32)}

    made = dev_server.Server(Slow())
    made.start()
    client = model_server.connect(getattr(made, protocol), timeout=60)
    with futures.ThreadPoolExecutor() as pool:
        vectors = pool.submit(client.encode, ["a"])
        assert begun.wait(60)
        made.stop()
        assert answered == ["serving_default"]
        assert vectors.result().tolist() == [[1, 1]]


@pytest.mark.parametrize("name", ["", "a/b", "a:b"])
def test_a_name_that_no_address_holds_is_refused(name):
    rest_service.check_name("two words")
    with pytest.raises(UserError, match="allowed: a name without slashes and colons"):
        rest_service.check_name(name)


def test_a_server_at_ipv6_whose_model_has_a_space(model):
    try:
        dev_server.check_ports("::1", 0, 0)
    except UserError:
        pytest.skip("no IPv6")
    made = dev_server.Server(model, "two words", host="::1")
    made.start()
    try:
        assert made.rest == f"http://[::1]:{made.port}"
        for address in (f"{made.rest}/v1/models/two%20words:predict", made.grpc):
            name = None if "http" in address else "two words"
            client = model_server.connect(address, name, timeout=60)
            assert client.encode(["a"]).shape[0] == 1
        with urllib.request.urlopen(f"{made.rest}/", timeout=60) as answer:
            page = answer.read().decode()
        assert "<h1>two words</h1>" in page
        assert 'fetch("v1/models/two%20words:predict"' in page
    finally:
        made.stop()


@pytest.mark.large
def test_a_damaged_export_without_checksums_is_one_line(toy_export, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(f"{toy_export.path}/serving/1", path)
    (path / export_layout.CHECKSUMS).unlink()
    graph = path / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:5000])
    refused = commands.run(
        "export.serve", f"--model={tmp_path}", "--port=0", "--grpc_port=0"
    )
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {path} is not a whole SavedModel: ")


# Forks a server, a client for the command that it prints and one for its REST address;
# then ends the server. A JSON line has the exit codes.
_BESIDE_A_SERVER = """
import json, os, shlex, signal, sys, time
from pathlib import Path
from tests.campaign import warm

def fork(name, module, *arguments):
    child = os.fork()
    if not child:
        warm.become(module, list(arguments), f"{name}_out", f"{name}_err")
    return child

def code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

server, said = fork("server", "export.serve", *sys.argv[1:]), ""
while said.count("\\n") < 5:
    looks = os.WEXITED | os.WNOHANG | os.WNOWAIT
    assert not os.waitid(os.P_PID, server, looks), Path("server_err").read_text()
    time.sleep(0.02)
    if Path("server_out").exists():
        said = Path("server_out").read_text()
told = dict(line.split(maxsplit=1) for line in said.splitlines())
_, _, *printed = shlex.split(told["client"])
clients = [
    code(fork("printed", *printed)),
    code(fork("other", "export.client", f"--server={told['REST']}", "--text=a")),
]
os.kill(server, signal.SIGTERM)
print(json.dumps([*clients, code(server)]))
"""


@pytest.mark.large
def test_the_command_serves_until_it_is_told_to_stop(toy_export, tmp_path):
    (tmp_path / "two words").symlink_to(toy_export.path)
    (tmp_path / "beside_a_server.py").write_text(_BESIDE_A_SERVER)
    flags = (f"--model={tmp_path / 'two words'}", "--port=0", "--grpc_port=0")
    done = commands.run("beside_a_server", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = {path.name: path.read_text() for path in tmp_path.glob("*_*[rt]")}
    assert json.loads(done.stdout) == [0, 0, 0], said
    lines = [line.split(maxsplit=1) for line in said["server_out"].splitlines()]
    told = {name: value.strip() for name, value in lines}
    assert list(told) == ["page", "REST", "gRPC", "model", "client"]
    assert told["REST"] == f"{told['page']}v1/models/cmlm:predict"
    served = tmp_path / "two words" / "serving"
    assert told["model"] == str(served / "1")
    assert shlex.split(told["client"])[0] == "python"
    width = toy_export.trained.config.model.hidden_size
    assert len(json.loads(said["printed_out"])["vector"]) == width
    errors = said["server_err"]
    assert errors.endswith("stopped\n")
    port = told["page"].strip("/").rpartition(":")[2]
    assert shlex.split(errors.splitlines()[0]) == [
        *("for", "development", "only;", "in", "production,", "run"),
        *("TF_ENABLE_ONEDNN_OPTS=1", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1"),
        "tensorflow_model_server",
        f"--port={told['gRPC'].rpartition(':')[2]}",
        *(f"--rest_api_port={port}", "--model_name=cmlm"),
        *(f"--model_base_path={served}", "--tensorflow_intra_op_parallelism=1"),
        "--rest_api_timeout_in_ms=600000",
    ]
