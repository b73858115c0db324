"""The languages of the user's own files: their components are removed, as by numpy."""

import json

import numpy as np
import pytest
from encoders import Hashed, hashed
from scipy import stats
from sklearn import metrics

from cmlm.common import language_names
from cmlm.errors import UserError
from cmlm.evaluation import catalogue, run

DIM = 6
# The direction that PCR removes from the vectors of each language.
COMPONENTS = {"en": np.eye(DIM)[0], "de": np.eye(DIM)[1]}


def removal(vectors, language):
    component = COMPONENTS.get(language)
    if component is None:
        return vectors
    return vectors - np.outer(vectors @ component, component).astype(np.float32)


def unit(texts, language=""):
    """The right vectors of texts, float [n, dim]."""
    vectors = removal(np.array([hashed(text, DIM) for text in texts]), language)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosines(first, second, one="", other=""):
    return np.sum(unit(first, one) * unit(second, other), axis=1)


def scored(task, folder, **options):
    tasks, failed = run.read(catalogue.select([task]), str(folder))
    assert not failed, failed
    return run.score(Hashed(DIM), tasks, change=removal, **options)


def scores(task, folder):
    (found,) = scored(task, folder).scores.values()
    return found


def refused(task, folder):
    tasks, failed = run.read(catalogue.select([task]), str(folder))
    assert not tasks
    return failed[task]


@pytest.fixture
def texts(tmp_path):
    """Twenty sentences in two languages, in files aligned line by line."""
    sides = {name: [f"{name} {n}" for n in range(20)] for name in ("en", "de")}
    for name, lines in sides.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return sides["en"], sides["de"]


def write_rows(path, *columns):
    rows = ("\t".join(map(str, row)) for row in zip(*columns, strict=True))
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(
    "name, languages",
    [("", ("", "")), ("de=", ("de", "de")), ("en-de=", ("en", "de"))],
)
def test_pairs_of_texts_in_named_languages(tmp_path, texts, name, languages):
    gold = np.random.default_rng(0).permutation(20)
    write_rows(tmp_path / "sts.tsv", *texts, gold)
    write_rows(tmp_path / "pairs.tsv", *texts, gold % 2)
    write_rows(tmp_path / "bitext.tsv", *texts)
    right = cosines(*texts, *languages)
    want = 100 * stats.spearmanr(right, gold)[0]
    found = scored(f"sts:{name}sts.tsv", tmp_path, with_predictions=True)
    task = f"sts:{name}sts.tsv"
    assert found.scores[task]["spearman"] == pytest.approx(want)
    assert found.languages == {task: sorted({*languages})}
    values = found.predictions[task][""].values
    np.testing.assert_allclose(values, right, atol=1e-6)

    want = 100 * metrics.average_precision_score(gold % 2, right)
    assert scores(f"pairs:{name}pairs.tsv", tmp_path)["ap"] == pytest.approx(want)
    similar = unit(texts[0], languages[0]) @ unit(texts[1], languages[1]).T
    want = 100 * np.mean(similar.argmax(axis=1) == np.arange(20))
    found = scores(f"bitext:{name}bitext.tsv", tmp_path)
    assert found["accuracy_forward"] == pytest.approx(want)


def test_each_subset_has_its_own_language(tmp_path, texts):
    gold = np.random.default_rng(0).permutation(20)
    for name, lines in zip(("en", "de"), texts, strict=True):
        write_rows(tmp_path / f"{name}.tsv", lines[:10], lines[10:], gold[:10])
    found = scored("sts:en=en.tsv:de=de.tsv", tmp_path, with_predictions=True)
    right = [
        cosines(lines[:10], lines[10:], language, language)
        for language, lines in zip(("en", "de"), texts, strict=True)
    ]
    (predicted,) = found.predictions.values()
    np.testing.assert_allclose(predicted[""].values, np.concatenate(right), atol=1e-6)
    (own,) = found.scores.values()
    for name, each in zip(("en=en.tsv", "de=de.tsv"), right, strict=True):
        want = 100 * stats.spearmanr(each, gold[:10])[0]
        assert own[f"spearman/{name}"] == pytest.approx(want)


def test_files_of_translations_have_their_languages(tmp_path, texts):
    english, german = texts
    (tmp_path / "fr.txt").write_text((tmp_path / "de.txt").read_text())
    similar = unit(english, "en") @ unit(german, "de").T
    want = 100 * np.mean(similar.argmax(axis=1) == np.arange(20))
    found = scores("bitext:en=en.txt:de=de.txt:fr=fr.txt", tmp_path)
    # The parts have the names of their languages, which --group takes.
    assert found["accuracy_forward/de"] == pytest.approx(want)
    without = unit(english, "en") @ unit(german).T
    want = 100 * np.mean(without.argmax(axis=1) == np.arange(20))
    assert found["accuracy_forward/fr"] == pytest.approx(want)

    found = scored("agnosticity:en=en.txt:de=de.txt", tmp_path)
    assert [*found.languages.values()] == [["de", "en"]]
    (own,) = found.scores.values()
    pool = np.concatenate([unit(english[::2], "en"), unit(german[::2], "de")])
    similar = pool @ pool.T
    np.fill_diagonal(similar, -2)
    nearest = np.argsort(-similar, axis=1)[:, :10] // 10
    other = nearest != np.repeat([0, 1], 10)[:, np.newaxis]
    assert own["other_language"] == pytest.approx(100 * other.mean())
    said = "the languages of the files are de, de; allowed: one file a language"
    assert said in refused("agnosticity:de=en.txt:de=de.txt", tmp_path)


