"""Architectures of Hugging Face folders other than BERT: vectors against numpy.

The weights are BERT's under each architecture's names. Where an architecture differs
from BERT, the oracle gets the weights that make BERT compute the same.
"""

import json

import numpy as np
import pytest
from test_foreign_weights import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    POSITIONS,
    VOCAB,
    expected,
    head_weights,
    torch_weights,
    vectors,
    write_folder,
)

from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.modeling import foreign, weights

TYPES = "embeddings.token_type_embeddings.weight"
TABLE = "embeddings.position_embeddings.weight"
NO_SEGMENTS = np.zeros([2, HIDDEN], np.float32)


def renamed(tensors, table):
    for before, after in table:
        tensors = {name.replace(before, after): v for name, v in tensors.items()}
    return tensors


def distilbert():
    tensors = torch_weights()
    own = {k: v for k, v in tensors.items() if "pooler" not in k and k != TYPES}
    own = {f"distilbert.{name}": value for name, value in own.items()}
    own |= head_weights()
    names = [
        ("encoder.layer", "transformer.layer"),
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
        ("cls.predictions.transform.dense", "vocab_transform"),
        ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ]
    config = {"n_layers": LAYERS, "dim": HIDDEN, "n_heads": HEADS, "hidden_dim": INNER}
    config |= {"activation": "gelu", "max_position_embeddings": POSITIONS}
    return renamed(own, names), tensors | {TYPES: NO_SEGMENTS}, config


def electra():
    tensors = torch_weights()
    own = {f"electra.{k}": v for k, v in tensors.items() if "pooler" not in k}
    own["discriminator_predictions.dense.weight"] = np.ones([HIDDEN, HIDDEN], "f4")
    return own, tensors, {"embedding_size": HIDDEN}


def ernie():
    tensors = torch_weights()
    tasks = np.random.default_rng(3).normal(size=[3, HIDDEN]).astype(np.float32)
    own = {**tensors, "embeddings.task_type_embeddings.weight": tasks}
    return own, tensors | {TYPES: tensors[TYPES] + tasks[:1]}, {"use_task_id": True}


def roberta():
    tensors = torch_weights()
    # Two rows that no token ever reads, then the positions; one segment.
    unread = np.full([2, HIDDEN], 1e3, np.float32)
    own = tensors | {
        TABLE: np.concatenate([unread, tensors[TABLE]]),
        TYPES: tensors[TYPES][:1],
    }
    own = {f"roberta.{k}": v for k, v in own.items()}
    names = [
        ("cls.predictions.transform.dense", "lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.bias", "lm_head.bias"),
    ]
    own |= renamed(head_weights(), names)
    config = {"max_position_embeddings": POSITIONS + 2, "pad_token_id": 1}
    return own, tensors, {**config, "type_vocab_size": 1}


MADE = {"distilbert": distilbert, "electra": electra, "ernie": ernie}
MADE |= dict.fromkeys(("roberta", "xlm-roberta", "camembert"), roberta)


@pytest.mark.parametrize("kind", MADE)
def test_vectors_are_numpys(tmp_path, kind):
    own, oracle, config = MADE[kind]()
    folder = write_folder(tmp_path / kind, own, model_type=kind, **config)
    actual, trained = vectors(folder)
    np.testing.assert_allclose(actual, expected(oracle), atol=1e-5)
    # All of the source's positions belong to tokens.
    model = trained.config.model
    assert model.max_position_embeddings - model.num_views == POSITIONS
    # Pairs of texts have two segments, whatever the source has.
    assert model.type_vocab_size == 2


@pytest.mark.parametrize("kind", ["distilbert", "roberta"])
def test_the_masked_lm_head_comes_along(tmp_path, kind):
    own, _, config = MADE[kind]()
    folder = write_folder(tmp_path / kind, own, model_type=kind, **config)
    loaded = foreign.find(str(folder)).load()
    head = head_weights()
    for here, there in (
        ("transform/dense/bias", "transform.dense.bias"),
        ("transform/LayerNorm/gamma", "transform.LayerNorm.weight"),
        ("output_bias/bias", "bias"),
    ):
        np.testing.assert_array_equal(
            loaded[weights.MASKED_LM + here], head[f"cls.predictions.{there}"]
        )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "mpnet"},
            r"'mpnet' \(relative positions\); allowed: bert, dis",
        ),
        ({"model_type": "albert"}, r"'albert' \(a layer between embeddings"),
        ({"model_type": "new"}, "model_type='new'; allowed: bert, distilbert, electra"),
        (
            {"model_type": "electra", "embedding_size": 4},
            "embedding_size=4, hidden_size=16; allowed: both equal",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, config, said):
    folder = write_folder(tmp_path / "folder", **config)
    with pytest.raises(UserError, match=said) as refused:
        opening.open_trained(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("merges.txt", "#version: 0.2", "merges.txt belongs to byte-level BPE"),
        ("sentencepiece.bpe.model", "", "belongs to SentencePiece; allowed: WordPiece"),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "BPE", "vocab": {}}}),
            "is a BPE tokenizer; allowed: WordPiece",
        ),
    ],
)
def test_other_tokenizers_are_refused_by_name(tmp_path, name, content, said):
    own, _, config = roberta()
    folder = write_folder(tmp_path / "folder", own, model_type="roberta", **config)
    (folder / "vocab.txt").unlink()
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=said):
        opening.open_trained(str(folder))


def test_vocabularies_are_the_folders(tmp_path):
    own, _, config = distilbert()
    folder = write_folder(tmp_path / "folder", own, model_type="distilbert", **config)
    assert foreign.find(str(folder)).vocab == VOCAB
