"""The weights of a BERT encoder under one set of names.

Readers of other formats produce these names, and the writer of Hugging Face folders and
the inference graph consume them. Only this module maps them to variables. The names
follow Model Garden's encoder. Every kernel is [in, out], even if a model splits one of
its axes by attention heads. With layers i from 0:

word_embeddings/embeddings                                   [vocab_size, width]
position_embedding/embeddings                                [positions, width]
type_embeddings/embeddings                                   [types, width]
relative_positions/table                                     [32, heads], in MPNet
embeddings/layer_norm/{gamma,beta}                           [width]
embedding_projection/{kernel,bias}                           if width is not hidden
transformer/layer_i/self_attention/{query,key,value,attention_output}/{kernel,bias}
transformer/layer_i/{self_attention_layer_norm,output_layer_norm}/{gamma,beta}
transformer/layer_i/{intermediate,output}/{kernel,bias}
pooler_transform/{kernel,bias}                               BERT's pooler
masked_lm/transform/dense/{kernel,bias}                      the masked-LM head from
masked_lm/transform/LayerNorm/{gamma,beta}                   hidden to width, whose
masked_lm/output_bias/bias                                   output is tied to the words
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from cmlm import errors
from cmlm.common import fields, shared_memory
from cmlm.common.keras import building, undrawn
from cmlm.errors import UserError, shown
from cmlm.modeling import layers, pooling
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel

WORDS = "word_embeddings/embeddings"
POSITIONS = "position_embedding/embeddings"
TYPES = "type_embeddings/embeddings"
RELATIVE = "relative_positions/table"
EMBEDDING_NORM = "embeddings/layer_norm"
PROJECTION = "embedding_projection"
POOLER = "pooler_transform"
MASKED_LM = "masked_lm"
HEAD_DENSE = f"{MASKED_LM}/transform/dense"
HEAD_NORM = f"{MASKED_LM}/transform/LayerNorm"
OUTPUT_BIAS = f"{MASKED_LM}/output_bias/bias"
# The weights with a row for each token.
BY_TOKEN = {WORDS, OUTPUT_BIAS}
ATTENTION = ("query", "key", "value", "attention_output")
_LAYER = re.compile(r"transformer/layer_(\d{1,4})/")
# The most names in a message.
_LISTED = 5


def layer(number: int, name: str) -> str:
    """Returns the name of a weight inside a Transformer layer."""
    return f"transformer/layer_{number}/{name}"


def layer_numbers(names: Iterable[str]) -> set[int]:
    """Returns the numbers of the Transformer layers that some names belong to."""
    found = map(_LAYER.match, names)
    return {int(match[1]) for match in found if match}


def with_layers(
    arrays: Mapping[str, np.ndarray], layers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns the weights of an encoder with some of its layers.

    Args:
        arrays: weights by name.
        layers: the numbers of the layers in ascending order; they get new numbers from
            0.
    """
    found = {}
    for name, array in arrays.items():
        match = _LAYER.match(name)
        if not match:
            found[name] = array
        elif int(match[1]) in layers:
            number = layers.index(int(match[1]))
            found[layer(number, name[match.end() :])] = array
    return found


def shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight that an encoder can have, by name.

    Args:
        config: the resolved configuration, with `vocab_size` set.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    width = config.embedding_width

    def dense(name, rows, columns):
        return {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}

    def norm(name, columns=hidden):
        return {f"{name}/gamma": (columns,), f"{name}/beta": (columns,)}

    found = {
        WORDS: (config.vocab_size, width),
        POSITIONS: (config.max_position_embeddings, width),
        TYPES: (config.type_vocab_size, width),
        **norm(EMBEDDING_NORM, width),
    }
    if config.embedding_size:
        found |= dense(PROJECTION, width, hidden)
    if config.relative_positions:
        found[RELATIVE] = (layers.RELATIVE_BUCKETS, config.num_attention_heads)
    for number in range(config.num_layers):
        for name in ATTENTION:
            found |= dense(layer(number, f"self_attention/{name}"), hidden, hidden)
        found |= norm(layer(number, "self_attention_layer_norm"))
        found |= dense(layer(number, "intermediate"), hidden, inner)
        found |= dense(layer(number, "output"), inner, hidden)
        found |= norm(layer(number, "output_layer_norm"))
    found |= dense(POOLER, hidden, hidden)
    found |= dense(HEAD_DENSE, hidden, width)
    found |= norm(HEAD_NORM, width)
    found[OUTPUT_BIAS] = (config.vocab_size,)
    return found


def encoder_variables(encoder: EncoderNetwork) -> dict[str, tf.Variable]:
    """Returns the variables of an encoder's BERT by the names above."""
    found = {
        variable.name.partition("/bert/")[2].split(":")[0]: variable
        for variable in encoder.bert.weights
        if "/bert/" in variable.name
    }
    if encoder.relative_positions is not None:
        found[RELATIVE] = encoder.relative_positions.table
    return found


