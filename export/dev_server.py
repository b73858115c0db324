"""A small server for development: TensorFlow Serving's REST and gRPC Predict API.

It loads one model as TensorFlow Serving does, answers requests from this session, and
has a page at `/` to try the model. It neither batches requests nor reloads models: in
production, use `tensorflow_model_server`. Werkzeug serves HTTP, grpcio serves gRPC.

| request                                   | answer                                  |
|-------------------------------------------|-----------------------------------------|
| GET /v1/models/NAME[/versions/N]          | the state of the model                  |
| GET /v1/models/NAME[/versions/N]/metadata | its signatures                          |
| POST /v1/models/NAME[/versions/N]:predict | `inputs` or `instances`, see References |
| GET /                                     | the page                                |

References: https://www.tensorflow.org/tfx/serving/api_rest;
tensorflow_serving/apis/prediction_service.proto.
"""

from __future__ import annotations

import base64
import errno
import html
import json
import os
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.routing import BaseConverter, Map, Rule
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from cmlm.common import prompts
from cmlm.common.counts import counted
from cmlm.encoders import signatures
from cmlm.encoders.grpc_client import array_of
from cmlm.encoders.rest_client import json_string
from cmlm.errors import UserError, shown
from export.session_model import SessionModel

_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_POLICY += "; connect-src 'self'"
_GRPC_THREADS = 4
# The seconds that `stop` gives to the requests under way.
_GRACE = 5
_NAME = "[^/:]+"
# The bytes of a request's body, and the seconds that a client may stay silent.
_MOST_BYTES = 64 << 20
_SILENCE = 60


