"""One step: the same however its batch is spread; it stops at NaN and infinity."""

import types

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common import distributed, once
from cmlm.common.keras import keras
from cmlm.config import experiment, model_dir
from cmlm.errors import UserError
from cmlm.modeling import optimization, restoring
from cmlm.objectives import contrastive
from cmlm.training import metrics_log, pace, reporting
from cmlm.training.checkpoints import BestCheckpoint
from cmlm.training.finite import NonFiniteError
from cmlm.training.totals import means
from cmlm.training.trainer import Trainer
from cmlm.training.validation import Validator


def build(strategy, batches, names=("cmlm",), micro_batch_size=0, lr=0.1, **values):
    """A trainer with plain SGD, whose update shows the gradient itself."""
    size = len(next(iter(batches[0].values())))
    with strategy.scope():
        model = toys.model(num_layers=1)
        objectives = {
            name: toys.objective(name, model, batches, size, **values) for name in names
        }
        optimizer = keras.optimizers.legacy.SGD(lr)
        settings = toys.trainer_config(micro_batch_size=micro_batch_size)
        return Trainer(model, objectives, optimizer, strategy, settings)


def weights(trainer):
    variables = {
        weight.ref(): weight
        for part in trainer.model.parts.values()
        for weight in part.trainable_weights
    }
    return [weight.numpy() for weight in variables.values()]


@pytest.fixture
def batches():
    # Sentences of many lengths: replicas and micro-batches have unequal numbers of
    # masked words, so a mean of means would be another number.
    return [toys.pair_batch(batch=8, seed=seed) for seed in range(3)]


@pytest.mark.large
def test_two_replicas_equal_one_device(one_device, two_replicas, batches, monkeypatch):
    names = ("cmlm", "mlm")
    reference = build(one_device, batches, names)
    trainer = build(two_replicas, batches, names)
    toys.copy_weights(reference.model, trainer.model)
    before = weights(reference)
    with toys.eagerly():
        want = reference.train(1)
    real_sum, summed = distributed.sum_over_replicas, set()

    def noting(value):
        if isinstance(value, list):
            summed.add(len(value))
        return real_sum(value)

    monkeypatch.setattr(distributed, "sum_over_replicas", noting)
    got = trainer.train(1)
    # The objectives share one sum of gradients; each has a norm on one replica only.
    assert summed == {len(trainer.trained_variables)}
    assert want.keys() - got.keys() == {f"{name}/gradient_norm" for name in names}
    for key in got:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5)
    for a, b in zip(weights(trainer), weights(reference)):
        np.testing.assert_allclose(a, b, atol=1e-6)
    moved = [np.abs(a - b).max() for a, b in zip(before, weights(reference))]
    assert max(moved) > 1e-3


@pytest.mark.usefixtures("eager")
def test_micro_batches_equal_the_whole_batch(one_device, batches):
    reference = build(one_device, batches)
    trainer = build(one_device, batches, micro_batch_size=1)
    assert trainer.gradients["cmlm"].micro_batches == 8
    toys.copy_weights(reference.model, trainer.model)
    for _ in range(2):
        want, got = reference.train(1), trainer.train(1)
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-5)
    for a, b in zip(weights(trainer), weights(reference)):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_trimming_drops_padding_and_nothing_else(one_device, batches):
    objective = build(one_device, batches).objectives["cmlm"]
    batch = toys.pair_batch(batch=3, seq=7, predictions=3, seed=5)
    wide = {
        key: tf.pad(value, [[0, 0], [0, 6]]) if value.shape[1] == 7 else value
        for key, value in batch.items()
    }
    trimmed = objective.trim(wide)
    predictions = int(tf.reduce_max(tf.reduce_sum(batch["masked_lm_weights"], axis=1)))
    for key, value in batch.items():
        width = predictions if key.startswith("masked") else 7
        np.testing.assert_array_equal(trimmed[key], value[:, :width])
    np.testing.assert_allclose(
        objective.compute(trimmed, training=True)[0],
        objective.compute(wide, training=True)[0],
        rtol=1e-5,
    )


