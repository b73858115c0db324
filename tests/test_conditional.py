"""The conditional encoder: equal to numpy, blind to padding, moved by its condition."""

import numpy as np
import pytest
import tensorflow as tf
import toys
from oracles import bert, masked_lm_loss, pool, project_views, weights_by_name

from cmlm.common import fields
from cmlm.modeling import masked_tokens
from cmlm.modeling.conditional import ConditionalMaskedLM
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import losses


def build(skip=False, **values):
    model = toys.model(**values)
    head = model.masked_lm(width_factor=4 if skip else 1)
    layer = ConditionalMaskedLM(model.encoder, model.projection(), head, skip=skip)
    return model, layer


def summed_loss(layer, batch):
    masked = masked_tokens.of_batch(batch)
    vectors = layer.context_vector(batch, training=False)
    logits = layer(batch, vectors, masked.tokens, training=False)
    assert logits.shape == (len(masked.labels), toys.VOCAB_SIZE)
    return losses.masked_lm(logits, masked.labels, masked.weights)


def widen(tensor, columns):
    return tf.pad(tensor, [[0, 0], [0, columns]])


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_loss_equals_a_numpy_forward_pass(pooling, skip):
    model, layer = build(skip, pooling=pooling)
    batch = toys.pair_batch()
    weights = weights_by_name(model.encoder)
    plain = {key: value.numpy() for key, value in batch.items()}

    tokens = bert(weights, plain["context_word_ids"], plain["context_mask"], 2)
    vectors = pool(tokens, plain["context_mask"], pooling)
    projection = [w.numpy() for w in model.projection().weights]
    networks = [
        list(zip(projection[i : i + 6 : 2], projection[i + 1 : i + 6 : 2]))
        for i in range(0, len(projection), 6)
    ]
    views = project_views(networks, vectors)
    sequence = bert(
        weights, plain["input_word_ids"], plain["input_mask"], 2, dense=views
    )
    if skip:
        # The output, then all three projected vectors: [batch, seq, (1 + 3) * dim].
        flat = views.reshape(len(views), 1, -1)
        flat = np.repeat(flat, sequence.shape[1], axis=1)
        sequence = np.concatenate([sequence, flat], axis=-1)
    loss, right = masked_lm_loss(
        weights_by_name(layer.masked_lm),
        weights["bert/word_embeddings/embeddings"],
        sequence,
        plain["masked_lm_positions"],
        plain["masked_lm_ids"],
        plain["masked_lm_weights"],
    )
    got_loss, got_right = summed_loss(layer, batch)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-4)
    assert float(got_right) == right


def test_padding_changes_nothing():
    _, layer = build()
    batch = toys.pair_batch()
    wider = dict(batch)
    for key in ("context_word_ids", "context_mask", "input_word_ids", "input_mask"):
        wider[key] = widen(batch[key], 5)
    np.testing.assert_allclose(
        summed_loss(layer, batch)[0], summed_loss(layer, wider)[0], rtol=1e-5
    )


def test_another_neighbour_gives_another_loss():
    _, layer = build()
    batch = toys.pair_batch()
    other = {**batch, "context_word_ids": (batch["context_word_ids"] * 7) % 50}
    difference = summed_loss(layer, batch)[0] - summed_loss(layer, other)[0]
    assert abs(float(difference)) > 1e-3


def test_the_masked_sentence_never_reaches_the_vector_it_is_given():
    _, layer = build()
    batch = toys.pair_batch()
    other = {**batch, "input_word_ids": (batch["input_word_ids"] * 3) % 50}
    np.testing.assert_array_equal(
        layer.context_vector(batch), layer.context_vector(other)
    )


def test_gradients_reach_the_encoder_through_the_condition():
    model, layer = build()
    batch = toys.pair_batch()
    context = tf.constant(layer.context_vector(batch))
    with tf.GradientTape() as tape:
        tape.watch(context)
        masked = masked_tokens.of_batch(batch)
        logits = layer(batch, context, masked.tokens)
        loss = losses.masked_lm(logits, masked.labels, masked.weights)[0]
    assert float(tf.norm(tape.gradient(loss, context))) > 1e-3
    # A word that only s1 has gets a gradient in the table, beyond the head's.
    only_s1 = dict(batch)
    only_s1["context_word_ids"] = tf.where(batch["context_mask"] > 0, 49, 0)
    only_s1["input_word_ids"] = tf.minimum(batch["input_word_ids"], 48)
    kernel = model.encoder.bert.transformer_layers[0].trainable_weights[0]
    with tf.GradientTape(persistent=True) as tape:
        vectors = layer.context_vector(only_s1)
        predicted = layer(only_s1, vectors, masked.tokens)
        through = tf.reduce_sum(predicted**2)
        vectors = tf.stop_gradient(vectors)
        predicted = layer(only_s1, vectors, masked.tokens)
        stopped = tf.reduce_sum(predicted**2)
    difference = tape.gradient(through, kernel) - tape.gradient(stopped, kernel)
    assert float(tf.norm(difference)) > 1e-3


def test_proj_is_the_mean_of_the_views():
    model = toys.model(sentence_vector="projected")
    batch = toys.pair_batch()
    inputs = {
        "input_word_ids": batch["context_word_ids"],
        "input_mask": batch["context_mask"],
    }
    pooled = model.encoder.pooled_vector(inputs)
    expected = tf.reduce_mean(model.projection()(pooled), axis=1)
    got = model.encoder(inputs)["default"]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert not np.allclose(got, pooled, atol=1e-2)


def test_type_ids_default_to_zeros():
    model = toys.model()
    ids = tf.constant([[5, 6, 7]])
    inputs = {"input_word_ids": ids, "input_mask": tf.ones_like(ids)}
    typed = {**inputs, "input_type_ids": tf.zeros_like(ids)}
    np.testing.assert_array_equal(
        model.encoder(inputs)["default"], model.encoder(typed)["default"]
    )


def test_golden_vector_of_a_seeded_model():
    """Fails when pooling or the network change unnoticed."""
    encoder = EncoderNetwork(toys.encoder_config())
    for weight in encoder.weights:
        size = int(np.prod(weight.shape))
        values = np.sin(np.arange(size) * 0.7).reshape(weight.shape) * 0.3
        weight.assign(values.astype(np.float32))
    ids = tf.constant([[2, 10, 20, 3]])
    vector = encoder({"input_word_ids": ids, "input_mask": tf.ones_like(ids)})
    golden = [0.23082906, 0.8126584, 0.62375396]
    np.testing.assert_allclose(vector["default"][0, 1:4], golden, atol=1e-4)


@pytest.mark.parametrize(
    "preset, million", [("tiny", 4.4), ("small", 28.8), ("base", 109.5)]
)
def test_presets_have_berts_size(preset, million):
    """Turc et al., 2019, table 1, and Devlin et al.: 4.4, 29.1 and 110 M."""
    config = EncoderConfig(preset=preset, vocab_size=30_522)
    fields.check(config)
    h, layers = config.hidden_size, config.num_layers
    # Counted from the shapes alone: base takes seconds and a gigabyte to build.
    table = (config.vocab_size + config.max_position_embeddings + 2) * h + 2 * h
    block = 4 * (h * h + h) + 2 * h * config.intermediate_size
    block += config.intermediate_size + h + 4 * h
    total = table + layers * block + h * h + h
    if preset == "tiny":
        encoder = EncoderNetwork(config)
        assert sum(int(np.prod(w.shape)) for w in encoder.weights) == total
    assert total / 1e6 == pytest.approx(million, abs=0.1)
