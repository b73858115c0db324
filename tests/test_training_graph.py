"""The fused step computes what the plain one does: values, gradients, randomness."""

import math

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common import machine
from cmlm.common.keras import keras
from cmlm.modeling import fused, layers, step_mode
from cmlm.training.trainer import Trainer

BATCH = 8


def build(strategy, fused_layers, micro_batch_size=0, **values) -> Trainer:
    batch = toys.pair_batch(batch=BATCH)
    with strategy.scope():
        model = toys.model(num_layers=1, **values)
        return toys.trainer(
            strategy,
            model,
            toys.objective("cmlm", model, [batch], BATCH),
            micro_batch_size=micro_batch_size,
            fused_layers=fused_layers,
        )


def weights(trainer) -> np.ndarray:
    """All weights, one after the other."""
    parts = trainer.model.parts.values()
    return np.concatenate([w.ravel() for part in parts for w in part.get_weights()])


def compiled(function) -> int:
    """The number of functions in a graph that XLA must compile."""
    library = function.graph.as_graph_def().library.function
    return sum(each.attr["_XlaMustCompile"].b for each in library)


def test_the_fused_step_equals_the_plain_one_on_two_replicas(one_device, two_replicas):
    plain = build(one_device, "never")
    trainer = build(two_replicas, "always", micro_batch_size=2)
    assert trainer.fused and not plain.fused
    toys.copy_weights(plain.model, trainer.model)
    before = weights(plain)
    with toys.eagerly():
        want = plain.train(1)
    got = trainer.train(1)
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5)
    np.testing.assert_allclose(weights(trainer), weights(plain), atol=2e-6)
    assert not step_mode.fuses()
    assert np.abs(weights(plain) - before).max() > 1e-3


@pytest.mark.large
def test_mixed_precision_is_as_close_to_float32_as_the_plain_step(one_device):
    if not machine.has_bfloat16():
        # On an AMD EPYC with AVX2: 0.035, and 0.018 of the plain step.
        pytest.skip("the bound holds on processors with instructions for bfloat16")
    exact, updates = build(one_device, "never"), {}
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    for choice in ("never", "always"):
        trainer = build(one_device, choice)
        toys.copy_weights(exact.model, trainer.model)
        before = weights(trainer)
        trainer.train(1)
        updates[choice] = weights(trainer) - before
    keras.mixed_precision.set_global_policy("float32")
    before = weights(exact)
    with toys.eagerly():
        exact.train(1)
    update = weights(exact) - before
    size = np.linalg.norm(update)
    found = {name: np.linalg.norm(e - update) / size for name, e in updates.items()}
    assert 0 < found["always"] < max(1.2 * found["never"], 0.01)


@pytest.mark.parametrize(
    "values",
    [{"relative_positions": True}, {"drophead_rate": 0.5}, {"embedding_size": 6}],
    ids=str,
)
def test_other_forms_are_those_of_the_layers(values):
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(**values)
    encoder, random = model.encoder, tf.random.Generator.from_seed(3)
    model.build_dropout(seed=1)
    if encoder.relative_positions is not None:
        table = encoder.relative_positions.table
        table.assign(random.normal(table.shape))
    results = []
    for enabled in (False, True):
        model.reset_dropout(tf.constant(1, tf.int64))
        batch = toys.pair_batch()
        with step_mode.fusing(enabled), tf.GradientTape() as tape:
            vectors = encoder(batch, training=True)["default"]
        gradients = tape.gradient(vectors, encoder.trainable_variables)
        results.append([vectors, *(g for g in gradients if g is not None)])
    plain, fast = results
    assert len(plain) == len(fast) > 10
    for got, want in zip(fast, plain, strict=True):
        a, b = tf.convert_to_tensor(got), tf.convert_to_tensor(want)
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.large
def test_dropout_follows_from_seed_and_step(one_device):
    keras.backend.experimental.enable_tf_random_generator()
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
    first, second = (build(one_device, "always", **rates) for _ in range(2))
    toys.copy_weights(first.model, second.model)
    start = [part.get_weights() for part in first.model.parts.values()]
    losses = [first.train(1)["cmlm/loss"], second.train(1)["cmlm/loss"]]
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(weights(first), weights(second))
    # The same weights and batch, another step: other draws.
    for part, values in zip(first.model.parts.values(), start, strict=True):
        part.set_weights(values)
    assert first.train(1)["cmlm/loss"] != losses[0]


