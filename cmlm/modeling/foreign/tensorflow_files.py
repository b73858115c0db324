"""BERT as TensorFlow programs store it: checkpoints and TF Hub SavedModels.

| what                                  | names of weights         | configuration     |
|---------------------------------------|--------------------------|-------------------|
| original BERT (TF 1)                  | bert/encoder/layer_0/... | bert_config.json  |
| Model Garden's encoder or pre-trainer | transformer/layer_0/...  | shapes; that file |
| TF Hub SavedModel, published contract | the same                 | shapes and graph  |

vocab.txt lies beside a checkpoint, or in the assets of a SavedModel. A SavedModel is
read as a file: its graph, which could do anything, is looked at and never run.
"""

from __future__ import annotations

import os
import re
from typing import Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from cmlm.errors import UserError
from cmlm.modeling import weights
from cmlm.modeling.foreign import base

SAVED_MODEL = "saved_model.pb"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_BERT_CONFIG = "bert_config.json"
# Beside an encoder that this project exported.
_EXPORT = "export.json"

# Names inside a layer of the original code, and here.
_TF1_LAYER = {
    "attention/self/query": "self_attention/query",
    "attention/self/key": "self_attention/key",
    "attention/self/value": "self_attention/value",
    "attention/output/dense": "self_attention/attention_output",
    "attention/output/LayerNorm": "self_attention_layer_norm",
    "intermediate/dense": "intermediate",
    "output/dense": "output",
    "output/LayerNorm": "output_layer_norm",
}
_TF1_OUTSIDE = {
    "bert/embeddings/word_embeddings": weights.WORDS,
    "bert/embeddings/position_embeddings": weights.POSITIONS,
    "bert/embeddings/token_type_embeddings": weights.TYPES,
    "bert/embeddings/LayerNorm/gamma": "embeddings/layer_norm/gamma",
    "bert/embeddings/LayerNorm/beta": "embeddings/layer_norm/beta",
    "bert/pooler/dense/kernel": f"{weights.POOLER}kernel",
    "bert/pooler/dense/bias": f"{weights.POOLER}bias",
    "cls/predictions/output_bias": f"{weights.MASKED_LM}output_bias/bias",
}
_TF1_UNUSED = re.compile(
    r"adam_[mv]$|^global_step$|^cls/seq_relationship/|_power$|^output_(weights|bias)$"
)
# Of checkpoint keys: what training keeps beside the encoder, and what an export does.
_UNUSED = re.compile(
    r"OPTIMIZER_SLOT|(^|/)(optimizer|_optimizer|save_counter|global_step|next_sentence|"
    r"classification_heads|do_lower_case|dropout_state)/|^step/"
)
_GARDEN = re.compile(
    r"(?:^|/)((?:word_embeddings|position_embedding|type_embeddings)/embeddings"
    r"|embeddings/layer_norm/\w+|transformer/layer_\d+/.+|pooler_transform/\w+)$"
)
_GARDEN_HEAD = re.compile(
    r"(?:^|/)cls/predictions/(transform/\w+/\w+|output_bias/bias)$"
)
# Model Garden and the original code call the tanh form of GELU `gelu`.
_ACTIVATIONS = {"gelu": "gelu_tanh", "gelu_approximate": "gelu_tanh", "relu": "relu"}


