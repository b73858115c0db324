"""BERT in TensorFlow checkpoints of the original code and of Model Garden.

| what                                  | names of weights         | configuration     |
|---------------------------------------|--------------------------|-------------------|
| original BERT (TF 1)                  | bert/encoder/layer_0/... | bert_config.json  |
| Model Garden's encoder or pre-trainer | transformer/layer_0/...  | shapes; that file |

vocab.txt lies beside both.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from cmlm.common import json_files, path_names
from cmlm.errors import UserError, one_line
from cmlm.modeling import weights
from cmlm.modeling.foreign import base
from cmlm.tokenization import vocabulary_file

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_BERT_CONFIG = "bert_config.json"

# The original code's names inside a layer, and ours.
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
# The longest word in characters; longer words are [UNK]. The sources are
# official/nlp/tools/tokenization.py of Model Garden and tokenization.py of
# google-research/bert.
_MAX_CHARACTERS = {"garden": 400, "bert": 200}
_TF1_OUTSIDE = {
    "bert/embeddings/word_embeddings": weights.WORDS,
    "bert/embeddings/position_embeddings": weights.POSITIONS,
    "bert/embeddings/token_type_embeddings": weights.TYPES,
    "bert/embeddings/LayerNorm/gamma": f"{weights.EMBEDDING_NORM}/gamma",
    "bert/embeddings/LayerNorm/beta": f"{weights.EMBEDDING_NORM}/beta",
    "bert/pooler/dense/kernel": f"{weights.POOLER}/kernel",
    "bert/pooler/dense/bias": f"{weights.POOLER}/bias",
    "cls/predictions/output_bias": weights.OUTPUT_BIAS,
}
_TF1_UNUSED = re.compile(
    r"adam_[mv]$|^global_step$|^cls/(seq_relationship|squad)/|_power$"
    r"|^output_(weights|bias)$"
)
# Checkpoint keys that training or an export stores beside the encoder.
_UNUSED = re.compile(
    r"OPTIMIZER_SLOT|(^|/)(optimizer|_optimizer|save_counter|global_step|next_sentence|"
    r"classification_heads|do_lower_case|dropout_state|_random_generator|sif|"
    r"whitening)/|^step/"
)
_GARDEN = re.compile(
    r"(?:^|/)((?:word_embeddings|position_embedding|type_embeddings)/embeddings"
    r"|embeddings/layer_norm/\w+|embedding_projection/\w+|transformer/layer_\d+/.+"
    r"|pooler_transform/\w+)$"
)
# The table of relative positions in an export of this project.
_RELATIVE = "table"
_GARDEN_HEAD = re.compile(
    r"(?:^|/)cls/predictions/(transform/\w+/\w+|output_bias/bias)$"
)
# Model Garden and the original code call the tanh form of GELU `gelu`.
_ACTIVATIONS = {"gelu": "gelu_tanh", "gelu_approximate": "gelu_tanh", "relu": "relu"}


def open_file(prefix: str):
    """Opens a checkpoint for reading.

    Raises:
        UserError: the checkpoint is damaged, or TensorFlow cannot open its path.
    """
    path_names.refuse_pattern(prefix)
    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise UserError(
            f"{prefix} is not a readable checkpoint: {one_line(error)}"
        ) from error


def read(prefix: str) -> base.Source:
    """Reads a checkpoint of original BERT or of Model Garden's encoder.

    Args:
        prefix: the checkpoint, without `.index`.

    Raises:
        UserError: the checkpoint is neither of these, or its configuration is missing
            or contradicts it.
    """
    stored = open_file(prefix)
    folder = os.path.dirname(prefix)
    is_garden = stored.has_tensor(OBJECT_GRAPH)
    find = garden_names if is_garden else _tf1_names
    found, unused = find(stored, prefix)
    path = os.path.join(folder, _BERT_CONFIG)
    config = json_files.optional(path)
    model = shapes(stored, found, prefix)
    notes = []
    if config:
        model |= _bert_config(config, path, model)
    elif is_garden:
        notes.append("no bert_config.json: Model Garden's activation is assumed")
        model["hidden_activation"] = "gelu_tanh"
    else:
        raise UserError(
            f"{prefix} has no {_BERT_CONFIG} beside it, which states the number of "
            "attention heads"
        )
    max_characters = _MAX_CHARACTERS["garden" if is_garden else "bert"]
    vocab_name = os.path.join(folder, vocabulary_file.FILE_NAME)
    vocab = base.read_vocab(vocab_name)
    rules = base.vocabulary_rules(vocab_name, vocab, notes) if vocab else {}
    stated = {
        # As TensorFlow lower-cases, also Turkish.
        "dotless_i": False,
        "max_word_bytes": 4 * max_characters,
        "max_word_characters": max_characters,
        "style": "tf-text" if is_garden else "hugging-face",
    }
    return base.Source(
        path=prefix,
        kind=f"{'a Model Garden' if is_garden else 'an original'} BERT checkpoint",
        model=model,
        load=lambda: arrays(stored, found, prefix),
        vocab=vocab,
        vocab_name=vocab_name if vocab else "",
        rules=stated | rules,
        unused=unused,
        notes=notes,
    )


# --------------------------------------------------------------- checkpoints


def _tf1_names(stored, path: str) -> tuple[dict[str, str], list[str]]:
    def translate(name):
        if name in _TF1_OUTSIDE:
            return _TF1_OUTSIDE[name]
        inside = re.match(r"bert/encoder/layer_(\d{1,4})/(.+)/(\w+)$", name)
        if inside and inside.group(2) in _TF1_LAYER:
            number, module, part = inside.groups()
            return weights.layer(int(number), f"{_TF1_LAYER[module]}/{part}")
        head = re.match(
            r"cls/predictions/(transform/\w+/(?:kernel|bias|gamma|beta))$", name
        )
        return f"{weights.MASKED_LM}/{head[1]}" if head else None

    return base.rename(stored.get_variable_to_shape_map(), translate, _TF1_UNUSED, path)


def garden_names(stored, path: str) -> tuple[dict[str, str], list[str]]:
    """Returns the keys of an object-based checkpoint by our names, and unused keys."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    content = tensor(stored, OBJECT_GRAPH, path)
    try:
        graph.ParseFromString(content)
    # The decoder's error has another class on each of the supported protobuf versions.
    except Exception as error:
        raise UserError(
            f"{path} has a damaged {OBJECT_GRAPH}: {one_line(error)}"
        ) from error
    full_names = {
        attribute.checkpoint_key: attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }
    keys = [key for key in stored.get_variable_to_shape_map() if key != OBJECT_GRAPH]

    def translate(key):
        name = full_names.get(key, "")
        if _UNUSED.search(key):
            return None
        if match := _GARDEN.search(name):
            return match.group(1)
        if name == _RELATIVE:
            return weights.RELATIVE
        if match := _GARDEN_HEAD.search(name):
            return f"{weights.MASKED_LM}/{match[1]}"
        return None

    return base.rename(keys, translate, _UNUSED, path)


