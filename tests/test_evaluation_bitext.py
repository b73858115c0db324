"""Bitext retrieval against a search of everything, and LASER's loops."""

import numpy as np
import pytest
from encoders import Table
from sklearn.metrics import precision_recall_fscore_support

from cmlm.errors import UserError
from cmlm.evaluation import bitext, catalogue, reading


def xsim_error(x, y, k=4):
    """LASER's xSIM, pair by pair."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    cosines = x @ y.T
    errors = 0
    for i in range(len(x)):
        scores = {}
        for j in np.argsort(-cosines[i])[:k]:
            of_x = np.sort(cosines[i])[-k:].mean()
            of_y = np.sort(cosines[:, j])[-k:].mean()
            scores[j] = cosines[i, j] / ((of_x + of_y) / 2)
        errors += max(scores, key=scores.get) != i
    return 100 * errors / len(x)


def noisy_pairs(count=60, dim=8):
    random = np.random.default_rng(0)
    x = random.normal(size=[count, dim])
    return x, x + random.normal(0, 0.8, size=[count, dim]) + 0.3


def test_retrieval_is_that_of_brute_force():
    x, y = noisy_pairs()
    found = bitext.score_retrieval(x, y)
    cosines = x @ y.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(y, axis=1)
    gold = np.arange(len(x))
    for direction, matrix in (("forward", cosines), ("backward", cosines.T)):
        nearest = matrix.argmax(axis=1)
        accuracy = 100 * np.mean(nearest == gold)
        assert found[f"accuracy_{direction}"] == pytest.approx(accuracy)
        assert 20 < accuracy < 90
        f1 = precision_recall_fscore_support(
            gold, nearest, average="weighted", zero_division=0
        )[2]
        assert found[f"f1_{direction}"] == pytest.approx(100 * f1)
    assert found["xsim_error_forward"] == pytest.approx(xsim_error(x, y))
    assert found["xsim_error_backward"] == pytest.approx(xsim_error(y, x))
    assert found["xsim_error_forward"] != pytest.approx(100 - found["accuracy_forward"])
    both = [found["accuracy_forward"], found["accuracy_backward"]]
    assert found["accuracy"] == pytest.approx(np.mean(both))


def test_weighted_f1_by_hand():
    # Rows 0 and 1 both find 0, row 2 finds itself. Of the classes 0, 1, 2 the F1 is
    # 2/3, 0 and 1.
    x = np.array([[1, 0, 0], [1, 0.1, 0], [0, 0, 1]])
    y = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert bitext.score_retrieval(x, y)["f1_forward"] == pytest.approx(500 / 9)


@pytest.fixture
def tatoeba(tmp_path):
    """German, and Greek of which row 2 goes wrong from Greek to English."""
    folder, table = tmp_path / "tatoeba", {}
    folder.mkdir()
    for code in ("deu", "ell"):
        lines = {"eng": [], code: []}
        for row in range(4):
            for side in lines:
                text = f"{code} {side} {row}"
                lines[side].append(text)
                table[text] = np.eye(4)[row]
        for side, texts in lines.items():
            path = folder / f"tatoeba.{code}-eng.{side}"
            path.write_text("\n".join(texts) + "\n", "utf-8")
    table["ell ell 2"] = np.array([0, 0.9, 0.8, 0])
    return str(tmp_path), Table(table)


def test_tatoeba_by_language(tatoeba):
    data_dir, model = tatoeba
    (task,) = catalogue.select(["tatoeba"])
    data = task.read(reading.DataDir(data_dir))
    assert list(data) == ["de", "el"]
    scores = task.score(data, model.encode)
    assert scores["accuracy/de"] == 100 and scores["accuracy_forward/el"] == 75
    assert scores["accuracy_backward/el"] == 100
    assert scores["accuracy"] == pytest.approx((100 + 87.5) / 2)
    assert scores["parts"] == 2 and "accuracy_xtreme36" not in scores
    assert set(task.sentences(data)) == set(model._table)
    (german,) = catalogue.select(["tatoeba-de"])
    alone = german.score(german.read(reading.DataDir(data_dir)), model.encode)
    assert alone["accuracy"] == 100 and "accuracy/de" not in alone
    (french,) = catalogue.select(["tatoeba-fr"])
    with pytest.raises(UserError, match="no 'fr': there are de, el"):
        french.read(reading.DataDir(data_dir))


def test_files_of_ones_own(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\tmore\ntwo\tzwei\n")
    for language, lines in {"en": "one\ntwo\n", "de": "eins\nzwei\n"}.items():
        (tmp_path / f"f.{language}").write_text(lines)
    source = reading.DataDir(str(tmp_path))
    for paths in (["a.tsv"], ["f.en", "f.de"]):
        (data,) = bitext.BitextFiles(paths).read(source).values()
        assert (data.first, data.second) == (["one", "two"], ["eins", "zwei"])
    (tmp_path / "f.fr").write_text("un\ndeux\ntrois\n")
    with pytest.raises(UserError, match="not line by line: .*f.en 2 .*f.fr 3 lines"):
        bitext.BitextFiles(["f.en", "f.de", "f.fr"]).read(source)
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\t\n")
    with pytest.raises(UserError, match="column 2, line 2: no sentence"):
        bitext.BitextFiles(["a.tsv"]).read(source)
    (tmp_path / "a.tsv").write_text("one\teins\n")
    with pytest.raises(UserError, match="nothing to choose from"):
        bitext.BitextFiles(["a.tsv"]).read(source)


def test_public_tatoeba(shared_data):
    (task,) = catalogue.select(["tatoeba"])
    data = task.read(reading.DataDir(str(shared_data / "eval")))
    assert len(data) == 20 and {"de", "zh", "sw", "ka"} <= set(data)
    assert {len(part.first) for part in data.values()} == {1000, 746, 548, 390}
