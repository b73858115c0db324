"""LAMB and AdamW as Model Garden builds them, against numpy and TensorFlow Addons."""

import numpy as np
import pytest
import tensorflow as tf
from oracles import lamb_step
from tensorflow.python.distribute import tpu_values
from tensorflow.python.tpu import tpu_replication

from cmlm.common import fields
from cmlm.errors import UserError
from cmlm.modeling import optimization, restoring
from cmlm.modeling.optimization import OptimizerConfig


def config(**values) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=0.01, warmup_steps=0, **values)


def variables():
    random = np.random.default_rng(3)
    kernel = tf.Variable(
        random.normal(size=[4, 3]), name="dense/kernel", dtype=tf.float32
    )
    bias = tf.Variable(random.normal(size=[3]), name="dense/bias", dtype=tf.float32)
    return kernel, bias


def gradients(step):
    random = np.random.default_rng(100 + step)
    return random.normal(size=[4, 3]).astype("f4"), random.normal(size=[3]).astype("f4")


def test_lamb_equals_numpy_over_ten_steps():
    optimizer = optimization.build_optimizer(config(), train_steps=100)
    kernel, bias = variables()
    k, b = kernel.numpy().astype("f8"), bias.numpy().astype("f8")
    km = kv = bm = bv = 0.0
    for step in range(1, 11):
        gk, gb = gradients(step)
        optimizer.apply_gradients([(tf.constant(gk), kernel), (tf.constant(gb), bias)])
        lr = 0.01 * (1 - (step - 1) / 100)
        k, km, kv = lamb_step(k, km, kv, gk, step, lr, 0.9, 0.999, 1e-6, 0.01)
        # Neither decay nor layer adaptation for a bias.
        b, bm, bv = lamb_step(b, bm, bv, gb, step, lr, 0.9, 0.999, 1e-6, 0.0, False)
    np.testing.assert_allclose(kernel, k, rtol=2e-5)
    np.testing.assert_allclose(bias, b, rtol=2e-5)


def test_lamb_equals_addons():
    addons = pytest.importorskip("tensorflow_addons", reason="Python 3.11 only")
    theirs = addons.optimizers.LAMB(
        learning_rate=0.01,
        weight_decay=0.01,
        exclude_from_weight_decay=list(optimization.NO_WEIGHT_DECAY),
    )
    # A schedule that stays at its start: one hundred million steps long.
    ours = optimization.build_optimizer(config(), train_steps=10**8)
    mine, other = variables(), variables()
    for step in range(1, 11):
        pairs = [tf.constant(g) for g in gradients(step)]
        ours.apply_gradients(zip(pairs, mine))
        theirs.apply_gradients(zip(pairs, other))
    for a, b in zip(mine, other):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_a_weight_that_starts_late_takes_no_larger_steps(kind, is_sparse):
    """With a constant gradient, every update of Adam is the learning rate."""
    settings = config(type=kind, decay="constant", weight_decay_rate=0.0)
    optimizer = optimization.build_optimizer(settings, train_steps=10**4)
    bias = tf.Variable(np.ones(3, "f4"), name="dense/bias")
    optimizer._create_all_weights([bias])
    optimizer.iterations.assign(5_000)
    gradient = tf.constant([1.0, -2.0, 3.0])
    if is_sparse:
        gradient = tf.IndexedSlices(gradient, tf.range(3), tf.constant([3]))
    for _ in range(3):
        before = bias.numpy()
        optimizer.apply_gradients([(gradient, bias)])
        np.testing.assert_allclose(np.abs(before - bias.numpy()), 0.01, rtol=1e-3)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_weights_without_a_device_are_updated(kind, two_replicas):
    """In the program of a TPU, Keras finds no coefficients for a weight."""

    def mirrored(value):
        parts = []
        for number in range(2):
            with tf.device(f"CPU:{number}"):
                parts.append(tf.Variable(value, name=f"dense/kernel_{number}"))
        kind = tf.VariableAggregation.NONE
        return tpu_values.TPUMirroredVariable(two_replicas, parts, kind)

    optimizer = optimization.build_optimizer(config(type=kind), train_steps=100)
    kernel = mirrored([1.0, 2.0])
    slots = {"m": [0.0, 0.0], "v": [0.0, 0.0], optimization._UPDATES: 0.0}
    slots = {name: mirrored(value) for name, value in slots.items()}
    optimizer.get_slot = lambda _, name: slots[name]
    assert optimizer.iterations is not None  # Keras makes it at its first use.

    @tf.function(autograph=False)
    def program(gradient):
        state = optimizer._prepare([kernel])
        context = tpu_replication.TPUReplicateContext("program", 2, pivot=tf.no_op())
        context.Enter()
        assert (kernel.device, tf.float32) not in state
        optimizer._resource_apply_dense(gradient, kernel, apply_state=state)
        context.Exit()
        return gradient

    program.get_concrete_function(tf.TensorSpec([2]))


