"""Encoders from TF Hub: SavedModels that follow its text API.

The SavedModel's checkpoint holds the weights, its assets hold the vocabulary, and its
graph shows activation, epsilon and pooling. A graph can contain any program, so it is
read as a file and never run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from cmlm.common import checksums, files, json_files
from cmlm.common import prompts as prompts_lib
from cmlm.errors import UserError, one_line
from cmlm.modeling import export_layout, layers
from cmlm.modeling.foreign import base, tf_checkpoints
from cmlm.modeling.pooling import POOLINGS
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.rules import MAX_WORD_BYTES

# The longest word in bytes, by tf-text's default, which published preprocessors use.
# Longer words are [UNK].
_MAX_WORD_BYTES = 100
# What the root object of an export of this project holds beside the text API.
_OWN_ASSET = "vocab_rules_file"
# From an output back to its op there are a few dozen identities and calls.
_MOST_STEPS = 200


def read(folder: str) -> base.Source:
    """Reads an encoder that follows the TF Hub text API.

    Args:
        folder: the folder of `saved_model.pb`.

    Raises:
        UserError: the SavedModel is damaged, or is not a BERT encoder; or it is an
            export of projected vectors.
    """
    around = os.path.dirname(folder.rstrip("/"))
    own = (f"{os.path.basename(folder.rstrip('/'))}/", export_layout.DESCRIPTION)
    checksums.check(around, os.path.join(around, checksums.FILE_NAME), own)
    saved = _parse(os.path.join(folder, export_layout.SAVED_MODEL))
    stored = tf_checkpoints.open_file(os.path.join(folder, "variables", "variables"))
    if not stored.has_tensor(tf_checkpoints.OBJECT_GRAPH):
        raise UserError(
            f"{folder} is a SavedModel of TensorFlow 1; allowed: of TensorFlow 2"
        )
    description = os.path.join(around, export_layout.DESCRIPTION)
    settings = _own_settings(description)
    found, unused = tf_checkpoints.garden_names(stored, folder)
    notes: list[str] = []
    warnings: list[str] = []
    model = tf_checkpoints.shapes(stored, found, folder)
    with _damage_named(folder):
        default = _Default() if settings else _default(saved)
        model |= _beyond_weights(saved, settings, default, model["hidden_size"], notes)
        vocab_name = _own_vocabulary(saved, folder)
        if not settings and _child_of_root(saved, _OWN_ASSET) is not None:
            warnings.append(
                f"{export_layout.DESCRIPTION} of this export is missing beside the "
                "folder: prompts, scaling, the longest sentence and the number of "
                "positions for conditions are unknown"
            )
    vocab_name = vocab_name or _vocabulary_near(folder)
    vocab = base.read_vocab(vocab_name) if vocab_name else None
    rules = {
        # As TensorFlow lower-cases, also Turkish; our own exports state all rules.
        "dotless_i": False,
        "max_word_bytes": MAX_WORD_BYTES if settings else _MAX_WORD_BYTES,
        "max_word_characters": 0,
    }
    return base.Source(
        path=folder,
        kind="a TF Hub SavedModel",
        model=model,
        load=lambda: tf_checkpoints.arrays(stored, found, folder),
        vocab=vocab,
        vocab_name=vocab_name,
        tokenizer=(
            tokenizer_file.load(vocab_name)
            if vocabulary_file.is_json(vocab_name)
            else None
        ),
        rules=rules | _rules(stored, folder, vocab_name, vocab, notes),
        own_positions=bool(settings),
        fitted=_fitted(stored, folder, description),
        **(
            _beyond_graph(description, settings)
            if settings
            else {"normalized": default.normalized}
        ),
        unused=unused,
        notes=notes,
        warnings=warnings,
    )


def _beyond_weights(
    saved,
    settings: dict[str, Any],
    default: _Default,
    hidden_size: int,
    notes: list[str],
) -> dict[str, Any]:
    """The settings of the encoder that the shapes of its weights do not show.

    Args:
        saved: the SavedModel, whose graph shows most of them.
        settings: of an export of this project, see `_own_settings`; else empty.
        default: the sentence vectors that the graph computes.
        hidden_size: the width of a token vector.
        notes: gets a line for each setting that is assumed.
    """
    found: dict[str, Any] = {"hidden_activation": _activation(saved)}
    epsilons = _epsilons(saved)
    if len(epsilons) != 1:
        notes.append("the graph shows no epsilon of layer norm: 1e-12 is assumed")
        epsilons = {1e-12}
    found["layer_norm_epsilon"] = epsilons.pop()
    if settings:
        own = ("num_views", "pooling", "sentence_vector", "dimensions")
        return found | {name: settings[name] for name in own if name in settings}
    if default.pooling is not None and 0 < default.width < hidden_size:
        found["dimensions"] = default.width
    return found | {"pooling": default.pooling}


def _beyond_graph(path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The fields of `base.Source` that only the description of our own exports states.

    Args:
        path: the description, export.json.
        settings: of the export, see `_own_settings`.
    """
    export = json_files.read(path)
    seq_length = json_files.field(export, "seq_length", int, path, at_least=3)
    trained = json_files.field(export, "trained_seq_length", int, path, seq_length)
    # Exports of early versions do not say whether a run trained their weights. The
    # checkpoint of a run lies in the run, weights of another program are its start.
    is_run = export.get("checkpoint") != export["config"].get("init_checkpoint")
    is_run = json_files.field(export, "trained_by_run", bool, path, is_run)
    prompts = json_files.field(settings, "prompts", list, path, [])
    return {
        "seq_length": seq_length,
        "trained_seq_length": trained if is_run else None,
        "normalized": json_files.field(settings, "normalized", bool, path, False),
        "prompts": prompts_lib.parse(map(str, prompts), f"prompts in {path}"),
        "prompt": json_files.field(settings, "prompt", str, path, ""),
    }


