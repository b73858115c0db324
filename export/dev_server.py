"""A small server for development: TensorFlow Serving's REST and gRPC Predict API.

It loads one model as TensorFlow Serving does, answers requests from this session, and
has a page at `/` to try the model. It neither batches requests nor reloads models: in
production, use `tensorflow_model_server`. Werkzeug serves HTTP, grpcio serves gRPC;
`rest_service` and `grpc_service` compute the answers.
"""

from __future__ import annotations

import errno
import socket
import threading
from concurrent import futures

import grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc
from werkzeug.serving import WSGIRequestHandler, make_server

from cmlm.errors import UserError
from export import rest_service
from export.grpc_service import GrpcService
from export.session_model import SessionModel

_GRPC_THREADS = 4
# The seconds that `stop` gives to the requests under way.
_GRACE = 5
# The seconds that a client may stay silent.
_SILENCE = 60


def check_ports(host: str, port: int, grpc_port: int) -> None:
    """Refuses ports that cannot be used, before a model is loaded.

    Args:
        host: the address to listen at.
        port, grpc_port: the ports of REST and gRPC; 0 for a free one.

    Raises:
        UserError: a port is taken or not permitted, or `host` is not an address of
            this machine.
    """
    if port and port == grpc_port:
        raise UserError(f"--grpc_port and --port are {port}; allowed: two ports, or 0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for flag, number in (("port", port), ("grpc_port", grpc_port)):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, number))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = f"--host={host}: {reason}; allowed: an address of this machine"
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                message = f"--{flag}={number} is taken; allowed: another port, or 0"
            elif isinstance(error, PermissionError):
                message = f"--{flag}={number}: {reason}; allowed: another, or 0"
            raise UserError(message) from error


class Server:
    """REST and gRPC in front of a `SessionModel`.

    Args:
        model: the model.
        name: its name in addresses.
        version: its version.
        port, grpc_port: the ports; 0 takes free ones.
        host: the address to listen at.

    Attributes:
        rest, grpc: the addresses, `http://...` and `grpc://...`.
        port, grpc_port: the ports.

    Raises:
        UserError: a port is taken.
    """

    def __init__(
        self,
        model: SessionModel,
        name: str = "cmlm",
        version: int = 1,
        port: int = 0,
        grpc_port: int = 0,
        host: str = "localhost",
    ):
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(_GRPC_THREADS),
            options=[
                # Else a second server would share the port with the first one.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", rest_service.MOST_BYTES),
                ("grpc.max_send_message_length", -1),
            ],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            GrpcService(model, name, version), self._grpc
        )
        try:
            # The colons of IPv6 do not precede a port.
            address = f"[{host}]" if ":" in host else host
            self.grpc_port = self._grpc.add_insecure_port(f"{address}:{grpc_port}")
        except RuntimeError as error:
            raise UserError(
                f"--grpc_port={grpc_port} cannot be used on {host}; allowed: another "
                "port, or 0"
            ) from error
        try:
            self._http = make_server(
                host,
                port,
                rest_service.RestService(model, name, version),
                threaded=True,
                request_handler=_Handler,
            )
        # Werkzeug prints its reason and ends the process.
        except (OSError, SystemExit) as error:
            raise UserError(
                f"--port={port} cannot be used on {host}; allowed: another port, or 0"
            ) from error
        self._http.under_way = _UnderWay()
        self.port = self._http.server_port
        self.rest = f"http://{address}:{self.port}"
        self.grpc = f"grpc://{address}:{self.grpc_port}"

    def start(self) -> None:
        """Answers requests in threads, until `stop`."""
        self._grpc.start()
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the ports; requests under way get `_GRACE` seconds to end."""
        grpc_stopped = self._grpc.stop(_GRACE)
        self._http.shutdown()
        self._thread.join()
        self._http.under_way.wait(_GRACE)
        self._http.server_close()
        grpc_stopped.wait()


class _UnderWay:
    """Counts the requests under way.

    Werkzeug's threads end with the process. Joining them could wait too long: a client
    that connects and sends nothing holds its thread for `_SILENCE` seconds.
    """

    def __init__(self):
        self._count = 0
        self._ended = threading.Condition()

    def __enter__(self) -> None:
        with self._ended:
            self._count += 1

    def __exit__(self, *_) -> None:
        with self._ended:
            self._count -= 1
            self._ended.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until all requests are answered, or until the time is over."""
        with self._ended:
            self._ended.wait_for(lambda: not self._count, seconds)


class _Handler(WSGIRequestHandler):
    """Counts the requests, and prints no line for them."""

    timeout = _SILENCE

    def run_wsgi(self) -> None:
        with self.server.under_way:
            super().run_wsgi()

    def log_request(self, *_):
        pass
