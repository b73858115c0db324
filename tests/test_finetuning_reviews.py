"""Amazon reviews as a task: trained on English, scored on every language."""

import numpy as np
import pytest

from cmlm.errors import UserError
from cmlm.evaluation.reading import DataDir
from cmlm.finetuning import catalogue, tasks

REVIEW = "<item><rating>{}</rating><summary>{}</summary><text>{}</text></item>\n"
TASK = catalogue.find_task("amazon")


def write(folder, name, reviews) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(REVIEW.format(*review) for review in reviews))


def test_rows_are_reviews_and_whether_they_are_good(tmp_path):
    reviews = [("5.0", "Gut", "Ein &amp; alles"), ("1.0", "", "Nie  wieder")]
    write(tmp_path / "amazon-reviews" / "amazon-dataset", TASK.train, reviews)
    path = tasks.find_file(DataDir(str(tmp_path)), TASK, TASK.train)
    rows = list(TASK.read(path))
    assert [row.texts for row in rows] == [("Gut Ein & alles",), ("Nie wieder",)]
    assert [TASK.labels[int(row.label)] for row in rows] == ["positive", "negative"]


def test_three_stars_are_no_label(tmp_path):
    write(tmp_path, "a.review", [("3.0", "So", "so"), ("5.0", "Gut", "")])
    with pytest.raises(UserError, match="item 1: 3 stars are neither good nor bad"):
        list(TASK.read(str(tmp_path / "a.review")))


def test_every_language_has_its_accuracy():
    gold = {name: np.array([0, 1, 1, 1]) for _, name in TASK.dev}
    predicted = {name: np.array([0, 1, 1, 0]) for _, name in TASK.dev}
    predicted["german/books/test.review"] = np.array([1, 0, 1, 0])
    scores = tasks.score(TASK, predicted, gold)
    assert scores["accuracy/en"] == scores["accuracy/fr"] == 75
    assert scores["accuracy/de"] == 25


def test_the_public_files(shared_data):
    source = DataDir(str(shared_data / "eval"))
    for name in (TASK.train, *(name for _, name in TASK.dev)):
        rows = list(TASK.read(tasks.find_file(source, TASK, name)))
        labels = [row.label for row in rows]
        assert len(labels) == 2000 and sum(labels) == 1000
