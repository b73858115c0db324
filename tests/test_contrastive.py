"""Bitext retrieval: the same loss and gradient however a batch is spread and held."""

import types

import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys

from cmlm.common import distributed, fields
from cmlm.common.keras import keras
from cmlm.errors import UserError
from cmlm.objectives import contrastive
from cmlm.objectives.bitext import BitextConfig

BATCH = 8


def build(strategy, batches, micro_batch_size=0, dropout=0.0, **values):
    with strategy.scope():
        model = toys.model(
            num_layers=1, dropout_rate=dropout, attention_dropout_rate=dropout
        )
        objective = toys.objective("bitext", model, batches, BATCH, **values)
        return toys.trainer(
            strategy, model, objective, micro_batch_size=micro_batch_size
        )


def assert_equal_step(trainer, reference):
    """One step of both: the same metrics and the same gradient, to 1e-5.

    The reference runs eagerly, so the comparison is that of a graph as well, unless the
    test is eager.
    """
    toys.copy_weights(reference.model, trainer.model)
    before = reference.model.encoder.get_weights()
    with toys.eagerly():
        want = reference.train(1)
    got = trainer.train(1)
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5, err_msg=key)
    after = reference.model.encoder.get_weights()
    for a, b in zip(trainer.model.encoder.get_weights(), after, strict=True):
        np.testing.assert_allclose(a / 0.1, b / 0.1, atol=1e-5)
    moved = max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))
    assert moved > 1e-3
    return want


@pytest.mark.large
def test_two_replicas_equal_one_device(one_device, two_replicas):
    negatives = 2
    batches = [toys.bitext_batch(BATCH, negatives, duplicates=True)]
    reference = build(one_device, batches)
    metrics = assert_equal_step(build(two_replicas, batches), reference)
    # Every text of the global batch is a candidate, not only those of a replica.
    assert metrics["bitext/candidates"] + metrics["bitext/excluded"] == pytest.approx(
        BATCH * (1 + negatives)
    )
    assert metrics["bitext/excluded"] > 0


