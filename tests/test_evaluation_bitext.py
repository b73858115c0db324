"""Bitext retrieval against a search of everything, and LASER's loops."""

import re

import numpy as np
import pytest
from encoders import Table
from sklearn.metrics import precision_recall_fscore_support

from cmlm.errors import UserError
from cmlm.evaluation import averages, catalogue, published, store
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import bitext


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
    data = task.read(DataDir(data_dir))
    assert list(data) == ["de", "el"]
    scores = task.score(data, model.encode)
    assert scores["accuracy/de"] == 100 and scores["accuracy_forward/el"] == 75
    assert scores["accuracy_backward/el"] == 100
    assert scores["accuracy"] == pytest.approx((100 + 87.5) / 2)
    assert scores["parts"] == 2
    assert set(task.sentences(data)) == set(model._table)
    (german,) = catalogue.select(["tatoeba-de"])
    alone = german.score(german.read(DataDir(data_dir)), model.encode)
    assert alone["accuracy"] == 100 and "accuracy/de" not in alone
    (french,) = catalogue.select(["tatoeba-fr"])
    with pytest.raises(UserError, match="no 'fr'; there are de, el"):
        french.read(DataDir(data_dir))


def without_first_direction(vectors):
    """PCR of CMLM's section 5.2, by a plain singular value decomposition."""
    _, _, rows = np.linalg.svd(vectors)
    return vectors - np.outer(vectors @ rows[0], rows[0])


def test_tatoeba_with_pcr_as_in_table_8(tmp_path):
    """Each language is shifted by a vector of its own, which PCR must take away."""
    random, table = np.random.default_rng(1), {}
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    for code, shift in (("deu", [6, 0, 0, 0, 0]), ("fra", [0, 6, 0, 0, 0])):
        meaning = random.normal(size=[40, 5])
        for side, offset in ((code, shift), ("eng", [0, 0, 6, 0, 0])):
            texts = [f"{code} {side} {row}" for row in range(40)]
            (folder / f"tatoeba.{code}-eng.{side}").write_text("\n".join(texts) + "\n")
            noisy = meaning + random.normal(0, 0.3, size=[40, 5]) + offset
            table |= dict(zip(texts, noisy, strict=True))
    (task,) = catalogue.select(["tatoeba"])
    data = task.read(DataDir(str(tmp_path)))
    scores = task.score(data, Table(table).encode)
    for part in ("de", "fr"):
        x, y = (
            without_first_direction(np.float32([table[text] for text in texts]))
            for texts in (data[part].first, data[part].second)
        )
        x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
        expected = 100 * np.mean((x @ y.T).argmax(axis=1) == np.arange(40))
        assert scores[f"accuracy_forward_pcr/{part}"] == pytest.approx(expected)
        assert expected > scores[f"accuracy_forward/{part}"] + 10
    drawn = task.figures(data, Table(table).encode)["translations"]
    assert list(drawn) == ["fr", "de"]
    assert np.shape(drawn["de"]) == (2, 30, 2)


def test_un_corpus_through_the_index(tmp_path):
    """Row 1 goes wrong; rows 0 and 3 are one sentence with two translations."""
    lines = {
        "en": ["one", "two", "three", "uno", "", "five"],
        "fr": ["un", "deux", "trois", "un", "vide", "cinq"],
    }
    (tmp_path / "un").mkdir()
    for language, texts in lines.items():
        path = tmp_path / "un" / f"UNv1.0.6way.{language}"
        path.write_text("\n".join(texts) + "\n")
    table = {"one": 0, "two": 1, "three": 2, "five": 3, "un": 0, "trois": 2, "cinq": 3}
    table = {text: np.eye(5)[row] for text, row in table.items()}
    table |= {"deux": np.eye(5)[2] + 0.1 * np.eye(5)[1], "uno": np.eye(5)[4]}
    (task,) = catalogue.select(["un"])
    data = task.read(DataDir(str(tmp_path)))
    assert data["fr"].first == ["un", "deux", "trois", "un", "cinq"]
    with store.Store(Table(table)) as vectors:
        scores = task.score(data, vectors)
    # French to English: deux finds three, the second "un" finds one.
    assert scores["accuracy_forward/fr"] == pytest.approx(60)
    # English to French: "two" finds deux; "uno" finds any row but its own, all at 0.
    assert scores["accuracy_backward/fr"] in (80, 100)
    # LaBSE's direction leads (its page on TF Hub), as in the published row.
    assert task.main_metric == "accuracy_backward"
    (group,) = [group for group in averages.GROUPS if group.name == "un"]
    printed = {key for row in published.ROWS for key in row.scores if key[0] == "un"}
    assert printed == {key for keys in group.parts.values() for key in keys}
    assert ("un", "accuracy_backward/fr") in printed
    assert (scores["sentences"], scores["exact"]) == (5, 1)
    (tmp_path / "un" / "UNv1.0.6way.fr").write_text("un\n")
    with pytest.raises(UserError, match="not line by line"):
        task.read(DataDir(str(tmp_path)))
    (tmp_path / "un" / "UNv1.0.6way.fr").unlink()
    with pytest.raises(MissingData, match="missing: un/NAME.fr or another language"):
        task.read(DataDir(str(tmp_path)))


