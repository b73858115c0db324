"""Words are counted as the tokenizer sees them, and alike wherever they are counted."""

import collections
import re

import pytest

from cmlm.tokenization.rules import Rules
from cmlm.vocabulary import words


def test_words_are_counted_as_a_plain_reader_counts_them(text_file):
    with open(text_file) as file:
        found = re.findall(r"\w+|[^\w\s]", file.read().lower().replace("\u00e9", "e"))
    counted = words.count({None: [text_file]}, Rules(), 1 << 30)
    assert counted == words.WordCounts(collections.Counter(found), len(found))


def test_cased_counts_and_the_limit_on_text(text_file):
    counts = words.count({None: [text_file]}, Rules(False), 1).counts
    assert (
        counts["Caf\u00e9"] == counts["The"] == words.LINES_PER_CHUNK
    )  # a chunk is counted whole
    assert "the" not in counts and "cafe" not in counts


def test_memory_is_bounded_by_forgetting_rare_words(tmp_path):
    """Each chunk of lines brings 1,024 words that never come again."""
    lines = [f"always often{number % 50} once{number}" for number in range(20_000)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    counted = words.count({None: [str(path)]}, Rules(), 1 << 30, max_words=3000)
    assert counted.total == 60_000
    assert len(counted.counts) <= 3000
    assert counted.counts["always"] == 20_000
    assert all(counted.counts[f"often{number}"] == 400 for number in range(50))


def test_columns_share_the_bound_of_their_language(tmp_path):
    for name in ("plain.txt", "pairs.tsv"):
        lines = (f"{name}{number}\tzwei{number}\n" for number in range(4000))
        (tmp_path / name).write_text("twice\ttwice\n" * 3 + "".join(lines))
    plain, pairs = ([str(tmp_path / name)] for name in ("plain.txt", "pairs.tsv"))
    texts = {None: plain, 0: pairs, 1: pairs}
    counted = words.count(texts, Rules(), 1 << 30, max_words=3000)
    assert len(counted.counts) <= 3000
    assert counted.counts["twice"] == 12


def test_languages_are_counted_one_at_a_time(text_file, tmp_path):
    files = {"en": [text_file], "de": [str(tmp_path / "missing.txt")]}
    language, counted = next(words.count_languages(files, Rules(), 1 << 30, 5))
    assert language == "en" and len(counted.counts) == 5


def test_the_most_frequent_words_do_not_depend_on_the_order_they_came_in():
    counts = {"b": 2, "a": 2, "c": 3, "d": 1}
    backwards = dict(reversed(counts.items()))
    for each in (counts, backwards):
        assert words.most_frequent(each, 2) == [("c", 3), ("a", 2)]
    top = words.WordCounts(collections.Counter(counts), 8).top(2)
    assert top == words.WordCounts(collections.Counter(c=3, a=2), 8)


def test_words_of_a_small_language_are_counted_up():
    counts = words.smooth(
        {
            "en": words.WordCounts(collections.Counter({"the": 900, "of": 100}), 1000),
            "de": words.WordCounts(collections.Counter({"der": 9, "of": 1}), 10),
        },
        0.3,
    )
    # 10 words of 1010 become a share of 10^0.3 / (1000^0.3 + 10^0.3) = 20 %.
    total = counts.total()
    german = counts["der"] / 0.9
    assert german / total == pytest.approx(0.2008, abs=0.001)
    assert counts["the"] == 900
    assert counts["of"] == 100 + round(counts["der"] / 9)


def test_each_language_adds_its_most_frequent_words():
    """The third word of both languages would be the most frequent one of all."""
    counted = {
        language: words.WordCounts(collections.Counter({a: 9, b: 8, "both": 7}), 24)
        for language, a, b in (("en", "a", "b"), ("de", "c", "d"))
    }
    assert words.smooth(counted, 0.3)["both"] == 14
    assert words.smooth_and_cut(counted, 0.3, 2).counts == {"a": 9, "c": 9}
    three = words.smooth_and_cut(counted, 0.3, 3)
    assert three == words.SmoothedCounts({"both": 14, "a": 9, "c": 9}, frozenset())


def test_words_that_a_text_has_once_are_known_after_smoothing():
    counted = {
        "en": words.WordCounts(collections.Counter(the=900, once=1, both=1), 902),
        "de": words.WordCounts(collections.Counter(der=9, einmal=1, both=1), 11),
    }
    smoothed = words.smooth_and_cut(counted, 0.3, 100)
    assert smoothed.counts["einmal"] > 2
    # `once` counts once, too.
    assert smoothed.once == {"einmal"}