def test_micro_batches_are_announced(one_device, batches):
    trainer = build(one_device, batches, micro_batch_size=2)
    calls = []
    trainer.gradients["cmlm"].on_micro_batch = lambda *call: calls.append(call)
    trainer.train(2)
    assert calls == [(done, 4, 1) for done in range(4)] * 2


@pytest.mark.usefixtures("optimized_graphs")  # which needs the memory optimizer, too
def test_micro_batches_of_a_large_model_go_on_after_the_first_step(one_device, batches):
    # Large enough for TensorFlow to save memory with variables that outlive a loop.
    with one_device.scope():
        model = toys.model(num_layers=1, vocab_size=1_000_000)
        objective = toys.objective("cmlm", model, batches, 8)
        trainer = toys.trainer(one_device, model, objective, micro_batch_size=2)
    for _ in range(2):
        trainer.train(1)
    assert trainer.step == 2


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_loss_is_the_mean_over_all_masked_words(one_device, batches):
    trainer = build(one_device, batches[:1])
    loss, _ = trainer.objectives["cmlm"].compute(batches[0], training=True)
    count = float(tf.reduce_sum(batches[0]["masked_lm_weights"]))
    metrics = trainer.train(1)
    np.testing.assert_allclose(metrics["cmlm/loss"], float(loss) / count, rtol=1e-5)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_weight_scales_the_gradient_not_the_metric(one_device, batches):
    plain = build(one_device, batches)
    double = build(one_device, batches)
    double.objectives["cmlm"].config.weight = 2.0
    toys.copy_weights(plain.model, double.model)
    want, got = plain.train(1), double.train(1)
    np.testing.assert_allclose(got["cmlm/loss"], want["cmlm/loss"], rtol=1e-6)
    np.testing.assert_allclose(
        got["gradient_norm"], 2 * want["gradient_norm"], rtol=1e-5
    )


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_gradients_are_clipped_to_the_norm(one_device, batches):
    trainer = build(one_device, batches, lr=1.0)
    trainer.settings.optimizer.clip_norm = 0.5
    before = weights(trainer)
    norm = trainer.train(1)["gradient_norm"]
    updates = [a - b for a, b in zip(before, weights(trainer))]
    assert norm > 0.5
    total = np.sqrt(sum((update**2).sum() for update in updates))
    np.testing.assert_allclose(total, 0.5, rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.large)])
