"""NLI: languages are drawn for each side; files that do not match are refused."""

import collections
import gzip

import numpy as np
import pytest
import tensorflow as tf
import toys
from texts import word_piece

from cmlm.common import fields
from cmlm.common.keras import keras
from cmlm.data import batches, nli, pair_pipelines, streams
from cmlm.data.corpus import Corpus
from cmlm.data.nli import NliDataConfig
from cmlm.errors import UserError
from cmlm.modeling import layers
from cmlm.objectives.embedding import side_vectors
from cmlm.objectives.nli import NliConfig, NliObjective
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.training.validation import Validator

LABELS = ["entailment", "Neutral", "contradictory", "0", "1", "2"]
LANGUAGES = ("en", "de", "fr")
SIDES = ("premise", "hypothesis")


@pytest.fixture
def files(tmp_path) -> dict[str, list[str]]:
    """Row i of language l: `pI l x x` and `hI l`, the label by I."""
    found = {}
    for language in LANGUAGES:
        lines = [
            f"p{i} {language} {'x ' * (i % 5)}\th{i} {language}\t{LABELS[i % 6]}"
            for i in range(60)
        ]
        path = tmp_path / f"{language}.tsv"
        path.write_text("\n".join(lines))
        found[language] = [str(path)]
    return found


@pytest.fixture
def tokenizer(tmp_path) -> WordPiece:
    tokens = [f"p{i}" for i in range(60)] + [f"h{i}" for i in range(60)]
    return word_piece(tmp_path, ["x", *LANGUAGES, *tokens])


def feed(files, tokenizer, part, **values) -> batches.Feed:
    config = NliDataConfig(
        input_path="-",
        global_batch_size=8,
        seq_length=12,
        shuffle_buffer_size=60,
        hold_out_fraction=0.2,
    )
    sizes = {language: 60 for language in files}
    corpus = Corpus(files, sizes)
    return batches.Feed(config, tokenizer, corpus, 8, part, **values)


def words(tokenizer, ids) -> list[str]:
    return [tokenizer.vocab[i] for i in ids if i > 4]


@pytest.mark.parametrize("same_language", [False, True])
def test_training_draws_both_languages_anew_in_every_epoch(
    files, tokenizer, same_language
):
    dataset = pair_pipelines.nli_pairs(feed(files, tokenizer, "train"), same_language)
    drawn, rows = collections.Counter(), collections.defaultdict(set)
    for batch in dataset.take(60).as_numpy_iterator():
        assert batch["premise_word_ids"].shape[:2] == (8, 1)
        for premise, hypothesis, label in zip(
            batch["premise_word_ids"][:, 0],
            batch["hypothesis_word_ids"][:, 0],
            batch["nli_label"],
            strict=True,
        ):
            p, h = words(tokenizer, premise), words(tokenizer, hypothesis)
            number = int(p[0][1:])
            assert h[0] == f"h{number}" and label == number % 3
            drawn[p[1], h[1]] += 1
            rows[number].add((p[1], h[1]))
    assert len(drawn) == (9 if same_language else 6)
    assert min(drawn.values()) > 480 / len(drawn) / 2
    assert max(len(pairs) for pairs in rows.values()) > 3
    equal = sum(count for (p, h), count in drawn.items() if p == h)
    assert (equal > 0) == same_language


def test_packed_and_plain_files_of_a_language_follow_each_other(files, tmp_path):
    (plain,) = files["en"]
    packed = str(tmp_path / "more.tsv.gz")
    with gzip.open(packed, "wb") as file:
        file.write((tmp_path / "de.tsv").read_bytes())
    portion = streams.Portion({"en": [plain, packed]})
    premises = [row[0].numpy()[0] for row in nli.rows(portion)]
    assert [text.split()[1] for text in premises] == [b"en"] * 60 + [b"de"] * 60


def test_one_language_is_that_of_both_sides(files, tokenizer):
    files = {"de": files["de"]}
    dataset = pair_pipelines.nli_pairs(feed(files, tokenizer, "train"))
    for batch in dataset.take(3).as_numpy_iterator():
        for side in SIDES:
            for ids in batch[f"{side}_word_ids"][:, 0]:
                assert words(tokenizer, ids)[1] == "de"


def test_skipping_gives_what_would_have_come(files, tokenizer):
    whole = pair_pipelines.nli_pairs(feed(files, tokenizer, "train"))
    rest = pair_pipelines.nli_pairs(feed(files, tokenizer, "train", skip_batches=9))
    for want, got in zip(whole.skip(9).take(12), rest.take(12), strict=True):
        for key in want:
            np.testing.assert_array_equal(want[key], got[key])