def test_replicas_may_validate_unequal_shares(one_device, two_replicas, monkeypatch):
    """The last batch of held-out text: four rows on one replica, two on the other."""
    rows = {key: value[:6] for key, value in toys.bitext_batch(BATCH, 2).items()}

    def validation_dataset(self, input_context):
        size = input_context.get_per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(rows).batch(size)

    reference = build(one_device, [toys.bitext_batch(BATCH, 2)])
    trainer = build(two_replicas, [toys.bitext_batch(BATCH, 2)])
    toys.copy_weights(reference.model, trainer.model)
    for objective in (reference.objectives["bitext"], trainer.objectives["bitext"]):
        monkeypatch.setattr(type(objective), "validation_dataset", validation_dataset)
    with toys.eagerly():
        want = reference.evaluate(-1)
    got = trainer.evaluate(-1)
    assert want["bitext/candidates"] + want["bitext/excluded"] == 6 * 3
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_negatives_of_the_own_replica_only(one_device, two_replicas):
    """The gradient is the mean of those of two half batches, each ranked alone."""
    batch = toys.bitext_batch(BATCH, negatives=2, duplicates=True)
    reference = build(one_device, [batch])
    trainer = build(two_replicas, [batch], cross_replica_negatives=False)
    toys.copy_weights(reference.model, trainer.model)
    metrics = trainer.train(1)
    assert metrics["bitext/candidates"] + metrics["bitext/excluded"] == pytest.approx(
        BATCH / 2 * (1 + 2)
    )
    halves = [
        {key: value[i : i + BATCH // 2] for key, value in batch.items()}
        for i in (0, BATCH // 2)
    ]
    objective = reference.objectives["bitext"]
    variables = reference.model.encoder.trainable_variables
    before = [variable.numpy() for variable in variables]
    with tf.GradientTape() as tape:
        losses = [
            objective.embedding_loss(objective.embed(half, training=True), half)[0]
            for half in halves
        ]
        loss = sum(losses) / BATCH
    np.testing.assert_allclose(metrics["bitext/loss"], loss, rtol=1e-5)
    after = trainer.model.encoder.trainable_variables
    gradients = tape.gradient(loss, variables)
    for old, new, gradient in zip(before, after, gradients, strict=True):
        np.testing.assert_allclose(
            (old - new.numpy()) / 0.1, tf.convert_to_tensor(gradient), atol=2e-5
        )


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_cached_gradients_equal_those_of_the_whole_batch(one_device):
    batches = [toys.bitext_batch(BATCH, negatives=2, duplicates=True)]
    reference = build(one_device, batches)
    assert_equal_step(build(one_device, batches, micro_batch_size=4), reference)


@pytest.mark.usefixtures("eager")
def test_cached_gradients_announce_two_passes(one_device):
    trainer = build(one_device, [toys.bitext_batch(BATCH)], micro_batch_size=4)
    calls = []
    trainer.gradients["bitext"].on_micro_batch = lambda *call: calls.append(call)
    trainer.train(1)
    assert trainer.gradients["bitext"].micro_batches == 2
    assert calls == [(done, 2, 2) for done in range(4)]


def test_cached_gradients_wait_by_few_edges(one_device):
    """Each operation that waits for every gradient by itself makes the graph large."""
    batch = toys.bitext_batch(BATCH, negatives=1)
    trainer = build(one_device, [batch], micro_batch_size=4)
    variables = trainer.model.encoder.trainable_variables

    @tf.function(autograph=False)
    def step(batch):
        return trainer.gradients["bitext"](batch, tf.constant(1.0), variables)

    batch = {key: tf.constant(value) for key, value in batch.items()}
    library = step.get_concrete_function(batch).graph.as_graph_def().library
    operations = [node for function in library.function for node in function.node_def]
    edges = sum(name[0] == "^" for node in operations for name in node.input)
    assert len(operations) > 500
    assert edges < len(operations) / 2


@pytest.mark.large
@pytest.mark.parametrize("strategy", ["one_device", "two_replicas"])
def test_cached_gradients_replay_dropout(strategy, request):
    """Against one tape over all micro-batches, which keeps every activation."""
    if strategy == "one_device":
        request.getfixturevalue("eager")
    strategy = request.getfixturevalue(strategy)
    # As a run does: dropout draws from generators whose state can be set.
    keras.backend.experimental.enable_tf_random_generator()
    batches = [toys.bitext_batch(BATCH, negatives=1)]
    trainer = build(strategy, batches, micro_batch_size=2, dropout=0.3)
    objective, model = trainer.objectives["bitext"], trainer.model
    variables = model.encoder.trainable_variables
    share = BATCH // strategy.num_replicas_in_sync

    @tf.function(autograph=False)
    def uncached():
        def replica(batch):
            with tf.GradientTape() as tape:
                vectors = [
                    objective.embed(
                        objective.trim({k: v[i : i + 2] for k, v in batch.items()}),
                        training=True,
                    )
                    for i in range(0, share, 2)
                ]
                loss, _ = objective.embedding_loss(tf.concat(vectors, axis=0), batch)
                loss /= BATCH
            gradients = tape.gradient(
                loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, [loss, *gradients])

        model.reset_dropout(tf.constant(0, tf.int64))
        shares = strategy.experimental_distribute_values_from_function(
            lambda context: {
                key: value[context.replica_id_in_sync_group * share :][:share]
                for key, value in batches[0].items()
            }
        )
        results = strategy.run(replica, args=(shares,))
        return [strategy.experimental_local_results(value)[0] for value in results]

    loss, *gradients = uncached()
    before = [variable.numpy() for variable in variables]
    metrics = trainer.train(1)
    np.testing.assert_allclose(metrics["bitext/loss"], loss, rtol=1e-5)
    for variable, old, gradient in zip(variables, before, gradients, strict=True):
        np.testing.assert_allclose(
            (old - variable.numpy()) / 0.1, gradient, atol=2e-5, err_msg=variable.name
        )
    # Dropout is on: without it the loss is another.
    plain, _ = objective.embedding_loss(
        objective.embed(batches[0], training=False), batches[0]
    )
    assert abs(float(plain) / BATCH - float(loss)) > 1e-3


@pytest.mark.large
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("negatives, absent", [(0, 0), (2, 0), (2, 5)])
def test_loss_by_its_formula(one_device, similarity, negatives, absent):
    """With `absent`, some rows have fewer hard negatives than others, or none."""
    batch = toys.bitext_batch(BATCH, negatives, duplicates=True)
    # The last row but one has the source of row 1, and its target comes again.
    again = batch["target_hash"].numpy()
    again[3] = again[-2]
    batch["target_hash"] = tf.constant(again)
    if negatives:
        hard = batch["negative_hash"].numpy()
        hard[0, 0] = again[-2]
        batch["negative_hash"] = tf.constant(hard)
    exists = np.ones(BATCH * negatives, np.int32)
    exists[-absent or len(exists) :] = 0
    if negatives:
        batch["negative_exists"] = tf.constant(exists.reshape(BATCH, negatives))
    values = {"similarity": similarity, "margin": 0.2, "scale": 3.0}
    trainer = build(one_device, [batch], **values)
    objective = trainer.objectives["bitext"]
    vectors = objective.embed(batch, training=False).numpy().astype(np.float64)
    if similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-5)
    loss, metrics = objective.embedding_loss(tf.constant(vectors, tf.float32), batch)

    source, target = batch["source_hash"].numpy(), batch["target_hash"].numpy()
    candidates, hashes = vectors[:, 1], target
    if negatives:
        hard = vectors[:, 2:].reshape(-1, 16)[exists > 0]
        candidates = np.concatenate([candidates, hard])
        hard = batch["negative_hash"].numpy().reshape(-1)[exists > 0]
        hashes = np.concatenate([target, hard])
    related, excluded = oracles.known_texts(source, target, source, hashes)
    settings = (np.arange(BATCH), 0.2, 3.0)
    positives, margin, scale = settings
    want = oracles.additive_margin_softmax(
        vectors[:, 0], candidates, positives, excluded, margin, scale
    ).sum()
    want += oracles.additive_margin_softmax(
        vectors[:, 1], vectors[:, 0], positives, related, margin, scale
    ).sum()
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    np.fill_diagonal(excluded, False)
    total, count = metrics["excluded"]
    assert (float(total), float(count)) == (excluded.sum(), BATCH)
    total, count = metrics["candidates"]
    assert (float(total), float(count)) == ((~excluded).sum(), BATCH)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_duplicates_are_no_negatives(one_device):
    """Row 1 repeats row 0's target, row 2 its source; row 3 translates back.

    Row 4 and the hard negative of row 5 repeat the target of row 2.
    """
    batch = toys.bitext_batch(BATCH, negatives=1)
    source, target, negative = (
        batch[f"{side}_hash"].numpy() for side in ("source", "target", "negative")
    )
    target[1], source[2] = target[0], source[0]
    source[3], target[3] = target[0], source[0]
    target[4] = negative[5] = target[2]
    batch |= {
        "source_hash": tf.constant(source),
        "target_hash": tf.constant(target),
        "negative_hash": tf.constant(negative),
    }
    trainer = build(one_device, [batch])
    objective = trainer.objectives["bitext"]
    vectors = objective.embed(batch, training=False)
    _, metrics = objective.embedding_loss(vectors, batch)
    # The pairs 0 to 4 are s0 t0, s1 t0, s0 t2, t0 s0, s4 t2; t2 is the negative, too.
    excluded = {
        0: [1, 2, 3, 4, "negative"],
        1: [0, 3],
        2: [0, 1, 3, 4, "negative"],
        3: [0, 1, 2, 4, "negative"],
        4: [2, 3, "negative"],
    }
    assert float(metrics["excluded"][0]) == sum(map(len, excluded.values()))


def test_a_tpu_can_compile_a_pool_of_two_replicas(monkeypatch):
    """A TPU gathers 32-bit numbers, and learns its own number as it runs."""
    batch = toys.bitext_batch(BATCH // 2, 3)
    source = batch["source_hash"]
    # The first halves of two hashes may agree, or the second ones.
    batch["target_hash"] = tf.concat([source[:2] ^ 1, source[2:] ^ (1 << 50)], axis=0)
    others = [source ^ 1, tf.roll(source, 1, 0), source ^ (1 << 50)]
    batch["negative_hash"] = tf.stack(others, axis=1)

    def all_gather(value, axis):
        assert value.dtype in (tf.int32, tf.float32)
        return tf.concat([value, value], axis)

    def masks(number):
        replica = types.SimpleNamespace(
            num_replicas_in_sync=2, replica_id_in_sync_group=number
        )
        replica.all_gather = all_gather
        monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: replica)
        pool = contrastive.Pool(tf.zeros([BATCH // 2, 5, 3]), batch, cross_replica=True)
        return pool.own, *pool.known()

    compiled = tf.function(masks, jit_compile=True, autograph=False)
    for number in (0, 1):
        own, known_sources, known_targets = compiled(tf.constant(number))
        assert own.numpy().tolist() == [4 * number + row for row in range(4)]
        np.testing.assert_array_equal(known_sources, np.tile(np.eye(4), [1, 2]))
        np.testing.assert_array_equal(known_targets[:, :8], known_sources)
        hashes = np.tile(batch["negative_hash"].numpy().reshape(-1), 2)
        want = (source.numpy()[:, None] == hashes) | (
            batch["target_hash"].numpy()[:, None] == hashes
        )
        np.testing.assert_array_equal(known_targets[:, 8:], want)


@pytest.mark.usefixtures("eager")
def test_accuracy_counts_a_candidate_above_all_negatives(one_device):
    batch = toys.bitext_batch(4)
    trainer = build(one_device, [toys.bitext_batch(BATCH)])
    vectors = np.zeros([4, 2, 4], np.float32)
    vectors[range(4), 0, range(4)] = vectors[range(4), 1, range(4)] = 1
    vectors[3, 1] = [1, 0, 0, 0]  # the last target looks like the first
    _, metrics = trainer.objectives["bitext"].embedding_loss(vectors, batch)
    accuracy = {k: float(metrics[k][0] / metrics[k][1]) for k in metrics}
    # Sources 0 and 3 do not find theirs alone; target 3 finds source 0.
    assert accuracy["accuracy"] == 0.5
    assert accuracy["reverse_accuracy"] == 0.75
    assert accuracy["positive_similarity"] == 0.75
    assert accuracy["negative_similarity"] == pytest.approx(1 / 12)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_bitext_trains_beside_masked_lm(one_device):
    """`test_every_objective.py` has each on replicas, `test_workers.py` both."""
    batch = toys.bitext_batch(BATCH)
    text = toys.pair_batch(BATCH)

    def make(micro_batch_size):
        with one_device.scope():
            model = toys.model(num_layers=1)
            return toys.trainer(
                one_device,
                model,
                toys.objective("cmlm", model, [text], BATCH),
                toys.objective("bitext", model, [batch], BATCH),
                micro_batch_size=micro_batch_size,
            )

    assert_equal_step(make(2), make(0))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"margin": -0.1}, "task.bitext.margin is -0.1"),
        ({"margin": 2.0}, "task.bitext.margin is 2.0"),
        ({"scale": 0.0}, "task.bitext.scale is 0.0"),
        ({"similarity": "cos"}, "'cos'; allowed: cosine, dot"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    config = BitextConfig(weight=1.0, **values)
    config.train_data.global_batch_size = 2
    with pytest.raises(UserError, match=message):
        fields.check(config, "task.bitext.")


def test_gathering_needs_a_replica(two_replicas):
    with two_replicas.scope():
        with pytest.raises(RuntimeError, match="in a function that strategy.run calls"):
            distributed.gather_replicas(tf.ones([1, 1]))