def test_a_non_finite_loss_stops_before_its_update(one_device, batches, bad, optimizer):
    trainer = build(one_device, batches, names=("cmlm", "mlm"))
    if optimizer == "adamw":
        # Its weight decay reads no gradient.
        config = optimization.OptimizerConfig(
            type="adamw", warmup_steps=0, weight_decay_rate=0.5
        )
        trainer.optimizer = optimization.build_optimizer(config, 10)
    trainer.train(1)
    # Only CMLM reads the projection. Its last layer: a fused ReLU may hide a NaN.
    kernel = trainer.model.projection().weights[4]
    kernel.assign(tf.fill(kernel.shape, bad))
    before = weights(trainer)
    with pytest.raises(
        NonFiniteError, match="the loss of cmlm is not finite in step 2"
    ):
        trainer.train(5)
    assert trainer.step == 1
    for a, b in zip(before, weights(trainer)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("eager")
def test_objectives_take_turns(one_device, batches):
    trainer = build(one_device, batches, names=("cmlm", "mlm"))
    trainer.objectives["mlm"].config.end_step = 2
    trainer.objectives["cmlm"].config.start_step = 1
    assert [trainer.active(step) for step in range(4)] == [
        ("mlm",),
        ("cmlm", "mlm"),
        ("cmlm",),
        ("cmlm",),
    ]
    projection = trainer.model.projection().weights[0].numpy()
    assert set(trainer.train(1)) == {"gradient_norm", "mlm/loss", "mlm/accuracy"}
    # Parts that no active objective moves stay as they are.
    np.testing.assert_array_equal(
        projection, trainer.model.projection().weights[0].numpy()
    )
    assert "cmlm/loss" in trainer.train(3)
    seen = {name: int(count.numpy()) for name, count in trainer.batches_seen.items()}
    assert seen == {"cmlm": 3, "mlm": 2}


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_interleaved_steps_draw_by_weight_and_draw_the_same_again(one_device, batches):
    trainer = build(one_device, batches, names=("cmlm", "mlm"))
    trainer.settings.schedule = "interleaved"
    trainer.objectives["cmlm"].config.weight = 3.0
    drawn = [trainer.active(step) for step in range(400)]
    assert drawn == [trainer.active(step) for step in range(400)]
    assert {len(names) for names in drawn} == {1}
    assert 0.68 < np.mean([names == ("cmlm",) for names in drawn]) < 0.82
    trainer.train(6)
    seen = {name: int(count.numpy()) for name, count in trainer.batches_seen.items()}
    first = sum(names == ("cmlm",) for names in drawn[:6])
    assert seen == {"cmlm": first, "mlm": 6 - first}
    # Validation scores all of them, whichever came last.
    assert {"cmlm/loss", "mlm/loss"} <= trainer.evaluate(1).keys()


@pytest.mark.large
def test_interleaved_steps_in_graphs_equal_eager_ones(one_device, batches):
    traced, eager = (build(one_device, batches, names=("cmlm", "mlm")) for _ in "ab")
    for trainer in (traced, eager):
        trainer.settings.schedule = "interleaved"
    assert {trainer.active(step) for step in range(4)} == {("cmlm",), ("mlm",)}
    toys.copy_weights(traced.model, eager.model)
    with toys.eagerly():
        want = eager.train(4)
    assert traced.train(4) == pytest.approx(want, rel=1e-5)
    for a, b in zip(weights(traced), weights(eager)):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_weight_is_no_factor_of_an_interleaved_step(one_device, batches):
    plain, interleaved = (build(one_device, batches) for _ in range(2))
    interleaved.settings.schedule = "interleaved"
    interleaved.objectives["cmlm"].config.weight = 7.0
    toys.copy_weights(plain.model, interleaved.model)
    want, got = plain.train(1), interleaved.train(1)
    np.testing.assert_allclose(got["gradient_norm"], want["gradient_norm"], rtol=1e-5)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_each_objective_has_its_gradient_norm(one_device, batches):
    both = build(one_device, batches, names=("cmlm", "mlm"))
    alone = build(one_device, batches, names=("mlm",))
    both.objectives["mlm"].config.weight = 0.2
    toys.copy_weights(both.model, alone.model)
    want, got = alone.train(1), both.train(1)
    np.testing.assert_allclose(
        got["mlm/gradient_norm"], 0.2 * want["gradient_norm"], rtol=1e-5
    )
    total = got["cmlm/gradient_norm"] + got["mlm/gradient_norm"]
    assert 0 < got["gradient_norm"] <= total


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_only_steps_that_read_vectors_change_the_reading(one_device, batches):
    with one_device.scope():
        model = toys.model(num_layers=1, pooling="pooler", sentence_vector="projected")
        objectives = {n: toys.objective(n, model, batches, 8) for n in ("mlm", "cmlm")}
        objectives["cmlm"].config.start_step = 2
        settings = optimization.OptimizerConfig(type="lamb", warmup_steps=0)
        optimizer = optimization.build_optimizer(settings, train_steps=3)
        trainer = Trainer(
            model, objectives, optimizer, one_device, toys.trainer_config()
        )
    reading = model.encoder.reading_variables
    start = [variable.numpy() for variable in reading]
    trainer.train(2)
    for variable, before in zip(reading, start):
        np.testing.assert_array_equal(variable, before)
    trainer.train(1)
    for variable, before in zip(reading, start):
        assert (variable.numpy() != before).any()


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_step_without_objective_is_an_error(one_device, batches):
    trainer = build(one_device, batches)
    trainer.objectives["cmlm"].config.end_step = 1
    trainer.train(1)
    with pytest.raises(UserError, match="no objective is active at step 1"):
        trainer.train(1)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_validation_is_the_same_on_two_replicas(one_device, two_replicas, batches):
    reference = build(one_device, batches)
    trainer = build(two_replicas, batches)
    toys.copy_weights(reference.model, trainer.model)
    want, got = reference.evaluate(1), trainer.evaluate(1)
    # Shuffling neighbours stays within a replica's share.
    for key in ("cmlm/loss", "cmlm/accuracy"):
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_conditioning_gain_is_shuffled_minus_true(one_device, batches):
    metrics = build(one_device, batches).evaluate(-1)
    np.testing.assert_allclose(
        metrics["cmlm/conditioning_gain"],
        metrics["cmlm/shuffled_loss"] - metrics["cmlm/loss"],
        atol=1e-5,
    )


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_the_shuffled_neighbour_is_half_a_batch_away(one_device):
    batch = toys.pair_batch(seed=1)
    half = len(batch["context_word_ids"]) // 2
    rolled = {
        key: tf.roll(value, half, axis=0) if key.startswith("context") else value
        for key, value in batch.items()
    }
    trainer, other = build(one_device, [batch]), build(one_device, [rolled])
    # Large weights, or a condition would change little.
    random = np.random.default_rng(3)
    for part in trainer.model.parts.values():
        shapes = [weight.shape for weight in part.get_weights()]
        part.set_weights([random.normal(0, 0.5, shape) for shape in shapes])
    toys.copy_weights(trainer.model, other.model)
    metrics, shuffled = trainer.evaluate(-1), other.evaluate(-1)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(
            metrics[f"cmlm/shuffled_{name}"], shuffled[f"cmlm/{name}"], rtol=1e-4
        )
    gain = shuffled["cmlm/loss"] - metrics["cmlm/loss"]
    np.testing.assert_allclose(metrics["cmlm/conditioning_gain"], gain, atol=1e-4)
    assert abs(gain) > 1e-3


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_row_alone_has_no_wrong_neighbour(one_device):
    batch = toys.pair_batch(batch=5)
    objective = build(one_device, [batch]).objectives["cmlm"]
    without = objective.evaluate({key: value[:4] for key, value in batch.items()})
    alone = objective.evaluate({key: value[4:] for key, value in batch.items()})
    for name in ("shuffled_loss", "shuffled_accuracy", "conditioning_gain"):
        assert float(without[name][1]) > 0
        np.testing.assert_array_equal(alone[name], [0, 0])
    assert float(alone["loss"][1]) > 0


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_row_of_metrics_weighs_each_step_once(one_device, batches, tmp_path):
    """The steps of two loops, of which each objective takes part in some."""
    trainer = build(one_device, batches, names=("cmlm", "mlm"))
    trainer.settings.schedule = "interleaved"
    trainer.objectives["mlm"].config.train_data.global_batch_size = 2
    trainer.settings.seed = 2
    drawn = [trainer.active(step)[0] for step in range(6)]
    assert [drawn[:2].count("mlm"), drawn[2:].count("mlm")] == [1, 3]
    settings = experiment.TrainerConfig(train_steps=6, summary_interval=6)
    reporter = reporting.Reporter(str(tmp_path), settings, trainer)
    totals = {}
    for steps in (2, 4):
        metrics = trainer.train(steps)
        for key, (total, count) in trainer.totals.items():
            totals.setdefault(key, []).append((total, count))
        reporter.trained(metrics)
    (row,) = metrics_log.read_metrics(str(tmp_path / "metrics.jsonl"))
    for name in ("cmlm", "mlm"):
        total, count = np.sum(totals[f"{name}/loss"], axis=0)
        np.testing.assert_allclose(row[f"train/{name}/loss"], total / count, rtol=1e-6)
    assert trainer.examples_seen == 8 * drawn.count("cmlm") + 2 * drawn.count("mlm")
    assert row["train/examples_per_second"] > 0


def test_a_validation_within_a_row_is_no_time_of_training(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    trainer = types.SimpleNamespace(step=0, examples_seen=0, learning_rate=0.1)
    trainer.strategy, trainer.gradients, trainer.totals = None, {}, {}
    trainer.objectives = {}
    settings = experiment.TrainerConfig(train_steps=20, summary_interval=20)
    reporter = reporting.Reporter(str(tmp_path), settings, trainer)
    for step in (10, 20):
        now += 5
        trainer.step, trainer.examples_seen = step, 8 * step
        reporter.trained({})
        now += 100
        reporter.validated({"cmlm/loss": 1.0}, "")
    rows = metrics_log.read_metrics(str(tmp_path / "metrics.jsonl"))
    rates = [row.get("train/examples_per_second") for row in rows]
    assert rates == [None, 160 / 10, None]


@pytest.mark.parametrize(
    ("candidates", "excluded", "said"),
    [
        (1.0, 0.0, "quickthought: the only candidate of each text is its own partner"),
        (8.9, 9.0, "quickthought: a text ranks less than half of its batch, because"),
        (9.0, 8.9, ""),
    ],
)
def test_texts_with_few_candidates_are_told(
    tmp_path, caplog, candidates, excluded, said
):
    once.warn.cache_clear()
    trainer = types.SimpleNamespace(step=0, examples_seen=0, learning_rate=0.1)
    trainer.strategy, trainer.gradients, trainer.totals = None, {}, {}
    trainer.objectives = {}
    settings = experiment.TrainerConfig(train_steps=20, summary_interval=10)
    reporter = reporting.Reporter(str(tmp_path), settings, trainer)
    trainer.step = 10
    objective = types.SimpleNamespace(warning=contrastive.ranking_warning)
    trainer.objectives = {"mlm": objective, "quickthought": objective}
    trainer.totals = {
        "quickthought/candidates": [8 * candidates, 8.0],
        "quickthought/excluded": [8 * excluded, 8.0],
    }
    for step in (10, 20):
        trainer.step = step
        reporter.trained({})
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text


def test_a_validation_of_many_metrics_is_a_short_line_and_a_whole_row(tmp_path, caplog):
    trainer = types.SimpleNamespace(step=20, examples_seen=0, learning_rate=0.1)
    trainer.strategy, trainer.gradients, trainer.totals = None, {}, {}
    trainer.objectives = {}
    settings = experiment.TrainerConfig(train_steps=20)
    reporter = reporting.Reporter(str(tmp_path), settings, trainer)
    caplog.set_level("INFO", "cmlm")
    for number in (40, 43):
        metrics = {f"bitext/pair_{n}": n / 2 for n in range(number)}
        reporter.validated(metrics, "  (kept)")
        row = metrics_log.read_metrics(str(tmp_path / "metrics.jsonl"))[-1]
        assert (
            metrics.items()
            <= {
                name.removeprefix("validation/"): value for name, value in row.items()
            }.items()
        )
    whole, short = (record.getMessage() for record in caplog.records)
    assert whole.startswith("validation at step 20: bitext/pair_0 0.0000  bitext/pai")
    assert whole.endswith("  bitext/pair_39 19.5000  (kept)")
    assert short == whole.replace("  (k", "  and 3 more in metrics.jsonl  (k")


def test_a_value_that_is_not_finite_is_never_the_best(one_device, batches, tmp_path):
    trainer = build(one_device, batches)
    settings = experiment.TrainerConfig(
        best_checkpoint_metric="cmlm/loss", best_checkpoint_comparison="lower"
    )
    best = BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
    kept = [best.offer({"cmlm/loss": loss}) for loss in (np.nan, 3.0, np.inf, 5.0, 2.0)]
    assert [bool(remark) for remark in kept] == [False, True, False, False, True]
    # As float32, 0.1 is a little larger.
    assert best.offer({"cmlm/loss": 0.1}) and not best.offer({"cmlm/loss": 0.1})


def test_a_checkpoint_holds_no_random_state(tmp_path):
    """One of an earlier version does, and may have more or fewer dropout layers."""
    keras.backend.experimental.enable_tf_random_generator()
    model = toys.model(num_layers=1, dropout_rate=0.1)
    model.build_dropout(seed=0)
    assert model._dropout.states
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    assert not [name for name, _ in tf.train.list_variables(path) if "state" in name]
    model._dropout_states = model._dropout.states
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "earlier"))
    assert [name for name, _ in tf.train.list_variables(path) if "state" in name]
    other = toys.model(num_layers=1)
    other.build_dropout(seed=0)
    restoring.restore(path, model=other)


