"""Files in the layout of Google's published encoders, at toy size.

No published file is downloaded. Names, ranks, signatures and assets are those of:

LaBSE/1               called with a list of three tensors, returns (pooled, sequence);
                      vocab_file (cased_vocab.txt) and do_lower_case on the root
LaBSE/2, CMLM         called with a dict, returns a dict with `default`; the vocabulary
                      belongs to the preprocessor, a SavedModel of its own
BERT (TF 1)           bert_model.ckpt with both heads and the optimizer's slots beside
                      bert_config.json with its additional pooler fields and vocab.txt

Model Garden's first BertEncoder, a functional Keras model, made the SavedModels. Its
variables are word_embeddings/embeddings, transformer/layer_0/..., pooler_transform/...
"""

import json
import logging

import numpy as np
import pytest
import tensorflow as tf
from official.nlp.modeling import networks
from test_foreign_weights import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    POSITIONS,
    TEXTS,
    VOCAB,
    expected,
    gelu_tanh,
    head_weights,
    run_settings,
    tf1_weights,
    tokens_of,
    torch_weights,
    vectors,
    write_tf1,
)

from cmlm.common.keras import keras
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling.foreign import architectures


def functional_encoder(tensors):
    """Model Garden's first encoder with given weights."""
    encoder = networks.BertEncoder(
        vocab_size=len(VOCAB),
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_sequence_length=POSITIONS,
        type_vocab_size=2,
        return_all_encoder_outputs=True,
        dict_outputs=True,
        activation=lambda x: keras.activations.gelu(x, approximate=True),
    )
    there = architectures.ARCHITECTURES["bert"].names(LAYERS)
    for variable in encoder.variables:
        name = variable.name.split(":")[0]
        value = tensors[there[name]]
        value = value.T if name.endswith("kernel") else value
        variable.assign(value.reshape(variable.shape))
    return encoder


def masked_mean(tokens, mask):
    mask = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
    return tf.reduce_sum(tokens * mask, 1) / tf.reduce_sum(mask, 1)


def save(encoder, folder, vocab_file=None, as_list=False, pooling="pooler", last=None):
    """A SavedModel as published: one callable on a trackable root.

    `last` changes the sentence vectors.
    """
    root = tf.train.Checkpoint()
    specs = {
        name: tf.TensorSpec([None, None], tf.int32, name)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    }

    @tf.function
    def call(inputs, training=False):
        if as_list:
            inputs = dict(zip(specs, inputs, strict=True))
        outputs = encoder(inputs, training=training)
        sequence, pooled = outputs["sequence_output"], outputs["pooled_output"]
        if as_list:
            return pooled, sequence
        if pooling == "mean":
            pooled = masked_mean(sequence, inputs["input_mask"])
        if last is not None:
            pooled = last(pooled)
        return {
            "default": pooled,
            "encoder_outputs": outputs["encoder_outputs"],
            "pooled_output": pooled,
            "sequence_output": sequence,
        }

    for training in (True, False):
        inputs = list(specs.values()) if as_list else specs
        call.get_concrete_function(inputs, training=training)
    root.__call__ = call
    root.variables = list(encoder.variables)
    root.trainable_variables = list(encoder.trainable_variables)
    root.regularization_losses = []
    if vocab_file:
        root.vocab_file = tf.saved_model.Asset(vocab_file)
        root.do_lower_case = tf.Variable(True, trainable=False)
    tf.saved_model.save(root, str(folder))
    return folder


@pytest.fixture(scope="module")
def encoder():
    # Published files hold no random state; a run in this process may have switched on
    # the generators that have some.
    keras.backend.experimental.disable_tf_random_generator()
    return functional_encoder(torch_weights())


def test_names_are_the_published_ones(encoder):
    names = [variable.name for variable in encoder.variables]
    # LaBSE's second variable is the position table.
    assert names[:2] == [
        "word_embeddings/embeddings:0",
        "position_embedding/embeddings:0",
    ]
    assert "transformer/layer_0/self_attention/query/kernel:0" in names
    assert names[-2:] == ["pooler_transform/kernel:0", "pooler_transform/bias:0"]
    shapes = {v.name: v.shape.as_list() for v in encoder.variables}
    query = shapes["transformer/layer_0/self_attention/query/kernel:0"]
    assert query == [HIDDEN, HEADS, HIDDEN // HEADS]


def test_labse_1_is_read(encoder, tmp_path):
    vocab = tmp_path / "cased_vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n")
    folder = save(encoder, tmp_path / "labse", str(vocab), as_list=True)
    actual, trained = vectors(folder)
    assert trained.config.model.pooling == "pooler"
    assert trained.tokenizer.rules.lower_case
    np.testing.assert_allclose(
        actual, expected(torch_weights(), "pooler", activation=gelu_tanh), atol=1e-5
    )


