"""A model server for tests: the real one where it is installed, and `cmlm serve`.

The server for development answers the two protocols of TensorFlow Serving's Predict API
from a session that was loaded as the server loads it, so that clients can be tested
anywhere. What it cannot show is that the real one takes a model; the tests that use
`start` run against both.
"""

import contextlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from export import dev_server
from export.dev_server import SessionModel

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
        server = dev_server.Server(SessionModel(f"{serving}/1"), MODEL)
        server.start()
        try:
            yield server.rest, server.grpc
        finally:
            server.stop()
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