def test_pieces_equal_their_formulas():
    random = tf.random.Generator.from_seed(3)
    x, y, upstream = (random.normal([6, 8]) for _ in range(3))
    bias, gamma, beta = (random.normal([8]) for _ in range(3))
    kept = fused.kept(random, tf.shape(x), 0.25)
    share = tf.cast(kept, tf.float32) / 0.75
    mask = tf.constant([0.0] * 6 + [-1e9] * 2)

    def norm(x, y, bias, gamma, beta):
        total = x + (y + bias) * share
        mean, variance = tf.nn.moments(total, -1, keepdims=True)
        return (total - mean) / tf.sqrt(variance + 1e-3) * gamma + beta

    def recomputed(*values):
        with step_mode.recomputing():
            return fused.gelu_product(*values)

    def formula_of_product(x, bias, kernel):
        return tf.nn.gelu(x + bias, approximate=False) @ kernel

    kernel = random.normal([8, 8])
    products = (fused.gelu_product, recomputed)
    cases = [
        (
            lambda *v: sum(fused.residual_norm(*v, 1e-3, kept, 0.25)),
            lambda *v: 2 * norm(*v),
            (x, y, bias, gamma, beta),
        ),
        (
            lambda *v: fused.norm_dropout(*v, 1e-3, kept, 0.25),
            lambda x, gamma, beta: norm(x, 0.0, 0.0, gamma, beta) * share,
            (x, gamma, beta),
        ),
        (fused.add_bias, lambda x, b: x + b, (x, bias)),
        (fused.gelu, lambda x, b: tf.nn.gelu(x + b, approximate=False), (x, bias)),
        *((product, formula_of_product, (x, bias, kernel)) for product in products),
        (
            lambda s: fused.attention_probabilities(s, mask, 0.5, kept, 0.25),
            lambda s: tf.nn.softmax(0.5 * s + mask) * share,
            (x,),
        ),
    ]
    for piece, formula, values in cases:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(values)
            got, want = piece(*values), formula(*values)
        np.testing.assert_allclose(got, want, atol=2e-6)
        for a, b in zip(
            tape.gradient(got, values, output_gradients=upstream),
            tape.gradient(want, values, output_gradients=upstream),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, atol=5e-6)


