"""Dumps of every layout become documents; damaged, huge and wrong files are told."""

import bz2
import collections
import gzip
import json
import lzma
import struct
import time

import pytest
import wet_files

from cmlm.common import choices, files, packing
from cmlm.errors import UserError
from cmlm.preparation import raw_lines, sources, wikitext
from cmlm.preparation.layouts import wikipedia


def read(path, layout, **arguments):
    counts = collections.Counter()
    found = list(sources.read(str(path), layout, counts, **arguments))
    del counts[raw_lines.LINES]
    return [lines for _, lines in found], dict(counts)


def test_each_layout_of_the_command_has_a_reader():
    assert {*choices.TEXT_LAYOUTS, *choices.STEPS_OF_LAYOUT} == {*sources.LAYOUTS}
    assert {*choices.BITEXT_LAYOUTS} <= {*sources.LAYOUTS}


PAGES = ["Die erste Seite.\n\n Zweite Zeile. \n", "页面。\n", "Third page.\n" * 200]


@pytest.mark.parametrize("packed", [True, False])
def test_wet(tmp_path, packed):
    path = tmp_path / ("a.wet.gz" if packed else "a.wet")
    wet_files.write(path, PAGES, packed)
    documents, counts = read(path, "wet")
    expected = [["Die erste Seite.", "Zweite Zeile."], ["页面。"]]
    assert documents == [*expected, ["Third page."] * 200]
    assert counts == {}


def test_parts_of_a_file_are_the_whole_and_tell_as_much(tmp_path):
    pages = [*PAGES, b"caf\xe9", "Page five.", b"th\xe9"]
    wet_files.write(tmp_path / "a.wet.gz", pages)
    whole = (tmp_path / "a.wet.gz").read_bytes()
    (tmp_path / "a.wet.gz").write_bytes(whole[:-40])
    path, together, told = str(tmp_path / "a.wet.gz"), [], collections.Counter()
    for part in range(3):
        together += sources.read(path, "wet", told, part=part, parts=3)
    counts = collections.Counter()
    assert sorted(together) == list(sources.read(path, "wet", counts))
    assert len(together) == 5
    assert told == counts and len(told) == 2


@pytest.mark.parametrize("packed", [True, False])
def test_wet_cut_in_the_middle_is_read_up_to_there(tmp_path, packed):
    path = tmp_path / ("a.wet.gz" if packed else "a.wet")
    wet_files.write(path, PAGES, packed)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    documents, counts = read(path, "wet")
    assert [d[0] for d in documents] == ["Die erste Seite.", "页面。"]
    (told,) = counts
    assert told.startswith(f"damaged file: {path}: ")


def test_wet_with_a_huge_record_is_read_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_lines, "MAX_BYTES", 1 << 20)
    path = tmp_path / "a.wet.gz"
    wet_files.write(path, [PAGES[0], b"x" * (3 << 20), PAGES[1]])
    documents, counts = read(path, "wet")
    assert [d[0] for d in documents] == ["Die erste Seite.", "页面。"]
    assert counts == {"record over 1 MB": 1}


@pytest.mark.parametrize("line", [b"x" * (2 << 20), b"Name: value\r\n" * 200_000])
def test_wet_with_a_huge_header_is_read_up_to_it(tmp_path, line):
    path = tmp_path / "a.wet"
    wet_files.write(path, PAGES[:2], packed=False)
    path.write_bytes(path.read_bytes() + b"WARC/1.0\r\n" + line)
    documents, counts = read(path, "wet")
    assert len(documents) == 2
    (told,) = counts
    assert told.endswith("a.wet: the header of a record is larger than 1 MB")


def test_wet_is_read_up_to_a_record_without_its_length(tmp_path):
    path = tmp_path / "a.wet"
    wet_files.write(path, PAGES[:2], packed=False)
    record = b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\nA page.\r\n\r\n"
    path.write_bytes(path.read_bytes() + record)
    documents, counts = read(path, "wet")
    assert [d[0] for d in documents] == ["Die erste Seite.", "页面。"]
    assert counts == {f"damaged file: {path}: a record has no Content-Length": 1}