def shapes(stored, found: dict[str, str], path: str) -> dict:
    """Reads fields of EncoderConfig from the shapes of weights."""
    by_name = stored.get_variable_to_shape_map()

    def shape(name):
        if name not in found:
            raise UserError(f"{path} has no {name}; allowed: a BERT encoder")
        return by_name[found[name]]

    vocab_size, embedding_size = shape(weights.WORDS)
    numbers = weights.layer_numbers(found)
    if not numbers:
        raise UserError(f"{path} has no Transformer layer of a BERT encoder")
    query = shape(weights.layer(0, "self_attention/query/kernel"))
    hidden_size = query[0]
    model = {
        "num_layers": max(numbers) + 1,
        "hidden_size": hidden_size,
        "embedding_size": 0 if embedding_size == hidden_size else embedding_size,
        "relative_positions": weights.RELATIVE in found,
        "intermediate_size": shape(weights.layer(0, "intermediate/kernel"))[1],
        "max_position_embeddings": shape(weights.POSITIONS)[0],
        "type_vocab_size": shape(weights.TYPES)[0],
        "vocab_size": vocab_size,
    }
    if len(query) == 3:
        model["num_attention_heads"] = query[1]
    return model


def _bert_config(config: dict, path: str, model: dict) -> dict:
    """Reads further fields from bert_config.json, which must agree with the weights."""
    for name, there in (
        ("num_layers", "num_hidden_layers"),
        ("hidden_size", "hidden_size"),
        ("num_attention_heads", "num_attention_heads"),
        ("intermediate_size", "intermediate_size"),
        ("max_position_embeddings", "max_position_embeddings"),
        ("type_vocab_size", "type_vocab_size"),
        ("vocab_size", "vocab_size"),
    ):
        value = json_files.field(config, there, int, path)
        if model.get(name, value) != value:
            raise UserError(
                f"{path} has {there}={value}, the weights beside it have {model[name]}"
            )
    activation = json_files.field(config, "hidden_act", str, path)
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{path} has hidden_act={activation!r}; allowed: {', '.join(_ACTIVATIONS)}"
        )
    return {
        "num_attention_heads": config["num_attention_heads"],
        "hidden_activation": _ACTIVATIONS[activation],
        "dropout_rate": json_files.field(
            config, "hidden_dropout_prob", float, path, 0.1
        ),
        "attention_dropout_rate": json_files.field(
            config, "attention_probs_dropout_prob", float, path, 0.1
        ),
        "initializer_range": json_files.field(
            config, "initializer_range", float, path, 0.02
        ),
    }


def tensor(stored, name: str, path: str) -> Any:
    """Reads a tensor of a checkpoint: an array, or the bytes of a string.

    Args:
        stored: the checkpoint.
        name: the tensor.
        path: the path of the checkpoint, for the message.

    Raises:
        UserError: the data of the checkpoint are cut off or have another checksum.
    """
    try:
        return stored.get_tensor(name)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(
            f"{path}: tensor {name} cannot be read: {one_line(error, most=500)}"
        ) from error


def arrays(stored, found: dict[str, str], path: str) -> dict[str, np.ndarray]:
    """Reads the weights; joins the axes that a model splits by attention heads.

    Args:
        stored: the checkpoint.
        found: its name of each weight, by our name.
        path: its path, for messages.

    Raises:
        UserError: see `tensor`.
    """
    arrays = {}
    for here, there in found.items():
        array = tensor(stored, there, path)
        if re.search(r"self_attention/\w+/kernel$", here) and array.ndim == 3:
            one_side = here.endswith("attention_output/kernel")
            shape = (-1, array.shape[-1]) if one_side else (array.shape[0], -1)
            array = array.reshape(shape)
        elif re.search(r"self_attention/(query|key|value)/bias$", here):
            array = array.reshape(-1)
        arrays[here] = array
    return arrays