def test_each_step_has_dropout_of_its_own_on_a_tpu(monkeypatch):
    """A TPU's generator reads the key and the first word of the counter."""
    keras.backend.experimental.enable_tf_random_generator()
    states = {}
    for on_tpu in (False, True):
        monkeypatch.setattr(distributed, "is_tpu", lambda strategy, on=on_tpu: on)
        model = toys.model(num_layers=1, dropout_rate=0.1)
        model.build_dropout(seed=3)
        for step in (0, 1):
            model.reset_dropout(tf.constant(step, tf.int64))
            found = tf.stack(model.dropout_state()).numpy()
            states[on_tpu, step] = found.tolist()
    assert states[False, 1] == [[0, 1, key] for _, _, key in states[False, 0]]
    read = {(low, key) for step in (0, 1) for low, _, key in states[True, step]}
    assert len(read) == 2 * len(states[True, 0])


@pytest.mark.parametrize(
    ("step", "metric", "comparison", "counts"),
    [
        (1, "cmlm/loss", "lower", True),
        (0, "cmlm/loss", "lower", False),
        (1, "mlm/loss", "lower", False),
        (1, "cmlm/loss", "higher", False),
    ],
)
def test_the_best_value_is_of_this_run_and_this_metric(
    one_device, batches, tmp_path, step, metric, comparison, counts
):
    """A run may begin again behind a kill, or resume with another metric."""
    trainer = build(one_device, batches)

    def offer(name: str, comparison: str, value: float) -> str:
        settings = experiment.TrainerConfig(
            best_checkpoint_metric=name, best_checkpoint_comparison=comparison
        )
        best = BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
        return best.offer({name: value})

    assert offer("cmlm/loss", "lower", 3.0)
    trainer.optimizer.iterations.assign(step)
    # Either way, a value that equals the stored one is not better.
    assert bool(offer(metric, comparison, 3.0)) != counts