def test_bfloat16_sums_over_many_rows():
    """TensorFlow's own gradient of a bias stops at 256: it adds up in bfloat16."""
    x, bias = tf.zeros([5000, 3], tf.bfloat16), tf.zeros([3])
    for piece in (fused.add_bias, fused.gelu):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            y = piece(x, bias)
        gradient = tape.gradient(y, bias, tf.ones_like(y))
        slope = 1.0 if piece is fused.add_bias else 0.5
        np.testing.assert_allclose(gradient, [5000 * slope] * 3, rtol=4e-3)
    layer = keras.layers.Dense(3, dtype="mixed_bfloat16")
    layer.build([None, 2])
    for shape, compiled in (([5000, 2], True), ([50, 100, 2], False)):
        with step_mode.fusing(compiled), tf.GradientTape() as tape:
            y = fused.dense(layer, tf.ones(shape, tf.bfloat16))
        assert y.shape == (*shape[:-1], 3)
        want = layer(tf.ones([1, 2]))[0]
        np.testing.assert_array_equal(tf.reshape(y, [-1, 3])[0], want)
        gradient = tape.gradient(y, layer._trainable_weights[1], tf.ones_like(y))
        np.testing.assert_allclose(gradient, [5000] * 3, rtol=4e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_biases_of_a_head_of_words_are_summed_over_many_rows(compiled):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    head = layers.MaskedLM(tf.ones([3, 2], tf.bfloat16))
    head(tf.zeros([1, 2], tf.bfloat16))
    with step_mode.fusing(compiled), tf.GradientTape() as tape:
        logits = head(tf.ones([5000, 2], tf.bfloat16))
    bias = tape.gradient(logits, head.bias._variable, tf.ones_like(logits))
    np.testing.assert_allclose(bias, [5000] * 3, rtol=4e-3)


def test_the_biases_of_a_classifier_are_summed_over_many_rows():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        head = layers.Classifier(2, 2, activation=None)
        head(tf.zeros([1, 1, 2]))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    head.out_proj.set_weights([np.array([[1, 2], [3, -1]]), np.zeros(2)])
    with step_mode.fusing(False), tf.GradientTape() as tape:
        logits = head(tf.ones([5000, 1, 2], tf.bfloat16))
    weights = [head.dense.trainable_weights[1], head.out_proj.trainable_weights[1]]
    inner, outer = tape.gradient(logits, weights, tf.ones_like(logits))
    np.testing.assert_allclose(outer, [5000, 5000], rtol=4e-3)
    np.testing.assert_allclose(inner, [15000, 10000], rtol=4e-3)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_cross_entropy_counts_the_first_of_equal_logits(dtype):
    logits = tf.cast([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [-1.0, 3.0, 1.5]], dtype)
    labels = tf.constant([0, 1, 2])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss, right = fused.cross_entropy(logits, labels)
    np.testing.assert_array_equal(right, [1, 0, 0])
    wide = np.asarray(tf.cast(logits, tf.float32), np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(shares[range(3), labels]), rtol=1e-6)
    gradient = tf.cast(tape.gradient(loss, logits), tf.float32)
    np.testing.assert_allclose(
        gradient, shares - np.eye(3)[labels], atol=1e-6 if dtype == tf.float32 else 4e-3
    )


def test_dropout_keeps_its_share():
    random = tf.random.Generator.from_seed(3)
    kept = fused.kept(random, tf.constant([1001, 99]), 0.1).numpy()
    rate = fused.exact_rate(0.1)
    assert math.isclose(rate, 0.1, abs_tol=1e-5)
    # Six standard deviations.
    assert abs(1 - kept.mean() - rate) < 6 * math.sqrt(0.09 / kept.size)
    assert fused.kept(random, tf.constant([4]), 0.0) is None
    # The quotient of a kept element stays finite.
    assert fused.exact_rate(0.9999999) < 1
    fused.kept(random, tf.constant([4]), 0.9999999)


@pytest.mark.large
def test_graphs_outside_of_the_step_are_plain():
    encoder = toys.model().encoder
    inputs = encoder.dummy_inputs()

    def graph(training):
        function = tf.function(
            lambda: encoder(inputs, training=training)["default"], autograph=False
        )
        return function.get_concrete_function()

    # Exports and validation are built like this.
    for training in (False, True):
        assert not compiled(graph(training))
        with step_mode.fusing():
            assert compiled(graph(training))


@pytest.mark.parametrize("values", [{}, {"drophead_rate": 0.5}], ids=str)
def test_a_step_can_encode_without_dropout(values):
    """MiSAD scores its candidates within a step."""
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(dropout_rate=0.5, attention_dropout_rate=0.5, **values)
    model.build_dropout(seed=1)
    batch = toys.pair_batch()
    want = model.encoder(batch, training=False)["default"]
    with step_mode.fusing():
        got = model.encoder(batch, training=False)["default"]
        dropped = model.encoder(batch, training=True)["default"]
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.abs(dropped - want).max() > 0.01


@pytest.mark.parametrize("enabled", [False, True])
def test_the_output_of_attention_has_the_dropout_of_outputs(enabled):
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(dropout_rate=0.0, attention_dropout_rate=0.5)
    model.build_dropout(seed=1)
    # Without values, the probabilities of attention do not matter.
    for block in model.encoder.bert.transformer_layers:
        value = block._attention_layer._value_dense
        value.set_weights([np.zeros_like(array) for array in value.get_weights()])
    batch = toys.pair_batch()
    with step_mode.fusing(enabled):
        kept, dropped = (
            model.encoder(batch, training=training)["default"]
            for training in (False, True)
        )
    np.testing.assert_allclose(dropped, kept, atol=1e-5)


@pytest.mark.parametrize("unpads", [False, True])
def test_reading_some_tokens_equals_reading_all(unpads):
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model()
    batch, encoder = toys.pair_batch(), model.encoder
    vectors = tf.random.Generator.from_seed(3).normal([len(batch["input_mask"]), 16])
    conditions = model.projection()(vectors)
    # Unordered, and one of them twice: its gradient has two parts.
    tokens = tf.constant([[3, 1], [0, 0], [2, 1], [0, 0]])
    factors = tf.random.Generator.from_seed(4).normal([4, 16])

    def outputs():
        yield encoder.read(batch, tokens, training=True)
        yield encoder.read_conditional(batch, conditions, tokens, training=True)

    variables = [w for w in encoder.trainable_variables if "pooler" not in w.name]
    results = []
    for enabled in (False, True):
        with step_mode.fusing(enabled), step_mode.unpadding(enabled and unpads):
            with tf.GradientTape(persistent=True) as tape:
                found = list(outputs())
                sums = [tf.reduce_sum(each * factors) for each in found]
        results.append(found)
        for sum_ in sums:
            gradients = tape.gradient(sum_, variables)
            results[-1] += [tf.convert_to_tensor(each) for each in gradients]
    for got, want in zip(*reversed(results), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=1e-4)
    want = encoder(batch, training=True)["sequence_output"]
    np.testing.assert_allclose(results[1][0], tf.gather_nd(want, tokens), atol=1e-5)


def test_auto_takes_wide_models_on_processors():
    width = step_mode.LEAST_WIDTH
    assert step_mode.wants_fusing("auto", width, on_cpu=True)
    assert not step_mode.wants_fusing("auto", width - 1, on_cpu=True)
    assert not step_mode.wants_fusing("auto", width, on_cpu=False)
    assert not step_mode.wants_fusing("never", width, on_cpu=True)
    assert step_mode.wants_fusing("always", 16, on_cpu=False)
