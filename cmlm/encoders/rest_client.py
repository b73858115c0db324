"""Requests vectors over REST; needs only Python and numpy.

Reference: https://www.tensorflow.org/tfx/serving/api_rest, "Predict API".
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, BinaryIO

import numpy as np

from cmlm.encoders.served_model import MOST_BYTES, PORTS, ServedModel
from cmlm.encoders.signatures import of_text

# Errors of an answer that is not that of a model server.
_NO_ANSWER = (
    *(urllib.error.HTTPError, ValueError, KeyError),
    *(TypeError, AttributeError, OverflowError),
)
# The states of an answer that may be another one later.
_LATER = (429, 502, 503, 504)


class RestClient(ServedModel):
    """The REST interface."""

    _has_answered = False

    def predict(self, signature, inputs):
        with self._reaching():
            version = self._version
            if version is None and not self._has_answered:
                version = self._newest()
            outputs = self._outputs(version, rest_body(signature, inputs))
        self._version, self._has_answered = version, True
        output = of_text(signature).output
        if not isinstance(outputs, dict):
            # The server omits the name of a single output.
            outputs = {output: outputs}
        types = {output: np.float32, "language_index": np.int32}
        try:
            # Other outputs, as of a model other than an encoder, are only named.
            return {
                name: np.array(value, types.get(name))
                for name, value in outputs.items()
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise self._no_array(error) from error

    def _signatures(self):
        with self._reaching():
            try:
                answer = self._read(f"{self._place(self._version)}/metadata")
                found = answer["metadata"]["signature_def"]["signature_def"]
                # JSON of protocol buffers may leave out an empty map.
                return {
                    name: (*sorted(row.get("inputs", ())), *sorted(row["outputs"]))
                    for name, row in found.items()
                }
            except _NO_ANSWER as error:
                # A busy server would seem to have no prompts.
                if getattr(error, "code", None) in _LATER:
                    raise self._refused(_error_of(error)) from error
                return {}

    def _newest(self) -> int | None:
        """The newest version that the server has loaded; None if it does not tell."""
        try:
            states = self._read(self._place(None))["model_version_status"]
            loaded = [row["version"] for row in states if row["state"] == "AVAILABLE"]
            return max(map(int, loaded), default=None)
        # The request for vectors tells what is wrong.
        except _NO_ANSWER:
            return None

    def _place(self, version: int | None) -> str:
        """The address of the model, or of one version of it."""
        name = urllib.parse.quote(self._model, safe="")
        model = f"{self._address}/v1/models/{name}"
        return model if version is None else f"{model}/versions/{version}"

    def _read(self, address: str) -> Any:
        with self._sent(urllib.request.Request(address)) as response:
            return _json(response)

    def _sent(self, request: urllib.request.Request):
        for name, value in self._authorization.items():
            # Another server, to which this one may redirect, does not get the token.
            request.add_unredirected_header(name.title(), value)
        return urllib.request.urlopen(request, timeout=self._timeout)

    def _outputs(self, version: int | None, body: bytes):
        """Sends a request for vectors and returns the outputs, as they came."""
        request = urllib.request.Request(
            f"{self._place(version)}:predict",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._sent(request) as response:
                return _json(response)["outputs"]
        except urllib.error.HTTPError as error:
            raise self._refused(_error_of(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._refused(
                f"no valid answer of a model server: {error}"
            ) from error

    @contextlib.contextmanager
    def _reaching(self):
        """Turns an error of the connection into a UserError."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            # A refused connection, an unknown host name or a timeout.
            reason = f"cannot be reached: {error}"
            is_closed = isinstance(error, http.client.RemoteDisconnected)
            if isinstance(error, http.client.BadStatusLine) and not is_closed:
                # The text of this error is the bytes that came.
                reason = f"no answer in HTTP; {PORTS}"
            raise self._refused(reason) from error


def rest_body(signature: str, inputs: dict[str, list[bytes]]) -> bytes:
    """Returns a request of the Predict API in the columnar format."""
    columns = {
        name: [json_string(value) for value in values]
        for name, values in inputs.items()
    }
    request = {"signature_name": signature, "inputs": columns}
    # Escapes would take up to three times the bytes of the text.
    return json.dumps(request, ensure_ascii=False).encode()


def json_string(value: bytes) -> str | dict[str, str]:
    """Returns a string of the REST interface; bytes that are not UTF-8 as base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def _json(answer: BinaryIO) -> Any:
    """Reads an answer of a server.

    Raises:
        ValueError: it is too long, or is not JSON.
        http.client.IncompleteRead: the connection was lost.
    """
    content = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has over {MOST_BYTES:,} bytes")
    # A read of a stated number of bytes does not notice a lost connection.
    if missing := getattr(answer, "length", None):
        raise http.client.IncompleteRead(content, missing)
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("its lists nest too deeply") from error


def _error_of(error: urllib.error.HTTPError) -> str:
    status = f"HTTP {error.code} {error.reason}"
    try:
        body = error.read(10_000).decode(errors="replace")
        reason = json.loads(body)["error"]
    # The rest of the answer may not come, or may not be that of a model server.
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        return status
    # Servers of other programs answer objects.
    return reason if isinstance(reason, str) else f"{status}: {json.dumps(reason)}"