def test_the_best_of_a_run_that_was_deleted_does_not_count(
    one_device, batches, tmp_path, caplog
):
    """Its checkpoint stays until the run of now has validated."""
    caplog.set_level("INFO", "cmlm")
    trainer = build(one_device, batches)
    settings = experiment.TrainerConfig(best_checkpoint_metric="cmlm/loss")

    def start(step: int) -> tuple[BestCheckpoint, metrics_log.MetricsLog]:
        trainer.optimizer.iterations.assign(step)
        best = BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
        return best, metrics_log.MetricsLog(str(tmp_path), step)

    best, log = start(0)
    trainer.optimizer.iterations.assign(10)
    assert best.offer({"cmlm/loss": 1.0})
    log.write(10, {"validation/cmlm/loss": 1.0})
    assert not start(10)[0].offer({"cmlm/loss": 2.0}) and not caplog.messages
    # The user deletes the checkpoints, and the run begins again and is stopped.
    start(0)
    _, log = start(5)
    log.write(5, {"train/cmlm/loss": 9.0})
    best, _ = start(7)
    said = (
        "best/ was chosen by a validation that is not in metrics.jsonl: the run "
        "chooses it anew"
    )
    assert caplog.messages == [said] * 3
    assert (tmp_path / model_dir.BEST / "ckpt-10.index").exists()
    assert best.offer({"cmlm/loss": 2.0})
    assert (tmp_path / model_dir.BEST / "ckpt-7.index").exists()


