"""Requests vectors from a running TensorFlow Serving, over REST or gRPC.

    server = model_server.connect("http://localhost:8501")  # or grpc://localhost:8500
    server.encode(["Where is the file?"])  # float32 [1, dim]
    server.encode(["Wo ist die Datei?"], "pcr", languages=["de"])

References: https://www.tensorflow.org/tfx/serving/api_rest, "Predict API";
tensorflow_serving/apis/prediction_service.proto.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import dataclasses
import http.client
import json
import math
import os
import re
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from cmlm.common.counts import counted
from cmlm.encoders.sentences import check_sentences, to_bytes
from cmlm.encoders.signatures import DEFAULT, TEXT_SIGNATURES
from cmlm.errors import UserError, one_line

# Limits of one request, in sentences and bytes of text. Many servers limit the size of
# a batch and the time of an answer, and many proxies limit the size of a request.
_REQUEST_SENTENCES = 256
_REQUEST_BYTES = 64 << 10
# Limits of an answer: its bytes, and the values of a tensor that states one value for
# many places.
_MOST_BYTES = 1 << 30
_MOST_VALUES = 16 << 20

DEFAULT_MODEL = "cmlm"
_ADDRESS = re.compile(
    r"((?:https?|grpc)://[^/].*?)"
    r"(?:/v1/models/([^/:]+)(?:/versions/([0-9]+))?(?::predict)?)?/*"
)
# A server has a port for each protocol.
_PORTS = (
    "allowed: http:// with the port of REST, 8501 in TensorFlow Serving, or grpc:// "
    "with the port of gRPC, 8500"
)


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a server, perhaps with one of its models.

    Attributes:
        server: http://HOST:PORT, https://HOST:PORT or grpc://HOST:PORT.
        model: the name of the model, or None.
        version: the version of the model, or None for the newest.
    """

    server: str
    model: str | None = None
    version: int | None = None


def parse_address(address: str) -> Address:
    """Reads SCHEME://HOST:PORT[/v1/models/NAME[/versions/N][:predict]].

    Raises:
        UserError: the address has another form.
    """
    match = _ADDRESS.fullmatch(address)
    try:
        urllib.parse.urlsplit(address)
    except ValueError:
        # A bracket around IPv6 is missing.
        match = None
    if not match or "/v1/models" in match[1]:
        raise UserError(
            f"server is {address!r}; allowed: http://HOST:PORT, https://HOST:PORT "
            "(REST) or grpc://HOST:PORT, and behind it /v1/models/NAME[/versions/N]"
        )
    server, name, version = match.groups()
    if not server.isascii():
        raise UserError(
            f"server is {address!r}; allowed: a host in ASCII (xn--...), and %-escapes"
        )
    return Address(
        server,
        None if name is None else urllib.parse.unquote(name),
        None if version is None else int(version),
    )


