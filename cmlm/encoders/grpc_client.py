"""Requests vectors over gRPC; its messages have half the size of REST messages.

Reference: tensorflow_serving/apis/prediction_service.proto.
"""

from __future__ import annotations

import math
import os
import weakref

import numpy as np

from cmlm.common.counts import counted
from cmlm.encoders.served_model import MOST_BYTES, PORTS, ServedModel
from cmlm.errors import UserError

# The most values of a tensor that states one value for many places.
_MOST_VALUES = 16 << 20
# The codes of an error that may not come later.
_LATER = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


class GrpcClient(ServedModel):
    """The gRPC interface.

    Args:
        address: grpc://HOST:PORT, or grpcs://HOST:PORT for TLS.
        **kwargs: see `ServedModel`.
    """

    def __init__(self, address: str, **kwargs):
        super().__init__(address, **kwargs)
        # Imported here, because the import loads TensorFlow.
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        # gRPC's default limit, 4 MB, would hold 1,365 vectors of width 768.
        options = [
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_send_message_length", -1),
        ]
        scheme, _, target = address.partition("://")
        if scheme == "grpcs":
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        weakref.finalize(self, self._channel.close)
        self._process = os.getpid()
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(self, signature, inputs):
        import grpc

        self._refuse_fork()
        request = grpc_request(self._model, self._version, signature, inputs)
        try:
            response = self._call(self._stub.Predict, request)
        except grpc.RpcError as error:
            raise self._failed(error) from error
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

    def _signatures(self):
        import grpc
        from tensorflow_serving.apis import get_model_metadata_pb2

        self._refuse_fork()
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        request.model_spec.name = self._model
        if self._version is not None:
            request.model_spec.version.value = self._version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        try:
            answer = self._call(self._stub.GetModelMetadata, request)
        except grpc.RpcError as error:
            # A busy server would seem to have no prompts.
            if error.code().name in _LATER:
                raise self._failed(error) from error
            return {}
        answer.metadata["signature_def"].Unpack(signatures)
        return {
            name: (*sorted(row.inputs), *sorted(row.outputs))
            for name, row in signatures.signature_def.items()
        }

    def _call(self, method, request):
        metadata = tuple(self._authorization.items())
        return method(request, timeout=self._timeout, metadata=metadata)

    def _failed(self, error) -> UserError:
        """The error about a `grpc.RpcError`."""
        code = error.code().name.lower().replace("_", " ")
        reason = f"{code}: {error.details()}"
        if "Failed parsing HTTP/2" in reason:
            reason = f"no answer in gRPC; {PORTS}"
        return self._refused(reason)

    def _refuse_fork(self) -> None:
        """Raises UserError in a fork, in which an answer would never come."""
        if os.getpid() != self._process:
            raise self._refused(
                "gRPC was opened before this process forked and does not work in forks;"
                " allowed: threads, http://, or processes started by "
                "multiprocessing.get_context('spawn') that open it themselves"
            )


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
