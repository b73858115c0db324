"""Raw text of each layout becomes sentences and documents."""

import bz2
import gzip
import time

import pytest

from cmlm.data import sentences
from cmlm.errors import UserError


@pytest.mark.parametrize(
    "expected",
    [
        ["Dr. Smith went to Washington, D.C.", "He liked it.", "See Fig. 3 for more."],
        ['"No!" cried he.', '"Why not?', 'Tell me."', "He left."],
        ["“Really?”", "She stared.", "“Yes.”"],
        ["'Well,' said Mr. J. R. Jones, 'it isn't.'", "It was the boys' own."],
        ["He paid $3.50 (see below).", "(It is so.)", "The end."],
        ['A mark that is never closed: "Here it is.', "Then more.", "And more."],
        ["His days in Wham! through to more recent events."],
        ["It returns a tf.data.Dataset of version 2.15.Final here.", "Next."],
        ["No full stop at the end"],
    ],
)
def test_english_sentences(expected):
    assert sentences.split(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "language, text, number",
    [
        ("de", "Das kostet z. B. 3,50 Euro. Am 3. Mai kam Hr. Dr. Müller.", 2),
        ("deu", "Das kostet z. B. 3,50 Euro. Am 3. Mai kam Hr. Dr. Müller.", 2),
        ("hi", "यह पहला वाक्य है। यह दूसरा वाक्य है।", 2),
        ("zh", "他进入了三一学院。他喜欢阅读。", 2),
        ("xx", "An unknown language. It still splits.", 2),
    ],
)
def test_other_languages(language, text, number):
    assert len(sentences.split(text, language)) == number


@pytest.mark.parametrize(
    "language, expected",
    [
        ("de", ["„Kommst du?“", "Er nickte.", "„Ja.“"]),
        ("de", ["„Ich komme.", "Warte.“", "Er ging.", "„Er rief: ‚Ja!‘“", "Dann."]),
        ("de", ["„Kommst du?“, fragte er.", "„Ja!“ rief sie."]),
        ("da", ["»Ich komme.«", "Dann ging er."]),
        ("de", ["‹Ja.›", "›Nein.‹", "Er ging."]),
        ("cs", ["„Pojď.“", "Šel.", "‚Ne.‘", "Řekl."]),
        ("fr", ["Il dit : « Viens ! »", "Puis il partit.", "« Non. »", "«Si.»"]),
        ("en", ["Great movie!", ":) I loved it."]),
        # Georgian letters, and lower-cased text, have no capitals.
        ("ka", ["თბილისი დედაქალაქია.", "მოსახლეობა 1,2 მილიონია!", "HTML.", "დიახ."]),
        ("en", ["the model was trained on text.", "it works well.", "results follow."]),
        ("en", ['"no!" he cried.', "she left."]),
        ("en", ["he came (alone.)", 'i saw "up."', "it was fun."]),
        ("de", ['Er sagte: "Halt.“', "Dann ging er.“", "Sie blieb."]),
        ("th", ["สวัสดีครับ.", "ไปเที่ยวกัน พ.ศ.2540 กัน!"]),
    ],
)
def test_quotations_and_scripts_without_capitals(language, expected):
    assert sentences.split(" ".join(expected), language) == expected


@pytest.mark.parametrize(
    "language, expected",
    [
        ("zh", ["他说：“你好。”", "然后他走了。", "“……好。”", "他说。"]),
        ("zh", ["“好。”，他说。", "「‘是。’」", "ABC走了。"]),
        ("zh", ["你好吗?", "我很好。", "你呢?"]),
        ("zh", ["今天天气很好!", "我们去公园吧!", "ABC好.", "版本2.新功能."]),
        (
            "ja",
            ["「そうですか。」と彼は言った。", "「はい。」", "「彼。」", "彼は来た。"],
        ),
        ("ja", ["彼は来た!", "私は行った。"]),
        ("zh", ["乔治·W.布什是总统。", "它是Merit Network,Inc.的网站。"]),
        ("zh", ["他喜欢iPhone!", "我走了。", "他说OK?", "是。"]),
        # A space is missing here.
        ("fr", ["Il ferma la porte.", "« Viens », dit-il."]),
    ],
)
def test_scripts_without_spaces(language, expected):
    assert sentences.split("".join(expected), language) == expected