class ModelServer(abc.ABC):
    """One model of a server; subclasses implement the protocol.

    Args:
        address: the address of the server, for messages.
        model: the name of the model on the server.
        version: the version of the model; None takes the version that answers the first
            request. A server may load another version meanwhile, whose vectors do not
            go with the first ones.
        timeout: seconds for one request.
    """

    def __init__(self, address: str, model: str, version: int | None, timeout: float):
        self._address = address
        self._model = model
        self._version = version
        self._timeout = timeout
        self._width = None

    def encode(
        self,
        sentences: Sequence[str],
        signature: str = DEFAULT,
        languages: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Encodes sentences in one or more requests.

        Args:
            sentences: any number of sentences.
            signature: a key of `TEXT_SIGNATURES`.
            languages: the language of each sentence, for a signature that takes
                languages.

        Returns:
            float32 [len(sentences), dim]; [0, 0] without sentences, because the width
            is then unknown.

        Raises:
            TypeError: `sentences` or `languages` is not a list of str.
            UserError: an argument is not allowed, the server cannot be reached or
                refuses the request, or its answer holds no vector for each sentence.
        """
        check_sentences(sentences)
        if languages is not None:
            check_sentences(languages, "languages")
        if signature not in TEXT_SIGNATURES:
            allowed = ", ".join(sorted(TEXT_SIGNATURES))
            raise UserError(f"signature is {signature!r}; allowed: {allowed}")
        row = TEXT_SIGNATURES[signature]
        if row.takes_language and languages is None:
            raise UserError(f"signature {signature} needs a language for each sentence")
        if languages is not None and not row.takes_language:
            raise UserError(f"signature {signature} takes no languages")
        if languages is not None and len(languages) != len(sentences):
            raise UserError(
                f"got {counted(len(languages), 'language')} for "
                f"{counted(len(sentences), 'sentence')}"
            )
        texts = to_bytes(sentences)
        if not texts:
            return np.zeros([0, 0], np.float32)
        vectors = []
        for rows in _requests(texts):
            inputs = {"text": texts[rows]}
            if languages is not None:
                inputs["language"] = to_bytes(languages[rows])
            vectors.append(self._vectors(signature, inputs))
        return np.concatenate(vectors)

    def has_components(self, language: str, signature: str = "pcr") -> bool:
        """Whether the signature changes the vectors of a language, by one request.

        A server does not refuse a language without components: it answers the vector as
        it is, with the `language_index` -1.
        """
        inputs = {"text": [b""], "language": to_bytes([language])}
        index = self.predict(signature, inputs).get("language_index")
        return index is None or bool((index >= 0).all())

    def _vectors(self, signature: str, inputs: dict[str, list[bytes]]) -> np.ndarray:
        """Sends one request; returns float32 [n, dim] after a check of the answer."""
        name = TEXT_SIGNATURES[signature].output
        outputs = self.predict(signature, inputs)
        if name not in outputs:
            raise self._refused(
                f"signature {signature} gave the outputs {', '.join(sorted(outputs))}; "
                f"allowed: {name}"
            )
        count = len(inputs["text"])
        try:
            found = outputs[name].astype(np.float32, copy=False)
        except (ValueError, TypeError) as error:
            raise self._refused(f"{name} is no array of numbers: {error}") from error
        if found.ndim != 2 or len(found) != count:
            raise self._refused(
                f"{name} has the shape {list(found.shape)}; allowed: [{count}, dim]"
            )
        self._width = self._width or found.shape[1]
        if found.shape[1] != self._width:
            # Of a server that tells no version.
            raise self._refused(
                f"{name} has the width {found.shape[1]}, and had {self._width} before"
            )
        if not np.isfinite(found).all():
            row = np.isfinite(found).all(axis=1).argmin()
            text = inputs["text"][row].decode(errors="replace")
            raise self._refused(f"the vector of {text[:60]!r} is not finite")
        return found

    @abc.abstractmethod
    def predict(
        self, signature: str, inputs: dict[str, list[bytes]]
    ) -> dict[str, np.ndarray]:
        """Sends one request.

        Args:
            signature: a key of `TEXT_SIGNATURES`.
            inputs: strings [n], by input name.

        Returns:
            The outputs, by name.
        """

    def _no_array(self, error: Exception) -> UserError:
        return self._refused(f"an output is no array of numbers: {error}")

    def _refused(self, reason: str) -> UserError:
        reason = one_line(reason, 300)
        return UserError(f"{self._address}, model {self._model}: {reason}")


class RestServer(ModelServer):
    """The REST interface; it needs only Python and numpy."""

    _has_answered = False

    def predict(self, signature, inputs):
        name = urllib.parse.quote(self._model, safe="")
        model = f"{self._address}/v1/models/{name}"
        with self._reaching():
            version = self._version
            if version is None and not self._has_answered:
                version = self._newest(model)
            outputs = self._outputs(model, version, rest_body(signature, inputs))
        self._version, self._has_answered = version, True
        output = TEXT_SIGNATURES[signature].output
        if not isinstance(outputs, dict):
            # The server omits the name of a single output.
            outputs = {output: outputs}
        types = {output: np.float32, "language_index": np.int32}
        try:
            # Other outputs, as of a model that is no encoder, are only named.
            return {
                name: np.array(value, types.get(name))
                for name, value in outputs.items()
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise self._no_array(error) from error

    def _newest(self, model: str) -> int | None:
        """The newest version that the server has loaded; None if it does not tell."""
        try:
            with urllib.request.urlopen(model, timeout=self._timeout) as response:
                states = _json(response)["model_version_status"]
            loaded = [row["version"] for row in states if row["state"] == "AVAILABLE"]
            return max(map(int, loaded), default=None)
        # The request for vectors tells what is wrong.
        except (
            urllib.error.HTTPError,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
        ):
            return None

    def _outputs(self, model: str, version: int | None, body: bytes):
        """Sends a request for vectors and returns the outputs, as they came."""
        place = "" if version is None else f"/versions/{version}"
        request = urllib.request.Request(
            f"{model}{place}:predict",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
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
                reason = f"no answer in HTTP; {_PORTS}"
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
    content = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has over {_MOST_BYTES:,} bytes")
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


class GrpcServer(ModelServer):
    """The gRPC interface; its messages have half the size of REST messages.

    Args:
        address: grpc://HOST:PORT.
        **kwargs: see `ModelServer`.
    """

    def __init__(self, address: str, **kwargs):
        super().__init__(address, **kwargs)
        # Imported here, because the import loads TensorFlow.
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        # gRPC's default limit, 4 MB, would hold 1,365 vectors of width 768.
        options = [
            ("grpc.max_receive_message_length", _MOST_BYTES),
            ("grpc.max_send_message_length", -1),
        ]
        self._channel = grpc.insecure_channel(
            address.removeprefix("grpc://"), options=options
        )
        weakref.finalize(self, self._channel.close)
        self._process = os.getpid()
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(self, signature, inputs):
        import grpc

        if os.getpid() != self._process:
            # The answer would never come.
            raise self._refused(
                "gRPC was opened before this process forked and does not work in forks;"
                " allowed: threads, http://, or processes started by "
                "multiprocessing.get_context('spawn') that open it themselves"
            )
        request = grpc_request(self._model, self._version, signature, inputs)
        try:
            response = self._stub.Predict(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code = error.code().name.lower().replace("_", " ")
            reason = f"{code}: {error.details()}"
            if "Failed parsing HTTP/2" in reason:
                reason = f"no answer in gRPC; {_PORTS}"
            raise self._refused(reason) from error
        # Some servers tell no version.
        answered = response.model_spec.version.value or self._version
        if self._version is None:
            self._version = answered
        if answered != self._version:
            raise self._refused(f"version {answered} answered, not {self._version}")
        try:
            return {
                name: array_of(name, value) for name, value in response.outputs.items()
            }
        except (ValueError, TypeError) as error:
            raise self._no_array(error) from error


def array_of(name: str, proto) -> np.ndarray:
    """The array of a TensorProto, which repeats its last value up to its shape.

    Raises:
        ValueError: its shape has a negative size, or it has fewer values than its shape
            and the result might not fit into memory; or its content has another size.
        TypeError: its type is unknown, or has no array.
    """
    import tensorflow as tf

    shape = [axis.size for axis in proto.tensor_shape.dim]
    fields = proto.ListFields()
    held = sum(len(found) for field, found in fields if field.name.endswith("_val"))
    if min(shape, default=0) < 0:
        raise ValueError(f"{name} has the shape {shape}; allowed: sizes from 0")
    if not proto.tensor_content and max(held, _MOST_VALUES) < math.prod(shape):
        raise ValueError(
            f"{name} has {counted(held, 'value')} for the shape {shape}; allowed: a "
            f"shape of at most {_MOST_VALUES:,} values"
        )
    try:
        return tf.make_ndarray(proto)
    except KeyError as error:
        raise TypeError(f"{name} has the type {proto.dtype} of TensorFlow") from error


def grpc_request(
    model: str, version: int | None, signature: str, inputs: dict[str, list[bytes]]
):
    """Returns a `tensorflow.serving.PredictRequest`."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for name, values in inputs.items():
        proto = tf.make_tensor_proto(values, tf.string, [len(values)])
        request.inputs[name].CopyFrom(proto)
    return request


def connect(
    address: str,
    model: str | None = None,
    version: int | None = None,
    timeout: float = 60,
) -> ModelServer:
    """Makes a client of one model without sending a request.

    Args:
        address: http://HOST:PORT or https://HOST:PORT for REST (TensorFlow Serving's
            port is 8501), grpc://HOST:PORT for gRPC (8500). The address may go on with
            the model, see `parse_address`.
        model: the name of the model on the server; None takes the one of the address,
            else `cmlm`.
        version: the version of the model; None takes the one of the address, else the
            version that is the newest at the first request.
        timeout: seconds for one request.

    Raises:
        UserError: the address has another form, or names another model or version; or
            the version is no number of 64 bits.
    """
    found = parse_address(address)
    for name, own, given in (
        ("model", found.model, model),
        ("version", found.version, version),
    ):
        if None not in (own, given) and own != given:
            raise UserError(
                f"{name} is {given!r}; allowed with {address}: {own!r}, or none"
            )
    version = found.version if version is None else version
    if version is not None and not 0 <= version < 1 << 63:
        raise UserError(f"version is {version}; allowed: 0 to {(1 << 63) - 1}")
    kind = GrpcServer if found.server.startswith("grpc:") else RestServer
    return kind(
        found.server,
        model=model or found.model or DEFAULT_MODEL,
        version=version,
        timeout=timeout,
    )


def _requests(texts: Sequence[bytes]):
    """Yields slices of texts that fit into one request."""
    start = size = 0
    for row, text in enumerate(texts):
        full = row - start == _REQUEST_SENTENCES or size + len(text) > _REQUEST_BYTES
        if row > start and full:
            yield slice(start, row)
            start, size = row, 0
        size += len(text)
    if len(texts):
        yield slice(start, len(texts))
