"""The REST API of TensorFlow Serving for one model, and a page to try the model.

| request                                   | answer                                  |
|-------------------------------------------|-----------------------------------------|
| GET /v1/models/NAME[/versions/N]          | the state of the model                  |
| GET /v1/models/NAME[/versions/N]/metadata | its signatures                          |
| POST /v1/models/NAME[/versions/N]:predict | `inputs` or `instances`, see Reference  |
| GET /                                     | the page                                |

Reference: https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.routing import BaseConverter, Map, Rule
from werkzeug.wrappers import Request, Response

from cmlm.common import prompts
from cmlm.common.counts import counted
from cmlm.encoders import signatures
from cmlm.encoders.rest_client import json_string
from cmlm.errors import UserError, shown
from export.session_model import SessionModel, reason, signature_map

# The bytes of a request's body, in gRPC too.
MOST_BYTES = 64 << 20
_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_POLICY += "; connect-src 'self'"
_NAME = "[^/:]+"


def check_name(name: str) -> None:
    """Refuses a name of a model that an address cannot hold.

    Raises:
        UserError: the name is empty, or has a slash or a colon.
    """
    if not re.fullmatch(_NAME, name):
        raise UserError(
            f"--model_name is {name!r}; allowed: a name without slashes and colons"
        )


class RestService:
    """A WSGI application that answers the requests of a model.

    Args:
        model: the model.
        name: its name in addresses.
        version: its version.
    """

    def __init__(self, model: SessionModel, name: str, version: int):
        self._model, self._name, self._version = model, name, version
        self._urls = Map(list(self._rules()), converters={"model": _ModelName})

    def _rules(self) -> Iterator[Rule]:
        """The paths of requests, and the methods that answer them."""
        yield Rule("/", endpoint=self._page, methods=["GET"])
        for version in ("", "/versions/<int:version>"):
            model = f"/v1/models/<model:name>{version}"
            yield Rule(f"{model}:predict", endpoint=self._predict, methods=["POST"])
            yield Rule(f"{model}/metadata", endpoint=self._metadata, methods=["GET"])
            yield Rule(model, endpoint=self._state, methods=["GET"])

    def __call__(self, environ, start_response):
        request = Request(environ)
        request.max_content_length = MOST_BYTES
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
            said = f"the request has {counted(size, 'byte') if size else 'more'}"
            said += f"; allowed: at most {MOST_BYTES:,} bytes in a request"
            response = _json({"error": said}, 413)
        except HTTPException as error:
            said = f"Malformed request: {request.method} {request.path}"
            # The model server answers so to every address below /v1/ that it lacks.
            is_api = request.path.startswith("/v1/")
            response = _json({"error": said}, 400 if is_api else error.code or 500)
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
        found = signature_map(self._model)
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
            return _json({"error": reason(error)}, 400)
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
