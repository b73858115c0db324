"""DropHead drops whole heads of a sentence; controlled dropout masks views alike."""

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common.keras import keras
from cmlm.errors import UserError
from cmlm.modeling.layers import AttentionDropout
from cmlm.training.trainer import Trainer


def test_whole_heads_are_dropped_and_the_rest_scaled():
    random = np.random.default_rng(0)
    probabilities = random.random([200, 4, 3, 5]).astype(np.float32)
    layer = AttentionDropout(0.0, 0.4)
    np.testing.assert_array_equal(layer(probabilities, training=False), probabilities)
    factors = layer(probabilities, training=True).numpy() / probabilities
    # One factor a head of a sentence: 0, or heads over heads that are left.
    heads = factors[:, :, 0, 0]
    np.testing.assert_allclose(
        factors, np.broadcast_to(heads[..., None, None], factors.shape), rtol=1e-5
    )
    left = (heads > 0).sum(axis=1)
    assert left.min() >= 1
    np.testing.assert_allclose(heads, (heads > 0) * (4 / left)[:, None], rtol=1e-5)
    # 0.4, but 0.4^4 of the rows, in which all were drawn, keep all.
    assert np.mean(heads == 0) == pytest.approx(0.4 - 0.4**4, abs=0.06)


def test_an_encoder_without_training_is_the_same():
    plain, other = toys.model(), toys.model(drophead_rate=0.5)
    for name, part in plain.parts.items():
        other.parts[name].set_weights(part.get_weights())
    batch = toys.pair_batch()
    want = plain.encoder(batch, training=False)["default"]
    np.testing.assert_array_equal(other.encoder(batch, training=False)["default"], want)
    drawn = [other.encoder(batch, training=True)["default"].numpy() for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3
    with pytest.raises(UserError, match="model.drophead_rate is 1.0"):
        toys.encoder_config(drophead_rate=1.0)


def build(strategy, batch, micro_batch_size=0, model=None, **values) -> Trainer:
    # As a run does: dropout draws from generators whose state can be set.
    keras.backend.experimental.enable_tf_random_generator()
    with strategy.scope():
        made = toys.model(num_layers=1, **(model or {}))
        objective = toys.objective("mirror", made, [batch], 8, **values)
        return toys.trainer(
            strategy, made, objective, micro_batch_size=micro_batch_size
        )


@pytest.mark.usefixtures("eager")
def test_drophead_is_a_function_of_seed_and_step(one_device):
    batch = toys.mirror_batch(8)
    parts = build(one_device, batch).model.parts
    start = {name: part.get_weights() for name, part in parts.items()}
    results = []
    for _ in range(2):
        trainer = build(one_device, batch, model={"drophead_rate": 0.5})
        for name, weights in start.items():
            trainer.model.parts[name].set_weights(weights)
        metrics = [trainer.train(1)["mirror/loss"] for _ in range(2)]
        results.append((metrics, trainer.model.encoder.get_weights()))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
    plain = build(one_device, batch)
    for name, weights in start.items():
        plain.model.parts[name].set_weights(weights)
    assert abs(plain.train(1)["mirror/loss"] - results[0][0][0]) > 1e-3


RATES = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "drophead_rate": 0.5}


@pytest.mark.usefixtures("eager")
@pytest.mark.large
@pytest.mark.parametrize("controlled", [True, False])
def test_controlled_dropout_gives_equal_views_of_equal_text(one_device, controlled):
    batch = dict(toys.mirror_batch(8))
    # The second view is padded further.
    for key in ("word_ids", "mask"):
        batch[f"target_{key}"] = tf.pad(batch[f"source_{key}"], [[0, 0], [0, 2]])
    trainer = build(one_device, batch, model=RATES, controlled_dropout=controlled)
    objective = trainer.objectives["mirror"]
    trainer.model.reset_dropout(tf.constant(0, tf.int64))

    @tf.function
    def embed():
        return one_device.run(lambda: objective.embed(batch, training=True))

    first, second = embed(), embed()
    apart = np.abs(first[:, 0] - first[:, 1]).max()
    assert apart < 1e-5 if controlled else apart > 1e-2
    # The next batch has masks of its own.
    assert np.abs(first[:, 0] - second[:, 0]).max() > 1e-2
    assert trainer.train(1)["mirror/loss"] > 0


@pytest.mark.large
def test_controlled_dropout_with_gradient_caching(one_device):
    """Equal texts have equal views in every micro-batch."""
    batch = dict(toys.mirror_batch(8))
    for key in ("word_ids", "mask"):
        batch[f"target_{key}"] = batch[f"source_{key}"]
    trainer = build(
        one_device, batch, micro_batch_size=2, model=RATES, controlled_dropout=True
    )
    metrics = trainer.train(1)
    assert metrics["mirror/positive_similarity"] == pytest.approx(1, abs=1e-5)