@pytest.mark.parametrize(
    "language, expected",
    [
        ("te", ["డా. రావు 8 కి. మీ. దూరం, 5కి.మీ. నడిచారు.", "ఆయన క్రీ.శ. 1500 లో లేరు."]),
        ("th", ["ในปีค.ศ. 1787 ดร. สมชาย ไป จ. เชียงใหม่ เวลา 6:30 น. กับเขา!", "จริง"]),
        ("hi", ["डॉ. शर्मा (ई.पू. 300) आए।", "वे 5 कि. मी. चले।"]),
        ("mr", ["डॉ. जोशी इ.स. 1900 मध्ये आले.", "तो आणि मी.", "ते गेले."]),
        ("bn", ["ড. ইউনূস ও মোঃ. রহিম এলেন।", "তিনি ভালো।"]),
        ("ta", ["திரு. குமார் வந்தார்.", "அவர் நல்லவர்."]),
        ("ar", ["وقع سنة 300 ق. م. في مصر.", "د. علي طبيب.", "ولد 1985م.", "ثم ذهب."]),
        ("ar", ["قال: «هل أنت بخير؟»، ثم ذهب.", "ثم عاد."]),
        ("km", ["គាត់ទៅ។", "ខ្ញុំមក ផ្លែឈើ។ល។", "គាត់ទៅ៕", "គាត់ទៅ។"]),
        ("bo", ["ང་འགྲོ།", "ཁྱོད་ཡོང་།།", "ང་འགྲོ། །", "ཁྱོད་ཡོང་༎", "ཁྱོད།"]),
        ("fi", ["Kaupunki (ks. Turku) on suuri.", "Vuonna 44 eaa.", "Rooma kasvoi."]),
        ("fi", ["Ks. Turku, Vrt. Oulu, Nro. Viisi ja Puh. Matti.", "Se kasvoi."]),
    ],
)
def test_abbreviations_and_commas_of_other_scripts(language, expected):
    assert sentences.split(" ".join(expected), language) == expected


@pytest.mark.parametrize("sentence", ["彼は来た！", "来た?", "来た．", "Aは来た。"])
def test_a_long_paragraph_without_spaces_takes_linear_time(sentence):
    number = 160_000 // len(sentence)
    start = time.process_time()
    assert sentences.split(sentence * number, "ja") == [sentence] * number
    assert time.process_time() - start < 3


def test_parts_of_a_long_paragraph_have_the_borders_of_the_whole(monkeypatch):
    text = (
        "他说：“走！去吗？”「是。」と彼は言った。真的？！“……好。”，他问。ABC。走。"
        "他走了（因为很累。所以走。）后来又来。看《你好。再见！》吧!Kは3．5来た．<彼。彼>も。"
    ) * 30
    monkeypatch.setattr(sentences, "_PART", len(text))
    whole = sentences.split(text, "ja")
    for size in (1, 50):
        monkeypatch.setattr(sentences, "_PART", size)
        assert sentences.split(text, "ja") == whole


@pytest.mark.parametrize("marks", ["“”", '""'])
def test_a_particle_joins_a_quotation_to_its_sentence(marks):
    expected = ["{}오늘은 간다.{}고 말했다.", "{}그래.{}", "그는 갔다."]
    expected = [sentence.format(*marks) for sentence in expected]
    assert sentences.split(" ".join(expected), "ko") == expected


def test_no_character_is_lost(shared_data):
    path = shared_data / "text/en/novels/Stevenson_Treasure_1883.txt.gz"
    with gzip.open(path, "rt") as lines:
        paragraphs = [p for p in sentences.paragraphs(lines, "wrapped") if p]
    for paragraph in paragraphs:
        found = sentences.split(paragraph)
        assert "".join("".join(found).split()) == "".join(paragraph.split())
        assert all(sentence.strip() == sentence != "" for sentence in found)


@pytest.mark.parametrize("paragraph", ["", "  \t ", "\ufeff"])
def test_nothing_gives_nothing(paragraph):
    assert sentences.split(paragraph.replace("\ufeff", "")) == []


def test_layout_lines():
    lines = ["One paragraph. \n", "Two.\n", "\n", "\n", "Next document.\n"]
    expected = ["One paragraph.", "Two.", None, None, "Next document."]
    assert list(sentences.paragraphs(lines, "lines")) == expected


