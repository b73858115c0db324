"""Writes a folder that Hugging Face's libraries load.

`sentence_transformers.SentenceTransformer` and `transformers.AutoModel` read it. This
project reads it too and gets the same bytes of weights.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cmlm.encoders import fingerprints
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.errors import UserError, shown
from cmlm.modeling import layers, weights
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.foreign import architectures, huggingface, modules, tensors
from cmlm.modeling.foreign.architecture import Architecture
from export import (
    huggingface_files,
    huggingface_modules,
    huggingface_tokenizer,
    model_card,
)

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
# The family of a folder, by the title of its tokenizer, and its class in transformers.
_FAMILIES = {
    "WordPiece": "bert",
    "byte-level BPE": "roberta",
    "SentencePiece": "xlm-roberta",
}
_CLASSES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "mpnet": "MPNetModel",
    "electra": "ElectraModel",
}
# MPNetModel takes this id for padding, whatever config.json says.
_MPNET_PADDING = 1
# The families whose two texts of a pair have different segments.
_SEGMENTS = ("bert", "electra")


def write(
    opened: OpenedWeights,
    directory: str,
    seq_length: int,
    normalize: bool,
) -> None:
    """Writes the folder.

    Args:
        opened: the encoder to export.
        directory: an empty directory.
        seq_length: the longest sentence in tokens.
        normalize: whether to add the module that scales vectors to length 1.

    Raises:
        UserError: this format cannot represent the encoder.
    """
    model = opened.config.model
    if model.sentence_vector != "pooled":
        raise UserError(
            f"model.sentence_vector is {model.sentence_vector!r}; allowed: pooled, "
            "because a BERT folder cannot hold the projections"
        )
    if model.embedding_size and model.relative_positions:
        raise UserError(
            f"model.embedding_size is {model.embedding_size}; allowed with "
            f"model.relative_positions: 0 or {model.hidden_size}, because an MPNet "
            "folder cannot hold the layer between them"
        )
    if model.relative_positions and opened.tokenizer.pad_id != _MPNET_PADDING:
        raise UserError(
            f"{opened.tokenizer.vocab_file} gives the padding token the id "
            f"{opened.tokenizer.pad_id}; allowed with model.relative_positions: "
            f"{_MPNET_PADDING}, because MPNetModel of transformers counts positions by "
            "this id"
        )
    model_card.write(
        opened,
        directory,
        seq_length,
        for_hugging_face=True,
        normalized=normalize,
    )
    arrays = weights.read(opened.encoder, model)
    _write_weights(os.path.join(directory, tensors.FILE_NAME), arrays, opened)
    huggingface_files.write_json(directory, huggingface.CONFIG, _config(opened))
    with_segments = _family(opened) in _SEGMENTS
    huggingface_tokenizer.write(opened.tokenizer, directory, seq_length, with_segments)
    huggingface_modules.write(opened, directory, arrays, seq_length, normalize)
    _write_settings(directory, model)


def _write_settings(directory: str, model: EncoderConfig) -> None:
    """Writes the dimensions of vectors, the prompts and the default prompt's name.

    Raises:
        UserError: two prompts need one name.
    """
    settings: dict[str, Any] = {}
    if model.dimensions:
        settings[modules.TRUNCATED] = model.dimensions
    prompts = model.named_prompts
    default = None
    if model.prompt:
        names = (name for name, text in prompts.items() if text == model.prompt)
        default = next(names, "default")
        if prompts.setdefault(default, model.prompt) != model.prompt:
            raise UserError(
                f"model.prompts has the prompt {default!r} with another text than "
                f"model.prompt, {shown(model.prompt)}; allowed: another name for it"
            )
    if prompts:
        settings |= {"prompts": prompts, "default_prompt_name": default}
    if settings:
        huggingface_files.write_json(directory, modules.PROMPTS, settings)


def _family(opened: OpenedWeights) -> str:
    """The `model_type` of the folder: form or tokenizer decide, see `_FAMILIES`."""
    model = opened.config.model
    if model.relative_positions:
        return "mpnet"
    if model.embedding_size:
        return "electra"
    return _FAMILIES[opened.tokenizer.title]


def _architecture(opened: OpenedWeights) -> Architecture:
    return architectures.ARCHITECTURES[_family(opened)]


def _unused_positions(opened: OpenedWeights) -> int:
    """The rows of the position table before the first token's row."""
    follows = _architecture(opened).positions_follow_padding
    return opened.tokenizer.pad_id + 1 if follows else 0


def _write_weights(
    path: str, arrays: dict[str, np.ndarray], opened: OpenedWeights
) -> None:
    there = _architecture(opened).names(opened.config.model.num_layers)
    unused = _unused_positions(opened)
    positions = np.pad(arrays[weights.POSITIONS], [(unused, 0), (0, 0)])
    arrays = arrays | {weights.POSITIONS: positions}
    if weights.TYPES not in there:
        # Every token of a sentence gets the first row, so the positions can hold it.
        arrays[weights.POSITIONS] = positions + arrays.pop(weights.TYPES)[:1]
    # ELECTRA has no pooler. If the pooling needs one, the Dense module holds it.
    arrays = {
        name: array
        for name, array in arrays.items()
        if name in there or not name.startswith(weights.POOLER)
    }
    transposed = {
        there[name]: np.ascontiguousarray(
            array.T if huggingface.is_transposed(name) else array, np.float32
        )
        for name, array in arrays.items()
    }
    huggingface_files.write_tensors(transposed, path)


def _config(opened: OpenedWeights) -> dict:
    model = opened.config.model
    return {
        "architectures": [_CLASSES[_family(opened)]],
        "model_type": _family(opened),
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        **({"embedding_size": model.embedding_size} if model.embedding_size else {}),
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "hidden_act": _ACTIVATIONS[model.hidden_activation],
        "layer_norm_eps": model.layer_norm_epsilon,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
        "initializer_range": model.initializer_range,
        "max_position_embeddings": model.max_position_embeddings
        + _unused_positions(opened),
        **(
            {"relative_attention_num_buckets": layers.RELATIVE_BUCKETS}
            if model.relative_positions
            else {"position_embedding_type": "absolute"}
        ),
        "type_vocab_size": model.type_vocab_size,
        "vocab_size": model.vocab_size,
        "pad_token_id": opened.tokenizer.pad_id,
        "bos_token_id": opened.tokenizer.cls_id,
        "eos_token_id": opened.tokenizer.sep_id,
        "torch_dtype": "float32",
        # The last num_views positions belong to CMLM's conditions, never to a token;
        # with this entry, importing the folder gives the same encoder again.
        huggingface.OURS: {
            "num_views": model.num_views,
            "pooling": model.pooling,
            "sentence_vector": model.sentence_vector,
            **fingerprints.describe_fitted(opened),
        },
    }
