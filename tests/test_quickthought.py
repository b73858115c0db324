"""QuickThought with the original's two encoders: its loss, gradients and start."""

from pathlib import Path

import model_dirs
import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys

from cmlm.common import arrays, fields
from cmlm.config import model_dir
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import pruning, restoring, stacking
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.quickthought import QuickThoughtConfig

BATCH = 8
ORIGINAL = {"encoders": "two", "similarity": "dot", "scale": 1.0}


def build(strategy, batches, micro_batch_size=0):
    with strategy.scope():
        model = toys.model(num_layers=1)
        objective = toys.objective("quickthought", model, batches, BATCH, **ORIGINAL)
        return toys.trainer(
            strategy, model, objective, micro_batch_size=micro_batch_size
        )


def vectors(encoder, batch, side):
    inputs = {
        "input_word_ids": batch[f"{side}_word_ids"],
        "input_mask": batch[f"{side}_mask"],
    }
    return encoder(inputs, training=False)["default"].numpy().astype(np.float64)


def test_loss_is_the_originals():
    """-log p(g(t) | f(s)) - log p(g(s) | f(t)), by inner products."""
    model = toys.model(num_layers=1)
    batch = toys.bitext_batch(BATCH)
    objective = toys.objective("quickthought", model, [batch], BATCH, **ORIGINAL)
    f, g = model.encoder, model.parts["second_encoder"]
    assert np.abs(vectors(f, batch, "source") - vectors(g, batch, "source")).max() > 0.1
    loss, metrics = objective.compute(batch, training=True)
    expected = 0.0
    for query, target in (("source", "target"), ("target", "source")):
        scores = vectors(f, batch, query) @ vectors(g, batch, target).T
        expected -= np.log(np.diag(oracles.softmax(scores))).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["candidates"][0], BATCH * BATCH)


def test_texts_of_neighbouring_pairs_are_no_negatives():
    """In a chain of neighbours, each direction leaves out other texts."""
    model = toys.model(num_layers=1)
    sentences = tf.range(100, 200, dtype=tf.int64)
    chain = tf.stack([sentences[:BATCH], sentences[1 : BATCH + 1]])
    batch = toys.bitext_batch(BATCH) | {"source_hash": chain[0]}
    batch["target_hash"] = tf.concat([chain[1, :3], sentences[-BATCH + 3 :]], 0)
    objective = toys.objective("quickthought", model, [batch], BATCH, **ORIGINAL)
    f, g = model.encoder, model.parts["second_encoder"]
    source, target = (batch[f"{side}_hash"].numpy() for side in ("source", "target"))
    known = oracles.known_texts(source, target, target, source)
    assert (known[0] != known[1]).any()
    expected = 0.0
    for (query, side), excluded in zip(
        (("source", "target"), ("target", "source")), known, strict=True
    ):
        expected += oracles.additive_margin_softmax(
            *(vectors(f, batch, query), vectors(g, batch, side)),
            *(np.arange(BATCH), excluded, 0.0, 1.0),
        ).sum()
    loss, _ = objective.compute(batch, training=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_both_encoders_train_and_micro_batches_change_nothing(one_device):
    batches = [toys.bitext_batch(BATCH)]
    whole, cached = build(one_device, batches), build(one_device, batches, 2)
    toys.copy_weights(whole.model, cached.model)
    before = {name: part.get_weights() for name, part in whole.model.parts.items()}
    want, got = whole.train(1), cached.train(1)
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5, err_msg=key)
    for name in ("encoder", "second_encoder"):
        after = whole.model.parts[name].get_weights()
        moved = [np.abs(a - b).max() for a, b in zip(after, before[name], strict=True)]
        assert max(moved) > 1e-3, name
        other = cached.model.parts[name].get_weights()
        for a, b in zip(after, other, strict=True):
            np.testing.assert_allclose(a / 0.1, b / 0.1, atol=1e-5)


def test_two_replicas_equal_one_device(one_device, two_replicas):
    batches = [toys.bitext_batch(BATCH, duplicates=True)]
    one, two = build(one_device, batches), build(two_replicas, batches)
    toys.copy_weights(one.model, two.model)
    with toys.eagerly():
        want = one.train(1)
    got = two.train(1)
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5, err_msg=key)