def _own_settings(path: str) -> dict[str, Any]:
    """Reads the fields of EncoderConfig in an export of this project; {} of others.

    Raises:
        UserError: the file is damaged, or the export has projected vectors.
    """
    config = json_files.field(json_files.optional(path), "config", dict, path, {})
    settings = json_files.field(config, "model", dict, path, {})
    if settings.get("sentence_vector") == "projected":
        raise UserError(
            f"{path} has sentence_vector='projected', and an export does not name the "
            "projections; allowed: its model_dir"
        )
    return settings


def _fitted(stored, folder: str, path: str) -> dict[str, base.Fitted]:
    """The layers of our own export that text determined, see `base.Source`.

    Args:
        stored: the checkpoint of the export.
        folder: the folder of the SavedModel.
        path: the description, export.json.
    """
    description, found = json_files.optional(path), {}
    for name in layers.FITTED:
        about = json_files.field(description, name, dict, path, {})
        if about:
            sentences = json_files.field(about, "sentences", int, path, at_least=1)
            read = functools.partial(_below, stored, f"{name}/", folder)
            found[name] = base.Fitted(sentences, read)
    return found


def _below(stored, prefix: str, folder: str) -> list[np.ndarray]:
    """Reads the tensors whose keys have a prefix, in the order of their keys."""
    keys = sorted(stored.get_variable_to_shape_map())
    chosen = [key for key in keys if key.startswith(prefix)]
    return [tf_checkpoints.tensor(stored, key, folder) for key in chosen]


def _rules(
    stored, folder: str, vocab_name: str, vocab: list[str] | None, notes: list[str]
) -> dict[str, Any]:
    """Returns the rules that an export of this project, any other, or tokens state."""
    key = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"
    if vocab and tf.io.gfile.exists(rules_lib.path_of(vocab_name)):
        # Our own exports state all rules.
        return dict(rules_lib.read(vocab_name).rules)
    if stored.has_tensor(key):
        return {"lower_case": bool(tf_checkpoints.tensor(stored, key, folder))}
    return base.vocabulary_rules(vocab_name, vocab, notes) if vocab else {}


def _parse(path: str) -> saved_model_pb2.SavedModel:
    saved = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            saved.ParseFromString(file.read())
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read: {error.message}") from error
    # The decoder's error has another class on each of the supported protobuf versions.
    except Exception as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not saved.meta_graphs:
        raise UserError(f"{path} holds no graph")
    return saved