def check_name(name: str) -> None:
    """Refuses a name of a model that an address cannot hold.

    Raises:
        UserError: the name is empty, or has a slash or a colon.
    """
    if not re.fullmatch(_NAME, name):
        raise UserError(
            f"--model_name is {name!r}; allowed: a name without slashes and colons"
        )


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
        self._model, self._name, self._version = model, name, version
        self._urls = Map(list(self._rules()), converters={"model": _ModelName})
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(_GRPC_THREADS),
            options=[
                # Else a second server would share the port with the first one.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _MOST_BYTES),
                ("grpc.max_send_message_length", -1),
            ],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            _Grpc(model, name, version), self._grpc
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
                host, port, self._answer, threaded=True, request_handler=_Handler
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

    def _rules(self) -> Iterator[Rule]:
        """The paths of requests, and the methods that answer them."""
        yield Rule("/", endpoint=self._page, methods=["GET"])
        for version in ("", "/versions/<int:version>"):
            model = f"/v1/models/<model:name>{version}"
            yield Rule(f"{model}:predict", endpoint=self._predict, methods=["POST"])
            yield Rule(f"{model}/metadata", endpoint=self._metadata, methods=["GET"])
            yield Rule(model, endpoint=self._state, methods=["GET"])

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

    # ------------------------------------------------------------------ REST

    def _answer(self, environ, start_response):
        """The WSGI application."""
        request = Request(environ)
        request.max_content_length = _MOST_BYTES
        try:
            endpoint, values = self._urls.bind_to_environ(environ).match()
            # The page's address names no model.
            name = values.get("name", self._name)
            version = values.get("version", self._version)
            if (name, version) == (self._name, self._version):
                response = endpoint(request)
            else:
                response = _json(
                    {"error": f"Servable not found for request: {request.path}"}, 404
                )
        except RequestEntityTooLarge:
            size = request.content_length
            reason = f"the request has {counted(size, 'byte') if size else 'more'}"
            reason += f"; allowed: at most {_MOST_BYTES:,} bytes in a request"
            response = _json({"error": reason}, 413)
        except HTTPException as error:
            reason = f"Malformed request: {request.method} {request.path}"
            # The model server answers so to every address below /v1/ that it lacks.
            is_api = request.path.startswith("/v1/")
            response = _json({"error": reason}, 400 if is_api else error.code or 500)
        return response(environ, start_response)

    def _page(self, request: Request) -> Response:
        vectors = signatures.SIGNATURES[signatures.DEFAULT].output
        if vectors not in self._model.signatures[signatures.DEFAULT].outputs:
            return _json({"error": "the model has no vectors for a page"}, 404)
        with open(_PAGE, encoding="utf-8") as file:
            text = file.read()
        places = {
            "MODEL_NAME_IN_ADDRESS": urllib.parse.quote(self._name, safe=""),
            "MODEL_NAME": html.escape(self._name),
            "SIGNATURE_OF_DEFAULT": signatures.DEFAULT,
        }
        for role in prompts.ROLES:
            served = prompts.name_for(role, self._model.signatures)
            places[f"SIGNATURE_OF_{role.upper()}"] = served or signatures.DEFAULT
        for place, name in places.items():
            text = text.replace(place, name)
        return Response(
            text, mimetype="text/html", headers={"Content-Security-Policy": _POLICY}
        )

    def _state(self, request: Request) -> Response:
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": str(self._version), "state": "AVAILABLE", "status": status}
        return _json({"model_version_status": [state]})

    def _metadata(self, request: Request) -> Response:
        found = _signatures(self._model)
        spec = {"name": self._name, "signature_name": "", "version": str(self._version)}
        as_json = json_format.MessageToDict(found, preserving_proto_field_name=True)
        return _json({"model_spec": spec, "metadata": {"signature_def": as_json}})

    def _predict(self, request: Request) -> Response:
        try:
            asked = json.loads(request.get_data())
            if not isinstance(asked, dict):
                raise ValueError("the request is not a JSON object")
            if ("instances" in asked) == ("inputs" in asked):
                raise ValueError(
                    "the request has both or neither of 'instances' and 'inputs'; "
                    "allowed: one of them"
                )
            by_row = "instances" in asked
            name = asked.get("signature_name") or signatures.DEFAULT
            if not isinstance(name, str):
                raise ValueError(f"signature_name is {shown(name)}; allowed: a string")
            outputs = self._model.predict(name, self._inputs(asked, name))
        except RecursionError:
            return _json({"error": "the request has too many nested lists"}, 400)
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            return _json({"error": _reason(error)}, 400)
        return _answer(outputs, by_row)

    def _inputs(self, asked: dict, name: str) -> dict[str, list]:
        """The columns of a request, by name.

        Raises:
            ValueError: the request has another form; the message names the place.
        """
        kind = "instances" if "instances" in asked else "inputs"
        columns = asked[kind]
        if kind == "instances":
            columns = self._columns(columns, name)
        if not isinstance(columns, dict) or _is_bytes(columns):
            # One input: its name may be left out.
            names = self._names(name)
            if len(names) > 1:
                raise ValueError(f"{kind!r} has no names; allowed: {names}")
            columns = {names[0]: columns}
        return {key: _from_json(value, key) for key, value in columns.items()}

    def _columns(self, rows: Any, name: str) -> Any:
        """The columns of `instances` by name; rows that have no names as they are."""
        if not isinstance(rows, list) or not rows:
            raise ValueError("'instances' is not a list with values")
        if not any(isinstance(row, dict) and not _is_bytes(row) for row in rows):
            return rows
        names = self._names(name)
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or sorted(row) != names:
                fields = sorted(row) if isinstance(row, dict) else shown(row)
                raise ValueError(
                    f"row {number} of 'instances' has {fields}; allowed: an object "
                    f"with {names}"
                )
        return {key: [row[key] for row in rows] for key in rows[0]}

    def _names(self, signature: str) -> list[str]:
        """The names of a signature's inputs; raises ValueError without a signature."""
        if signature not in self._model.signatures:
            raise ValueError(f'Serving signature name: "{signature}" not found')
        return sorted(self._model.signatures[signature].inputs)


class _ModelName(BaseConverter):
    """The name of a model in an address: no colon, which begins the method."""

    regex = _NAME


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


def _json(values: Any, code: int = 200) -> Response:
    # TensorFlow Serving answers NaN, too, which JSON lacks.
    return Response(json.dumps(values), code, mimetype="application/json")


