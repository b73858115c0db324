"""Writes the modules of sentence-transformers around an encoder.

`modeling/foreign/modules.py` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.modeling import pooling, weights
from cmlm.modeling.foreign import huggingface, modules, tensors
from export import huggingface_files

_PARTS = ("kernel", "bias")


class _Module(NamedTuple):
    """A module behind the Transformer.

    Attributes:
        kind: its class in sentence-transformers.
        name: its folder is the number of the module, _, and this name.
        config: its settings; {} writes no file.
        tensors: its weights by name.
    """

    kind: str
    name: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]


def _dense(name: str, kernel: np.ndarray, bias: np.ndarray, activation: str) -> _Module:
    """A dense layer.

    Args:
        name: see `_Module`.
        kernel, bias: float32 [in, out] and [out].
        activation: the class in `torch.nn.modules`.
    """
    config = {
        "in_features": kernel.shape[0],
        "out_features": kernel.shape[1],
        "bias": True,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    weight = np.ascontiguousarray(kernel.T)
    return _Module(
        "Dense", name, config, {"linear.weight": weight, "linear.bias": bias}
    )


def _word_weights(opened: OpenedWeights) -> _Module:
    vocab, table = opened.tokenizer.vocab, opened.encoder.sif.table
    config = {
        "vocab": vocab,
        "word_weights": dict(zip(vocab, table.tolist(), strict=True)),
        "unknown_word_weight": 1,
    }
    name = "WordWeights"
    return _Module(name, name, config, {"emb_layer.weight": table[:, np.newaxis]})


def _whitening(opened: OpenedWeights) -> _Module:
    layer = opened.encoder.whitening
    # The map reads the first dimensions only.
    left_out = opened.config.model.hidden_size - len(layer.kernel)
    kernel = np.pad(layer.kernel, [(0, left_out), (0, 0)])
    return _dense(modules.WHITENING, kernel, layer.bias, "linear.Identity")


def _modules(
    opened: OpenedWeights, arrays: dict[str, np.ndarray], normalize: bool
) -> Iterator[_Module]:
    """Yields the modules behind the Transformer in their order."""
    model, encoder = opened.config.model, opened.encoder
    if encoder.sif is not None:
        yield _word_weights(opened)
    config = modules.pooling_config(model.pooling, model.hidden_size)
    yield _Module("Pooling", "Pooling", config, {})
    if pooling.POOLINGS[model.pooling].through_pooler:
        kernel, bias = (arrays[f"{weights.POOLER}/{part}"] for part in _PARTS)
        yield _dense("Dense", kernel, bias, "activation.Tanh")
    if encoder.whitening is not None:
        yield _whitening(opened)
    if normalize:
        yield _Module("Normalize", "Normalize", {}, {})


def write(
    opened: OpenedWeights,
    directory: str,
    arrays: dict[str, np.ndarray],
    seq_length: int,
    normalize: bool,
) -> None:
    """Writes the chain of modules, and the longest sentence.

    Args:
        opened: the encoder.
        directory: the folder.
        arrays: the weights of the encoder, by the names of `weights`.
        seq_length: the longest sentence in tokens.
        normalize: whether to add the module that scales vectors to length 1.

    Raises:
        UserError: sentence-transformers has no such pooling.
    """
    chain = [("", "Transformer")]
    for module in _modules(opened, arrays, normalize):
        path = f"{len(chain)}_{module.name}"
        chain.append((path, module.kind))
        folder = os.path.join(directory, path)
        os.makedirs(folder)
        if module.config:
            huggingface_files.write_json(folder, huggingface.CONFIG, module.config)
        if module.tensors:
            huggingface_files.write_tensors(
                module.tensors, os.path.join(folder, tensors.FILE_NAME)
            )
    huggingface_files.write_json(
        directory,
        modules.FILE_NAME,
        [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, (path, kind) in enumerate(chain)
        ],
    )
    huggingface_files.write_json(
        directory,
        "sentence_bert_config.json",
        {"max_seq_length": seq_length, "do_lower_case": False},
    )
