"""A SavedModel in a session, as TensorFlow Serving loads and runs it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graph)
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2

from cmlm.errors import shown

# The most rows of a request: its texts and vectors are in memory together.
_MOST_ROWS = 1 << 16


class SessionModel:
    """A SavedModel as TensorFlow Serving loads it: a session and its signatures.

    Args:
        path: the folder of a version.

    Attributes:
        signatures: TensorFlow's SignatureDef of each signature with inputs; an
            operation that initialises the model has none.
    """

    def __init__(self, path: str):
        # As docs/serving.md starts the model server.
        settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=settings)
        with self._session.graph.as_default():
            meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
        self.signatures = {
            name: signature
            for name, signature in meta_graph.signature_def.items()
            if signature.inputs
        }

    def predict(self, name: str, inputs: dict) -> dict[str, np.ndarray]:
        """Runs a signature; several threads may run at once.

        Args:
            name: the signature.
            inputs: arrays or nested lists by name.

        Raises:
            ValueError: the signature does not exist, or the inputs are not its inputs.
            tf.errors.OpError: the graph refuses the inputs.
        """
        if name not in self.signatures:
            raise ValueError(f'Serving signature name: "{name}" not found')
        signature = self.signatures[name]
        if set(inputs) != set(signature.inputs):
            raise ValueError(
                f"inputs are {sorted(inputs)}; allowed: {sorted(signature.inputs)}"
            )
        arrays = {
            key: _array(key, value, signature.inputs[key])
            for key, value in inputs.items()
        }
        feeds = {signature.inputs[key].name: array for key, array in arrays.items()}
        outputs = {key: info.name for key, info in signature.outputs.items()}
        try:
            return self._session.run(outputs, feeds)
        except tf.errors.InvalidArgumentError as error:
            # The message of the graph takes many lines.
            _check_lengths(arrays, error)
            raise


def signature_map(model: SessionModel) -> get_model_metadata_pb2.SignatureDefMap:
    """The signatures of a model as the metadata of TensorFlow Serving."""
    found = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in model.signatures.items():
        found.signature_def[name].CopyFrom(signature)
    return found


def reason(error: Exception) -> str:
    """The message of an error; `str` of TensorFlow's errors adds nodes of the graph."""
    return getattr(error, "message", None) or str(error)


def _check_lengths(arrays: dict[str, np.ndarray], cause: Exception) -> None:
    """Raises ValueError from a cause if two inputs differ in an axis of both."""
    for (one, first), (other, second) in itertools.pairwise(arrays.items()):
        axes = min(first.ndim, second.ndim)
        if first.shape[:axes] != second.shape[:axes]:
            raise ValueError(
                f"{one} has the shape {list(first.shape)}, {other} "
                f"{list(second.shape)}; allowed: equal lengths"
            ) from cause


def _array(name: str, value: Any, info: meta_graph_pb2.TensorInfo) -> np.ndarray:
    """One input of a signature.

    Raises:
        ValueError: the values have another shape or type, or are outside of its range.
    """
    dtype = tf.as_dtype(info.dtype)
    if isinstance(value, np.ndarray) and value.dtype != dtype.as_numpy_dtype:
        # From gRPC: the model server converts only the numbers of JSON.
        raise ValueError(
            f"{name} has the type {value.dtype.name}; allowed: {dtype.name}"
        )
    try:
        array = np.array(value, object if dtype == tf.string else None)
    except ValueError:
        # numpy's error speaks of sequences.
        raise ValueError(f"{name} has rows of several lengths; allowed: one") from None
    if array.ndim and len(array) > _MOST_ROWS:
        raise ValueError(
            f"{name} has {len(array):,} rows; allowed: {_MOST_ROWS:,} in a request"
        )
    if dtype == tf.string:
        for place, each in np.ndenumerate(array):
            if not isinstance(each, (bytes, str)):
                where = name + "".join(f"[{number}]" for number in place)
                raise ValueError(f"{where} is {shown(each)}; allowed: a string")
    # numpy would round fractions, and wrap numbers around.
    elif dtype.is_integer and array.size:
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} has values that are not {dtype.name}")
        if array.min() < dtype.min or array.max() > dtype.max:
            raise ValueError(
                f"{name} has a number outside of {dtype.name}; allowed: {dtype.min} to "
                f"{dtype.max}"
            )
    shape = tf.TensorShape(info.tensor_shape)
    if not shape.is_compatible_with(array.shape):
        allowed = ", ".join("n" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} has the shape {list(array.shape)}; allowed: [{allowed}]"
        )
    return array if dtype == tf.string else array.astype(dtype.as_numpy_dtype)
