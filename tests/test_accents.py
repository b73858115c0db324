"""The warning of text that loses its accents."""

import pytest

from cmlm.vocabulary import accents, learning
from cmlm.vocabulary.settings import VocabularyConfig


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("line, share, example", [
    ("мой Йод и твой йод", "80%", "(й is и)"),
    ("cafe\u0301 or cafe", "33%", "(é is e)"),
    ("हिन्दी में", "100%", "is nothing)"), ("中文 字", "", ""),
])  # fmt: skip
def test_words_that_change_are_told_by_language(tmp_path, caplog, line, share, example):
    accents.warn_of_stripped({"xx": [write(tmp_path / "a.txt", [line] * 3)]})
    if share:
        (message,) = caplog.messages
        said = f"xx: {share} of the words have accents, which the vocabulary drops ("
        assert message.startswith(said)
        assert message.endswith(f"{example}; strip_accents=false keeps them")
    else:
        assert not caplog.messages


def test_bitext_has_two_languages_and_loanwords_are_few(tmp_path, caplog):
    rows = ["the good house on the left side\tdas schöne Haus links"] * 50
    rows += ["a café\tein Haus"]
    accents.warn_of_stripped({"en-de": [write(tmp_path / "b.tsv", rows)]})
    (message,) = caplog.messages
    assert message.startswith("de: 25% of the words have accents")


@pytest.mark.parametrize("given, warned", [
    ({}, True), ({"strip_accents": True}, False), ({"strip_accents": False}, False),
    ({"lower_case": False}, False),
])  # fmt: skip
def test_only_the_default_warns(tmp_path, caplog, given, warned):
    text = write(tmp_path / "a.txt", ["мой йод"] * 9)
    config = VocabularyConfig(size=200, **given)
    learning.learn({"": [text]}, config, str(tmp_path / "vocab.txt"))
    assert ("100% of the words have accents" in caplog.text) is warned
