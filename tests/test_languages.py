"""Languages are named in the path, and drawn by a power of their size."""

import numpy as np
import pytest
import tensorflow as tf

from cmlm.common import language_names
from cmlm.data import languages
from cmlm.data.corpus import mix
from cmlm.data.settings import TextDataConfig
from cmlm.errors import UserError
from cmlm.objectives import OBJECTIVES


@pytest.mark.parametrize(
    "path, found",
    [
        ("a.txt,b/*.txt", {"": "a.txt,b/*.txt"}),
        ("en=a.txt", {"en": "a.txt"}),
        ("en=a.txt, b.txt,de=c.txt", {"en": "a.txt,b.txt", "de": "c.txt"}),
        ("en=a.txt,de=b.txt,en=c.txt", {"en": "a.txt,c.txt", "de": "b.txt"}),
        ("en-de=x.tsv,zh-Hant=y", {"en-de": "x.tsv", "zh-Hant": "y"}),
        # Hive-style directories are not languages.
        ("/data/lang=en/a.txt", {"": "/data/lang=en/a.txt"}),
        ("builtin:python-docs", {"": "builtin:python-docs"}),
    ],
)
def test_languages_are_read_from_the_path(path, found):
    assert languages.split(path) == found


def test_a_path_that_exists_is_not_a_language(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("dt=2024", "dt=2025"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").touch()
    assert languages.split("dt=2024/a.txt") == {"": "dt=2024/a.txt"}
    assert languages.split("dt=*/a.txt") == {"": "dt=*/a.txt"}
    assert languages.split("en=b.txt,dt=2024/a.txt") == {"en": "b.txt,dt=2024/a.txt"}
    # Nothing is there: a language, whose file the command then asks for.
    assert languages.split("dt=2023/a.txt") == {"dt": "2023/a.txt"}
    assert languages.split("./dt=2023/a.txt") == {"": "./dt=2023/a.txt"}


@pytest.mark.parametrize(
    "pair, found",
    [
        ("en-de", ("en", "de")),
        ("zh-Hant-en", ("zh-Hant", "en")),
        ("en-zh-Hant", ("en", "zh-Hant")),
        ("pt-BR-zh-hant-TW", ("pt-BR", "zh-hant-TW")),
        ("EN-DE", ("EN", "DE")),
        ("en", ("en", "")),
    ],
)
def test_a_pair_is_split_between_its_languages(pair, found):
    assert language_names.sides(pair) == found


def test_a_path_without_language_beside_some_with_one_is_named():
    with pytest.raises(UserError, match="'a.txt' in .* has no language; allowed: LANG"):
        languages.split("a.txt,de=b.txt")


@pytest.mark.parametrize("value", ["english=a.txt,de=b.txt", "de=b.txt,english=a.txt"])
def test_a_word_in_the_place_of_a_language_is_named(value):
    said = "no file matches 'english=a.txt'; allowed: .* code of two or three letters"
    with pytest.raises(UserError, match=said):
        languages.split(value)


def test_a_word_before_the_sign_may_belong_to_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rate=2.txt").write_text("")
    assert languages.split("rate=?.txt") == {"": "rate=?.txt"}


def test_shares_are_a_power_of_the_size():
    sizes = {"en": 1000, "de": 10, "fr": 0}
    shares = languages.smoothed_shares(sizes, 0.3)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["en"] / shares["de"] == pytest.approx(100**0.3)
    assert shares["fr"] == 0
    assert languages.smoothed_shares(sizes, 1.0)["en"] == pytest.approx(1000 / 1010)
    assert languages.smoothed_shares(sizes, 0.0)["de"] == pytest.approx(1 / 2)


def test_mixing_keeps_to_the_shares_and_draws_the_same_again():
    datasets = {
        "en": tf.data.Dataset.from_tensors(0).repeat(),
        "de": tf.data.Dataset.from_tensors(1).repeat(),
    }

    def draw(seed):
        mixed = mix(datasets, {"en": 0.8, "de": 0.2}, seed)
        return [int(x) for x in mixed.take(2000)]

    assert 0.17 < np.mean(draw(1)) < 0.23
    assert draw(1) == draw(1) != draw(2)


def test_mixing_a_pass_loses_nothing():
    datasets = {
        "en": tf.data.Dataset.range(100),
        "de": tf.data.Dataset.range(100, 103),
    }
    mixed = mix(datasets, {"en": 0.5, "de": 0.5}, 0)
    assert sorted(int(x) for x in mixed) == list(range(103))


def test_sizes_and_shares_are_logged(tmp_path, caplog):
    for language, sentences in (("en", 300), ("de", 30)):
        lines = [f"Sentence number {i} ." for i in range(sentences)]
        (tmp_path / f"{language}.txt").write_text("\n".join(lines))
    config = TextDataConfig(
        input_path=f"en={tmp_path}/en.txt,de={tmp_path}/de.txt", global_batch_size=2
    )
    with caplog.at_level("INFO"):
        corpus = config.load(str(tmp_path / "work"))
    assert corpus.sizes == {"en": 300, "de": 30}
    assert corpus.files["de"] == [f"{tmp_path}/de.txt"]
    assert "in proportion to size^0.3: en 300 66.6%, de 30 33.4%" in caplog.text


def test_a_language_without_files_is_named(tmp_path):
    (tmp_path / "en.txt").write_text("One .\nTwo .")
    config = TextDataConfig(input_path=f"en={tmp_path}/en.txt,de={tmp_path}/de*.txt")
    with pytest.raises(UserError, match="^de: no file matches .*de"):
        config.load(str(tmp_path))


@pytest.mark.parametrize(
    "name, flag, validation",
    [
        ("mlm", "--train_data", "--validation_data"),
        # Its validation data has no flag.
        ("bitext", "--bitext_data", "task.bitext.validation_data"),
    ],
)
def test_an_objective_names_the_flag_of_files_that_are_missing(
    name, flag, validation, tmp_path
):
    (tmp_path / "there.tsv").write_text("One.\tEins.\n" * 2)
    config = OBJECTIVES[name].config_class(validation_data="no.tsv")
    for path, setting in (("no.tsv", flag), (f"{tmp_path}/there.tsv", validation)):
        config.train_data.input_path = path
        with pytest.raises(
            UserError, match=f"^{setting}: no file matches 'no.tsv'; al"
        ):
            config.load_data(str(tmp_path), False, name)