def open_checkpoint(prefix: str):
    """A reader of a checkpoint.

    Raises:
        UserError: it is damaged.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise UserError(f"{prefix} is not a readable checkpoint") from error


def read_checkpoint(prefix: str) -> base.Source:
    """Reads an original BERT checkpoint or one of Model Garden's encoder.

    Args:
        prefix: the checkpoint, without `.index`.

    Raises:
        UserError: it is neither, or its configuration is missing or another one.
    """
    stored = open_checkpoint(prefix)
    folder = os.path.dirname(prefix)
    is_garden = stored.has_tensor(_OBJECT_GRAPH)
    found, unused = _garden_names(stored) if is_garden else _tf1_names(stored)
    path = os.path.join(folder, _BERT_CONFIG)
    config = base.optional_json(path)
    model = _shapes(stored, found, prefix)
    notes = []
    if config:
        model |= _bert_config(config, path, model)
    elif is_garden:
        notes.append("no bert_config.json: the activation is taken for Model Garden's")
        model["hidden_activation"] = "gelu_tanh"
    else:
        raise UserError(
            f"{prefix} is an original BERT checkpoint without {_BERT_CONFIG} beside it:"
            " weights do not say the number of attention heads"
        )
    vocab_name = os.path.join(folder, "vocab.txt")
    vocab = base.read_vocab(vocab_name)
    if vocab:
        notes.append("lower case is taken from whether the vocabulary has capitals")
    return base.Source(
        path=prefix,
        kind=f"{'a Model Garden' if is_garden else 'an original'} BERT checkpoint",
        model=model,
        load=lambda: _arrays(stored, found),
        vocab=vocab,
        vocab_name=vocab_name if vocab else "",
        lower_case=base.looks_lower_case(vocab) if vocab else None,
        unused=unused,
        notes=notes,
    )


# --------------------------------------------------------------- checkpoints


def _tf1_names(stored) -> tuple[dict[str, str], list[str]]:
    def translate(name):
        if name in _TF1_OUTSIDE:
            return _TF1_OUTSIDE[name]
        inside = re.match(r"bert/encoder/layer_(\d+)/(.+)/(\w+)$", name)
        if inside and inside.group(2) in _TF1_LAYER:
            number, module, part = inside.groups()
            return weights.layer(int(number), f"{_TF1_LAYER[module]}/{part}")
        head = re.match(
            r"cls/predictions/(transform/\w+/(?:kernel|bias|gamma|beta))$", name
        )
        return weights.MASKED_LM + head.group(1) if head else None

    return base.rename(stored.get_variable_to_shape_map(), translate, _TF1_UNUSED)


def _garden_names(stored) -> tuple[dict[str, str], list[str]]:
    """Keys of an object-based checkpoint, by the names its variables had."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(stored.get_tensor(_OBJECT_GRAPH))
    full_names = {
        attribute.checkpoint_key: attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }
    keys = [key for key in stored.get_variable_to_shape_map() if key != _OBJECT_GRAPH]

    def translate(key):
        name = full_names.get(key, "")
        if _UNUSED.search(key):
            return None
        if match := _GARDEN.search(name):
            return match.group(1)
        if match := _GARDEN_HEAD.search(name):
            return weights.MASKED_LM + match.group(1)
        return None

    return base.rename(keys, translate, _UNUSED)


def _shapes(stored, found: dict[str, str], path: str) -> dict:
    """What the shapes of weights say of the configuration."""
    by_name = stored.get_variable_to_shape_map()

    def shape(name):
        if name not in found:
            raise UserError(f"{path} has no {name}; is it a BERT encoder?")
        return by_name[found[name]]

    vocab_size, hidden_size = shape(weights.WORDS)
    model = {
        "num_layers": base.count_layers(found, path),
        "hidden_size": hidden_size,
        "intermediate_size": shape(weights.layer(0, "intermediate/kernel"))[1],
        "max_position_embeddings": shape(weights.POSITIONS)[0],
        "type_vocab_size": shape(weights.TYPES)[0],
        "vocab_size": vocab_size,
    }
    query = shape(weights.layer(0, "self_attention/query/kernel"))
    if len(query) == 3:
        model["num_attention_heads"] = query[1]
    return model


def _bert_config(config: dict, path: str, model: dict) -> dict:
    """What bert_config.json adds; it must not contradict the weights."""
    for name, there in (
        ("num_layers", "num_hidden_layers"),
        ("hidden_size", "hidden_size"),
        ("num_attention_heads", "num_attention_heads"),
        ("intermediate_size", "intermediate_size"),
        ("max_position_embeddings", "max_position_embeddings"),
        ("type_vocab_size", "type_vocab_size"),
        ("vocab_size", "vocab_size"),
    ):
        value = base.field(config, there, int, path)
        if model.get(name, value) != value:
            raise UserError(
                f"{path} has {there}={value}, the weights beside it {model[name]}"
            )
    activation = base.field(config, "hidden_act", str, path)
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{path} has hidden_act={activation!r}; allowed: {', '.join(_ACTIVATIONS)}"
        )
    return {
        "num_attention_heads": config["num_attention_heads"],
        "hidden_activation": _ACTIVATIONS[activation],
        "dropout_rate": base.field(config, "hidden_dropout_prob", float, path, 0.1),
        "attention_dropout_rate": base.field(
            config, "attention_probs_dropout_prob", float, path, 0.1
        ),
        "initializer_range": base.field(config, "initializer_range", float, path, 0.02),
    }


def _arrays(stored, found: dict[str, str]) -> dict[str, np.ndarray]:
    """Reads the weights; sides that are split by heads become one again."""
    arrays = {}
    for here, there in found.items():
        array = stored.get_tensor(there)
        if re.search(r"self_attention/\w+/kernel$", here) and array.ndim == 3:
            one_side = here.endswith("attention_output/kernel")
            shape = (-1, array.shape[-1]) if one_side else (array.shape[0], -1)
            array = array.reshape(shape)
        elif re.search(r"self_attention/(query|key|value)/bias$", here):
            array = array.reshape(-1)
        arrays[here] = array
    return arrays


# --------------------------------------------------------------- SavedModels