@contextlib.contextmanager
def _damage_named(folder: str) -> Iterator[None]:
    """Names the folder if its graph lacks a part or leads outside of itself."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder} has a damaged graph: {one_line(error)}") from error


def _nodes(saved):
    """Yields every node of the graph and of its functions."""
    graph = saved.meta_graphs[0].graph_def
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _activation(saved) -> str:
    """Finds the feed-forward activation by the op that only it uses."""
    ops = {node.op for node in _nodes(saved)}
    if "Erf" in ops or "Erfc" in ops:
        return "gelu"
    return "relu" if "Relu" in ops else "gelu_tanh"


def _epsilons(saved) -> set[float]:
    """Finds the numbers that layer norms add to the variance."""
    return {
        # The shortest decimal number that rounds to this float32.
        float(str(tf.make_ndarray(node.attr["value"].tensor)))
        for node in _nodes(saved)
        if node.op == "Const" and node.name.endswith("/batchnorm/add/y")
    }


# The op that computes `default`, and the pooling that ends with it.
_POOLED_BY = {op: mode for mode, row in POOLINGS.items() for op in row.last_ops}


class _Default(NamedTuple):
    """The sentence vectors `default` of a SavedModel, as far as its graph shows them.

    Attributes:
        pooling: a key of `POOLINGS`, or None.
        width: the number of components, or 0.
        normalized: whether the graph scales them to length 1.
    """

    pooling: Optional[str] = None
    width: int = 0
    normalized: bool = False


def _default(saved) -> _Default:
    """Finds the sentence vectors `default`.

    TensorFlow stores the outputs of an encoder in the order of their keys, so
    `default` is the first one.
    """
    library = saved.meta_graphs[0].graph_def.library
    functions = {f.signature.name: f for f in library.function}
    call = _child_of_root(saved, "__call__")
    if call is None:
        return _Default()
    described = saved.meta_graphs[0].object_graph_def.concrete_functions
    for name in call.function.concrete_functions:
        if name in functions:
            last_op, normalized = _last_op(functions, functions[name])
            width = _width(described[name].output_signature)
            return _Default(_POOLED_BY.get(last_op), width, normalized)
    return _Default()


def _width(outputs) -> int:
    """The number of components of `default`; 0 if its description does not say."""
    shape = outputs.dict_value.fields["default"].tensor_spec_value.shape
    return shape.dim[-1].size if len(shape.dim) == 2 else 0


def _child_of_root(saved, name: str):
    """The object that the root object of a SavedModel holds; None without it."""
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    if not nodes:
        return None
    for child in nodes[0].children:
        if child.local_name == name:
            return nodes[child.node_id]
    return None


def _last_op(functions: dict, function) -> tuple[str, bool]:
    """Finds the op that computes the first output, behind identities, casts and calls.

    Two ops of this project may also come behind it: the cut to the first components,
    and the choice of zeros for a text without tokens. A scaling to length 1 may, too.

    Returns:
        The op, "" if it lies outside of the function; and whether the vectors are
        scaled to length 1.

    Raises:
        ValueError: the output leads to itself.
        LookupError: an op lacks its input or its function.
    """
    nodes, reference = _returned(function, 0)
    # For each call on the way: the nodes around it, and its inputs by argument.
    callers: list[tuple[dict, dict[str, str]]] = []
    normalized = False
    for _ in range(_MOST_STEPS):
        name, _, rest = reference.partition(":")
        node = nodes.get(name)
        if node is None:
            nodes, arguments = callers.pop() if callers else ({}, {})
            if name not in arguments:
                return "", normalized
            reference = arguments[name]
            continue
        index = int(rest.rpartition(":")[2] or 0)
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            called = functions.get(node.attr["f"].func.name)
            if called is None:
                return "", normalized
            names = [argument.name for argument in called.signature.input_arg]
            callers.append((nodes, dict(zip(names, node.input, strict=False))))
            nodes, reference = _returned(called, index)
        elif node.op in ("Identity", "IdentityN", "Cast"):
            reference = node.input[index if node.op == "IdentityN" else 0]
        elif node.op == "StridedSlice" and not node.attr["shrink_axis_mask"].i:
            reference = node.input[0]
        elif node.op == "SelectV2":
            # The vectors of texts with tokens.
            reference = node.input[1]
        elif _divides_by_length(nodes, node):
            reference, normalized = node.input[0], True
        else:
            return node.op, normalized
    raise ValueError(f"over {_MOST_STEPS} steps from an output to its op")


def _divides_by_length(nodes: dict, node) -> bool:
    """Whether a node computes x * rsqrt(sum(x^2)) or x / sqrt(sum(x^2)).

    A lower bound of the length or of its square may stand between.
    """
    root = {"Mul": "Rsqrt", "RealDiv": "Sqrt", "DivNoNan": "Sqrt"}.get(node.op)
    if root is None:
        return False
    vectors, reference = node.input[:2]
    ops = []
    for _ in range(_MOST_STEPS):
        part = nodes.get(reference.partition(":")[0])
        if part is None:
            return False
        if part.op in ("Square", "Mul"):
            return root in ops and part.input[0] == vectors
        if part.op not in (root, "Sum", "Maximum", "AddV2"):
            return False
        ops.append(part.op)
        reference = part.input[0]
    return False


def _returned(function, output: int) -> tuple[dict, str]:
    """The nodes of a function by name, and what refers an output to one of them."""
    reference = function.ret[function.signature.output_arg[output].name]
    return {node.name: node for node in function.node_def}, reference


def _vocabulary_near(folder: str) -> str:
    """Finds a vocabulary file near an encoder; "" if it does not exist.

    Published encoders may leave the vocabulary to their preprocessor. The function
    looks for vocab.txt, or a single *vocab*.txt, beside saved_model.pb, in the
    encoder's assets, and in the assets of a SavedModel `preprocessor` beside the
    encoder.
    """
    folder = folder.rstrip("/")
    beside = os.path.join(os.path.dirname(folder), export_layout.PREPROCESSOR)
    for place in (
        folder,
        os.path.join(folder, export_layout.ASSETS),
        os.path.join(beside, export_layout.ASSETS),
    ):
        path = os.path.join(place, vocabulary_file.FILE_NAME)
        if tf.io.gfile.exists(path):
            return path
        found = tf.io.gfile.glob(os.path.join(files.escaped(place), "*vocab*.txt"))
        if len(found) == 1:
            return found[0]
    return ""


def _own_vocabulary(saved, folder: str) -> str:
    """Returns the path of the asset `vocab_file` of the root object; "" without one."""
    node = _child_of_root(saved, "vocab_file")
    if node is None or node.WhichOneof("kind") != "asset":
        return ""
    asset = saved.meta_graphs[0].asset_file_def[node.asset.asset_file_def_index]
    return os.path.join(folder, export_layout.ASSETS, os.path.basename(asset.filename))