def test_the_un_corpus_has_one_file_a_language(tmp_path):
    (tmp_path / "un").mkdir()
    for name in ("UNv1.0.devset", "UNv1.0.testset"):
        for language in ("en", "es"):
            (tmp_path / "un" / f"{name}.{language}").write_text("one\ntwo\n")
    # Brackets in a name are no pattern.
    (tmp_path / "un" / "x[UN].en").write_text("one\ntwo\n")
    (tmp_path / "un" / "xU.fr").write_text("un\ndeux\n")
    (task,) = catalogue.select(["un"])
    said = "'es' has the files .*devset.es and .*testset.es; allowed: one file a lang"
    with pytest.raises(UserError, match=said):
        task.read(DataDir(str(tmp_path)))
    (tmp_path / "un" / "UNv1.0.testset.es").rename(
        tmp_path / "un" / "UNv1.0.testset.fr"
    )
    (tmp_path / "un" / "x[UN].ru").write_text("one\ntwo\n")
    assert sorted(task.read(DataDir(str(tmp_path)))) == ["es", "fr", "ru"]


def test_files_of_ones_own(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\tmore\ntwo\tzwei\n")
    for language, lines in {"en": "one\ntwo\n", "de": "eins\nzwei\n"}.items():
        (tmp_path / f"f.{language}").write_text(lines)
    source = DataDir(str(tmp_path))
    for paths in (["a.tsv"], ["f.en", "f.de"]):
        (data,) = bitext.BitextFiles(paths).read(source).values()
        assert (data.first, data.second) == (["one", "two"], ["eins", "zwei"])
    (tmp_path / "f.fr").write_text("un\ndeux\ntrois\n")
    assert list(bitext.BitextFiles(["f.en", "f.de", "f.fr"]).read(source)) == ["f.de"]
    with pytest.raises(UserError, match="f.en is both sides; allowed: two files"):
        bitext.BitextFiles(["f.en", "f.en"]).read(DataDir(str(tmp_path)))
    assert re.match("not line by line: .*f.en 2 .*f.fr 3", str(source.left_out["f.fr"]))
    paths = [f"{language}/test.txt" for language in ("en", "de", "fr")]
    for path in paths:
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(f"{path} 1\n{path} 2\n")
    parts = bitext.BitextFiles(paths).read(source)
    assert list(parts) == [str(tmp_path / path) for path in paths[1:]]
    assert [part.second[0] for part in parts.values()] == [f"{p} 1" for p in paths[1:]]
    source = DataDir(str(tmp_path))
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\t\n")
    with pytest.raises(UserError, match="column 2, line 2 is blank; allowed: text"):
        bitext.BitextFiles(["a.tsv"]).read(source)
    (tmp_path / "a.tsv").write_text("one\teins\n")
    with pytest.raises(UserError, match="has 1 pair; allowed: at least 2"):
        bitext.BitextFiles(["a.tsv"]).read(source)


def test_public_tatoeba(shared_data):
    (task,) = catalogue.select(["tatoeba"])
    data = task.read(DataDir(str(shared_data / "eval")))
    assert len(data) == 20 and {"de", "zh", "sw", "ka"} <= set(data)
    assert {len(part.first) for part in data.values()} == {1000, 746, 548, 390}
