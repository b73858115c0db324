"""A model server for tests: the real one where it is installed, and a stand-in.

The stand-in answers the two protocols of TensorFlow Serving's Predict API from a
session that was loaded as the server loads it, so that clients can be tested anywhere.
What it cannot show is that the real one takes a model; the tests that use `start` run
against both.
"""

import base64
import contextlib
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

BINARY = "tensorflow_model_server"
MODEL = "cmlm"


@contextlib.contextmanager
def start(kind: str, serving: str):
    """Serves a folder of versions as the model `cmlm`.

    Args:
        kind: `stand-in`, or the name of the binary, which skips where there is none.
        serving: `OUT/serving` of an export.

    Yields:
        (http://..., grpc://...)
    """
    if kind == "stand-in":
        with _StandIn(f"{serving}/1") as addresses:
            yield addresses
        return
    if not shutil.which(kind):
        pytest.skip(f"no {kind} on PATH")
    ports = [_free_port(), _free_port()]
    process = subprocess.Popen(
        [
            *(kind, f"--rest_api_port={ports[0]}", f"--port={ports[1]}"),
            *(f"--model_name={MODEL}", f"--model_base_path={serving}"),
            "--enable_batching",
            f"--batching_parameters_file={serving}/batching_parameters.txt",
        ],
    )
    try:
        rest = f"http://localhost:{ports[0]}"
        for _ in range(120):
            with contextlib.suppress(urllib.error.URLError, OSError):
                with urllib.request.urlopen(f"{rest}/v1/models/{MODEL}") as answer:
                    if b"AVAILABLE" in answer.read():
                        break
            assert process.poll() is None, f"{kind} ended"
            time.sleep(0.5)
        yield rest, f"grpc://localhost:{ports[1]}"
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


class SessionModel:
    """A SavedModel as a server loads it: a session and the signatures' tensors."""

    def __init__(self, path: str):
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
        self.signatures = meta_graph.signature_def

    def predict(self, name: str, inputs: dict) -> dict[str, np.ndarray]:
        """Runs a signature; inputs are arrays or nested lists."""
        signature = self.signatures[name]
        if set(inputs) != set(signature.inputs):
            raise ValueError(f"inputs are {sorted(inputs)}")
        feeds = {
            signature.inputs[key].name: np.array(
                value, tf.as_dtype(signature.inputs[key].dtype).as_numpy_dtype
            )
            for key, value in inputs.items()
        }
        outputs = {key: info.name for key, info in signature.outputs.items()}
        return self._session.run(outputs, feeds)


class _StandIn:
    """REST and gRPC in front of a SessionModel."""

    def __init__(self, path: str):
        self._model = SessionModel(path)

    def __enter__(self):
        model = self._model

        class Rest(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code, answer = _rest(model, self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        class Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
            def Predict(self, request, context):
                return _grpc(model, request, context)

        self._http = http.server.ThreadingHTTPServer(("localhost", 0), Rest)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(2))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            Grpc(), self._grpc
        )
        port = self._grpc.add_insecure_port("localhost:0")
        self._grpc.start()
        rest = f"http://localhost:{self._http.server_port}"
        return rest, f"grpc://localhost:{port}"

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0).wait()


def _rest(model: SessionModel, path: str, body: bytes):
    """(status, answer) of a request, by the documentation of the REST interface."""
    if not re.fullmatch(rf"/v1/models/{MODEL}(/versions/1)?:predict", path):
        return 404, {"error": f"Servable not found for request: {path}"}
    request = json.loads(body)
    name = request.get("signature_name", "serving_default")
    if name not in model.signatures:
        return 400, {"error": f'Serving signature name: "{name}" not found'}
    by_row = "instances" in request
    columns = request["instances"] if by_row else request["inputs"]
    if by_row and isinstance(columns[0], dict) and "b64" not in columns[0]:
        columns = {key: [row[key] for row in columns] for key in columns[0]}
    if not isinstance(columns, dict):
        # One input: its name may be left out.
        columns = {next(iter(model.signatures[name].inputs)): columns}
    inputs = {
        key: [_from_json(value) for value in values] for key, values in columns.items()
    }
    try:
        outputs = {
            key: value.tolist() for key, value in model.predict(name, inputs).items()
        }
    except (ValueError, tf.errors.OpError) as error:
        return 400, {"error": str(error)}
    if len(outputs) == 1:
        (answer,) = outputs.values()
    elif by_row:
        answer = [
            dict(zip(outputs, values)) for values in zip(*outputs.values(), strict=True)
        ]
    else:
        answer = outputs
    return 200, {"predictions" if by_row else "outputs": answer}


def _from_json(value):
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode() if isinstance(value, str) else value


def _grpc(model: SessionModel, request: predict_pb2.PredictRequest, context):
    spec = request.model_spec
    if spec.name != MODEL or spec.version.value not in (0, 1):
        context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found: {spec.name}")
    name = spec.signature_name or "serving_default"
    if name not in model.signatures:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no signature {name}")
    inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
    response = predict_pb2.PredictResponse()
    try:
        outputs = model.predict(name, inputs)
    except (ValueError, tf.errors.OpError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    for key, value in outputs.items():
        response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
    return response
