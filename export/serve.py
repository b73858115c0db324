"""Serves an export on this machine, for a trial.

    python -m export.serve --model=EXPORT --port=8501

The server answers as TensorFlow Serving does: REST at --port, gRPC at --grpc_port. The
page at http://localhost:8501/ compares two sentences and finds neighbours. --model is
the folder that export.tfhub wrote, or the output of cmlm.finetune --task=file:FILE
(without the page). SIGINT and SIGTERM end the server.

This server is for development. In production, use tensorflow_model_server, which takes
the same folder and answers the same requests.
"""

import json
import os
import shlex
import signal
import sys
import threading
import urllib.parse

from absl import flags

from cmlm import cli
from cmlm.common import native_log, path_names

flags.DEFINE_string("model", None, "The export or the tuned model to serve.")
flags.DEFINE_integer(
    "port", 8501, "The port for REST and the page; 0: a free one.", 0, 65535
)
flags.DEFINE_integer("grpc_port", 8500, "The port for gRPC; 0: a free one.", 0, 65535)
flags.DEFINE_string(
    "host",
    "localhost",
    "The address to listen at; 0.0.0.0 lets every machine connect, unprotected.",
)
flags.DEFINE_string("model_name", "cmlm", "The name of the model in requests.")

FLAGS = flags.FLAGS


def main(_) -> None:
    cli.require(model="an export, or an output of cmlm.finetune --task=file:FILE")
    with cli.quiet_imports():
        from cmlm.encoders import locating, signatures
        from export import dev_server, rest_service, session_model

    host = FLAGS.host.removeprefix("[").removesuffix("]")
    rest_service.check_name(FLAGS.model_name)
    dev_server.check_ports(host, FLAGS.port, FLAGS.grpc_port)
    tuned = locating.find_tuned(FLAGS.model)
    path = tuned or locating.find_export(FLAGS.model)
    version = os.path.basename(path)
    with native_log.dropped():
        with locating.loading_graph(path):
            model = session_model.SessionModel(path)
        server = dev_server.Server(
            model,
            FLAGS.model_name,
            int(version) if version.isdecimal() else 1,
            FLAGS.port,
            FLAGS.grpc_port,
            host,
        )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    server.start()
    name = shlex.quote(FLAGS.model_name)
    base_path = shlex.quote(os.path.dirname(path_names.absolute(path)))
    production = (
        "in production, run TF_ENABLE_ONEDNN_OPTS=1 TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1 "
        f"tensorflow_model_server --port={server.grpc_port} "
        f"--rest_api_port={server.port} --model_name={name} "
        f"--model_base_path={base_path} --tensorflow_intra_op_parallelism=1 "
        "--rest_api_timeout_in_ms=600000"
    )
    if not version.isdecimal():
        production = f"tensorflow_model_server needs {path} as a folder named 1"
    print(f"for development only; {production}", file=sys.stderr)
    address = f"/v1/models/{urllib.parse.quote(FLAGS.model_name, safe='')}"
    if not tuned:
        print(f"page  {server.rest}/")
    print(f"REST  {server.rest}{address}:predict")
    print(f"gRPC  {server.grpc}")
    print(f"model  {path}")
    client = shlex.quote(server.rest + address)
    if tuned:
        inputs = sorted(model.signatures[signatures.DEFAULT].inputs)
        asked = json.dumps({"inputs": {name: ["A sentence."] for name in inputs}})
        print(f"client  curl -d {shlex.quote(asked)} {client}:predict", flush=True)
    else:
        print(
            f"client  python -m export.client --server={client} --text='A sentence.'",
            flush=True,
        )
    ended.wait()
    server.stop()
    print("stopped", file=sys.stderr, flush=True)
    sys.stdout.flush()
    # Python would first compute the requests that got no answer in time.
    os._exit(0)


if __name__ == "__main__":
    cli.run(main)
