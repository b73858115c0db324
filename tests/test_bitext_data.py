"""Translations as TSV: good lines are read, bad ones counted, many of them refused."""

import gzip
from pathlib import Path

import pytest
import tensorflow as tf
from texts import write_lines

from cmlm.data import bitext, streams
from cmlm.data.bitext import BitextDataConfig, PairDataConfig
from cmlm.errors import UserError
from cmlm.mining import texts

pytestmark = pytest.mark.usefixtures("unconverted")


def pairs(*args, **kwargs) -> list[tuple[str, ...]]:
    return [
        tuple(cell.decode() for cell in row)
        for row in bitext.rows(streams.Portion(*args, **kwargs)).as_numpy_iterator()
    ]


GOOD = [f"sentence {i}\tSatz {i}" for i in range(500)]


def test_lines_are_read_in_order(tmp_path):
    path = write_lines(tmp_path / "a.tsv", GOOD)
    assert pairs([path]) == [tuple(line.split("\t")) for line in GOOD]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress("\n".join(GOOD).encode()))
    assert pairs([f"{tmp_path}/b.tsv.gz"]) == pairs([path])


def test_further_columns_are_hard_negatives(tmp_path):
    path = write_lines(tmp_path / "a.tsv", [f"{line}\tanders\tfalsch" for line in GOOD])
    assert pairs([path])[3] == ("sentence 3", "Satz 3", "anders", "falsch")
    report = bitext.inspect([path])
    assert report.columns == 4
    assert "500 pairs with 2 hard negatives each" in str(report)
    one = write_lines(tmp_path / "b.tsv", [f"{line}\tanders" for line in GOOD])
    assert "500 pairs with 1 hard negative each" in str(bitext.inspect([one]))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_byte_order_mark_is_no_text(tmp_path, name):
    """A file of two that were joined has one in its middle, too."""
    content = "\ufeffOne\tEins\n\ufeffTwo\tZwei\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert pairs([str(path)]) == [("One", "Eins"), ("Two", "Zwei")]


def test_a_carriage_return_inside_a_line_gets_a_warning(tmp_path, caplog):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"One\tEins\r\nTwo\rtwo\tZwei\r\n")
    bitext.inspect([str(path)])
    assert f"{path} line 2 has a carriage return inside; training drops" in caplog.text
    assert pairs([str(path)]) == [("One", "Eins"), ("Twotwo", "Zwei")]


def test_report_training_and_mining_read_the_same_pairs(tmp_path):
    """Other spaces than those of ASCII are text for all three."""
    lines = ["\u00a0\tJa.\t \u2003", "\u00a0Yes.\tYes.\t\u00a0", "One\t \t\u00a0"]
    path = write_lines(tmp_path / "a.tsv", [*lines, *(f"{line}\tc" for line in GOOD)])
    report, read = bitext.inspect([path]), pairs([path])
    assert read[0] == ("\u00a0", "Ja.", "\u2003")
    assert (report.columns, report.empty_sides, report.equal_sides) == (3, 1, 0)
    assert report.pairs == len(read) == 502
    assert [*texts.read_rows([path], 3)] == ["\t".join(row) for row in read]


def test_bad_lines_are_left_out_and_counted(tmp_path):
    lines = [*GOOD, "no column", "empty side\t ", "three\tcolumns\there", ""]
    path = write_lines(tmp_path / "a.tsv", lines)
    report = bitext.inspect([path])
    assert (report.pairs, report.wrong_columns, report.empty_sides) == (500, 2, 1)
    assert "2 lines without 2 columns, 1 line with an empty column" in str(report)
    assert len(pairs([path])) == 500


@pytest.mark.parametrize(
    "lines, message",
    [
        (
            [*GOOD, *["missing"] * 6],
            "6 of 506 lines .*a.tsv line 501 is the first of them",
        ),
        ([*GOOD, *["a\t"] * 6], "6 of 506 lines"),
        (
            [*GOOD, *["a\tb\tc"] * 6],
            "do not have 2 columns with text, as the first line has; .*line 501 is",
        ),
        (["plain text", "more of it"], "no line of the form source<TAB>target"),
        ([], "no line of the form"),
    ],
)
def test_many_bad_lines_are_refused(tmp_path, lines, message):
    path = write_lines(tmp_path / "a.tsv", lines)
    with pytest.raises(UserError, match=message):
        BitextDataConfig(input_path=path).load(str(tmp_path))


def test_a_column_of_numbers_is_refused(tmp_path):
    scored = write_lines(
        tmp_path / "b.tsv", [f"0.{i}\t-1\t{GOOD[i]}" for i in range(300)]
    )
    said = (
        r"column 1 of bitext holds numbers, not text, .*b.tsv line 1 first; allowed: "
        r"source<TAB>target and hard negatives \(`cut -f3,4 OLD > NEW`\)"
    )
    with pytest.raises(UserError, match=said):
        bitext.inspect([scored])
    numbers = write_lines(tmp_path / "c.tsv", [f"{i}\t{i} Uhr" for i in range(9)])
    with pytest.raises(UserError, match=r"hard negatives$"):
        bitext.inspect([numbers])
    # Half of the cells may be numbers.
    half = ["12\t12", "二\tदो"] * 9
    assert bitext.inspect([write_lines(tmp_path / "d.tsv", half)]).pairs == 18