def test_a_best_checkpoint_without_its_metric_counts(one_device, batches, tmp_path):
    """Version 0.1.0 stored the value alone."""
    trainer = build(one_device, batches)
    settings = experiment.TrainerConfig(
        best_checkpoint_metric="cmlm/loss", best_checkpoint_comparison="lower"
    )
    stored = tf.train.Checkpoint(model=trainer.model, best_value=tf.Variable(3.0))
    folder = str(tmp_path / model_dir.BEST)
    tf.train.CheckpointManager(stored, folder, 1).save(checkpoint_number=1)
    trainer.optimizer.iterations.assign(2)
    best = BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
    assert not best.offer({"cmlm/loss": 4.0}) and best.offer({"cmlm/loss": 2.0})


def test_a_truncated_best_checkpoint_is_named(one_device, batches, tmp_path):
    trainer = build(one_device, batches)
    settings = experiment.TrainerConfig(best_checkpoint_metric="cmlm/loss")
    trainer.optimizer.iterations.assign(1)
    BestCheckpoint(str(tmp_path), settings, trainer, {}, True).offer({"cmlm/loss": 1.0})
    (data,) = (tmp_path / model_dir.BEST).glob("*.data-*")
    data.write_bytes(data.read_bytes()[:9])
    with pytest.raises(UserError, match=r"best/ckpt-1 is damaged, or .*") as caught:
        BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
    assert "\n" not in str(caught.value)