def test_a_start_with_one_encoder_starts_both(tmp_path):
    source = toys.model(num_layers=1)
    path = tf.train.Checkpoint(model=source).save(f"{tmp_path}/ckpt")
    model = toys.model(num_layers=1)
    model.second_encoder()
    taken = restoring.initialize(model, path)
    assert "second_encoder" in taken
    for part in ("encoder", "second_encoder"):
        for a, b in zip(
            model.parts[part].get_weights(), source.encoder.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_both_encoders_start_where_one_reads_the_projection(tmp_path):
    """CMLM's projection is a weight of the first encoder, and not of the second."""
    source = toys.model(num_layers=1)
    path = tf.train.Checkpoint(model=source).save(f"{tmp_path}/ckpt")
    model = toys.model(num_layers=1, sentence_vector="projected")
    model.second_encoder()
    restoring.initialize(model, path)
    both = (
        model.parts[name].bert.get_weights() for name in ("encoder", "second_encoder")
    )
    for weights in zip(*both, source.encoder.bert.get_weights(), strict=True):
        np.testing.assert_array_equal(weights[0], weights[2])
        np.testing.assert_array_equal(weights[1], weights[2])


def test_stacking_and_pruning_reach_both_encoders(tmp_path):
    shallow = toys.model(num_layers=1)
    shallow.second_encoder()
    path = tf.train.Checkpoint(model=shallow).save(f"{tmp_path}/ckpt")
    deep = toys.model(num_layers=2)
    deep.second_encoder()
    assert stacking.stack(deep, path) == 1
    for part in ("encoder", "second_encoder"):
        layers = deep.parts[part].bert.transformer_layers
        below = shallow.parts[part].bert.transformer_layers[0].get_weights()
        for layer in layers:
            for a, b in zip(layer.get_weights(), below, strict=True):
                np.testing.assert_array_equal(a, b)

    kept = np.arange(toys.VOCAB_SIZE) < 30
    pruning.prune(path, f"{tmp_path}/pruned", kept)
    shapes = tf.train.load_checkpoint(f"{tmp_path}/pruned").get_variable_to_shape_map()
    assert not [key for key, shape in shapes.items() if toys.VOCAB_SIZE in shape]


def test_both_encoders_make_one_vector(tmp_path):
    """[f(s) / |f(s)|, g(s) / |g(s)|]: the vector that the original evaluates."""
    run = str(tmp_path / "run")
    model_dirs.write(Path(run), **{"model.prompts": "['query=the ']"})
    config = model_dir.read_config(run)
    model = SentenceModel(config.model)
    model.second_encoder()
    tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), run, max_to_keep=1
    ).save(checkpoint_number=4)

    joined = opening.open_encoder(f"both:{run}", Reading(pooling="cls"))
    # It has no prompts by name, and describes none.
    assert joined.prompts == {} and "prompts" not in joined.info
    found = joined.encode(model_dirs.SENTENCES)
    tokenizer = opening.open_weights(run).tokenizer
    text = tf.constant(model_dirs.SENTENCES)
    ids = tokenizer.encode(text, model_dirs.SEQ_LENGTH).to_tensor()
    batch = {"s_word_ids": ids, "s_mask": tf.cast(ids != tokenizer.pad_id, tf.int32)}
    model.read_by("cls", "pooled")
    halves = [vectors(part, batch, "s") for part in model.parts.values()]
    wanted = [half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves]
    np.testing.assert_allclose(found, np.concatenate(wanted, axis=1), atol=1e-5)
    assert joined.dim == 2 * config.model.hidden_size == joined.info["dim"]
    short = opening.open_encoder(f"both:{run}", Reading("cls", dimensions=5))
    halves = [arrays.unit_length(half[:, :5]) for half in halves]
    found = short.encode(model_dirs.SENTENCES)
    np.testing.assert_allclose(found, np.concatenate(halves, axis=1), atol=1e-5)
    assert short.dim == short.info["dim"] == 10
    with pytest.raises(UserError, match="both:.* is two encoders; allowed: a model_di"):
        opening.open_weights(f"both:{run}")
    other = str(tmp_path / "other")
    model_dirs.write(Path(other))
    with pytest.raises(UserError, match="has no second_encoder; QuickThought trains"):
        opening.open_encoder(f"both:{other}")


def test_another_number_of_encoders_is_named():
    config = QuickThoughtConfig(weight=1.0, encoders="three")
    config.train_data = config.train_data.replace(
        input_path="a.txt", global_batch_size=8, seq_length=16
    )
    with pytest.raises(UserError, match="encoders is '?three'?; allowed: one, two"):
        fields.check(config, "task.quickthought.")
