"""The architectures of Hugging Face folders that fit BERT's layout exactly.

| `model_type`                    | differences from BERT                             |
|---------------------------------|---------------------------------------------------|
| bert                            | none                                              |
| distilbert                      | other names; no segments, no pooler               |
| electra (discriminator)         | no pooler; embeddings may have another width      |
| albert                          | embeddings of another width; one layer for all    |
| ernie                           | task embeddings, added to segment embeddings      |
| roberta, xlm-roberta, camembert | positions begin after the padding id; one segment |
| mpnet                           | as roberta, and scores for the distance of tokens |

A dense layer brings embeddings of another width to the width of the encoder. ALBERT
shares one layer's weights between all layers. Here each layer gets a copy of them, and
training changes each copy by itself.

`ARCHITECTURES` is the only table. `REFUSED` names well-known architectures that BERT's
layout cannot hold, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cmlm.errors import UserError, shown
from cmlm.modeling import weights
from cmlm.modeling.foreign.architecture import Architecture

_DENSE = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "gamma", "bias": "beta"}
# The modules outside and inside a layer: the stored name, our name, and the parts.
_EMBEDDING_NORM = {"embeddings.LayerNorm": (weights.EMBEDDING_NORM, _NORM)}
_POOLER = {"pooler.dense": (weights.POOLER, _DENSE)}
_BERT_HEAD = {
    "cls.predictions.transform.dense": (weights.HEAD_DENSE, _DENSE),
    "cls.predictions.transform.LayerNorm": (weights.HEAD_NORM, _NORM),
}
_BERT_LAYER = {
    "attention.self.query": ("self_attention/query", _DENSE),
    "attention.self.key": ("self_attention/key", _DENSE),
    "attention.self.value": ("self_attention/value", _DENSE),
    "attention.output.dense": ("self_attention/attention_output", _DENSE),
    "attention.output.LayerNorm": ("self_attention_layer_norm", _NORM),
    "intermediate.dense": ("intermediate", _DENSE),
    "output.dense": ("output", _DENSE),
    "output.LayerNorm": ("output_layer_norm", _NORM),
}
_DISTILBERT_LAYER = {
    "attention.q_lin": ("self_attention/query", _DENSE),
    "attention.k_lin": ("self_attention/key", _DENSE),
    "attention.v_lin": ("self_attention/value", _DENSE),
    "attention.out_lin": ("self_attention/attention_output", _DENSE),
    "sa_layer_norm": ("self_attention_layer_norm", _NORM),
    "ffn.lin1": ("intermediate", _DENSE),
    "ffn.lin2": ("output", _DENSE),
    "output_layer_norm": ("output_layer_norm", _NORM),
}
_MPNET_LAYER = {
    "attention.attn.q": ("self_attention/query", _DENSE),
    "attention.attn.k": ("self_attention/key", _DENSE),
    "attention.attn.v": ("self_attention/value", _DENSE),
    "attention.attn.o": ("self_attention/attention_output", _DENSE),
    "attention.LayerNorm": ("self_attention_layer_norm", _NORM),
    "intermediate.dense": ("intermediate", _DENSE),
    "output.dense": ("output", _DENSE),
    "output.LayerNorm": ("output_layer_norm", _NORM),
}
_ALBERT_LAYER = {
    "attention.query": ("self_attention/query", _DENSE),
    "attention.key": ("self_attention/key", _DENSE),
    "attention.value": ("self_attention/value", _DENSE),
    "attention.dense": ("self_attention/attention_output", _DENSE),
    "attention.LayerNorm": ("self_attention_layer_norm", _NORM),
    "ffn": ("intermediate", _DENSE),
    "ffn_output": ("output", _DENSE),
    "full_layer_layer_norm": ("output_layer_norm", _NORM),
}
_ALBERT_HEAD = {
    "predictions.dense": (weights.HEAD_DENSE, _DENSE),
    "predictions.LayerNorm": (weights.HEAD_NORM, _NORM),
}
_DISTILBERT_HEAD = {
    "vocab_transform": (weights.HEAD_DENSE, _DENSE),
    "vocab_layer_norm": (weights.HEAD_NORM, _NORM),
}
_ROBERTA_HEAD = {
    "lm_head.dense": (weights.HEAD_DENSE, _DENSE),
    "lm_head.layer_norm": (weights.HEAD_NORM, _NORM),
}
# See `Architecture.fields`.
_BERT_FIELDS = {
    "num_layers": ("num_hidden_layers", int, None),
    "hidden_size": ("hidden_size", int, None),
    "num_attention_heads": ("num_attention_heads", int, None),
    "intermediate_size": ("intermediate_size", int, None),
    "hidden_activation": ("hidden_act", str, "gelu"),
    "layer_norm_epsilon": ("layer_norm_eps", float, 1e-12),
    "max_position_embeddings": ("max_position_embeddings", int, 512),
    "type_vocab_size": ("type_vocab_size", int, 2),
    "vocab_size": ("vocab_size", int, None),
    "dropout_rate": ("hidden_dropout_prob", float, 0.1),
    "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.1),
    "initializer_range": ("initializer_range", float, 0.02),
}
_DISTILBERT_FIELDS = {
    **_BERT_FIELDS,
    "num_layers": ("n_layers", int, None),
    "hidden_size": ("dim", int, None),
    "num_attention_heads": ("n_heads", int, None),
    "intermediate_size": ("hidden_dim", int, None),
    "hidden_activation": ("activation", str, "gelu"),
    "dropout_rate": ("dropout", float, 0.1),
    "attention_dropout_rate": ("attention_dropout", float, 0.1),
}
_ALBERT_FIELDS = {
    **_BERT_FIELDS,
    "hidden_activation": ("hidden_act", str, "gelu_new"),
    "dropout_rate": ("hidden_dropout_prob", float, 0.0),
    "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.0),
}
_BERT = Architecture(
    prefix="bert.",
    layers="encoder.layer",
    inside=_BERT_LAYER,
    outside={**_EMBEDDING_NORM, **_POOLER, **_BERT_HEAD},
    head_bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
    fields=_BERT_FIELDS,
    unused=r"cls\.seq_relationship\.",
)
_ROBERTA = dataclasses.replace(
    _BERT,
    prefix="roberta.",
    outside={**_EMBEDDING_NORM, **_POOLER, **_ROBERTA_HEAD},
    head_bias="lm_head.bias",
    decoder="lm_head.decoder",
    unused="",
    positions_follow_padding=True,
)
ARCHITECTURES = {
    "bert": _BERT,
    "distilbert": Architecture(
        prefix="distilbert.",
        layers="transformer.layer",
        inside=_DISTILBERT_LAYER,
        outside={**_EMBEDDING_NORM, **_DISTILBERT_HEAD},
        head_bias="vocab_projector.bias",
        decoder="vocab_projector",
        fields=_DISTILBERT_FIELDS,
        unused=r"^pre_classifier\.",
        has_types=False,
    ),
    "electra": dataclasses.replace(
        _BERT,
        prefix="electra.",
        outside={
            **_EMBEDDING_NORM,
            "embeddings_project": (weights.PROJECTION, _DENSE),
        },
        head_bias="",
        decoder="",
        unused=r"^(discriminator|generator)_predictions\.|^generator_lm_head\.",
        projects=True,
    ),
    "albert": Architecture(
        prefix="albert.",
        layers="encoder.albert_layer_groups.0.albert_layers",
        inside=_ALBERT_LAYER,
        outside={
            **_EMBEDDING_NORM,
            "encoder.embedding_hidden_mapping_in": (weights.PROJECTION, _DENSE),
            "pooler": (weights.POOLER, _DENSE),
            **_ALBERT_HEAD,
        },
        head_bias="predictions.bias",
        decoder="predictions.decoder",
        fields=_ALBERT_FIELDS,
        unused=r"^sop_classifier\.",
        projects=True,
        always_projects=True,
        shares_layers=True,
    ),
    "ernie": dataclasses.replace(
        _BERT,
        prefix="ernie.",
        added_to_types="embeddings.task_type_embeddings.weight",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": dataclasses.replace(
        _ROBERTA,
        prefix="mpnet.",
        inside=_MPNET_LAYER,
        has_types=False,
        relative_positions="encoder.relative_attention_bias.weight",
        needs_tokenizer_file=True,
    ),
}
REFUSED = {
    "deberta": "relative positions",
    "deberta-v2": "relative positions",
    "xlnet": "relative positions",
    "t5": "relative positions",
    "modernbert": "rotary positions",
    "nomic_bert": "rotary positions",
    "xlm": "another order of layer norms",
    "gpt2": "a decoder",
}


def of(config: Mapping[str, Any], path: str) -> Architecture:
    """Returns the architecture that a config.json names.

    Raises:
        UserError: this project cannot represent it.
    """
    kind = config.get("model_type")
    # JSON may have a list here, which is not a key.
    found = ARCHITECTURES.get(str(kind))
    if found is None:
        reason = REFUSED.get(str(kind))
        raise UserError(
            f"{path} has model_type={shown(kind)}{f' ({reason})' if reason else ''}; "
            f"allowed: {', '.join(ARCHITECTURES)}"
        )
    return found
