"""Steps that leave out padding compute the same as those that do not."""

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common.keras import keras
from cmlm.modeling import masked_tokens, step_mode
from cmlm.modeling.padding import Padding, RealTokens, Unpadding, padding_of
from cmlm.training.gradients import ReplicaGradients


def random_mask(batch=9, seq=16) -> np.ndarray:
    lengths = np.random.default_rng(1).integers(1, seq // 2, batch)
    return (np.arange(seq) < lengths[:, np.newaxis]).astype(np.int32)


def test_real_tokens_come_back_to_their_places():
    mask = random_mask()
    tokens = np.random.default_rng(0).normal(size=[mask.size, 3]).astype(np.float32)
    unpadding, real = Unpadding(tf.constant(mask), 1), mask.ravel() > 0
    few = unpadding.remove(tf.constant(tokens))
    # Rounded up to 16 tokens, one of them padding.
    assert len(few) == (mask.sum() // 16 + 1) * 16 < mask.size
    np.testing.assert_array_equal(few[: mask.sum()], tokens[real])
    np.testing.assert_array_equal(unpadding.restore(few)[real], tokens[real])


@pytest.mark.parametrize("mask", [np.ones([3, 5]), np.zeros([3, 5]), np.ones([1, 1])])
def test_batches_without_padding_and_without_tokens(mask):
    unpadding = Unpadding(tf.constant(mask, tf.int32), 1)
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


def around_attention(kind: type[Padding], mask: tf.Tensor, tokens: tf.Tensor):
    """Query - key * value of all heads, of the real tokens and without attention."""
    padding = kind(mask, 2)
    query, key, value = padding.split_heads(padding.remove(tokens))
    joined = padding.join_heads(query - key * value)
    return padding.restore(joined) * tf.reshape(tf.cast(mask, tf.float32), [-1, 1])


def test_values_and_gradients_pass_around_attention():
    mask = random_mask(seq=13)
    mask[3] = mask[3, ::-1]  # padding on the left, too
    mask, random = tf.constant(mask), np.random.default_rng(0)
    tokens = tf.constant(random.normal(size=[9 * 13, 3 * 2 * 4]), tf.float32)
    factors = tf.constant(random.normal(size=[9 * 13, 2 * 4]), tf.float32)
    results = []
    for kind in (Padding, Unpadding):
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            found = around_attention(kind, mask, tokens)
        results.append([found, tape.gradient(found, tokens, factors)])
    for got, want in zip(*results, strict=True):
        assert np.abs(want).max() > 0.1
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_large_batches_have_few_numbers_of_tokens():
    random, found = np.random.default_rng(0), set()
    for _ in range(50):
        lengths = random.integers(4, 49, 256)
        mask = np.arange(48) < lengths[:, np.newaxis]
        tokens = tf.zeros([mask.size, 1])
        found.add(len(Unpadding(tf.constant(mask, tf.int32), 1).remove(tokens)))
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
        with (
            step_mode.fusing(),
            step_mode.unpadding(enabled),
            tf.GradientTape() as tape,
        ):
            padding = padding_of(inputs["input_mask"], 2)
            assert type(padding) is [Padding, Unpadding][enabled]
            vectors = model.encoder(inputs, training=True)["default"]
            sum_ = tf.reduce_sum(vectors**2)
        gradients = tape.gradient(sum_, model.encoder.trainable_variables)
        results.append([vectors, *(g for g in gradients if g is not None)])
    padded, unpadded = results
    assert len(padded) == len(unpadded) > 10
    for got, want in zip(unpadded, padded, strict=True):
        a, b = tf.convert_to_tensor(got), tf.convert_to_tensor(want)
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("skip", [False, True])
def test_cmlm_is_the_same(skip):
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(drophead_rate=0.5 if skip else 0.0)
    model.build_dropout(seed=1)
    batch = toys.pair_batch(batch=16)
    made = toys.objective("cmlm", model, [batch], 16, skip=skip)
    results = []
    for enabled in (False, True):
        model.reset_dropout(tf.constant(1, tf.int64))
        with (
            step_mode.fusing(),
            step_mode.unpadding(enabled),
            tf.GradientTape() as tape,
        ):
            loss, _ = made.compute(batch, training=True)
        variables = [*model.encoder.trainable_variables]
        results.append([loss, *tape.gradient(loss, variables)])
    assert len(results[0]) > 10
    for got, want in zip(*reversed(results), strict=True):
        a, b = tf.convert_to_tensor(got), tf.convert_to_tensor(want)
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)


def test_most_columns_without_a_masked_token_are_left_out():
    weights = tf.sequence_mask(tf.range(32) % 5, 8, dtype=tf.float32)
    positions = tf.range(1, 9) + tf.zeros([32, 1], tf.int32)
    batch = {
        "masked_lm_positions": tf.where(weights > 0, positions, 0),
        "masked_lm_ids": tf.where(weights > 0, positions * 3, 0),
        "masked_lm_weights": weights,
    }
    every = masked_tokens.of_batch(batch)
    with step_mode.unpadding():
        few = masked_tokens.of_batch(batch)
    assert len(every.labels) == 32 * 8
    assert int(tf.reduce_sum(few.weights)) == 61
    assert len(few.labels) == 64
    real = np.argwhere(weights)
    np.testing.assert_array_equal(few.tokens[:61], real + [0, 1])
    np.testing.assert_array_equal(few.labels[:61], 3 * (real[:, 1] + 1))


BATCHES = {
    "bitext": toys.bitext_batch,
    "cmlm": toys.pair_batch,
    "mirror": toys.bitext_batch,
    "quickthought": toys.bitext_batch,
    "scored": toys.bitext_batch,
}


@pytest.mark.parametrize("name", BATCHES)
def test_objectives_leave_out_padding(name):
    model = toys.model()
    made = toys.objective(name, model, [BATCHES[name](8)], 8)
    assert made.unpads
    made.static_shapes = True
    assert not made.unpads


def test_each_replica_leaves_out_padding_in_all_its_passes(two_replicas):
    # The replicas' threads build their step in turn: one waits in the gather of the
    # loss while the other one begins.
    with two_replicas.scope():
        model = toys.model(num_layers=1)
        made = toys.objective("bitext", model, [toys.bitext_batch()], 8)
        gradients = ReplicaGradients(made, model, 2, micro_batch_size=2)
    model.build_dropout(seed=1)
    embed_side, seen = made.embed_side, []

    def spy(*args, **values):
        seen.append((step_mode.unpads(), step_mode.recomputes()))
        return embed_side(*args, **values)

    made.embed_side = spy
    batches = two_replicas.experimental_distribute_values_from_function(
        lambda _: toys.bitext_batch(4)
    )

    @tf.function(autograph=False)
    def step(batches):
        def of_replica(batch):
            scale = tf.constant(1.0)
            return gradients(batch, scale, model.encoder.trainable_variables)[0][0]

        return two_replicas.run(of_replica, args=(batches,))

    with step_mode.fusing():
        step.get_concrete_function(batches)
    # Two sides, in two passes, of two replicas.
    assert seen == [(True, True)] * 8
    assert not step_mode.unpads() and not step_mode.recomputes()


def test_controlled_dropout_computes_padding():
    model = toys.model()
    made = toys.objective(
        "mirror", model, [toys.mirror_batch()], 8, controlled_dropout=True
    )
    assert not made.unpads