def model_for(
    config: EncoderConfig, seed: int, with_head: bool = False
) -> SentenceModel:
    """Makes a `SentenceModel` whose weights `assign` replaces.

    Args:
        config: the resolved configuration, with `vocab_size` set.
        seed: the seed of the weights that a source may lack, in whole or part. The
            other weights are zero.
        with_head: whether it has a masked-LM head.
    """
    with building(seed), undrawn() as draw:
        model = SentenceModel(config)
        variables = encoder_variables(model.encoder)
        for name in (POSITIONS, f"{POOLER}/kernel", f"{POOLER}/bias"):
            draw(variables[name])
        if with_head:
            model.masked_lm()
    return model


def head_variables(head) -> dict[str, tf.Variable]:
    """Returns the variables of a masked-LM head, without the tied embedding table."""
    return {
        f"{HEAD_DENSE}/kernel": head.dense.kernel,
        f"{HEAD_DENSE}/bias": head.dense.bias,
        f"{HEAD_NORM}/gamma": head.layer_norm.gamma,
        f"{HEAD_NORM}/beta": head.layer_norm.beta,
        OUTPUT_BIAS: head.bias,
    }


def read(
    encoder: EncoderNetwork, config: EncoderConfig, without: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Reads the weights out of an encoder.

    Args:
        encoder: built from `config`.
        config: the resolved configuration, with `vocab_size` set.
        without: the names of weights to leave out.

    Returns:
        Read-only float32 arrays by name, BERT's pooler included.
    """
    wanted = shapes(config)
    return {
        name: shared_memory.as_array(variable).reshape(wanted[name])
        for name, variable in encoder_variables(encoder).items()
        if name not in without
    }


def assign(
    model: SentenceModel, weights: Mapping[str, np.ndarray], source: str
) -> list[str]:
    """Assigns weights to a model, all of them or none.

    The last `num_views` rows of the position table belong to CMLM's conditions. The
    table of a source may lack them. It then fills the rows before them, and the last
    rows keep their initial values. No token's vector depends on them.

    Args:
        model: the model to change; no head is added.
        weights: arrays by the names above. The model may keep the memory of the word
            embeddings, so the caller must not change them later.
        source: the origin of the weights, for messages.

    Returns:
        The names of weights that keep their values because the source lacks them: an
        unused pooler, or the masked-LM head.

    Raises:
        UserError: a weight is missing, unknown or has another shape.
    """
    wanted = shapes(model.config)
    unknown = sorted(set(weights) - set(wanted))
    if unknown:
        raise UserError(
            f"{source} has weights that this encoder lacks: {listed(unknown)}"
        )
    variables = encoder_variables(model.encoder)
    if "masked_lm" in model.parts:
        variables |= head_variables(model.parts["masked_lm"])
    missing = [name for name in variables if name not in weights]
    has_head = any(name.startswith(MASKED_LM) for name in weights)
    _refuse_missing(missing, model.config.pooling, has_head, source)
    for name, array in weights.items():
        _check_array(name, array, wanted[name], model.config.num_views, source)
    for name, variable in variables.items():
        if name not in weights:
            continue
        array = np.asarray(weights[name], np.float32)
        if name == POSITIONS and len(array) < variable.shape[0]:
            array = np.concatenate([array, variable.numpy()[len(array) :]])
        array = array.reshape(variable.shape)
        if name == WORDS:
            # The copies of the largest weight would take most of the memory.
            array = shared_memory.as_tensor(array)
        variable.assign(array)
    return missing


def _refuse_missing(missing: list[str], mode: str, has_head: bool, source: str) -> None:
    """Refuses a source that lacks weights.

    It may lack a pooler that the pooling does not read, and a whole masked-LM head.

    Args:
        missing: the names of the weights that it lacks.
        mode: the pooling.
        has_head: whether it has weights of a masked-LM head.
        source: the origin of the weights, for messages.

    Raises:
        UserError: another weight is missing.
    """
    needs_pooler = pooling.POOLINGS[mode].through_pooler

    def is_needed(name):
        if name.startswith(POOLER):
            return needs_pooler
        if name.startswith(MASKED_LM):
            return has_head
        return True

    needed = [name for name in missing if is_needed(name)]
    if needed and all(name.startswith(POOLER) for name in needed):
        without = [n for n, p in pooling.POOLINGS.items() if not p.through_pooler]
        raise fields.refused(
            "model.pooling", mode, f"{', '.join(without)}, as {source} has no pooler"
        )
    if needed:
        raise UserError(f"{source} lacks {listed(needed)}")


def _check_array(
    name: str, array: np.ndarray, shape: tuple[int, ...], num_views: int, source: str
) -> None:
    """Raises UserError if a weight has another shape, or a number that is not finite.

    Args:
        name, array: the weight.
        shape: the shape in the model.
        num_views: the last rows of the position table, which may be missing.
        source: the origin of the weights, for messages.
    """
    allowed = {shape}
    if name == POSITIONS:
        allowed.add((shape[0] - num_views, shape[1]))
    if tuple(array.shape) not in allowed:
        raise UserError(
            f"{source} has {name} of shape {list(array.shape)}, "
            f"the model has {' or '.join(str(list(s)) for s in sorted(allowed))}"
        )
    if not np.isfinite(array).all():
        raise UserError(f"{source} has numbers in {name} that are not finite")


def listed(names: list[str]) -> str:
    """Returns the first of some names, shortened, and the number of the others."""
    short = [shown(name)[1:-1] if len(name) > 98 else name for name in names]
    return errors.listed(short, _LISTED)