def test_a_best_metric_that_validation_lacks_is_said(one_device, batches, tmp_path):
    """It is misspelt, or nothing is held out that it could measure."""
    trainer = build(one_device, batches)
    settings = experiment.TrainerConfig(best_checkpoint_metric="cmlm/los")
    best = BestCheckpoint(str(tmp_path), settings, trainer, {}, True)
    said = "  (this validation has not measured cmlm/los: best/ stays)"
    assert best.offer({"cmlm/loss": 1.0}) == said
    assert best.offer({"stsb-dev/spearman": 1.0}) == ""


def test_a_metric_over_nothing_has_no_mean():
    totals = {"scored/order": [0.0, 0.0], "scored/loss": [3.0, 2.0]}
    assert means(totals) == {"scored/loss": 1.5}


def test_sizes_that_do_not_divide_are_named(one_device, two_replicas):
    batches = [toys.pair_batch(batch=7)]
    with pytest.raises(UserError, match="size is 7; allowed: multiples of 2, the"):
        build(two_replicas, batches)
    with pytest.raises(UserError, match="is 2; allowed: 0, or a divisor of the 7 "):
        build(one_device, batches, micro_batch_size=2)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "name, size",
    [("cmlm", 1), ("cmlm", 3), ("nsp", 3), ("bitext", 1), ("bitext", 3), ("mirror", 3)],
)
def test_micro_batches_change_no_validation(one_device, name, size):
    """Of 8 rows: also where the last micro-batch is a short one."""
    batches = {
        "nsp": toys.order_batch,
        "bitext": toys.bitext_batch,
        "mirror": toys.mirror_batch,
    }
    made = [batches.get(name, toys.pair_batch)(8)]
    trainer = build(one_device, made, (name,))
    want = trainer.evaluate(-1)
    got = Validator(trainer.objectives, one_device, size, -1).evaluate([name])
    assert got.keys() == want.keys()
    for key in want:
        # Which sentence is whose wrong neighbour depends on the micro-batch.
        if "shuffled" not in key and "gain" not in key:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, err_msg=key)


