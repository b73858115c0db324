"""The gRPC API of TensorFlow Serving for one model.

Reference: tensorflow_serving/apis/prediction_service.proto.
"""

from __future__ import annotations

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from cmlm.encoders import signatures
from cmlm.encoders.grpc_client import array_of
from export.session_model import SessionModel, reason, signature_map


class GrpcService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers the requests of a model.

    Args:
        model: the model.
        name: its name in requests.
        version: its version.
    """

    def __init__(self, model: SessionModel, name: str, version: int):
        self._model, self._name, self._version = model, name, version

    def _check(self, spec, context) -> None:
        missing = ""
        if spec.name != self._name:
            missing = f"model {spec.name!r}; allowed: {self._name}"
        elif spec.version.value not in (0, self._version):
            missing = f"version {spec.version.value}; allowed: {self._version}"
        if missing:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found: {missing}")

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
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason(error))
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
        response.metadata["signature_def"].Pack(signature_map(self._model))
        return response