def test_text_in_a_named_language(tmp_path, texts):
    english, _ = texts
    documents = ["\n".join(english[n : n + 2]) for n in range(0, 20, 2)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    for name in ("", "en"):
        similar = unit(english[::2], name) @ unit(english[1::2], name).T
        want = 100 * np.mean(similar.argmax(axis=1) == np.arange(10))
        path = f"{name}=text.txt".removeprefix("=")
        assert scores(f"neighbours:{path}", tmp_path)["accuracy"] == want
        vectors = removal(np.array([hashed(text, DIM) for text in english]), name)
        want = np.linalg.norm(vectors.mean(axis=0))
        found = scores(f"geometry:{path}", tmp_path)["mean_vector_norm"]
        assert found == pytest.approx(want, rel=1e-5)
    for task in ("neighbours", "geometry"):
        said = refused(f"{task}:en=en.txt:de=de.txt", tmp_path)
        assert said.endswith("the languages en, de; allowed: files of one language")


def test_a_collection_in_named_languages(tmp_path, texts):
    """German queries search English documents."""
    english, german = texts
    (tmp_path / "own" / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", english), ("queries", german)):
        rows = [{"_id": f"{n}", "text": text} for n, text in enumerate(lines)]
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "own" / f"{name}.jsonl").write_text(content)
    numbers = np.random.default_rng(0).permutation(20)
    write_rows(tmp_path / "own" / "qrels" / "test.tsv", range(20), numbers, [1] * 20)
    for name, languages in (("", ("", "")), ("de-en=", ("de", "en"))):
        similar = unit(german, languages[0]) @ unit(english, languages[1]).T
        # The document with the id of its query is left out.
        np.fill_diagonal(similar, -2)
        gold = np.eye(20)[numbers]
        gold[numbers == np.arange(20)] = 0
        rows = gold.any(axis=1)
        right = [
            metrics.ndcg_score([one], [own], k=10)
            for one, own in zip(gold[rows], similar[rows], strict=True)
        ]
        found = scores(f"retrieval:{name}own", tmp_path)["ndcg@10"]
        assert found == pytest.approx(100 * np.sum(right) / 20)


def test_a_classifier_learns_one_language_and_is_tested_on_another(tmp_path):
    for part, number in (("train", 40), ("dev", 20), ("test", 20)):
        rows = [f"{part} {n}\t{'ab'[n % 2]}" for n in range(number)]
        (tmp_path / f"{part}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    task = "classification:en=train.tsv:en=dev.tsv:de=test.tsv"
    (chosen,) = catalogue.select([task])
    (item,), _ = run.read([chosen], str(tmp_path))
    asked = {}

    def vectors(sentences, language=""):
        asked[language] = [*asked.get(language, ()), *sentences]
        return removal(Hashed(DIM).encode(sentences), language)

    chosen.score(item.data, vectors)
    parts = {name: {text.split()[0] for text in own} for name, own in asked.items()}
    assert parts == {"en": {"train", "dev"}, "de": {"test"}}


def test_a_file_of_the_name_goes_before_a_language(tmp_path, texts, monkeypatch):
    gold = np.arange(20)
    write_rows(tmp_path / "sts.tsv", *texts, gold)
    write_rows(tmp_path / "de=sts.tsv", *texts, gold[::-1])
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    want = 100 * stats.spearmanr(cosines(*texts), gold[::-1])[0]
    # In the folder of test sets, and in the working directory.
    assert scores("sts:de=sts.tsv", tmp_path)["spearman"] == pytest.approx(want)
    monkeypatch.chdir(tmp_path)
    assert scores("sts:de=sts.tsv", folder)["spearman"] == pytest.approx(want)


def test_languages_are_given_for_all_files_or_for_none(tmp_path, texts):
    said = refused("bitext:en=en.txt:de.txt", tmp_path)
    assert said == (
        "en=en.txt:de.txt: some files have a language; allowed: "
        "LANGUAGE=FILE for all files or for none"
    )
    assert "en.txt (also as .gz)" in refused("sts:de=none/en.txt", tmp_path)


@pytest.mark.parametrize(
    "name, found",
    [
        ("", ("", "")),
        ("de", ("de", "de")),
        ("en-de", ("en", "de")),
        ("zh-Hant", ("zh-Hant", "zh-Hant")),
        ("zh-Hant-en", ("zh-Hant", "en")),
        ("pt-BR", ("pt-BR", "pt-BR")),
    ],
)
def test_one_name_for_the_languages_of_two_texts(name, found):
    assert language_names.of_two_texts(name) == found


def test_a_missing_file_is_named_without_its_language(tmp_path):
    with pytest.raises(UserError, match="missing: .*/none.tsv, .*/none.tsv "):
        catalogue.select(["sts:de=none.tsv"])[0].read(run.DataDir(str(tmp_path)))