@pytest.mark.large
@pytest.mark.parametrize("name", ["cmlm", "bitext"])
def test_the_program_of_a_tpu_does_not_grow_with_its_micro_batches(one_device, name):
    """A sum over words, a ranking of texts; also where the last one is short."""
    make = {"bitext": toys.bitext_batch}.get(name, toys.pair_batch)
    batch = make(9)
    trainer = build(one_device, [batch], (name,))
    objective = trainer.objectives[name]
    objective.static_shapes = True
    want = trainer.validator._metrics(objective, batch)
    nodes = set()
    for size in (4, 2):
        validator = Validator(trainer.objectives, one_device, size, -1)
        metrics = tf.function(validator._metrics, autograph=False)
        graph = metrics.get_concrete_function(objective, batch).graph.as_graph_def()
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        nodes.add(sum(map(len, bodies)))
        got = metrics(objective, batch)
        assert got.keys() == want.keys()
        for key in want:
            # Which sentence is whose wrong neighbour depends on the micro-batch.
            if "shuffled" not in key and "gain" not in key:
                np.testing.assert_allclose(got[key], want[key], rtol=1e-4, err_msg=key)
    assert len(nodes) == 1


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_validation_holds_a_micro_batch_at_a_time(one_device, batches):
    trainer = build(one_device, batches, ("cmlm", "mlm"))
    rows = []
    for objective in trainer.objectives.values():
        objective.evaluate = _noting_rows(objective.evaluate, rows)
    Validator(trainer.objectives, one_device, 4, -1).evaluate(["cmlm", "mlm"], 1)
    assert set(rows) == {4}


def _noting_rows(evaluate, rows):
    def wrapped(batch):
        tf.py_function(lambda n: rows.append(int(n)), [len_of(batch)], [])
        return evaluate(batch)

    def len_of(batch):
        return tf.shape(batch["input_mask"])[0]

    return wrapped


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("fraction", [0.1, 0])
def test_held_out_text_that_fills_no_batch_is_named(
    one_device, batches, fraction, caplog
):
    """A host of a TPU drops a smaller batch. A share of 0 is a decision."""
    trainer = build(one_device, batches)
    objective = trainer.objectives["cmlm"]
    objective.static_shapes = True
    objective.config.train_data.hold_out_fraction = fraction
    rows = objective.train_dataset(tf.distribute.InputContext())

    def validation_dataset(context):
        assert fraction, "the whole text would be read in vain"
        return rows.take(0)

    objective.validation_dataset = validation_dataset
    assert trainer.evaluate(-1) == {}
    said = "cmlm is not validated: the held-out data of one host has less than"
    assert (said in caplog.text) == (fraction > 0)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "examples, steps, taken",
    [(1, -1, 1), (8, -1, 1), (9, -1, 2), (-1, -1, 6), (8, 3, 3)],
)
def test_validation_takes_so_many_examples(one_device, batches, examples, steps, taken):
    """Of 3 batches of 8, twice; steps are batches, and win."""
    trainer = build(one_device, batches)
    validator = Validator(trainer.objectives, one_device, 0, examples)
    metrics, real_next = [], validator._next

    def noting(*arguments):
        metrics.append(real_next(*arguments))
        return metrics[-1]

    validator._next = noting
    validator.evaluate(["cmlm"], steps)
    assert len(metrics) == taken


def test_a_loop_takes_a_second_and_ends_at_every_interval(monkeypatch):
    now = 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    settings = experiment.TrainerConfig(
        steps_per_loop=40, summary_interval=100, checkpoint_interval=70
    )
    clock, step, loops = pace.Pace(settings, 0), 0, []
    # The seconds that each step of a loop takes.
    for seconds in (0.5, 0.5, 0.1, 0.01, 0.01, 0.01, 0.01, 3.0, 3.0):
        loops.append(clock.next_loop(step))
        step += loops[-1]
        now += loops[-1] * seconds
        clock.looped(step)
    # 15 and 30 end at steps 70 and 100; 40 is the most.
    assert loops == [1, 2, 2, 10, 40, 15, 30, 40, 1]