def test_adamw_decays_kernels_only():
    optimizer = optimization.build_optimizer(
        config(type="adamw", weight_decay_rate=0.5), train_steps=10**8
    )
    kernel, bias = variables()
    before = kernel.numpy(), bias.numpy()
    optimizer.apply_gradients(
        [(tf.zeros([4, 3]), kernel), (tf.zeros([3]), bias)],
        experimental_aggregate_gradients=False,
    )
    np.testing.assert_allclose(kernel, before[0] * (1 - 0.01 * 0.5), rtol=1e-6)
    np.testing.assert_array_equal(bias, before[1])


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_the_optimizer_leaves_clipping_to_its_caller(kind):
    optimizer = optimization.build_optimizer(
        config(type=kind, clip_norm=1.0), train_steps=100
    )
    kernel, _ = variables()
    gradient = 30 * gradients(0)[0]
    optimizer.apply_gradients([(tf.constant(gradient), kernel)])
    moment = optimizer.get_slot(kernel, "m")
    np.testing.assert_allclose(moment, 0.1 * gradient, rtol=1e-5)


def test_schedule_warms_up_and_falls_to_zero():
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=10)
    rate = optimization.build_optimizer(config, train_steps=110).learning_rate
    for step in (0, 5, 110):
        assert optimization.learning_rate(config, 110, step) == float(rate(step))
    assert float(rate(0)) == 0.0
    np.testing.assert_allclose(rate(5), 1e-3 / 2, rtol=1e-5)
    np.testing.assert_allclose(rate(10), 1e-3, rtol=1e-5)
    np.testing.assert_allclose(rate(60), 1e-3 / 2, rtol=1e-5)
    np.testing.assert_allclose(rate(110), 0.0, atol=1e-9)


@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_a_constant_rate_stays_after_its_warm_up(warmup_steps):
    config = OptimizerConfig(
        type="adamw", learning_rate=0.5, warmup_steps=warmup_steps, decay="constant"
    )
    optimizer = optimization.build_optimizer(config, train_steps=10)
    rates = []
    for step in range(12):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer._decayed_lr("float32")))
        assert optimization.learning_rate(config, 10, step) == pytest.approx(rates[-1])
    grown = [0.5 * step / 4 for step in range(warmup_steps)]
    np.testing.assert_allclose(rates, [*grown, *[0.5] * (12 - warmup_steps)])


@pytest.mark.parametrize("decay", ["constant", "linear"])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_a_checkpoint_leaves_the_settings_as_they_are(tmp_path, kind, decay):
    """Checkpoints of earlier versions hold rates, too."""
    kernel, _ = variables()
    weights = kernel.numpy()
    earlier = optimization.build_optimizer(
        OptimizerConfig(type=kind, warmup_steps=0, decay=decay), train_steps=10
    )
    earlier._hypers_created = False
    earlier._create_all_weights([kernel])
    checkpoint = tf.train.Checkpoint(optimizer=earlier, kernel=kernel)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    changed = config(type=kind, decay="constant", beta_1=0.5, weight_decay_rate=0.5)
    optimizer = optimization.build_optimizer(changed, train_steps=10)
    optimizer._create_all_weights([kernel])
    restoring.restore(path, optimizer=optimizer, kernel=kernel)
    optimizer.apply_gradients(
        [(tf.zeros_like(kernel), kernel)], experimental_aggregate_gradients=False
    )
    # LAMB makes the update as long as the weights.
    rate = 0.01 * (0.5 if kind == "adamw" else 1)
    np.testing.assert_allclose(kernel, weights * (1 - rate), rtol=1e-6)
    assert optimizer._get_hyper("beta_1") == 0.5