def test_bytes_that_are_no_utf8_are_replaced_and_counted(tmp_path):
    wet_files.write(tmp_path / "a.wet.gz", [b"caf\xe9 noir\n"])
    documents, counts = read(tmp_path / "a.wet.gz", "wet")
    assert documents == [["caf\ufffd noir"]]
    assert counts == {"invalid UTF-8 replaced": 1}


@pytest.mark.parametrize("layout", ["lines", "wrapped", "wikitext", "tsv", "json"])
def test_text_in_another_encoding_is_refused(tmp_path, layout):
    """As `files.open_text` refuses it; a few lines are replaced and counted."""
    path = tmp_path / "a.txt"
    line = '{"text":\t"Un caf\xe9."}\n'
    few = [line.encode("latin-1")] * 10
    path.write_bytes(b"".join([line.encode(), *few]))
    assert read(path, layout)[1] == {"invalid UTF-8 replaced": 10}

    def refused(*content):
        path.write_bytes(b"".join(content))
        with pytest.raises(UserError) as caught:
            read(path, layout)
        with pytest.raises(UserError) as plain, files.open_text(str(path)) as lines:
            list(lines)
        assert str(caught.value) == str(plain.value)
        return str(caught.value)

    said = refused(line.encode(), *few, few[0])
    assert "a.txt is not UTF-8: 11 of its 12 lines have invalid" in said
    assert "; `iconv -f LATIN1 " in said
    # iconv would spoil the good lines.
    said = refused(*[line.encode()] * 20, *few, few[0])
    assert "11 of its 31 lines have invalid bytes, line 21 first; the lines mix" in said
    assert "iconv" not in said
    path.write_bytes(b"".join([line.encode() * 100, *few, few[0]]))
    assert read(path, layout)[1] == {"invalid UTF-8 replaced": 11}


