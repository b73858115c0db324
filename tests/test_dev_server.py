"""The server for development, beyond what is asked of every server.

`test_model_server` and `test_client` run the stored requests and the client against it.
"""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import commands
import grpc
import numpy as np
import pytest
import servers
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from cmlm.encoders import opening
from cmlm.errors import UserError
from export import dev_server


@pytest.fixture(scope="module")
def server(toy_export):
    path = opening.find_export(toy_export.path)
    made = dev_server.Server(dev_server.SessionModel(path))
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
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "other"
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


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
        (":classify", b"{}", 404),
        ("/versions/2:predict", b'{"inputs": ["a"]}', 404),
        (":predict", None, 405),
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
    assert answer["error"] == "text has 3; allowed: strings"


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


def test_a_port_in_use_and_a_folder_without_export_are_named(server, tmp_path):
    port = int(server.rest.rpartition(":")[2])
    with pytest.raises(UserError, match=f"port {port} of localhost cannot be used"):
        dev_server.Server(server._model, port=port)
    port = int(server.grpc.rpartition(":")[2])
    with pytest.raises(UserError, match=f"port {port} of localhost cannot be used"):
        dev_server.Server(server._model, grpc_port=port)
    with pytest.raises(UserError, match="is not an export; allowed: a folder"):
        opening.find_export(str(tmp_path))


@pytest.mark.large  # A process of its own, which loads TensorFlow.
def test_the_command_serves_until_it_is_told_to_stop(toy_export):
    ports = [servers._free_port(), servers._free_port()]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "export.serve", f"--model={toy_export.path}"),
            *(f"--port={ports[0]}", f"--grpc_port={ports[1]}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = [process.stdout.readline() for _ in range(3)]
        assert told[0] == f"page  http://localhost:{ports[0]}/\n"
        done = commands.run(
            "export.client", f"--server=http://localhost:{ports[0]}", "--text=a cat"
        )
        assert done.returncode == 0, done.stderr
        width = toy_export.trained.config.model.hidden_size
        assert len(json.loads(done.stdout)["vector"]) == width
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and errors.endswith("stopped\n")
        assert "for development only; production is tensorflow_model_server" in errors
    finally:
        process.kill()
