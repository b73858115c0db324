"""Serves one request through TensorFlow's C API, as a program in C would.

    python c_api.py LIBRARY_DIR TEXT_OPS_DIR SAVED_MODEL < request.json > answer.json

Run on its own: it imports no TensorFlow, no numpy and nothing of this project, only the
shared libraries that TensorFlow and tensorflow-text install. The request is

    {"inputs": [["serving_default_text:0", ["a", "b"]]], "output": "StatefulPart...:0"}

with names of tensors as `TF_LoadSessionFromSavedModel` finds them in the signature.
Strings in, float32 out.
"""

import ctypes
import glob
import json
import os
import sys

STRING = 7


class Output(ctypes.Structure):
    """TF_Output."""

    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


def load(library_dir: str, text_ops_dir: str) -> ctypes.CDLL:
    """Opens TensorFlow's library and registers the ops of tensorflow-text."""
    framework = os.path.join(library_dir, "libtensorflow_framework.so.2")
    ctypes.CDLL(framework, mode=ctypes.RTLD_GLOBAL)
    tf = ctypes.CDLL(
        os.path.join(library_dir, "libtensorflow_cc.so.2"), mode=ctypes.RTLD_GLOBAL
    )
    pointer = ctypes.c_void_p
    for name in (
        *("TF_NewStatus", "TF_NewGraph", "TF_NewSessionOptions", "TF_LoadLibrary"),
        *("TF_LoadSessionFromSavedModel", "TF_GraphOperationByName"),
        *("TF_AllocateTensor", "TF_TensorData"),
    ):
        getattr(tf, name).restype = pointer
    tf.TF_Message.restype = ctypes.c_char_p
    tf.TF_Dim.restype = ctypes.c_int64
    tf.TF_GetCode.argtypes = tf.TF_Message.argtypes = [pointer]
    tf.TF_TensorData.argtypes = tf.TF_NumDims.argtypes = [pointer]
    tf.TF_Dim.argtypes = [pointer, ctypes.c_int]
    tf.TF_StringInit.argtypes = [pointer]
    tf.TF_StringCopy.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    tf.TF_GraphOperationByName.argtypes = [pointer, ctypes.c_char_p]
    tf.TF_LoadLibrary.argtypes = [ctypes.c_char_p, pointer]
    tf.TF_AllocateTensor.argtypes = [
        *(ctypes.c_int, pointer, ctypes.c_int, ctypes.c_size_t)
    ]
    status = tf.TF_NewStatus()
    for path in sorted(glob.glob(os.path.join(text_ops_dir, "*.so"))):
        tf.TF_LoadLibrary(path.encode(), status)
        check(tf, status)
    return tf


def check(tf: ctypes.CDLL, status) -> None:
    if tf.TF_GetCode(status):
        sys.exit(tf.TF_Message(status).decode(errors="replace"))


def string_tensor(tf: ctypes.CDLL, strings: list[bytes]):
    """A TF_Tensor of strings [n]; a TF_TString takes 24 bytes."""
    shape = (ctypes.c_int64 * 1)(len(strings))
    tensor = tf.TF_AllocateTensor(STRING, shape, 1, 24 * len(strings))
    data = tf.TF_TensorData(tensor)
    for row, string in enumerate(strings):
        tf.TF_StringInit(data + 24 * row)
        tf.TF_StringCopy(data + 24 * row, string, len(string))
    return tensor


def main() -> None:
    library_dir, text_ops_dir, saved_model = sys.argv[1:]
    request = json.load(sys.stdin)
    tf = load(library_dir, text_ops_dir)
    pointer = ctypes.c_void_p
    status, graph = tf.TF_NewStatus(), tf.TF_NewGraph()
    tf.TF_LoadSessionFromSavedModel.argtypes = [
        *(pointer, pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)),
        *(ctypes.c_int, pointer, pointer, pointer),
    ]
    session = tf.TF_LoadSessionFromSavedModel(
        *(tf.TF_NewSessionOptions(), None, saved_model.encode()),
        *((ctypes.c_char_p * 1)(b"serve"), 1, graph, None, status),
    )
    check(tf, status)

    def output(name):
        operation, index = name.split(":")
        return Output(tf.TF_GraphOperationByName(graph, operation.encode()), int(index))

    inputs = [output(name) for name, _ in request["inputs"]]
    values = [
        string_tensor(tf, [text.encode() for text in texts])
        for _, texts in request["inputs"]
    ]
    outputs = (Output * 1)(output(request["output"]))
    result = (pointer * 1)()
    tf.TF_SessionRun.argtypes = [
        *(pointer, pointer, pointer, pointer, ctypes.c_int, pointer, pointer),
        *(ctypes.c_int, pointer, ctypes.c_int, pointer, pointer),
    ]
    tf.TF_SessionRun(
        *(session, None, (Output * len(inputs))(*inputs)),
        *((pointer * len(values))(*values), len(values), outputs, result, 1),
        *(None, 0, None, status),
    )
    check(tf, status)
    rows, dim = (tf.TF_Dim(result[0], axis) for axis in range(2))
    data = ctypes.cast(tf.TF_TensorData(result[0]), ctypes.POINTER(ctypes.c_float))
    vectors = [list(data[row * dim : (row + 1) * dim]) for row in range(rows)]
    modules = sorted({name.split(".")[0] for name in sys.modules})
    json.dump({"vectors": vectors, "modules": modules}, sys.stdout)


if __name__ == "__main__":
    main()
