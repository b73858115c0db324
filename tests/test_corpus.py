"""A corpus is found, split if need be, counted, and refused if it will not do."""

import gzip

import pytest
from texts import make_corpus, neighbours, write

from cmlm.common import fields
from cmlm.data import inspection, streams
from cmlm.data.settings import TextDataConfig
from cmlm.errors import UserError


def test_report_counts(tmp_path):
    paths, documents = make_corpus(tmp_path)
    report = inspection.inspect(paths)
    assert report.files == 7
    assert report.documents == len(documents)
    assert report.sentences == sum(map(len, documents))
    assert report.pairs == len(neighbours(documents))
    assert report.one_sentence_documents == sum(len(d) == 1 for d in documents)
    assert report.whole


@pytest.mark.parametrize("max_bytes, lines", [(1 << 20, 100), (17, 2)])
def test_a_few_invalid_lines_get_a_warning(tmp_path, caplog, max_bytes, lines):
    content = [b"bad \xff\xfe line", "ö€ \ufffd".encode(), *[b"good line"] * 98]
    path = write(tmp_path / "a.txt", b"\n".join(content))
    inspection.inspect([path], max_bytes)
    assert f"{path} is UTF-8 in part: 1 of its {lines} lines" in caplog.text


def test_a_carriage_return_inside_a_line_gets_a_warning(tmp_path, caplog):
    path = write(tmp_path / "a.txt", b"One.\r\nTwo\rthree.\n")
    inspection.inspect([path])
    assert f"{path} line 2 has a carriage return inside; training drops" in caplog.text
    lines = streams.sentences(streams.Portion([path])).as_numpy_iterator()
    assert list(lines) == [b"One.", b"Twothree."]


def test_report_ends_at_its_limit_and_says_so(tmp_path):
    paths, _ = make_corpus(tmp_path)
    report = inspection.inspect(paths, max_bytes=1000)
    assert not report.whole and 1000 <= report.bytes < 1100
    about = f"all files have about {report.estimated_sentences():,} sentences"
    assert f"counted in the first 0 MB only; {about}" in report.describe(True)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "a.txt is empty"),
        (b"\n \n\t\n", "a.txt is empty"),
        (b"text\n\x00\x01\x02\n", "a.txt is not text: line 2 has a NUL byte"),
        ("One.\nTwo.\n".encode("utf-16"), "a.txt is UTF-16"),
        (
            b"ok\n" * 2 + b"caf\xe9\n" * 11,
            "a.txt is not UTF-8: 11 of its 13 .* line 3 first; .*iconv -f LATIN1",
        ),
        (
            b"One.\nTwo.\n" + b"x" * 10_000_000 + b"\nThree.\n",
            "a.txt line 3 is longer than 1,000,000 characters.*python -m cmlm.prepare",
        ),
        ("ä".encode() * 1_000_001, "a.txt line 1 is longer than 1,000,000 characters"),
    ],
    ids=[
        "empty",
        "blank",
        "binary",
        "utf-16",
        "latin-1",
        "long",
        "two-byte",
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path, content, message):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=message) as error:
        inspection.inspect([path])
    assert "\n" not in str(error.value)


def test_a_line_may_have_a_million_characters_of_two_bytes(tmp_path):
    path = write(tmp_path / "a.txt", "ä" * 1_000_000 + "\nTwo\n")
    assert inspection.inspect([path]).sentences == 2


# ------------------------------------------------------------------ configuration


def test_sentences_that_stand_alone_are_found_and_have_no_neighbours(
    tmp_path, monkeypatch
):
    write(tmp_path / "a.txt", "One.")
    write(tmp_path / "b.txt", "Eins. \n\nZwei.\nDrei.\n")
    config = TextDataConfig(input_path=f"en={tmp_path}/a.txt,de={tmp_path}/b.txt")
    found = config.load(str(tmp_path))
    assert found.sizes == {"en": 1, "de": 3}
    assert found.neighbours == {"en": 0, "de": 1}
    # The rest of a text may have neighbours, if only its beginning was read.
    report = inspection.CorpusReport(sentences=9, whole=False, share=0.1)
    monkeypatch.setattr(inspection, "inspect", lambda files: report)
    assert config.load(str(tmp_path)).neighbours == {}
    assert config.origin != config.replace(raw_layout="lines").origin
    assert config.origin == config.replace(global_batch_size=7).origin


def test_files_in_the_training_format_stay_as_they_are(tmp_path):
    paths, _ = make_corpus(tmp_path, n_files=2)
    config = TextDataConfig(input_path=f"{tmp_path}/*.txt*")
    assert config.load(str(tmp_path / "work")).files == {"": paths}
    assert not (tmp_path / "work").exists()


