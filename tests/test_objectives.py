"""Objectives with a loss of their own: the formula, and what data they take."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys

from cmlm.common.keras import keras
from cmlm.data import batches
from cmlm.data.corpus import Corpus
from cmlm.errors import UserError
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import TaskConfig
from cmlm.objectives.base import Data
from cmlm.training.trainer import Trainer

BATCH = 8


def build(strategy, name, batch, micro_batch_size=0, **values) -> Trainer:
    with strategy.scope():
        model = toys.model(num_layers=1)
        objective = toys.objective(name, model, [batch], BATCH, **values)
        for part in objective.trained_parts:
            toys.randomize_part(model.parts[part])
        return toys.trainer(
            strategy, model, objective, micro_batch_size=micro_batch_size
        )


BATCHES = {
    "nsp": toys.order_batch(BATCH),
    "mirror": toys.mirror_batch(BATCH, duplicates=True),
}


def test_next_sentence_adds_two_means(one_device):
    batch = BATCHES["nsp"]
    trainer = build(one_device, "nsp", batch)
    objective, model = trainer.objectives["nsp"], trainer.model
    losses, metrics = objective.compute(batch, training=True)
    sequence = model.encoder(batch)["sequence_output"].numpy()
    weights = oracles.weights_by_name(objective.head)
    hidden = np.tanh(
        sequence[:, 0] @ weights["pooler_dense/kernel"] + weights["pooler_dense/bias"]
    )
    logits = hidden @ weights["logits/kernel"] + weights["logits/bias"]
    label = batch["order_label"].numpy()
    want = -np.log(oracles.softmax(logits)[np.arange(BATCH), label])
    np.testing.assert_allclose(losses[1], want.sum(), rtol=1e-4)
    right = float(metrics["order_accuracy"][0])
    assert right == np.sum(logits.argmax(axis=1) == label)
    divisor = objective.divisor(batch).numpy()
    assert divisor[0] == tf.reduce_sum(batch["masked_lm_weights"])
    assert divisor[1] == BATCH

    # The step descends the sum of the two means.
    part = model.parts["masked_lm"]
    variables = [*objective.head.trainable_variables, *part.trainable_variables]
    with tf.GradientTape() as tape:
        losses, _ = objective.compute(batch, training=True)
        total = losses[0] / divisor[0] + losses[1] / divisor[1]
    gradients = [
        tf.convert_to_tensor(g).numpy() for g in tape.gradient(total, variables)
    ]
    before = [variable.numpy() for variable in variables]
    trainer.train(1)
    for variable, old, gradient in zip(variables, before, gradients, strict=True):
        if "embedding" not in variable.name:
            np.testing.assert_allclose(
                (old - variable.numpy()) / 0.1, gradient, atol=2e-5
            )


@pytest.mark.parametrize("form", ["released", "paper"])
def test_mirror_ranks_each_view_among_all_other_views(one_device, form):
    """InfoNCE, equation 1 of Mirror-BERT, over both views; copies are not negatives."""
    batch = BATCHES["mirror"]
    settings = {"scale": 4.0, "margin": 0.2, "form": form}
    objective = build(one_device, "mirror", batch, **settings).objectives["mirror"]
    random = np.random.default_rng(0)
    vectors = random.normal(size=[BATCH, 2, 4])
    vectors[:, 1] += vectors[:, 0]
    vectors = oracles.unit(vectors)
    loss, metrics = objective.embedding_loss(tf.constant(vectors, tf.float32), batch)
    views = np.concatenate([vectors[:, 0], vectors[:, 1]])
    hashes = np.tile(batch["source_hash"].numpy(), 2)
    want, found = 0.0, []
    for i, view in enumerate(views):
        partner = (i + BATCH) % (2 * BATCH)
        others = [j for j in range(2 * BATCH) if hashes[j] != hashes[i]]
        positive = np.exp(4.0 * (view @ views[partner] - 0.2))
        total = np.exp(4.0 * views[others] @ view).sum()
        if form == "released":
            total += positive
        want -= np.log(positive / total)
        candidates = [partner, *others]
        found.append(candidates[np.argmax(views[candidates] @ view)] == partner)
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    forward, reverse = sum(found[:BATCH]), sum(found[BATCH:])
    assert forward != reverse
    assert float(metrics["accuracy"][0]) == forward
    assert float(metrics["reverse_accuracy"][0]) == reverse
    # A text of its own: itself. The one that comes twice: itself, and both views of
    # the other.
    total, count = metrics["excluded"]
    assert float(total) == BATCH + 2 * 2 and float(count) == BATCH


@pytest.mark.parametrize("name", ["cmlm", "quickthought", "nsp", "sop", "mlm", "misad"])
def test_sentences_without_neighbours_will_do_where_none_is_read(name):
    text = Corpus(
        {"en": ["en.txt"], "de": ["a.txt", "b.txt"]},
        {"en": 5, "de": 3},
        {"en": 4, "de": 0},
    )
    config = getattr(TaskConfig(), name)
    for data in (Data(text), Data(Corpus({}, {"": 9}, {"": 8}), text)):
        if name in ("mlm", "misad"):
            config.check_data(data, EncoderConfig())
        else:
            message = "text a.txt and 1 more has no two sentences in a row"
            with pytest.raises(UserError, match=message):
                config.check_data(data, EncoderConfig())


@pytest.mark.parametrize("name", ["bitext", "mirror"])
def test_one_text_has_none_to_be_told_from(name):
    config = getattr(TaskConfig(), name)
    config.check_data(Data(Corpus({}, {"en": 1, "de": 1}, {"en": 0})), EncoderConfig())
    config.train_data.input_path = "a.txt"
    for number, said in ((1, "1 example"), (0, "0 examples")):
        with pytest.raises(UserError, match=f"a.txt has {said}; allowed: at least 2"):
            config.check_data(Data(Corpus({}, {"": number})), EncoderConfig())


# ------------------------------------------------------------ prompts of pairs

PROMPTS = ("query=query: ", "passage=passage: ")


@pytest.mark.parametrize(
    "prompts, texts",
    [
        ((), ("", "")),
        (("query",), ("query: ", "query: ")),
        (("query", "passage"), ("query: ", "passage: ")),
    ],
)
@pytest.mark.parametrize("name", ["bitext", "pairs", "scored"])
def test_prompts_of_pairs_by_name(name, prompts, texts):
    config = getattr(TaskConfig(), name)
    config.prompts = prompts
    model = EncoderConfig(hidden_size=8, prompts=PROMPTS)
    config.check_model("task.pairs.", model)
    assert config.prompt_texts(model) == texts


@pytest.mark.parametrize(
    "prompts, stated, said",
    [
        (("query", "document"), PROMPTS, "one or two of query, passage, the names of"),
        (("query", "passage", "query"), PROMPTS, "allowed: one or two of query"),
        (("query",), (), "task.pairs.prompts is .*; allowed: none, because model.pro"),
    ],
)
def test_wrong_prompts_of_pairs(prompts, stated, said):
    config = TaskConfig().pairs
    config.prompts = prompts
    with pytest.raises(UserError, match=said):
        config.check_model("task.pairs.", EncoderConfig(hidden_size=8, prompts=stated))


@pytest.mark.parametrize("name", ["pairs", "scored"])
def test_prompts_are_not_added_twice(name, tmp_path):
    texts = [f"a\tpassage: b{i}\t{i}" for i in range(3)]
    (tmp_path / "pairs.tsv").write_text("\n".join(texts))
    data = Data(Corpus({"": [f"{tmp_path}/pairs.tsv"]}, {"": 3}))
    config, model = (
        getattr(TaskConfig(), name),
        EncoderConfig(hidden_size=8, prompts=PROMPTS),
    )
    config.lowest, config.highest = 0.0, 9.0
    for prompts in ((), ("query",)):
        config.prompts = prompts
        config.check_data(data, model)
    config.prompts = ("query", "passage")
    with pytest.raises(UserError, match="column 2 of .*pairs.tsv begins with 'passag"):
        config.check_data(data, model)
    # A file without pairs begins with nothing.
    (tmp_path / "empty.tsv").write_text("")
    if name == "pairs":
        empty = Corpus({"": [f"{tmp_path}/empty.tsv"]}, {"": 3})
        config.check_data(Data(empty), model)
    # One text that begins so by chance is a text.
    (tmp_path / "pairs.tsv").write_text("\n".join([*texts, "a\tb\t1"]))
    config.check_data(data, model)


@pytest.mark.parametrize("micro_batch_size", [0, 2])
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "nsp",
            lambda loss, metrics: (tf.reduce_sum(loss), metrics),
            r"the loss of nsp has the shape \(\); allowed: that of its divisor, \(2,\)",
        ),
        (
            "mirror",
            lambda loss, metrics: (tf.fill([BATCH], loss), metrics),
            r"the loss of mirror has the shape \(8,\); allowed: .* divisor, \(\)",
        ),
        (
            "mirror",
            lambda loss, metrics: (loss, {"loss": metrics["loss"]}),
            "mirror computes no metric accuracy, .*; allowed: .* loss, accuracy, ",
        ),
        (
            "nsp",
            lambda loss, metrics: (tf.stop_gradient(loss), metrics),
            "the loss of nsp does not depend on the weights; allowed: .* without tf.st",
        ),
        (
            "mirror",
            lambda loss, metrics: (tf.stop_gradient(loss), metrics),
            "the loss of mirror does not depend on the (weights|sentence vectors); all",
        ),
    ],
)
def test_what_an_objective_computes_wrongly_is_named(
    one_device, eager, name, change, said, micro_batch_size
):
    trainer = build(one_device, name, BATCHES[name], micro_batch_size)
    objective = trainer.objectives[name]
    loss_of = "total_loss" if name == "mirror" else "compute"
    compute = getattr(objective, loss_of)
    setattr(
        objective, loss_of, lambda *args, **kwargs: change(*compute(*args, **kwargs))
    )
    with pytest.raises(ValueError, match=said):
        trainer.train(1)


def test_a_part_that_the_model_lacks_is_named(one_device, monkeypatch):
    trainer = build(one_device, "mirror", BATCHES["mirror"])
    of_class = type(trainer.objectives["mirror"])
    monkeypatch.setattr(of_class, "trained_parts", ["encoder", "head"])
    with pytest.raises(ValueError, match="mirror trains the part 'head' of the model"):
        _ = trainer.trained_variables
    trainer.model.parts["head"] = keras.layers.Dense(2)
    said = "the part 'head' of the model, which has no variables yet; .* `build`"
    with pytest.raises(ValueError, match=said):
        _ = trainer.trained_variables
    trainer.model.parts["head"].build([None, 3])
    assert trainer.trained_variables[-1] is trainer.model.parts["head"].bias


def test_a_tensor_without_a_column_is_named():
    batch = {"source_word_ids": tf.zeros([2, 3]), "extra": tf.zeros([2, 3])}
    for prepare in (batches.sort_by_length, batches.trim, batches.at_least_one_column):
        with pytest.raises(ValueError, match="the tensor 'extra'; allowed: .* COLUMNS"):
            prepare({**batch, "source_mask": tf.ones([2, 3], tf.int32)})