def test_a_column_with_one_text_in_all_lines_is_refused(tmp_path):
    """A column of language codes is no source of translations."""
    lines = [f"eng\tHouse {i}\tdeu\tHaus {i}" for i in range(100)]
    said = (
        "column 1 of bitext is 'eng' in all 100 lines; allowed: source<TAB>target and "
        r"hard negatives, in different texts \(`cut -f2,4 OLD > NEW`\)"
    )
    with pytest.raises(UserError, match=said):
        bitext.inspect([write_lines(tmp_path / "a.tsv", lines)])
    with pytest.raises(UserError, match="column 2 .* in different texts$"):
        bitext.inspect(
            [write_lines(tmp_path / "b.tsv", [f"x {i}\tb" for i in range(100)])]
        )
    # A few lines may have one query.
    assert bitext.inspect([write_lines(tmp_path / "c.tsv", lines[:99])]).pairs == 99
    other = ["eng\tHouse\tdeutsch\tHaus", *lines[1:], "deu\tHouse\tdeu\tHaus"]
    assert bitext.inspect([write_lines(tmp_path / "d.tsv", other)]).constant == {}


@pytest.mark.parametrize("different", [0, 49, 50])
def test_equal_sides_get_a_warning(tmp_path, caplog, different):
    equal = [f"house {i}\t house {i}" for i in range(500 - different)]
    path = write_lines(tmp_path / "a.tsv", [*equal, *GOOD[:different]])
    assert bitext.inspect([path]).equal_sides == 500 - different
    said = f"a.tsv: the first two columns are equal in {500 - different} of 500 lines"
    assert (said in caplog.text) is (different < 50)


def test_a_name_is_that_of_two_languages(tmp_path):
    path = write_lines(tmp_path / "a.tsv", GOOD)
    for name in ("", "en-de=", "zh-Hant-en="):
        BitextDataConfig(input_path=f"{name}{path}").load(str(tmp_path))
    with pytest.raises(
        UserError, match="language of bitext is 'en'; allowed: a pair, as in en-de=FIL"
    ):
        BitextDataConfig(input_path=f"en={path}").load(str(tmp_path))
    # Queries and passages are in one language.
    PairDataConfig(input_path=f"en={path}").load(str(tmp_path))


def test_the_file_of_the_first_bad_line_is_named(tmp_path):
    good = write_lines(tmp_path / "a.tsv", GOOD)
    bad = write_lines(tmp_path / "b.tsv", ["Yes.\tJa.", *["missing"] * 9])
    with pytest.raises(
        UserError, match="lines of bitext do not .*b.tsv line 2 is the first"
    ):
        bitext.inspect([good, bad])


@pytest.mark.parametrize("header", ["Query\tpassage\tnegative", "sentence1\tsentence2"])
def test_a_header_is_told(header, tmp_path, caplog):
    columns = header.count("\t") - 1
    path = write_lines(
        tmp_path / "a.tsv", [line + "\tanders" * columns for line in GOOD]
    )
    bitext.inspect([path])
    assert not caplog.text
    named = write_lines(tmp_path / "b.tsv", [header, Path(path).read_text().rstrip()])
    assert bitext.inspect([path, named]).pairs == 1001
    assert "b.tsv line 1 names columns, and counts as a pair" in caplog.text


def test_later_files_with_other_columns_are_refused(tmp_path):
    """The inspection ends before them, and training would read none of their lines."""
    first = write_lines(tmp_path / "a.tsv", GOOD)
    good = write_lines(tmp_path / "b.tsv", [*GOOD[:20], *["missing"] * 20])
    wide = write_lines(tmp_path / "c.tsv", [f"{line}\tanders" for line in GOOD])
    empty = write_lines(tmp_path / "d.tsv", [])
    assert bitext.inspect([first, good, empty], max_lines=300).pairs == 300
    said = (
        "100 of the first 100 lines of bitext .*c.tsv do not have 2 columns with text; "
        "allowed: 2 columns in every file$"
    )
    with pytest.raises(UserError, match=said):
        bitext.inspect([first, good, wide], max_lines=300)


def test_translations_of_one_text_are_held_out_together(tmp_path):
    lines = [f"sentence {i % 100}\tSatz {i}" for i in range(1000)]
    path = write_lines(tmp_path / "a.tsv", lines)
    train = pairs([path], "train", 0.2)
    held_out = pairs([path], "validation", 0.2)
    assert sorted(train + held_out) == sorted(pairs([path]))
    assert 100 <= len(held_out) <= 300
    assert not {source for source, _ in train} & {source for source, _ in held_out}


def test_hosts_share_the_lines(tmp_path):
    path = write_lines(tmp_path / "a.tsv", GOOD)
    shares = [
        pairs([path], input_context=tf.distribute.InputContext(2, i, 2))
        for i in range(2)
    ]
    assert sorted(shares[0] + shares[1]) == sorted(pairs([path]))


def test_pairs_beyond_the_inspection_are_estimated(tmp_path):
    """Sampling by size would else take every large corpus for one of equal size."""
    for name, lines in (("a.tsv", 300), ("b.tsv", 700)):
        rows = [f"house {i:03}\tHaus {i:03}\n" for i in range(lines)]
        (tmp_path / name).write_text("".join(rows))
    paths = [str(tmp_path / name) for name in ("a.tsv", "b.tsv")]
    report = bitext.inspect(paths, max_lines=400)
    assert report.pairs == 400 and report.estimated_pairs() == 1000
    assert "in the first 400 lines" in str(report)
    assert bitext.inspect(paths).estimated_pairs() == 1000