def test_validation_has_every_language_of_the_held_out_rows(files, tokenizer):
    held_out = list(pair_pipelines.nli_pairs(feed(files, tokenizer, "validation")))
    trained = list(pair_pipelines.nli_pairs(feed(files, tokenizer, "all")))
    n_rows = sum(len(batch["nli_label"]) for batch in held_out)
    assert 0 < n_rows < 30
    assert sum(len(batch["nli_label"]) for batch in trained) == 60
    for batch in held_out:
        sides = [f"{side}_{of}" for side in SIDES for of in ("word_ids", "mask")]
        assert set(batch) == {*sides, "nli_label"}
        for texts in batch["hypothesis_word_ids"].numpy():
            found = [words(tokenizer, ids)[1] for ids in texts]
            assert found == list(LANGUAGES)


@pytest.mark.parametrize("train_encoder", [True, False])
def test_classifier_trains_and_a_frozen_encoder_stays(
    one_device, files, tokenizer, train_encoder, request
):
    # A frozen encoder needs many steps, of which the graph is faster.
    loops, steps = (3, 8) if train_encoder else (6, 20)
    if train_encoder:
        request.getfixturevalue("eager")
    path = ",".join(f"{language}={of[0]}" for language, of in files.items())
    config = NliConfig(weight=1.0, train_encoder=train_encoder)
    config.train_data = feed(files, tokenizer, "train").config.replace(input_path=path)
    fields.check(config, "task.nli.")
    with one_device.scope():
        model = toys.model(
            num_layers=1, vocab_size=len(tokenizer.vocab), max_position_embeddings=32
        )
        objective = NliObjective(
            "nli",
            config,
            model,
            tokenizer=tokenizer,
            data=config.load_data("-", False, "nli"),
        )
        trainer = toys.trainer(one_device, model, objective)
    before = model.encoder.get_weights()
    losses = [trainer.train(steps)["nli/loss"] for _ in range(loops)]
    assert losses[-1] < losses[0]
    moved = max(
        np.abs(a - b).max()
        for a, b in zip(before, model.encoder.get_weights(), strict=True)
    )
    assert (moved > 0) == train_encoder
    if not train_encoder:
        with toys.eagerly():
            check_validation(trainer, one_device, files)


def check_validation(trainer, one_device, files):
    objective = trainer.objectives["nli"]
    config = objective.config
    # A classifier of differences from the mean: after few steps, each language has
    # nearly the same vectors.
    batch = next(iter(objective.validation_dataset(tf.distribute.InputContext())))
    features = layers.pair_features(
        *(side_vectors(batch, side, objective.model.encoder, False) for side in SIDES)
    )
    kernel = np.random.default_rng(0).normal(0, 9, [features.shape[-1], 3])
    bias = -np.mean(features, axis=(0, 1)) @ kernel
    objective.classifier.set_weights([kernel, bias])
    metrics = trainer.evaluate(-1)
    pairs = {
        (a, b): metrics[f"nli/accuracy_{a}_{b}"] for a in LANGUAGES for b in LANGUAGES
    }
    apart = [accuracy for (a, b), accuracy in pairs.items() if a != b]
    assert metrics["nli/accuracy"] == pytest.approx(np.mean(apart))
    scores = [
        objective._scores(batch, training=False)
        for batch in objective.validation_dataset(tf.distribute.InputContext())
    ]
    loss, right = (np.concatenate(rows).mean(axis=0) for rows in zip(*scores))
    off_diagonal = loss[~np.eye(3, dtype=bool)]
    assert metrics["nli/loss"] == pytest.approx(off_diagonal.mean(), rel=1e-4)
    assert (right != right.T).any()
    np.testing.assert_allclose([*pairs.values()], right.ravel(), rtol=1e-5)
    config.same_language = True
    metrics = Validator(trainer.objectives, one_device, 0, -1).evaluate(["nli"])
    assert metrics["nli/accuracy"] == pytest.approx(np.mean([*pairs.values()]))

    # Validation data of its own has its own languages.
    config.validation_data = f"de={files['de'][0]},fr={files['fr'][0]}"
    objective.data = config.load_data("-", False, "nli")
    metrics = Validator(trainer.objectives, one_device, 0, -1).evaluate(["nli"])
    pairs = {f"nli/accuracy_{a}_{b}" for a in ("de", "fr") for b in ("de", "fr")}
    assert metrics.keys() == {"nli/loss", "nli/accuracy", *pairs}


