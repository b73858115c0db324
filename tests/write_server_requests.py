"""Writes tests/server_requests: requests to a model server with their answers.

    python tests/write_server_requests.py

The answers are computed in numpy from the weights of the toy model, not asked of any
graph. To be run again where the toy model or a signature changes.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import model_dirs  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from tensorflow_serving.apis import predict_pb2  # noqa: E402

from cmlm.encoders import run_weights  # noqa: E402

PATH = "/v1/models/cmlm:predict"
TEXT = ["The cat sat on the mat.", "", "A dog ran far away, far away!"]
LANGUAGE = ["de", "ZH-Hant", "fr"]
INDEX = [0, 1, -1]


def main():
    with tempfile.TemporaryDirectory() as folder:
        # As `model_dirs.export` has it.
        settings = {"model.num_layers": 2}
        source = model_dirs.write(Path(folder) / "source", **settings)
        trained = run_weights.load(source)
        vectors = model_dirs.oracle_vectors(trained, TEXT)
        broken = model_dirs.oracle_vectors(trained, ["the \ufffd cat"])
        table = model_dirs.fit(trained).table.astype(np.float64)
        tensors = model_dirs.tensors(trained, TEXT)
    removed = vectors.copy()
    for row, index in enumerate(INDEX):
        if index >= 0:
            removed[row] -= (removed[row] @ table[index].T) @ table[index]
    normalized = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pcr = {"pcr": rounded(removed), "language_index": INDEX}
    rows = [
        {"pcr": vector, "language_index": index}
        for vector, index in zip(pcr["pcr"], INDEX, strict=True)
    ]

    columns("default", "serving_default", {"text": TEXT}, {"default": vectors})
    columns("normalized", "normalized", {"text": TEXT}, {"normalized": normalized})
    columns("tensors", "tensors", tensors, {"default": vectors})
    columns("pcr", "pcr", {"text": TEXT, "language": LANGUAGE}, pcr)
    columns("pcr_tensors", "pcr_tensors", {**tensors, "language_index": INDEX}, pcr)

    write("default_rows", {"instances": TEXT}, {"predictions": rounded(vectors)})
    by_row = [
        {"text": text, "language": language}
        for text, language in zip(TEXT, LANGUAGE, strict=True)
    ]
    write(
        "pcr_rows",
        {"signature_name": "pcr", "instances": by_row},
        {"predictions": rows},
    )
    # "the \xff cat", which is not UTF-8.
    write(
        "bytes",
        {"inputs": {"text": [{"b64": "dGhlIP8gY2F0"}]}},
        {"outputs": rounded(broken)},
    )
    write("refused_signature", {"signature_name": "x", "instances": TEXT}, None, 400)
    write(
        "refused_languages",
        {"signature_name": "pcr", "inputs": {"text": TEXT, "language": ["de"]}},
        None,
        400,
    )
    write("refused_model", {"instances": TEXT}, None, 404, "/v1/models/other:predict")


def rounded(vectors) -> list:
    return np.round(np.asarray(vectors, np.float64), 7).tolist()


def write(name, request, response, status=200, path=PATH, **more):
    content = {
        "path": path,
        "request": request,
        "status": status,
        "response": response,
        **more,
    }
    file = HERE / "server_requests" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


def columns(name, signature, inputs, outputs):
    """A request in the columnar format, and the same as gRPC messages."""
    outputs = {
        key: value if key == "language_index" else rounded(value)
        for key, value in outputs.items()
    }
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "cmlm"
    request.model_spec.signature_name = signature
    response = predict_pb2.PredictResponse()
    for message, values in ((request.inputs, inputs), (response.outputs, outputs)):
        for key, value in values.items():
            message[key].CopyFrom(tensor_proto(value))
    (single,) = outputs.values() if len(outputs) == 1 else (outputs,)
    write(
        name,
        {"signature_name": signature, "inputs": inputs},
        {"outputs": single},
        grpc={
            "request": text_format.MessageToString(request, as_one_line=True),
            "response": text_format.MessageToString(response, as_one_line=True),
        },
    )


def tensor_proto(value):
    """A TensorProto with its values one by one, which can be read."""
    array = np.array(value)
    kinds = {"U": (tf.string, "string_val"), "f": (tf.float32, "float_val")}
    dtype, field = kinds.get(array.dtype.kind, (tf.int32, "int_val"))
    proto = tf.make_tensor_proto(np.zeros(array.shape), tf.float32)
    proto.ClearField("tensor_content")
    proto.ClearField("float_val")
    proto.dtype = dtype.as_datatype_enum
    flat = array.ravel().tolist()
    if dtype == tf.string:
        flat = [text.encode() for text in flat]
    getattr(proto, field).extend(flat)
    return proto


if __name__ == "__main__":
    main()
