"""Prunes weights to fewer words: cuts each tensor that has one row per word.

Of a checkpoint of this project, the module reads the record of its tensors and builds
no model, so it keeps the heads of any recipe. Weights of another program go into a
model of this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from cmlm.errors import UserError, one_line
from cmlm.modeling import foreign, weights
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.foreign.tf_checkpoints import OBJECT_GRAPH
from cmlm.modeling.model import SECOND_ENCODER

# Paths from the root of a checkpoint to the model's parts, and from an encoder to its
# embedding table.
_PARTS = ("model", "parts")
_TABLE = ("bert", "_embedding_layer", "embeddings")
_ENCODERS = ("encoder", SECOND_ENCODER)
# Parts with this prefix are masked-LM heads (see `SentenceModel.masked_lm`). Their
# output is tied to the table; their bias has one number per word.
_HEAD, _BIAS = "masked_lm", "bias"

_Graph = trackable_object_graph_pb2.TrackableObjectGraph


def prune(source: str, target: str, kept: np.ndarray) -> tuple[int, int]:
    """Writes the model of a checkpoint with only some of its words.

    The function holds the new weights in memory and, for a moment, the old embedding
    table.

    Args:
        source: path of a checkpoint of this project.
        target: path of the checkpoint to write. It holds the model without optimizer
            and position in the data.
        kept: bool [vocab_size], true for the words to keep.

    Returns:
        The number of weights of the model, before and after.

    Raises:
        UserError: `source` is damaged, or has another number of words.
    """
    tensors, before = {}, 0
    try:
        reader = tf.train.load_checkpoint(source)
        graph = _Graph.FromString(reader.get_tensor(OBJECT_GRAPH))
        by_word = set(_one_a_word(graph))
        _keep_only(graph, ("model", "save_counter"))
        for number, node in enumerate(graph.nodes):
            for attribute in node.attributes:
                key = attribute.checkpoint_key
                tensors[key] = value = reader.get_tensor(key)
                before += value.size
                if number in by_word:
                    if len(value) != len(kept):
                        raise UserError(
                            f"{source} has {len(value)} rows in {key}, the vocabulary "
                            f"has {len(kept)} entries"
                        )
                    tensors[key] = value[kept]
    except (tf.errors.OpError, ValueError, IndexError, KeyError) as error:
        raise UserError(
            f"{source} is damaged or not a checkpoint of a model_dir: {one_line(error)}"
        ) from error
    # Writes the tensors that tf.train.Checkpoint would write, without building objects.
    tf.raw_ops.SaveV2(
        prefix=target,
        tensor_names=[*tensors, OBJECT_GRAPH],
        shape_and_slices=[""] * (len(tensors) + 1),
        tensors=[*tensors.values(), graph.SerializeToString()],
    )
    return before, _count(tensors)


def prune_foreign(
    source: foreign.Source,
    target: str,
    kept: np.ndarray,
    config: EncoderConfig,
    seed: int,
) -> tuple[int, int]:
    """Writes weights of another program with only some of their words.

    Args:
        source: the weights.
        target: path of the checkpoint to write.
        kept: bool [vocab_size], true for the words to keep.
        config: the resolved configuration; its `vocab_size` counts these words.
        seed: the seed of the weights that the source lacks.

    Returns:
        The number of weights of the source, before and after.

    Raises:
        UserError: a weight is missing, unknown or of another shape.
    """
    arrays = source.load()
    before = _count(arrays)
    for name in weights.BY_TOKEN & arrays.keys():
        arrays[name] = arrays[name][kept]
    has_head = any(name.startswith(weights.MASKED_LM) for name in arrays)
    model = weights.model_for(config, seed, has_head)
    weights.assign(model, arrays, source.path)
    checkpoint = tf.train.Checkpoint(model=model)
    # `restore` expects the counter, which TensorFlow creates at its first use.
    checkpoint.save_counter.assign(1)
    checkpoint.write(target)
    return before, _count(arrays)


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.size for array in arrays.values())


def _one_a_word(graph: _Graph) -> Iterator[int]:
    """Yields the numbers of the nodes whose tensor has one row per word."""
    parts = _find(graph, 0, _PARTS)
    for name, part in _children(graph, parts).items():
        if name in _ENCODERS:
            yield _find(graph, part, _TABLE)
        if name.startswith(_HEAD):
            yield _find(graph, part, (_BIAS,))


def _children(graph: _Graph, number: int) -> dict[str, int]:
    return {child.local_name: child.node_id for child in graph.nodes[number].children}


def _find(graph: _Graph, number: int, path: tuple[str, ...]) -> int:
    for name in path:
        number = _children(graph, number)[name]
    return number


def _keep_only(graph: _Graph, names: tuple[str, ...]) -> None:
    """Empties every node that the named children of the root do not reach.

    Empty nodes stay in the list, because edges name nodes by their position.
    """
    root = graph.nodes[0]
    children = [child for child in root.children if child.local_name in names]
    del root.children[:]
    root.children.extend(children)
    reached, waiting = {0}, [0]
    while waiting:
        for child in _children(graph, waiting.pop()).values():
            if child not in reached:
                reached.add(child)
                waiting.append(child)
    for number, node in enumerate(graph.nodes):
        if number not in reached:
            node.Clear()