def read_saved_model(folder: str) -> base.Source:
    """Reads an encoder that follows the TF Hub text API.

    Args:
        folder: with `saved_model.pb`.

    Raises:
        UserError: it is damaged, or no BERT encoder.
    """
    saved = _parse(os.path.join(folder, SAVED_MODEL))
    stored = open_checkpoint(os.path.join(folder, "variables", "variables"))
    if not stored.has_tensor(_OBJECT_GRAPH):
        raise UserError(f"{folder} is a SavedModel of TensorFlow 1; allowed: of 2")
    found, unused = _garden_names(stored)
    model = _shapes(stored, found, folder)
    notes = []
    model["hidden_activation"] = _activation(saved)
    epsilons = _epsilons(saved)
    if len(epsilons) == 1:
        model["layer_norm_epsilon"] = epsilons.pop()
    else:
        notes.append("the epsilon of layer norm is not in its graph: taken for 1e-12")
        model["layer_norm_epsilon"] = 1e-12
    ours = base.optional_json(os.path.dirname(folder.rstrip("/")), _EXPORT)
    settings = (ours.get("config") or {}).get("model") or {}
    if settings:
        for name in ("num_views", "pooling", "sentence_vector"):
            if name in settings:
                model[name] = settings[name]
    else:
        pooling = _pooling(saved)
        if pooling is None:
            notes.append("how it pools is not seen in its graph: taken for mean")
        model["pooling"] = pooling or "mean"
    vocab_name = _asset(saved, folder, "vocab_file")
    vocab = base.read_vocab(vocab_name) if vocab_name else None
    key = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"
    lower_case = bool(stored.get_tensor(key)) if stored.has_tensor(key) else None
    if lower_case is None and vocab:
        notes.append("lower case is taken from whether the vocabulary has capitals")
        lower_case = base.looks_lower_case(vocab)
    return base.Source(
        path=folder,
        kind="a TF Hub SavedModel",
        model=model,
        load=lambda: _arrays(stored, found),
        vocab=vocab,
        vocab_name=vocab_name,
        lower_case=lower_case,
        own_positions=bool(settings),
        unused=unused,
        notes=notes,
    )


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


def _nodes(saved):
    """Every node of the graph and of its functions."""
    graph = saved.meta_graphs[0].graph_def
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _activation(saved) -> str:
    """The feed-forward activation, by the op that only it uses."""
    ops = {node.op for node in _nodes(saved)}
    if "Erf" in ops or "Erfc" in ops:
        return "gelu"
    return "relu" if "Relu" in ops else "gelu_tanh"


def _epsilons(saved) -> set[float]:
    """What the layer norms add to the variance."""
    return {
        float(tf.make_ndarray(node.attr["value"].tensor))
        for node in _nodes(saved)
        if node.op == "Const" and node.name.endswith("/batchnorm/add/y")
    }


# The op that makes `default`, seen from its end.
_POOLED_BY = {
    "Tanh": "pooler",
    "StridedSlice": "cls",
    "DivNoNan": "mean",
    "RealDiv": "mean",
    "Mean": "mean",
    "Max": "max",
}


def _pooling(saved) -> Optional[str]:
    """How `default` is pooled, None where the graph does not show it.

    `default` is the first of an encoder's outputs in the order that TensorFlow stores
    a dict in, that of its keys.
    """
    meta = saved.meta_graphs[0]
    objects = meta.object_graph_def
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    for child in objects.nodes[0].children if objects.nodes else ():
        if child.local_name != "__call__":
            continue
        for name in objects.nodes[child.node_id].function.concrete_functions:
            if name in functions:
                return _POOLED_BY.get(_last_op(functions, functions[name], 0))
    return None


def _last_op(functions: dict, function, output: int) -> str:
    """The op that computes an output, behind identities, casts and calls."""
    reference = function.ret[function.signature.output_arg[output].name]
    nodes = {node.name: node for node in function.node_def}
    while True:
        name, _, rest = reference.partition(":")
        node = nodes.get(name)
        if node is None:
            return ""
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            called = functions.get(node.attr["f"].func.name)
            if called is None:
                return ""
            return _last_op(functions, called, int(rest.rpartition(":")[2] or 0))
        if node.op not in ("Identity", "IdentityN", "Cast"):
            return node.op
        index = int(rest.rpartition(":")[2] or 0) if node.op == "IdentityN" else 0
        reference = node.input[index]


def _asset(saved, folder: str, name: str) -> str:
    """The path of the asset that hangs on the root object, "" without it."""
    meta = saved.meta_graphs[0]
    objects = meta.object_graph_def
    for child in objects.nodes[0].children if objects.nodes else ():
        node = objects.nodes[child.node_id]
        if child.local_name == name and node.WhichOneof("kind") == "asset":
            index = node.asset.asset_file_def_index
            file = os.path.basename(meta.asset_file_def[index].filename)
            return os.path.join(folder, "assets", file)
    return ""
