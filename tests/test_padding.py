"""Steps that leave out padding compute the same as those that do not."""

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common.keras import keras
from cmlm.modeling import fused
from cmlm.modeling.padding import Padding, RealTokens, Unpadding, padding_of


def random_mask(batch=9, seq=16) -> np.ndarray:
    lengths = np.random.default_rng(1).integers(1, seq // 2, batch)
    return (np.arange(seq) < lengths[:, np.newaxis]).astype(np.int32)


def test_real_tokens_come_back_to_their_places():
    mask = random_mask()
    tokens = np.random.default_rng(0).normal(size=[mask.size, 3]).astype(np.float32)
    unpadding, real = Unpadding(tf.constant(mask)), mask.ravel() > 0
    few = unpadding.remove(tf.constant(tokens))
    # Rounded up to 16 tokens.
    assert len(few) == -(-mask.sum() // 16) * 16 < mask.size
    np.testing.assert_array_equal(few[: mask.sum()], tokens[real])
    np.testing.assert_array_equal(unpadding.restore(few)[real], tokens[real])


@pytest.mark.parametrize("mask", [np.ones([3, 5]), np.zeros([3, 5]), np.ones([1, 1])])
def test_batches_without_padding_and_without_tokens(mask):
    unpadding = Unpadding(tf.constant(mask, tf.int32))
    tokens = tf.reshape(tf.range(mask.size), [-1, 1])
    back = unpadding.restore(unpadding.remove(tokens))
    assert back.shape == tokens.shape
    np.testing.assert_array_equal(back[mask.ravel() > 0], tokens[mask.ravel() > 0])


def test_heads_of_real_tokens_are_split_and_joined():
    mask = random_mask(batch=5, seq=8)
    mask[2, :3] = 0, 1, 1  # padding on the left, too
    (batch, seq), heads, size = mask.shape, 2, 3
    merged = np.random.default_rng(0).normal(size=[batch, seq, 3, heads, size])
    real = RealTokens(tf.constant(mask), heads)
    np.testing.assert_array_equal(real.positions, np.argwhere(mask)[:, 1])
    np.testing.assert_array_equal(
        real.take(merged[..., 0, 0, 0]), merged[mask > 0][:, 0, 0, 0]
    )
    parts = real.split_heads(merged[mask > 0].reshape(-1, 3 * heads * size), size)
    for number, part in enumerate(parts):
        back = np.transpose(part, [0, 2, 1, 3])
        np.testing.assert_array_equal(back[mask > 0], merged[mask > 0][:, number])
        # Padding repeats a token of its own row.
        first = merged[np.arange(batch), mask.argmax(axis=1), number]
        expected = np.broadcast_to(first[:, np.newaxis], back.shape)
        np.testing.assert_array_equal(back[mask == 0], expected[mask == 0])
    joined = np.reshape(real.join_heads(parts[1]), [-1, heads, size])
    np.testing.assert_array_equal(joined, merged[mask > 0][:, 1])


def test_a_row_without_tokens_keeps_its_padding():
    real = RealTokens(tf.constant([[1, 0, 0], [0, 0, 0]]), heads=1)
    np.testing.assert_array_equal(real.positions, [0, 0, 1, 2])
    np.testing.assert_array_equal(real.place, [[0, 0, 0], [1, 2, 3]])


def test_gradients_reach_real_tokens_alone():
    mask = random_mask()
    unpadding, real = Unpadding(tf.constant(mask)), mask.ravel() > 0
    tokens, factors = tf.ones([mask.size, 2]), np.arange(2.0 * mask.size)
    factors = tf.constant(factors.reshape(-1, 2) * real[:, np.newaxis], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tokens)
        sum_ = tf.reduce_sum(unpadding.restore(unpadding.remove(tokens)) * factors)
    np.testing.assert_array_equal(tape.gradient(sum_, tokens), factors)


def test_large_batches_have_few_numbers_of_tokens():
    random, found = np.random.default_rng(0), set()
    for _ in range(50):
        lengths = random.integers(4, 49, 256)
        mask = np.arange(48) < lengths[:, np.newaxis]
        tokens = tf.zeros([mask.size, 1])
        found.add(len(Unpadding(tf.constant(mask, tf.int32)).remove(tokens)))
    # XLA compiles a step for each of them.
    assert len(found) <= 6
    assert max(found) < 0.62 * mask.size


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"pooling": "cls"},
        {"pooling": "max"},
        {"pooling": "pooler"},
        {"relative_positions": True},
        {"drophead_rate": 0.5},
        {"embedding_size": 6},
    ],
    ids=str,
)
def test_vectors_and_gradients_are_the_same(values):
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(**values)
    model.build_dropout(seed=1)
    batch = toys.bitext_batch()
    inputs = {
        "input_word_ids": tf.constant(batch["source_word_ids"], tf.int32),
        "input_mask": tf.constant(batch["source_mask"], tf.int32),
    }
    results = []
    for enabled in (False, True):
        model.reset_dropout(tf.constant(1, tf.int64))
        with fused.training(), fused.unpadding(enabled), tf.GradientTape() as tape:
            assert (
                type(padding_of(inputs["input_mask"])) is [Padding, Unpadding][enabled]
            )
            vectors = model.encoder(inputs, training=True)["default"]
            sum_ = tf.reduce_sum(vectors**2)
        gradients = tape.gradient(sum_, model.encoder.trainable_variables)
        results.append([vectors, *(g for g in gradients if g is not None)])
    padded, unpadded = results
    assert len(padded) == len(unpadded) > 10
    for got, want in zip(unpadded, padded, strict=True):
        a, b = tf.convert_to_tensor(got), tf.convert_to_tensor(want)
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bitext", "mirror", "quickthought", "scored"])
def test_objectives_leave_out_padding(name):
    model = toys.model()
    made = toys.objective(name, model, [toys.bitext_batch()], 8)
    assert made.unpads
    made.static_shapes = True
    assert not made.unpads


def test_controlled_dropout_computes_padding():
    model = toys.model()
    made = toys.objective(
        "mirror", model, [toys.mirror_batch()], 8, controlled_dropout=True
    )
    assert not made.unpads