def _answer(outputs: dict[str, np.ndarray], by_row: bool) -> Response:
    """The answer to a prediction, row by row: as lists, numbers take much memory.

    Args:
        outputs: the outputs by name, [n, ...] each.
        by_row: whether the request had its inputs by row (`instances`).
    """
    columns = {
        key: (json.dumps(_to_json(row)) for row in np.atleast_1d(value))
        for key, value in outputs.items()
    }
    if len(columns) == 1:
        (rows,) = columns.values()
        answer = f"[{', '.join(rows)}]"
    elif by_row:
        names = [json.dumps(key) for key in columns]
        rows = (
            ", ".join(map(": ".join, zip(names, row, strict=True)))
            for row in zip(*columns.values(), strict=True)
        )
        answer = f"[{', '.join(f'{{{row}}}' for row in rows)}]"
    else:
        parts = (f"{json.dumps(key)}: [{', '.join(columns[key])}]" for key in columns)
        answer = f"{{{', '.join(parts)}}}"
    kind = "predictions" if by_row else "outputs"
    return Response(f'{{"{kind}": {answer}}}', mimetype="application/json")


def _is_bytes(value: Any) -> bool:
    """Whether a value of JSON is a string in base64."""
    return isinstance(value, dict) and list(value) == ["b64"]


def _from_json(value: Any, place: str) -> Any:
    """A value of a request; `place` names it in messages."""
    if isinstance(value, list):
        return [_from_json(each, f"{place}[{row}]") for row, each in enumerate(value)]
    if isinstance(value, dict):
        try:
            if _is_bytes(value):
                return base64.b64decode(value["b64"], validate=True)
        except (ValueError, TypeError):
            pass
        raise ValueError(
            f'{place} is {shown(value)}; allowed: a string, or {{"b64": BASE64}}'
        )
    return value.encode() if isinstance(value, str) else value


def _to_json(value: Any) -> Any:
    """A row of an output: an array, a number or a string."""
    if isinstance(value, (bytes, str)):
        return json_string(value)
    if value.dtype != object:
        return value.tolist()
    return [json_string(each) for each in value.tolist()]


def _reason(error: Exception) -> str:
    """The message of an error; `str` of TensorFlow's errors adds nodes of the graph."""
    return getattr(error, "message", None) or str(error)


def _signatures(model: SessionModel) -> get_model_metadata_pb2.SignatureDefMap:
    found = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in model.signatures.items():
        found.signature_def[name].CopyFrom(signature)
    return found


# ---------------------------------------------------------------------- gRPC


class _Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The PredictionService of tensorflow_serving/apis."""

    def __init__(self, model: SessionModel, name: str, version: int):
        self._model, self._name, self._version = model, name, version

    def _check(self, spec, context) -> None:
        missing = ""
        if spec.name != self._name:
            missing = f"model {spec.name!r}; allowed: {self._name}"
        elif spec.version.value not in (0, self._version):
            missing = f"version {spec.version.value}; allowed: {self._version}"
        if missing:
            reason = f"Servable not found: {missing}"
            context.abort(grpc.StatusCode.NOT_FOUND, reason)

    def Predict(self, request, context):
        self._check(request.model_spec, context)
        name = request.model_spec.signature_name or signatures.DEFAULT
        response = predict_pb2.PredictResponse()
        try:
            inputs = {
                key: array_of(key, proto) for key, proto in request.inputs.items()
            }
            outputs = self._model.predict(name, inputs)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _reason(error))
        unknown = sorted(set(request.output_filter) - outputs.keys())
        if unknown:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"output_filter has {unknown}; allowed: {sorted(outputs)}",
            )
        for key in request.output_filter or outputs:
            response.outputs[key].CopyFrom(tf.make_tensor_proto(outputs[key]))
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = self._version
        return response

    def GetModelMetadata(self, request, context):
        self._check(request.model_spec, context)
        if set(request.metadata_field) != {"signature_def"}:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"metadata_field is {list(request.metadata_field)}; allowed: "
                "['signature_def']",
            )
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = self._version
        response.metadata["signature_def"].Pack(_signatures(self._model))
        return response