def test_raw_text_is_split_once_and_again_when_it_changes(tmp_path):
    raw = write(tmp_path / "raw.txt", "One here. Two\nhere.\n\nThree here.\n")
    config = TextDataConfig(input_path=raw, raw_layout="wrapped")
    work = str(tmp_path / "work, [1]")
    (path,) = config.load(work).files[""]
    assert gzip.open(path, "rt").read() == "One here.\nTwo here.\nThree here.\n"
    written = (tmp_path / path).stat().st_mtime_ns
    assert config.load(work).files == {"": [path]}
    assert (tmp_path / path).stat().st_mtime_ns == written
    write(tmp_path / "raw.txt", "Other text.\n")
    (other,) = config.load(work).files[""]
    assert gzip.open(other, "rt").read() == "Other text.\n"


@pytest.mark.parametrize("layout", ["", "lines"])
def test_a_folder_of_short_files_in_another_encoding_is_refused(tmp_path, layout):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes("Café.\n\n".encode("latin1") * 3)
    config = TextDataConfig(input_path=f"{tmp_path}/*.txt", raw_layout=layout)
    said = "0.txt and 3 more is not UTF-8: 12 of its 24 lines have invalid bytes"
    with pytest.raises(UserError, match=said):
        config.load(str(tmp_path / "work"))
    assert not [*tmp_path.glob("work/*")]


def test_the_split_of_raw_text_logs_the_dropped_sentences(tmp_path, caplog):
    caplog.set_level("INFO")
    raw = write(tmp_path / "raw.txt", "One. 12 34.\n56.\n")
    config = TextDataConfig(input_path=raw, raw_layout="lines")
    config.load(str(tmp_path / "work"))
    assert "dropped sentences: 2 without a letter, 0 with more than" in caplog.text


@pytest.mark.parametrize("code", ["xx", "DE", "xx-Latn"])
def test_raw_text_of_an_unknown_language_is_refused(tmp_path, code):
    raw = write(tmp_path / "raw.txt", "One here.\n")
    named = TextDataConfig(input_path=f"{code}={raw}", raw_layout="lines")
    unnamed = TextDataConfig(input_path=raw, raw_layout="lines", raw_language=code)
    said = f"raw_language, is '{code[:3].strip('-')}'; allowed: ISO 639 codes in lower"
    for config in (named, unnamed):
        with pytest.raises(UserError, match=said):
            config.load(str(tmp_path / "work"))
    assert not (tmp_path / "work").exists()
    # Text in sentences may have any name.
    named.replace(raw_layout="").load(str(tmp_path / "work"))


def test_raw_text_of_a_language_without_rules_of_its_own_is_split(tmp_path):
    raw = write(tmp_path / "raw.txt", "One here. Two here.\n")
    for code in ("ceb", "wo", "hmn", "zh-Hant", "sr_Latn", "pt-br"):
        config = TextDataConfig(input_path=f"{code}={raw}", raw_layout="lines")
        assert config.load(str(tmp_path / "work")).sizes == {code: 2}


@pytest.mark.parametrize("code", ["pt", "pt-BR", "pt_BR", "pt-br"])
def test_raw_text_of_a_region_is_split_by_the_rules_of_its_language(tmp_path, code):
    raw = write(tmp_path / "raw.txt", "A Sra. Dias saiu. O Sr. Silva ficou.\n")
    config = TextDataConfig(input_path=f"{code}={raw}", raw_layout="lines")
    (path,) = config.load(str(tmp_path / "work")).files[code]
    expected = "A Sra. Dias saiu.\nO Sr. Silva ficou.\n"
    assert gzip.open(path, "rt").read() == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"global_batch_size": 0}, "global_batch_size is 0; allowed: at least 1"),
        ({"seq_length": 2}, "seq_length is 2; allowed: at least 3"),
        ({"raw_layout": "html"}, "raw_layout is 'html'; allowed: '', .*wikitext"),
        ({"hold_out_fraction": 1.0}, "hold_out_fraction is 1.0; allowed: 0 to below 1"),
    ],
)
def test_wrong_values_are_named(changes, message):
    good = {"input_path": "a.txt", "global_batch_size": 8}
    fields.check(TextDataConfig(**good))
    with pytest.raises(UserError, match=message):
        fields.check(TextDataConfig(**{**good, **changes}))


def test_an_unknown_builtin_is_named(tmp_path):
    with pytest.raises(UserError, match="allowed: builtin:python-docs"):
        TextDataConfig(input_path="builtin:wikipedia").load(str(tmp_path))


def test_a_report_counts_in_the_singular_and_in_the_plural(tmp_path):
    one = inspection.inspect([write(tmp_path / "a.txt", b"One\n")])
    assert one.describe(True) == (
        "1 file, 1 document, 1 sentence, 0 pairs (1 document of one sentence, without "
        "a pair)"
    )
    lines = b"One\nTwo\n\n" * 1000
    many = inspection.inspect([write(tmp_path / f"{n}.txt", lines) for n in range(2)])
    assert many.describe(True) == (
        "2 files, 2,000 documents, 4,000 sentences, 2,000 pairs"
    )
