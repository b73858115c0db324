"""Words counted on Beam are those of one process, however the work is divided."""

import bz2
import gzip
import lzma
import random

import pytest

pytest.importorskip("apache_beam", reason="needs pip install 'cmlm[corpus]'")

from cmlm.common import beam_files
from cmlm.data import streams
from cmlm.errors import UserError
from cmlm.tokenization.rules import Rules
from cmlm.vocabulary import words, words_on_beam

ANY = 1 << 40


@pytest.fixture
def paths(tmp_path) -> dict[str, list[str]]:
    """Two languages in plain and packed files, with all that lines may have."""
    draw = random.Random(4)
    vocabulary = [f"Wort{number}" for number in range(40)] + [
        "\u00dcber",
        "\u65e5\u672c",
    ]

    def lines(number):
        return [
            " ".join(draw.choices(vocabulary, k=draw.randint(1, 9))).encode()
            for _ in range(number)
        ]

    odd = [
        b"\xef\xbb\xbfbom",
        b"",
        b"  \t ",
        b"bad \xff\xfe byte",
        b"crlf\r",
        b"x" * 20_000,
    ]
    odd += ["line\u2028separator zero\u200bwidth".encode(), b"no end"]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines(300) + odd))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"\n".join(lines(50)) + b"\n"))
    (tmp_path / "c.txt").write_bytes(b"\n".join(lines(20)) + b"\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    pairs = [b"one Wort1 a\tein Wort1", b"only", b"two\tzwei\tWort2 neu"]
    (tmp_path / "d.tsv").write_bytes(b"\n".join(pairs) + b"\n")
    name = str(tmp_path) + "/"
    return {
        "de": [name + "a.txt", name + "b.txt.gz"],
        "ja": [name + "c.txt", name + "empty.txt"],
        "en-de": [name + "d.tsv"],
    }


def expected(paths, lower_case=True, number=1000):
    """Smoothed counts and totals, by one process."""
    counted = dict(words.count_languages(paths, Rules(lower_case), ANY, number))
    totals = {name: counts.total for name, counts in counted.items()}
    return words.smooth_and_cut(counted, 0.3, number), totals


@pytest.mark.parametrize("lower_case, number", [(True, 1000), (False, 7)])
def test_counts_equal_those_of_one_process(
    paths, lower_case, number, tmp_path, monkeypatch
):
    # In this process, so that the size of a range can be set: 17 of them in a.txt.
    monkeypatch.setattr(words_on_beam, "_RANGE_BYTES", 2000)
    before = sorted(path.name for path in tmp_path.iterdir())
    smoothed, totals = words_on_beam.count_and_smooth(
        paths, Rules(lower_case), 0.3, number, str(tmp_path / "work" / "x"), workers=1
    )
    assert (smoothed, totals) == expected(paths, lower_case, number)
    assert totals["de"] > totals["ja"] > totals["en"] == 5
    assert smoothed.once or number == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == [*before, "work"]
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.large
def test_several_processes_count_the_same(paths, tmp_path):
    found = words_on_beam.count_and_smooth(
        paths, Rules(), 0.3, 1000, str(tmp_path / "x"), workers=2
    )
    assert found == expected(paths)


@pytest.mark.parametrize("size", [1, 7, 100, ANY])
def test_ranges_divide_the_lines_of_a_file(paths, size, monkeypatch):
    monkeypatch.setattr(words_on_beam, "_RANGE_BYTES", size)
    path = paths["ja"][0]
    found = []
    for start in words_on_beam._starts(path):
        with beam_files.open_bytes(path) as raw:
            found += words_on_beam.read_range(raw, path, start)
    assert found == [
        line.numpy() for line in streams.sentences(streams.Portion([path]))
    ]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("last.txt", gzip.compress(b"a b\n"), "is gzip under another name; allowed"),
        ("last.txt", lzma.compress(b"a b\n"), "is xz; allowed: plain text, .gz"),
        ("last.txt.gz", lzma.compress(b"a b\n"), "is xz; allowed: plain text, .gz"),
        ("last.bz2", bz2.compress(b"a b\n"), "is bzip2; allowed for training"),
        ("last.txt", "a b\n".encode("utf-16"), "is UTF-16; allowed: UTF-8"),
    ],
    ids=["gzip as text", "xz as text", "xz as gzip", "bzip2", "UTF-16"],
)
def test_a_packed_file_behind_the_inspected_text_is_refused(
    paths, tmp_path, name, content, said
):
    path = tmp_path / name
    path.write_bytes(content)
    paths["ja"].append(str(path))
    with pytest.raises(UserError, match=f"{name} {said}"):
        words_on_beam.count_and_smooth(
            paths, Rules(), 0.3, 1000, str(tmp_path / "x"), workers=1
        )


@pytest.mark.parametrize(
    "name, start", [("a.txt", 0), ("a.txt", 1000), ("a.txt.gz", 0)]
)
def test_a_line_without_end_is_refused(tmp_path, name, start):
    content = b"a b\n" + b"x" * 5_000_000 + b"\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with beam_files.open_bytes(str(path)) as raw:
        with pytest.raises(UserError, match=f"a line of {path} is longer than 1,00"):
            list(words_on_beam.read_range(raw, str(path), start))


def test_a_file_cut_short_is_named(paths, tmp_path):
    path = paths["de"][1]
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        file.write(whole[:-20])
    with pytest.raises(UserError, match="b.txt.gz is not a whole gzip file"):
        words_on_beam.count_and_smooth(
            paths, Rules(), 0.3, 1000, str(tmp_path / "x"), workers=1
        )
    assert not list(tmp_path.glob("x*"))