@pytest.mark.parametrize(
    "pooling, place",
    [
        ("mean", "encoder/vocab.txt"),
        ("pooler", "encoder/assets/cased_vocab.txt"),
        ("pooler", "preprocessor/assets/my_vocab.txt"),
    ],
)
def test_labse_2_and_cmlm_are_read(encoder, tmp_path, pooling, place):
    folder = save(encoder, tmp_path / "encoder", pooling=pooling)
    with pytest.raises(UserError, match="has no vocabulary; allowed: a vocab.txt"):
        opening.open_weights(str(folder))
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(VOCAB) + "\n")
    actual, trained = vectors(folder)
    assert trained.config.model.pooling == pooling
    wanted = expected(torch_weights(), pooling, activation=gelu_tanh)
    np.testing.assert_allclose(actual, wanted, atol=1e-5)
    ids = tf.constant([tokens_of(TEXTS[0])])
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = dict(zip(names, (ids, ids * 0 + 1, ids * 0), strict=True))
    published = tf.saved_model.load(str(folder))(inputs, training=False)
    np.testing.assert_allclose(actual[:1], published["default"], atol=1e-5)


@pytest.mark.parametrize(
    "pooling, last",
    [
        # Model Garden's LaBSE exporter scales in a function of its own.
        ("pooler", tf.function(lambda x: tf.nn.l2_normalize(x, axis=1))),
        pytest.param(
            "mean", lambda x: tf.linalg.normalize(x, axis=1)[0], marks=pytest.mark.large
        ),
        pytest.param(
            "pooler",
            lambda x: x / tf.maximum(tf.norm(x, axis=1, keepdims=True), 1e-9),
            marks=pytest.mark.large,
        ),
    ],
    ids=["l2_normalize", "normalize", "norm"],
)
def test_vectors_at_length_1_show_their_pooling(
    encoder, tmp_path, pooling, last, caplog
):
    folder = save(encoder, tmp_path / "encoder", pooling=pooling, last=last)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    with caplog.at_level(logging.INFO, logger="cmlm"):
        actual, trained = vectors(folder)
    assert trained.config.model.pooling == pooling
    assert trained.config.model.normalized
    assert "scales its vectors to length 1" in caplog.text
    wanted = expected(torch_weights(), pooling, activation=gelu_tanh)
    np.testing.assert_allclose(actual, wanted, atol=1e-5)


@pytest.mark.large
def test_a_hidden_pooling_must_be_given(encoder, tmp_path):
    folder = save(encoder, tmp_path / "encoder", last=lambda x: 2.0 * x)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    said = "encoder does not show its pooling; allowed: --pooling .*mean, max, cls"
    with pytest.raises(UserError, match=said):
        opening.open_weights(str(folder))
    with pytest.raises(UserError, match=said):
        run_settings(tmp_path, folder, ["model.pooling=source"])
    for pooling in ("cls", "pooler"):
        trained = opening.open_weights(str(folder), Reading(pooling=pooling))
        assert trained.config.model.pooling == pooling
    assert run_settings(tmp_path, folder).model.pooling == "mean"


def test_a_published_encoder_leaves_a_recipes_pooling(encoder, tmp_path):
    """CMLM's recipe pools by mean, and LaBSE/2 by its pooler."""
    folder = save(encoder, tmp_path / "encoder")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    assert opening.open_weights(str(folder)).config.model.pooling == "pooler"
    assert run_settings(tmp_path, folder).model.pooling == "mean"


def test_a_cased_vocabulary_keeps_its_case(encoder, tmp_path):
    folder = save(encoder, tmp_path / "encoder")
    for tokens, lower_case in ((VOCAB, True), ([*VOCAB[:-1], "The"], False)):
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
        trained = opening.open_weights(str(folder))
        assert trained.tokenizer.rules.lower_case == lower_case


def test_a_bert_checkpoint_as_published_is_read(tmp_path):
    arrays = tf1_weights(torch_weights() | head_weights())
    # The next-sentence head is [classes, hidden], not transposed.
    arrays["cls/seq_relationship/output_weights"] = np.ones([2, HIDDEN], np.float32)
    arrays["cls/seq_relationship/output_bias"] = np.zeros(2, np.float32)
    arrays |= {f"{name}/adam_v": value for name, value in list(arrays.items())[:3]}
    write_tf1(tmp_path, arrays)
    config = {
        "attention_probs_dropout_prob": 0.1,
        "directionality": "bidi",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
        "type_vocab_size": 2,
        "vocab_size": len(VOCAB),
    }
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (tmp_path / "bert_model.ckpt.meta").write_bytes(b"a graph that is never read")
    actual, _ = vectors(tmp_path)
    np.testing.assert_allclose(
        actual, expected(torch_weights(), activation=gelu_tanh), atol=1e-5
    )