def test_a_paragraph_without_end_comes_in_parts(monkeypatch):
    monkeypatch.setattr(sentences, "_MAX_PARAGRAPH_CHARACTERS", 10)
    lines = ["12345\n", "678901\n", "234\n", "\n", "5\n"]
    expected = ["12345 678901", "234", "5"]
    assert list(sentences.paragraphs(lines, "wrapped")) == expected


def test_layout_wrapped():
    lines = ["A paragraph\n", "goes on.\n", " \n", "\n", "Another.\n"]
    expected = ["A paragraph goes on.", "Another."]
    assert list(sentences.paragraphs(lines, "wrapped")) == expected


@pytest.mark.parametrize(
    "lines, joined",
    [
        (["今天天气", "很好，", "我们「去」", "。"], "今天天气很好，我们「去」。"),
        (["今天 AI", "很好", "3 天"], "今天 AI 很好 3 天"),
        (["오늘은", "간다."], "오늘은 간다."),
        (["「はい。」", "そして彼は", "去った。"], "「はい。」 そして彼は去った。"),
        (["「はい。」", "と彼は", "言った。"], "「はい。」と彼は言った。"),
    ],
)
def test_wrapped_lines_of_scripts_without_spaces(lines, joined):
    assert [*sentences.paragraphs(lines, "wrapped")] == [joined]


def test_layout_wikitext():
    lines = [
        " \n",
        " = Title = \n",
        ' The 1 @,@ 000 men , 2 @.@ 5 of them well @-@ known , said " Go ! " ( 1 ) .',
        " = = Section = = \n",
        " It 's the boy 's .\n",
        " = Next = \n",
        " More .\n",
    ]
    assert list(sentences.paragraphs(lines, "wikitext")) == [
        None,
        'The 1,000 men, 2.5 of them well-known, said "Go!" (1).',
        "It's the boy's.",
        None,
        "More.",
    ]


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ('a " b " c " d "', 'a "b" c "d"'),
        ('a " b', 'a " b'),
        ('"  " b', '"" b'),
        # Each opens a quote and none ends one: a pattern searches behind each.
        ('a" ' * 50_000, 'a" ' * 50_000),
    ],
    ids=["two", "one", "empty", "many"],
)
def test_spaces_inside_of_quotes_go(text, joined):
    start = time.process_time()
    assert sentences.detokenize_wikitext(text) == joined
    assert time.process_time() - start < 5


def test_an_unknown_layout_names_the_allowed_ones():
    with pytest.raises(UserError, match="'html'; allowed: lines, wrapped, wikitext"):
        list(sentences.paragraphs([], "html"))


def test_bzip2_is_read_and_a_cut_one_is_told(tmp_path):
    path, target = tmp_path / "raw.txt.bz2", str(tmp_path / "out.txt")
    path.write_bytes(bz2.compress("Ein Café. Zwei.\n".encode()))
    assert sentences.write_sentences(str(path), target, "lines", "de")["sentences"] == 2
    for broken in (path.read_bytes()[:-10], b"no bzip2"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="raw.txt.bz2 is not a whole bzip2 file"):
            sentences.write_sentences(str(path), target, "lines", "de")


@pytest.mark.parametrize("code", ["xx", "EN", "en-de", "en,de", "", "e1"])
def test_languages_that_do_not_exist(code):
    with pytest.raises(UserError, match="; allowed: ISO 639"):
        sentences.check_language(code)
    assert sentences.check_language("sw") == "sw"


def test_write_sentences_counts_and_drops(tmp_path):
    source, target = tmp_path / "raw.txt", tmp_path / "out.txt.gz"
    too_long = "word " * 3000
    source.write_bytes(
        b"One. Two.\n12 34.\n\n\n"
        + too_long.encode()
        + b"\nCaf\xe9 three.\n\n5.\n"
        # A valid character.
        + "\ufffd six.\n".encode()
    )
    counts = sentences.write_sentences(str(source), str(target), "lines", "en")
    with gzip.open(target, "rt") as file:
        assert file.read() == "One.\nTwo.\n\nCaf\ufffd three.\n\n\ufffd six.\n"
    assert counts == {
        "documents": 3,
        "sentences": 4,
        "sentence without a letter": 2,
        "sentence over 10,000": 1,
        "lines": 9,
        "invalid UTF-8": 1,
    }