def test_a_decay_may_end_before_the_run():
    config = OptimizerConfig(
        learning_rate=1.0, warmup_steps=4, decay_steps=8, end_learning_rate=0.5
    )
    rate = optimization.build_optimizer(config, train_steps=10).learning_rate
    want = [0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]
    np.testing.assert_allclose([float(rate(step)) for step in range(11)], want)


@pytest.mark.parametrize("decay_steps", [3, 4])
def test_a_decay_that_ends_in_the_warm_up_leaves_the_full_rate(decay_steps, caplog):
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, decay_steps=decay_steps)
    rate = optimization.build_optimizer(config, train_steps=10).learning_rate
    found = [float(rate(step)) for step in range(8)]
    np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 1, 1, 1, 1])
    assert (
        "the learning rate does not decay: trainer.optimizer.decay_steps is "
        f"{decay_steps}, and the warm-up takes 4 steps"
    ) in caplog.text


def test_the_defaults_are_the_paper_s():
    found = OptimizerConfig()
    assert (found.type, found.learning_rate, found.warmup_steps) == ("lamb", 1e-3, 1e4)
    assert (found.decay, found.end_learning_rate) == ("linear", 0)
    assert (found.beta_1, found.beta_2, found.epsilon) == (0.9, 0.999, 1e-6)
    assert (found.weight_decay_rate, found.clip_norm) == (0.01, 1)


@pytest.mark.parametrize("decay", [False, True])
def test_lamb_never_adapts_the_rate_of_norms_and_biases(decay):
    optimizer = optimization.build_optimizer(
        config(type="lamb", decay_norms_and_biases=decay), 10
    )
    names = ["dense/kernel", "dense/bias", "layer_norm/gamma"]
    adapts = [optimizer._do_layer_adaptation(name) for name in names]
    assert adapts == [True, False, False]


def test_norms_and_biases_decay_where_asked():
    optimizer = optimization.build_optimizer(
        config(type="adamw", weight_decay_rate=0.5, decay_norms_and_biases=True), 10**8
    )
    made = variables()
    before = [variable.numpy() for variable in made]
    optimizer.apply_gradients(
        [(tf.zeros_like(variable), variable) for variable in made],
        experimental_aggregate_gradients=False,
    )
    for variable, old in zip(made, before, strict=True):
        np.testing.assert_allclose(variable, old * (1 - 0.01 * 0.5), rtol=1e-6)


@pytest.mark.parametrize(
    "field, value",
    [
        ("type", "sgd"),
        ("learning_rate", 0.0),
        ("epsilon", 0.0),
        ("beta_1", 1.0),
        ("beta_1", -0.1),
        ("beta_2", 1.0),
        ("beta_2", -0.1),
        ("decay_steps", 0),
        ("end_learning_rate", -0.1),
        ("weight_decay_rate", -0.1),
        ("warmup_steps", -1),
        ("clip_norm", -0.1),
    ],
)
def test_values_out_of_range_are_named(field, value):
    lowest = OptimizerConfig(
        **dict.fromkeys(("beta_1", "beta_2", "end_learning_rate"), 0),
        **dict.fromkeys(("warmup_steps", "weight_decay_rate", "clip_norm"), 0),
        decay_steps=1,
    )
    fields.check(lowest)
    bad = OptimizerConfig(**{field: value})
    with pytest.raises(UserError, match=rf"^{field} is .*{value}.*; allowed: "):
        fields.check(bad)


@pytest.mark.parametrize("warmup_steps, silent", [(9, True), (10, False)])
def test_a_warm_up_as_long_as_the_decay_is_told(caplog, warmup_steps, silent):
    config = OptimizerConfig(warmup_steps=warmup_steps)
    optimizer = optimization.build_optimizer(config, train_steps=10)
    rates = [float(optimizer.learning_rate(step)) for step in range(10)]
    # Steps 0 to 9: the rate of step 9 is the highest one that a warm-up of 10 gives.
    assert (max(rates) == np.float32(1e-3)) == silent
    assert ("the learning rate stays below" not in caplog.text) == silent