def test_a_file_of_two_that_were_joined_has_a_byte_order_mark_inside(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("One.\nTwo.\n".encode("utf-8-sig") * 2)
    assert read(path, "lines")[0] == [["One.", "Two."] * 2]


def test_nul_is_replaced_and_counted(tmp_path):
    wet_files.write(tmp_path / "a.wet.gz", ["Page\0one.\n", "Page two.\n"])
    (tmp_path / "a.json").write_text(json.dumps({"text": "One.\nT\0wo\0."}) + "\n")
    (tmp_path / "a.tsv").write_bytes(b"Y\0es.\tJa.\n")
    (tmp_path / "a.txt").write_bytes(b"One.\n\nT\0wo.\n\n")
    for name, layout, expected in [
        ("a.wet.gz", "wet", [["Page\ufffdone."], ["Page two."]]),
        ("a.json", "json", [["One.", "T\ufffdwo\ufffd."]]),
        ("a.tsv", "tsv", [["Y\ufffdes.\tJa."]]),
        ("a.txt", "lines", [["One."], ["T\ufffdwo."]]),
    ]:
        documents, counts = read(tmp_path / name, layout)
        assert documents == expected and counts["NUL replaced"] == 1


@pytest.mark.parametrize("layout", ["lines", "wrapped", "wikitext", "tsv", "json"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf16_is_refused(tmp_path, layout, pack):
    path = tmp_path / ("a.txt" if pack is bytes else "a.txt.gz")
    path.write_bytes(pack('{"text": "One.\tTwo."}\n'.encode("utf-16")))
    said = f"{path.name} is UTF-16; allowed: UTF-8, as"
    with pytest.raises(UserError, match=said):
        read(path, layout)


@pytest.mark.parametrize("layout", ["lines", "wrapped", "wikitext", "tsv"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_refused_behind_its_last_line(
    tmp_path, layout, encoding
):
    path = tmp_path / "a.txt"
    path.write_bytes("Grüße.\tTwo.\n\n".encode(encoding) * 10)
    with pytest.raises(UserError) as caught:
        read(path, layout)
    assert "a.txt is not UTF-8: " in str(caught.value)
    assert " lines have a NUL byte; `iconv -f UTF-16LE" in str(caught.value)


XZ = lzma.compress(b"One.\tTwo.\n")


@pytest.mark.parametrize("layout", sources.LAYOUTS)
@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.xz", XZ, r"is xz; allowed: .* \(`xz -dc OLD \| gzip > NEW.gz`\)"),
        ("a.gz", XZ, "is xz; allowed: plain text, .gz, .bz2"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04", "is zstd; allowed:"),
        ("a.zip", b"PK\x03\x04\x14", "is zip; allowed:"),
        ("a.bz2.txt", bz2.compress(b"One.\n"), "bzip2 under another name; allowed:"),
        ("a.bz2.1", bz2.compress(b""), "bzip2 under another name; allowed:"),
        ("a.GZ", gzip.compress(b"One.\n"), r"gzip under another .*name in \.gz"),
    ],
    ids=["xz", "xz as gz", "zstd", "zip", "bzip2", "empty bzip2", "gzip"],
)
def test_packed_files_that_would_be_garbage_are_refused(
    tmp_path, layout, name, content, said
):
    if layout == "wet" and name == "a.GZ":
        said = "not a WARC record"  # warcio has unpacked it
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} .*{said}"):
        read(tmp_path / name, layout)


def test_text_may_begin_like_a_packed_file(tmp_path):
    for index, text in enumerate(["BZh9 is a mark.", "PK is a name.", "B", ""]):
        (tmp_path / f"{index}.txt").write_text(text)
        assert read(tmp_path / f"{index}.txt", "lines")[0] == [[text]] * bool(text)


def test_gzip_archives_of_web_pages_need_no_name(tmp_path):
    wet_files.write(tmp_path / "a.wet", PAGES)
    assert len(read(tmp_path / "a.wet", "wet")[0]) == len(PAGES)


@pytest.mark.parametrize("name", ["missing.txt", "a_file/below.txt"])
def test_the_size_of_a_file_that_has_vanished_is_an_error(tmp_path, name):
    (tmp_path / "a_file").write_text("0123456789")
    assert sources.size(str(tmp_path / "a_file")) == 10
    with pytest.raises(UserError, match=f"{name} does not exist"):
        sources.size(str(tmp_path / name))


@pytest.mark.parametrize("layout", ["wet", "json", "wikipedia", "tsv", "gettext"])
def test_a_file_of_another_format_is_an_error(tmp_path, layout):
    path = tmp_path / "a.txt"
    path.write_text("Just some text.\nIn two lines.\n")
    with pytest.raises(UserError, match=f"a.txt is not of layout {layout}: "):
        read(path, layout)


def test_a_warc_of_responses_says_where_the_text_is(tmp_path):
    wet_files.write(tmp_path / "a.warc.gz", ["<p>x"], kind="resource")
    with pytest.raises(UserError, match=r"resource.*named \.wet\.gz"):
        read(tmp_path / "a.warc.gz", "wet")
    # A record may lack its type and its address.
    records = b"WARC/1.0\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\n\r\n"
    (tmp_path / "a.warc").write_bytes(records)
    with pytest.raises(UserError, match="its records are of type none"):
        read(tmp_path / "a.warc", "wet")


@pytest.mark.parametrize("ending, pack", [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_file_that_unpacks_without_end_is_given_up(
    tmp_path, monkeypatch, ending, pack
):
    monkeypatch.setattr(packing, "_FREE_EXPANSION", 1 << 20)
    path = tmp_path / f"bomb.txt.{ending}"
    path.write_bytes(pack(b"Good text.\n" + b"\0" * (20 << 20)))
    documents, counts = read(path, "lines")
    assert documents == [["Good text."]]
    assert f"damaged file: {path}: it unpacks to more than 200 times its size" in counts


def test_a_line_without_end_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_lines, "MAX_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\n" + b"x" * 5000 + b"\nTwo.\n")
    documents, counts = read(path, "lines")
    assert documents == [["One.", "Two."]]
    assert counts == {"line over 0 MB": 1}


def test_a_document_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_lines, "MAX_BYTES", 100)
    (tmp_path / "a.txt").write_text("A line of thirty characters ok\n" * 10)
    documents, counts = read(tmp_path / "a.txt", "lines")
    assert [len(d) for d in documents] == [4, 4, 2]
    assert counts == {"documents cut": 2}


def test_documents_that_end_are_not_counted_as_cut(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    assert read(tmp_path / "a.txt", "lines") == ([["One."], ["Two."]], {})


def test_json(tmp_path):
    rows = [{"text": "One.\nTwo.", "id": 1}, {"id": 2}, {"text": "Half \ud800."}]
    lines = [json.dumps(row) for row in rows]
    lines[1:1] = ["{not json", ""]
    lines.insert(0, "")
    path = tmp_path / "a.jsonl.bz2"
    path.write_bytes(bz2.compress("\n".join(lines).encode()))
    documents, counts = read(path, "json")
    assert documents == [["One.", "Two."], ["Half ?."]]
    assert counts == {"no JSON": 1, "no text 'text'": 1}
    with pytest.raises(
        UserError, match="line 2 has no text 'body'; its fields: text, id"
    ):
        read(path, "json", text_field="body")
    with pytest.raises(UserError, match="line 2 has no text 'body'"):
        sources.check_beginning(str(path), "json", "body")
    sources.check_beginning(str(path), "json")


@pytest.mark.parametrize(
    "layout, odd, good, said, reason",
    [
        ("tsv", "# en-de corpus", "No.\tNein.", "has no tab", "line without a tab"),
        ("json", "A title", '{"text": "No."}', r"is not JSON \(", "no JSON"),
        (
            "json",
            '{"text": null, "id": 1}',
            '{"text": "No."}',
            "has 'text': null, which is not text",
            "no text 'text'",
        ),
    ],
)
def test_the_first_records_together_tell_the_layout(
    tmp_path, layout, odd, good, said, reason
):
    path = tmp_path / "a"
    path.write_text(f"{odd}\n" * 99 + f"{good}\n{odd}\n")
    documents, counts = read(path, layout)
    assert documents == [[json.loads(good)["text"] if layout == "json" else good]]
    assert counts == {reason: 100}
    # A file of few records, and one of many.
    for text in (f"\n{odd}\n", f"\n{odd}\n" * 100 + f"{good}\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=f"layout {layout}: line 2 {said}"):
            read(path, layout)


def test_a_large_cell_of_a_csv_is_a_document(tmp_path, monkeypatch):
    """Python's own limit is 131,072 characters."""
    path, text = tmp_path / "a.csv", "word " * 40_000
    path.write_text(f'id,text\n1,"{text}\nmore, text\n"\n2,next\n')
    documents, counts = read(path, "csv")
    assert documents == [[text.strip(), "more, text"], ["next"]] and not counts
    monkeypatch.setattr(raw_lines, "MAX_BYTES", 1 << 10)
    lines = "word\n" * 1000
    path.write_text(f'id,text\n1,"{lines}"\n')
    documents, (said,) = read(path, "csv")
    assert not documents and said.endswith("a.csv: a cell is larger than 0 MB")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(tmp_path, delimiter):
    rows = ["id|text|note", '1|"One, ""1""; |\r\ntwo.\n\n"|x', "2|Three.|y", "", "3|||"]
    rows += ["4|Four.", '5|"Fi"ve.|z', "6||z", "7|Seven.|"]
    text = "\ufeff" + "\r\n".join(rows).replace("|", delimiter)
    (tmp_path / "a.csv").write_text(text, newline="")
    documents, counts = read(tmp_path / "a.csv", "csv")
    first = f'One, "1"; {delimiter}'.strip()
    assert documents == [[first, "two."], ["Three."], [], ["Seven."]]
    assert counts == {"row that is not CSV": 1, "row without 3 cells": 2}
    said = "line 1 has no column 'body'; its columns: id, text, note"
    with pytest.raises(UserError, match=said):
        sources.check_beginning(str(tmp_path / "a.csv"), "csv", "body")


DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10"
 xml:lang="en"><siteinfo><sitename>Wikipedia</sitename><namespaces>
<namespace key="0" case="first-letter"/><namespace key="1">Talk</namespace>
</namespaces></siteinfo>%s</mediawiki>"""
PAGE = """<page><title>T%d</title><ns>%d</ns><id>%d</id>%s<revision><id>1</id>
<timestamp>2020-01-01T00:00:00Z</timestamp><text>%s</text></revision></page>"""
MARKUP = """{{Infobox|a=b}}'''Ants''' are [[insect|insects]] {{sfn|X}}of the
family.&lt;ref&gt;A note.&lt;/ref&gt;

== Life ==
[[File:a.jpg|thumb|A [[nest]].]]
They live in colonies &amp;amp; nests.
* a list item
{| class="x"
| a cell
|}
[[Category:Insects]]
"""


def test_wikipedia_gives_the_prose_of_articles(tmp_path):
    pages = [
        PAGE % (1, 0, 1, "", MARKUP),
        PAGE % (2, 1, 2, "", "A talk page."),
        PAGE % (3, 0, 3, '<redirect title="T1"/>', "#REDIRECT"),
        PAGE % (4, 0, 4, "", "Bees fly."),
    ]
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress((DUMP % "".join(pages)).encode()))
    documents, counts = read(path, "wikipedia")
    assert documents == [
        ["Ants are insects of the", "family.", "They live in colonies & nests."],
        ["Bees fly."],
    ]
    assert counts == {"redirect or no article": 2}

    cut = tmp_path / "cut.xml"
    cut.write_bytes((DUMP % "".join(pages)).encode()[:-200])
    documents, counts = read(cut, "wikipedia")
    assert len(documents) == 1
    assert any(name.startswith("damaged file: ") for name in counts)


@pytest.mark.parametrize(
    "markup, paragraphs",
    [
        ("{{Infobox\n|a=\n* one\n* two}}\nAnts live.", ["Ants live."]),
        ("Ants<ref>See\n* this.</ref> live.\nHere.", ["Ants live.", "Here."]),
        ("* one {{x|\n* y\n}} two\nAnts live.\n# n\n", ["Ants live."]),
        ("* one\n** two <ref>A\nnote.</ref> three\n\nAnts.", ["Ants."]),
        ("A.\n; term: its\n: meaning\nB: C; *d.\n*e", ["A.", "B: C; *d."]),
        ("<div>\n* one\nAnts live.\n</div>\n== * ==\n* two", ["Ants live."]),
        ("* [[File:a.jpg|thumb|One.\n* two]] three\n'''Ants'''.", ["Ants."]),
        ("{{lang|de}}: A colon.\n{|\n* x\n|}\n* y", [": A colon."]),
        ("<!-- a -->\n* one <!-- \n --> two\nAnts.<br>\n* three", ["Ants."]),
    ],
)
def test_list_items_go_and_the_prose_around_them_stays(markup, paragraphs):
    assert wikitext.paragraphs(markup) == paragraphs


@pytest.mark.parametrize(
    "markup, paragraphs",
    [
        ("A.<syntaxhighlight lang=c>\nint x;\n</syntaxhighlight>\nB.", ["A.", "B."]),
        ("A <source>x</source><pre>y</pre><ce>H2O</ce> B", ["A B"]),
        ("A <hiero>A1</hiero> <mapframe lat=1>{}</mapframe> B", ["A B"]),
        ("Eins.<br>Zwei.<BR />''Drei.<br/>''", ["Eins.", "Zwei.", "Drei."]),
        ("A.<hr>B.\n* c <br> d\nE.{{x|f<br>g}}", ["A.", "B.", "E."]),
        ("是-{zh-hans:软件; zh-hant:軟體}-和-{文本}-。", ["是软件和文本。"]),
        ("是-{zh-hans:A&amp;B; zh-hant:C}-。", ["是A&B。"]),
        ("在-{A|zh-cn:甲;zh-tw:乙}--{H|zh-cn:丙;zh-tw:丁}-。", ["在甲。"]),
        ("-{zh-hans;zh-hant|甲}-和-{[[A|乙]]}-。", ["甲和乙。"]),
        ("N-{4-phenyl}-2 is one.", ["N-{4-phenyl}-2 is one."]),
    ],
)
def test_code_goes_and_breaks_and_variants_are_resolved(markup, paragraphs):
    assert wikitext.paragraphs(markup) == paragraphs


@pytest.mark.parametrize(
    "link, text",
    [
        ("[[Star Wars: Episode IV – A New Hope|Star Wars]]", "Star Wars"),
        ("[[Batman: Year One]]", "Batman: Year One"),
        ("[[Ameise|ants]]", "ants"),
        ("[[File:a.jpg|thumb|A [[nest]].]]", ""),
        ("[[Image: a.jpg|A nest.]]", ""),
        ("[[category: Insects]]", ""),
        ("[[ :Category:Insects]]", ""),
        ("[[Datei:a.jpg|mini]]", ""),
        ("[[Datei: a.jpg|mini]]", ""),
        ("[[चित्र:a.jpg|nest]]", ""),
        ("[[Benutzer_Diskussion: Ameise]]", ""),
        ("[[de:Ameise]]", ""),
        ("[[wikt:hive|hives]]", "hives"),
        ("[[:fr:Ruche|hives]]", "hives"),
        ("[[Bild:a.jpg|mini|A nest.]]", ""),
        ("[[Bild:a.SVG |mini]]", ""),
        ("[[:en:Amazon.com|Amazon]]", "Amazon"),
    ],
)
def test_links_to_pages_of_other_kinds_go(tmp_path, link, text):
    names = ["", "Datei", "चित्र", "Benutzer Diskussion"]
    namespaces = "".join(
        f'<namespace key="{i}">{n}</namespace>' for i, n in enumerate(names)
    )
    dump = DUMP.replace('<namespace key="1">Talk</namespace>', namespaces)
    path = tmp_path / "a.xml"
    path.write_text(dump % (PAGE % (1, 0, 1, "", f"See {link} here.")))
    assert read(path, "wikipedia")[0] == [[f"See {text} here.".replace("  ", " ")]]


def test_a_link_of_spaces_takes_no_longer_than_its_length():
    start = time.process_time()
    assert wikitext.paragraphs(f"Bees [[{' ' * 50_000}|fly]].") == ["Bees fly."]
    assert time.process_time() - start < 10


def test_a_page_of_wikipedia_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "_MAX_PAGE", 3 << 20)
    pages = [PAGE % (1, 0, 1, "", "Bees fly."), PAGE % (2, 0, 2, "", "x" * (9 << 20))]
    (tmp_path / "a.xml").write_text(DUMP % "".join(pages))
    documents, counts = read(tmp_path / "a.xml", "wikipedia")
    assert documents == [["Bees fly."]]
    (told,) = counts
    assert told.endswith("a page is larger than 3 MB")


def test_a_huge_article_is_passed_over_and_a_huge_catalogue_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(raw_lines, "MAX_BYTES", 1 << 20)
    pages = [PAGE % (1, 0, 1, "", "x" * (2 << 20)), PAGE % (2, 0, 2, "", "Bees fly.")]
    (tmp_path / "a.xml").write_text(DUMP % "".join(pages))
    documents, counts = read(tmp_path / "a.xml", "wikipedia")
    assert documents == [["Bees fly."]]
    assert counts == {"record over 1 MB": 1}
    (tmp_path / "a.po").write_text('msgid "Yes"\nmsgstr "Ja"\n' + "\n" * (1 << 20))
    with pytest.raises(UserError, match="gettext: it is larger than 1 MB"):
        read(tmp_path / "a.po", "gettext")


@pytest.mark.parametrize(
    "page",
    [
        "<page><id>x</id></page>",
        "<page><ns/></page>",
        "<page><title/></page>",
        "<page><title>A</title><id>1</id><revision><id/></revision></page>",
        "<page><title>A</title><revision><timestamp>x</timestamp></revision></page>",
    ],
)
def test_a_dump_of_wikipedia_is_read_up_to_a_wrong_page(tmp_path, page):
    (tmp_path / "a.xml").write_text(DUMP % (PAGE % (1, 0, 1, "", "Bees fly.") + page))
    documents, counts = read(tmp_path / "a.xml", "wikipedia")
    assert documents == [["Bees fly."]]
    (told,) = counts
    assert "a.xml: not a complete MediaWiki dump (" in told


SITE = "<mediawiki><siteinfo><namespaces>%s</namespaces></siteinfo>"


@pytest.mark.parametrize(
    "begin", ["<feed>", SITE % '<namespace key="x"/>', SITE % "<namespace/>"]
)
def test_other_xml_is_not_of_layout_wikipedia(tmp_path, begin):
    (tmp_path / "a.xml").write_text(begin)
    with pytest.raises(UserError, match=r"wikipedia: not a complete Medi.* \(.+\)$"):
        read(tmp_path / "a.xml", "wikipedia")


# Readers take 8,192 bytes at a time.
@pytest.mark.parametrize("bytes_before", [0, 8190])
def test_a_dump_of_wikipedia_with_entities_is_damaged(tmp_path, bytes_before):
    entity = '<!DOCTYPE mediawiki [<!ENTITY a "Bees fly.">]>'
    dump = " " * bytes_before + entity + DUMP % (PAGE % (1, 0, 1, "", "&a;"))
    (tmp_path / "a.xml").write_text(dump)
    documents, counts = read(tmp_path / "a.xml", "wikipedia")
    assert documents == []
    assert counts == {f"damaged file: {tmp_path}/a.xml: it has a DOCTYPE": 1}


def test_tsv_and_gettext(tmp_path):
    (tmp_path / "a.tsv").write_text(" \n\nYes.\tJa.\textra\nno tab\n\nNo.\tNein.\n")
    documents, counts = read(tmp_path / "a.tsv", "tsv")
    assert documents == [["Yes.\tJa.", "No.\tNein."]]
    assert counts == {
        "line without a tab": 1,
        "further columns dropped, in lines": 1,
    }
    paracrawl = "http://a.de\thttps://b.de\tYes.\tJa.\n"
    (tmp_path / "c.tsv").write_text("Yes.\tJa.\n" + paracrawl)
    documents, counts = read(tmp_path / "c.tsv", "tsv")
    assert documents == [["Yes.\tJa."]]
    assert counts == {"line that begins with two addresses": 1}
    (tmp_path / "c.tsv").write_text(paracrawl)
    with pytest.raises(UserError, match="line 1 begins with two web .*`cut -f3,4 OLD"):
        read(tmp_path / "c.tsv", "tsv")
    (tmp_path / "b.tsv").write_text("\nno tab\nNo, none.\n")
    with pytest.raises(UserError, match="layout tsv: line 2 has no tab"):
        read(tmp_path / "b.tsv", "tsv")

    catalogue = tmp_path / "a.po"
    catalogue.write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n\n'
        'msgid "Open the\\n"\n"file"\nmsgstr "Datei\\töffnen"\n\n'
        '#, fuzzy\nmsgid "Maybe"\nmsgstr "Nein"\n\n'
        'msgid "Not yet"\nmsgstr ""\n\n'
        'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d Tag"\nmsgstr[1] "T"\n',
        encoding="utf-8",
    )
    documents, counts = read(catalogue, "gettext")
    assert documents == [["Open the file\tDatei öffnen"]]
    plural = {"plural message, dropped": 1}
    assert counts == {"untranslated or fuzzy": 2} | plural

    import polib

    polib.pofile(str(catalogue)).save_as_mofile(str(tmp_path / "a.mo"))
    assert read(tmp_path / "a.mo", "gettext") == (documents, plural)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_compiled_catalogue_whose_texts_overlap_is_refused(tmp_path, order):
    # Nine messages of the same 60 bytes, behind a table for messages and translations.
    table = [60, 28] * 9
    content = struct.pack(f"{order}7I", 0x950412DE, 0, 9, 28, 28, 0, 100)
    content += struct.pack(f"{order}18I", *table)
    (tmp_path / "a.mo").write_bytes(content)
    with pytest.raises(UserError, match=r"not a gettext catal.*\(its texts overlap\)"):
        read(tmp_path / "a.mo", "gettext")


@pytest.mark.parametrize("size", [10, 30, 60])
def test_a_compiled_catalogue_cut_in_its_tables_is_one_line(tmp_path, size):
    import polib

    catalogue = polib.POFile()
    catalogue += [polib.POEntry(msgid=f"Yes {i}", msgstr=f"Ja {i}") for i in range(9)]
    catalogue.save_as_mofile(str(tmp_path / "whole.mo"))
    (tmp_path / "cut.mo").write_bytes((tmp_path / "whole.mo").read_bytes()[:size])
    with pytest.raises(UserError, match="cut.mo is not of layout gettext: not a gett"):
        read(tmp_path / "cut.mo", "gettext")