@pytest.mark.usefixtures("eager")
def test_another_objective_does_not_let_a_frozen_encoder_learn_nli(one_device):
    """One step of SGD beside an objective that does train the encoder."""
    random = np.random.default_rng(0)
    batch = {"nli_label": random.integers(0, 3, 8, np.int32)}
    for side in ("premise", "hypothesis"):
        ids = random.integers(5, toys.VOCAB_SIZE, [8, 1, 6], np.int32)
        batch |= {f"{side}_word_ids": ids, f"{side}_mask": np.ones_like(ids)}
    of_class = toys.in_memory(NliObjective, [batch])

    def encoder_after_a_step(**trains_encoder):
        with one_device.scope():
            keras.utils.set_random_seed(0)
            model = toys.model(num_layers=1)
            objectives = {}
            for name, train_encoder in trains_encoder.items():
                config = NliConfig(weight=1.0, train_encoder=train_encoder)
                config.train_data.global_batch_size = 8
                objectives[name] = of_class(
                    name, config, model, tokenizer=None, data=None
                )
            trainer = toys.trainer(one_device, model, *objectives.values())
        heads = {name: model.parts[name].get_weights()[0] for name in objectives}
        trainer.train(1)
        for name, before in heads.items():
            assert (model.parts[name].get_weights()[0] != before).any()
        return model.encoder.get_weights()

    alone = encoder_after_a_step(other=True)
    beside = encoder_after_a_step(other=True, nli=False)
    for want, got in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(got, want)


def test_features_are_u_v_difference_and_product(one_device, files, tokenizer):
    with one_device.scope():
        model = toys.model(
            num_layers=1, vocab_size=len(tokenizer.vocab), max_position_embeddings=32
        )
        objective = NliObjective(
            "nli", NliConfig(weight=1.0), model, tokenizer=tokenizer, data=None
        )
    batch = next(iter(pair_pipelines.nli_pairs(feed(files, tokenizer, "validation"))))
    loss, right = objective._scores(batch, training=False)

    def vectors(side):
        ids, mask = batch[f"{side}_word_ids"], batch[f"{side}_mask"]
        inputs = {"input_word_ids": ids[:, 1], "input_mask": mask[:, 1]}
        return model.encoder(inputs)["default"].numpy()

    u, v = vectors("premise"), vectors("hypothesis")
    kernel, bias = objective.classifier.get_weights()
    logits = np.hstack([u, v, np.abs(u - v), u * v]) @ kernel + bias
    label = batch["nli_label"].numpy()
    log_total = np.log(np.exp(logits).sum(axis=1))
    want = log_total - logits[np.arange(len(label)), label]
    np.testing.assert_allclose(loss[:, 1, 1], want, rtol=1e-4)
    np.testing.assert_array_equal(right[:, 1, 1], logits.argmax(axis=1) == label)


@pytest.mark.parametrize(
    "lines, message",
    [
        (["a\tb\tneutral"] * 59, "differ in length: en 60, bad 59"),
        (["a\tb"] * 60, "line 1 has 2 columns; allowed: 3"),
        (["a\tb\tperhaps"] * 60, "line 1 has label 'perhaps'; allowed: entail"),
        (
            ["a\tb\tneutral\u00a0"] * 60,
            r"line 1 has label 'neutral\\xa0'; allowed",
        ),
        (["a\t \tneutral"] * 60, "line 1 lacks a sentence; allowed: premise"),
        (
            [f"a\tb\t{LABELS[(i + (i > 40)) % 6]}" for i in range(60)],
            "bad.tsv line 42 has label entailment, .*en.tsv line 42 has contradict",
        ),
        ([], "is empty"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, files, lines, message):
    bad = tmp_path / "bad.tsv"
    bad.write_text("\n".join(lines))
    config = NliDataConfig(input_path=f"en={files['en'][0]},bad={bad}")
    with pytest.raises(UserError, match=message):
        config.load(str(tmp_path))


def test_labels_in_words_or_numbers():
    labels = ["entailment", "neutral", "CONTRADICTION", "0", "1", "2", "contradictory"]
    assert nli.label_ids(labels).numpy().tolist() == [0, 1, 2, 0, 1, 2, 2]


@pytest.mark.parametrize("label", ["", "neutral\u00a0", "3"])
def test_an_unknown_label_is_no_class(label):
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label is unknown"):
        nli.label_ids(["neutral", label])
    ids = tf.data.Dataset.from_tensors(["neutral", label]).map(nli.label_ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label is unknown"):
        list(ids)
