"""A model server for tests: the real one where it is installed, and `cmlm serve`.

The server for development answers the two protocols of TensorFlow Serving's Predict API
from a session that was loaded as the server loads it, so that clients can be tested
anywhere. What it cannot show is that the real one takes a model; the tests that use
`start` run against both. The batching stand-in puts requests together with the batch
scheduler of TensorFlow, which the server uses too, and the parameters of the export.
"""

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.apis import prediction_log_pb2

from cmlm.encoders import locating
from cmlm.modeling import export_layout
from export import dev_server
from export.session_model import SessionModel

BINARY = "tensorflow_model_server"
STAND_IN = "stand-in"
BATCHING_STAND_IN = "batching stand-in"
MODEL = "cmlm"


@functools.cache
def session(path: str) -> SessionModel:
    """A SavedModel in a session, which optimises the graph of each signature once."""
    return SessionModel(path)


def warm_up(path) -> list[tuple[str, dict[str, np.ndarray]]]:
    """The warm-up requests of a SavedModel: signature and inputs."""
    records = tf.data.TFRecordDataset(os.path.join(path, export_layout.WARM_UP))
    found = []
    for record in records.as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request = log.predict_log.request
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        found.append((request.model_spec.signature_name, inputs))
    return found


@contextlib.contextmanager
def start(kind: str, serving: str):
    """Serves a folder of versions as the model `cmlm`.

    Args:
        kind: one of the stand-ins, or the binary, which skips where there is none.
        serving: `OUT/serving` of an export.

    Yields:
        (http://..., grpc://...)
    """
    if kind in (STAND_IN, BATCHING_STAND_IN):
        if kind == STAND_IN:
            model = session(locating.find_export(serving))
        else:
            with open(f"{serving}/batching_parameters.txt") as file:
                parameters = read_batching(file.read())
            model = BatchingModel(locating.find_export(serving), parameters)
        server = dev_server.Server(model, MODEL)
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


class BatchingModel:
    """A SavedModel behind TensorFlow's batch scheduler.

    Args:
        path: the SavedModel.
        parameters: the message of `read_batching`.
    """

    def __init__(self, path: str, parameters):
        # Its variables live as long as it does.
        self._loaded = loaded = tf.saved_model.load(path)
        self.signatures = loaded.signatures
        batched = tf.nondifferentiable_batch_function(
            # As the server, one on each core unless the file says otherwise.
            num_batch_threads=parameters.num_batch_threads.value or os.cpu_count(),
            max_batch_size=parameters.max_batch_size.value,
            batch_timeout_micros=parameters.batch_timeout_micros.value,
            max_enqueued_batches=parameters.max_enqueued_batches.value,
            autograph=False,
            # A server splits no request unless its parameters say so.
            enable_large_batch_splitting=False,
        )
        self._functions = {
            name: self._function(batched, loaded.signatures[name])
            for name in loaded.signatures
        }

    @staticmethod
    def _function(batched, signature):
        _, specs = signature.structured_input_signature
        names = sorted(specs)

        @tf.function(input_signature=[specs[name] for name in names], autograph=False)
        def run(*values):
            @batched
            def compute(*rows):
                outputs = signature(**dict(zip(names, rows, strict=True)))
                return [outputs[name] for name in sorted(outputs)]

            found = compute(*values)
            found = found if isinstance(found, list | tuple) else [found]
            outputs = sorted(signature.structured_outputs)
            return dict(zip(outputs, found, strict=True))

        return run, names, specs

    def predict(self, name: str, inputs: dict) -> dict[str, np.ndarray]:
        """Runs a signature, perhaps together with other requests."""
        if name not in self._functions:
            raise ValueError(f"{name} is not a signature")
        run, names, specs = self._functions[name]
        if set(inputs) != set(names):
            raise ValueError(f"inputs are {sorted(inputs)}")
        values = [
            tf.constant(np.array(inputs[key], specs[key].dtype.as_numpy_dtype))
            for key in names
        ]
        return {key: value.numpy() for key, value in run(*values).items()}


def read_batching(content: str):
    """Reads batching_parameters.txt into the message BatchingParameters.

    No Python package carries the message. Its fields have the numbers of
    tensorflow_serving/servables/tensorflow/session_bundle_config.proto.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="batching",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    message = file.message_type.add(name="BatchingParameters")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, name in enumerate(
        (
            *("max_batch_size", "batch_timeout_micros", "max_enqueued_batches"),
            "num_batch_threads",
        ),
        start=1,
    ):
        message.field.add(
            name=name,
            number=number,
            type=kinds.TYPE_MESSAGE,
            type_name=".google.protobuf.Int64Value",
            label=kinds.LABEL_OPTIONAL,
        )
    message.field.add(
        name="pad_variable_length_inputs",
        number=7,
        type=kinds.TYPE_BOOL,
        label=kinds.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName("batching.BatchingParameters")
    return text_format.Parse(content, message_factory.GetMessageClass(descriptor)())
