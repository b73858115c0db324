"""Writes a folder that Hugging Face's libraries load.

`sentence_transformers.SentenceTransformer` and `transformers.AutoModel` read it. This
project reads it too and gets the same bytes of weights.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from cmlm.common import json_files
from cmlm.encoders import fingerprints
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.errors import UserError, shown
from cmlm.modeling import layers, pooling, weights
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.foreign import (
    architectures,
    huggingface,
    modules,
    tensors,
)
from cmlm.modeling.foreign.architecture import Architecture
from cmlm.tokenization import (
    bert_normalizer,
    letters,
    tokenizer_file,
    vocabulary_file,
)
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.rules import Rules
from export import model_card

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
# The class of transformers that reads a tokenizer.json as it stands, in every version.
_GENERAL_CLASS = "PreTrainedTokenizerFast"
_BERT_NORMALIZER = "BertNormalizer"
_PARTS = ("kernel", "bias")


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
    _write_json(directory, huggingface.CONFIG, _config(opened))
    _write_tokenizer(opened, directory, seq_length)
    _write_modules(opened, directory, arrays, seq_length, normalize)
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
        _write_json(directory, modules.PROMPTS, settings)


def _write_json(directory: str, name: str, values: Any) -> None:
    path = os.path.join(directory, name)
    json_files.write(path, values, indent=2, ensure_ascii=False)


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
    _save(transposed, path)


def _save(arrays: dict[str, np.ndarray], path: str) -> None:
    """Writes a .safetensors file.

    Raises:
        OSError: the file cannot be written.
    """
    # safetensors lets only the owner read a file; other files of a folder follow umask.
    with open(path, "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    try:
        # `transformers` refuses a file without this entry.
        safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
        os.chmod(path, mode)
    except safetensors.SafetensorError as error:
        code = re.search(r"os error (\d+)|code: (\d+)", str(error))
        if not code:
            raise
        number = int(code[1] or code[2])
        raise OSError(number, os.strerror(number), path) from error


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


def _write_tokenizer(opened: OpenedWeights, directory: str, seq_length: int) -> None:
    tokenizer = opened.tokenizer
    special = {
        f"{role}_token": tokenizer.vocab[getattr(tokenizer, f"{role}_id")]
        for role in ("unk", "sep", "pad", "cls", "mask")
    }
    if vocabulary_file.is_json(tokenizer.vocab_file):
        vocabulary_file.copy(tokenizer.vocab_file, directory)
        special["bos_token"] = special["cls_token"]
        special["eos_token"] = special["sep_token"]
        settings = {"tokenizer_class": _GENERAL_CLASS}
    else:
        settings = _write_word_pieces(tokenizer, directory)
    if _family(opened) in _SEGMENTS:
        # The general class leaves token_type_ids out by default.
        settings["model_input_names"] = [
            "input_ids",
            "token_type_ids",
            "attention_mask",
        ]
    _write_json(directory, "special_tokens_map.json", special)
    _write_json(
        directory,
        "tokenizer_config.json",
        {
            **settings,
            "model_max_length": seq_length,
            # In this project, no text gives a special token.
            "split_special_tokens": True,
            **special,
        },
    )


def _write_word_pieces(tokenizer: Tokenizer, directory: str) -> dict[str, Any]:
    """Writes the vocabulary, its rules and a tokenizer.json.

    Returns:
        The settings of tokenizer_config.json for them.
    """
    rules = tokenizer.rules
    vocab_file = os.path.join(directory, vocabulary_file.FILE_NAME)
    vocabulary_file.write(tokenizer.vocab, vocab_file)
    rules_lib.write(vocab_file, rules)
    normalizer = _normalizer(rules)
    values = _tokenizer_json(tokenizer.vocab, normalizer, rules)
    _write_json(directory, "tokenizer.json", values)
    # BertTokenizer would build its own normaliser and limit.
    is_plain = (
        normalizer["type"] == _BERT_NORMALIZER
        and _longest_word(rules) == tokenizer_file.MAX_CHARACTERS
    )
    return {
        "tokenizer_class": "BertTokenizer" if is_plain else _GENERAL_CLASS,
        "do_lower_case": rules.lower_case,
        "strip_accents": _strip_accents(rules),
        "tokenize_chinese_chars": True,
    }


def _longest_word(rules: Rules) -> int:
    """The longest word in characters, which Hugging Face counts.

    Scripts whose words are long, such as Thai, have three bytes a character, so a third
    of the bytes is the same limit there.
    """
    return rules.max_word_characters or rules.max_word_bytes // 3


def _strip_accents(rules: Rules) -> bool | None:
    """Hugging Face's setting, whose None means: as `lower_case` says."""
    return rules.strip_accents if rules.strip_accents != rules.lower_case else None


def _normalizer(rules: Rules) -> dict:
    """BERT's normaliser, after the steps that it lacks."""
    bert = {
        "type": _BERT_NORMALIZER,
        # It would drop U+FFFD, which tf-text keeps.
        "clean_text": rules.style != "tf-text",
        "handle_chinese_chars": True,
        "strip_accents": _strip_accents(rules),
        "lowercase": rules.lower_case,
    }
    before = []
    if rules.normalization:
        before.append(bert_normalizer.NORMALIZERS[rules.normalization])
    if rules.dotless_i:
        before += bert_normalizer.DOTLESS_I
    if letters.left_to_tf_text(rules):
        before += [*bert_normalizer.FOLDING, bert_normalizer.DROPPING]
    if rules.style == "tf-text":
        before.append(bert_normalizer.SPLITTING)
    return {"type": "Sequence", "normalizers": [*before, bert]} if before else bert


def _tokenizer_json(vocab: Sequence[str], normalizer: dict, rules: Rules) -> dict:
    """The content of tokenizer.json for a WordPiece vocabulary."""
    ids = {token: index for index, token in enumerate(vocab)}

    def special(token):
        return {"id": token, "ids": [ids[token]], "tokens": [token]}

    def piece(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    first = [
        piece("SpecialToken", "[CLS]", 0),
        piece("Sequence", "A", 0),
        piece("SpecialToken", "[SEP]", 0),
    ]
    second = [piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                **dict.fromkeys(flags, False),
                "special": True,
            }
            for token in sorted(vocabulary_file.SPECIAL_TOKENS, key=ids.get)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {t: special(t) for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": rules_lib.JOINER, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": rules_lib.JOINER,
            "max_input_chars_per_word": _longest_word(rules),
            "vocab": ids,
        },
    }


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


def _write_modules(
    opened: OpenedWeights,
    directory: str,
    arrays: dict[str, np.ndarray],
    seq_length: int,
    normalize: bool,
) -> None:
    """Writes sentence-transformers' modules around the BERT."""
    chain = [("", "Transformer")]
    for module in _modules(opened, arrays, normalize):
        path = f"{len(chain)}_{module.name}"
        chain.append((path, module.kind))
        folder = os.path.join(directory, path)
        os.makedirs(folder)
        if module.config:
            _write_json(folder, huggingface.CONFIG, module.config)
        if module.tensors:
            _save(module.tensors, os.path.join(folder, tensors.FILE_NAME))
    _write_json(
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
    _write_json(
        directory,
        "sentence_bert_config.json",
        {"max_seq_length": seq_length, "do_lower_case": False},
    )
