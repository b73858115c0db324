"""Weights of a run with another number of CMLM's views."""

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.errors import UserError
from cmlm.modeling import restoring, weights


def positions(encoder):
    return weights.encoder_variables(encoder)[weights.POSITIONS].numpy()


def assert_equal(own, theirs):
    for weight, other in zip(own, theirs, strict=True):
        np.testing.assert_array_equal(weight, other)


@pytest.fixture
def source(tmp_path):
    """A model with three views and its checkpoint."""
    model = toys.model()
    model.second_encoder()
    toys.randomize(model)
    return model, tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))


@pytest.mark.parametrize("views", [1, 2, 5])
@pytest.mark.parametrize("chosen", [(), (1,)])
def test_other_views_take_new_positions(views, chosen, source):
    before, path = source
    tokens = before.config.token_positions
    model = toys.model(
        num_views=views,
        max_position_embeddings=tokens + views,
        num_layers=len(chosen) or 2,
    )
    model.second_encoder()
    initial = model.projection().get_weights()
    conditions = positions(model.encoder)[tokens:]
    assert len(conditions) == views
    parts = restoring.initialize(model, path, chosen)
    assert {*parts} == {"encoder", "masked_lm", "second_encoder"}
    for name in ("encoder", "second_encoder"):
        own, theirs = model.parts[name], before.parts[name]
        np.testing.assert_array_equal(
            positions(own)[:tokens], positions(theirs)[:tokens]
        )
        assert_equal(
            own.bert.transformer_layers[-1].get_weights(),
            theirs.bert.transformer_layers[-1].get_weights(),
        )
        assert_equal(
            own.bert._embedding_layer.get_weights(),
            theirs.bert._embedding_layer.get_weights(),
        )
    np.testing.assert_array_equal(positions(model.encoder)[tokens:], conditions)
    assert_equal(model.projection().get_weights(), initial)


def test_equal_views_are_taken(source):
    before, path = source
    model = toys.model()
    assert "projection" in restoring.initialize(model, path)
    np.testing.assert_array_equal(positions(model.encoder), positions(before.encoder))
    assert_equal(model.projection().get_weights(), before.projection().get_weights())


def test_a_source_with_fewer_positions(source):
    _, path = source
    longer = toys.model(num_views=1, max_position_embeddings=100)
    said = "minus model.num_views is 99; allowed: at most 24, the positions of .*ckpt"
    with pytest.raises(UserError, match=said):
        restoring.initialize(longer, path)
