"""Amazon reviews as a task: trained on English, scored on every language."""

import model_dirs
import numpy as np
import oracles
import pytest

from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base, transfer
from cmlm.finetuning import catalogue, examples, training
from cmlm.finetuning.tasks import Row

REVIEW = "<item><rating>{}</rating><summary>{}</summary><text>{}</text></item>\n"
TASK = catalogue.TASKS["amazon"]


def write(folder, name, reviews) -> None:
    path = folder / "amazon-reviews" / "amazon-dataset" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(REVIEW.format(*review) for review in reviews))


def test_train_and_dev_are_parts_of_english_in_all_domains(tmp_path):
    for domain in ("books", "dvd"):
        reviews = [(5.0 if row % 2 else 1.0, f"t{row}", domain) for row in range(20)]
        write(tmp_path, f"english/{domain}/train.review", reviews)
    write(tmp_path, "german/music/test.review", [(5, "Gut &amp; so", ""), (3, "", "x")])
    source = DataDir(str(tmp_path))
    rows = {
        name: list(TASK.examples(name, TASK.find(source, name)))
        for name in ("train", "dev", "de")
    }
    assert (len(rows["train"]), len(rows["dev"])) == (36, 4)
    every = [row.texts for name in ("train", "dev") for row in rows[name]]
    assert len(set(every)) == 40
    assert sum(row.label for row in rows["dev"]) == 2
    # The same split as that of the frozen encoder.
    labels = transfer.read_reviews(source, "en", "train").labels
    assert len(transfer.split(labels, base.SEED)[1]) == 4
    assert [row.texts for row in rows["de"]] == [("Gut & so", ""), ("", "x")]
    assert [TASK.labels[int(row.label)] for row in rows["de"]] == [
        *("positive", "negative")
    ]
    with pytest.raises(UserError, match="missing: japanese"):
        TASK.find(source, "ja")


def test_utf16_is_named(tmp_path):
    path = tmp_path / "train.review"
    path.write_text(REVIEW.format(5.0, "t", "books"), "utf-16")
    with pytest.raises(UserError, match="train.review is UTF-16"):
        list(TASK.read(str(path)))


def test_every_language_has_its_accuracy_and_dev_chooses():
    gold = {name: np.array([0, 1, 1, 1]) for name in ("dev", "en", "de")}
    predicted = {name: np.array([0, 1, 1, 0]) for name in gold}
    predicted["de"] = np.array([1, 0, 1, 0])
    scores = TASK.score(predicted, gold)
    assert scores["accuracy/en"] == scores["accuracy/dev"] == scores["score"] == 75
    assert scores["accuracy/de"] == 25 and "accuracy/ja" not in scores


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_head_reads_both_vectors_pooled_as_trained(tmp_path, pooling):
    """[u, v, |u - v|, u * v] of title and text by numpy, with the encoder's pooling."""
    trained = opening.open_weights(model_dirs.write(tmp_path / "model_dir"))
    trained.config.model = trained.config.model.replace(pooling=pooling)
    rows = [
        Row(("the cat", "a dog ran far away"), 1, "0"),
        Row(("", "sat"), 0, "1"),
        Row(("the mat sat on the cat", "a"), 1, "2"),
    ]
    data = examples.encode(rows, trained.tokenizer, 14, apart=True)
    assert len(data) == 3 and data.parts == 2
    assert data.labels.tolist() == [1, 0, 1] and data.indices == ["0", "1", "2"]
    batch = data.batch(np.array([2, 0]))
    words = [
        [trained.tokenizer.vocab[i] for i in row] for row in batch["input_word_ids"]
    ]
    assert [row[1] for row in words] == ["the", "a", "the", "a"]
    start = training.StartWeights(trained)
    assert pooling in start.head(TASK)
    made = training.SentenceClassifier(
        start, TASK, training.Settings(epochs=1, dropout_rate=0.0), seed=0
    )
    tokens = oracles.bert(
        oracles.weights_by_name(made.model.encoder),
        batch["input_word_ids"],
        batch["input_mask"],
        num_layers=1,
    )
    mask = batch["input_mask"][:, :, np.newaxis]
    vectors = (
        (tokens * mask).sum(1) / mask.sum(1) if pooling == "mean" else tokens[:, 0]
    )
    u, v = vectors[0::2], vectors[1::2]
    features = np.concatenate([u, v, abs(u - v), u * v], axis=1)
    kernel, bias = made.model.parts["head"].get_weights()
    np.testing.assert_allclose(
        made._predict(batch), features @ kernel + bias, atol=2e-5
    )
    before = made.model.encoder.get_weights()
    made.train(data, lambda *step: None)
    after = made.model.encoder.get_weights()
    assert any((a != b).any() for a, b in zip(before, after, strict=True)), (
        "all weights"
    )


def test_the_public_files(shared_data):
    source = DataDir(str(shared_data / "eval"))
    # Of the three domains only books are there, and no Japanese.
    sizes = {"train": 1800, "dev": 200, "en": 2000, "fr": 2000, "de": 2000}
    for name, size in sizes.items():
        rows = list(TASK.examples(name, TASK.find(source, name)))
        assert len(rows) == size and sum(row.label for row in rows) == size / 2
