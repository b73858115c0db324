"""What is dropped, by hand-written cases, and CLD2's languages on real text."""

import collections
import gzip

import pycld2
import pytest

from cmlm.preparation import filters


@pytest.mark.parametrize(
    "line, reason",
    [
        ("This is a whole sentence here.", None),
        ('He said: "This is a sentence."', None),
        ("We went there[1] twice last year.[citation needed]", None),
        ("Home About Contact Imprint Search", "no terminal punctuation"),
        ("And there is more of it...", "ends in an ellipsis"),
        ("Too short this.", "fewer than 5 words"),
        ("Please switch on JavaScript to see this.", "JavaScript"),
        ("Read our Privacy Policy before you go on.", "policy"),
        ("A b c d " + "x" * 1001 + ".", "a word over 1000 characters"),
        ("[edit]", "empty"),
        ("他进入了三一学院,喜欢阅读。", None),
        ("联系我们", "no terminal punctuation"),
        ("好的。", "fewer than 5 words"),
        ("यह इस भाषा का पहला वाक्य है।", None),
        ("ประเทศไทยเป็นประเทศที่ตั้งอยู่ในเอเชีย", None),
        ("Er sagte dann: „Das ist ein Satz.“", None),
        ("Han sagde så: »Det er en sætning.«", None),
        ("Τι είναι αυτό που λες;", None),
        ("Τι είναι αυτό που λες\u037e", None),
        ("These are not the ones;", "no terminal punctuation"),
        ("ይህ ምን ዓይነት ነገር ነው፧", None),
        ("ང་འགྲོ་ཁྱོད་ཡོང་ང་འགྲོ།", None),
    ],
)
def test_c4_lines(line, reason):
    counts = collections.Counter()
    kept = filters.c4_lines([line], counts)
    assert counts == ({reason: 1} if reason else {})
    assert len(kept) == (reason is None)
    assert not any("[" in text for text in kept)


@pytest.mark.parametrize(
    "lines, reason",
    [
        (["One. Two.", "Three."], None),
        (["One. Two."], "fewer than 3 sentences"),
        (["他来了。他走了。他笑了。"], None),
        (["Ποιος; Πού; Πώς\u037e"], None),
        (["ང་འགྲོ། ཁྱོད་ཡོང་། ང་འགྲོ།"], None),
        (["One. Two. Three.", "if (x) { y(); }."], "curly bracket"),
        (["One. Two. Three.", "Lorem ipsum dolor sit amet."], "lorem ipsum"),
    ],
)
def test_c4_documents(lines, reason):
    assert filters.c4_document(lines) == reason


@pytest.mark.parametrize(
    "line, number",
    [
        ("two words", 2),
        ("", 0),
        ("他进入了学院", 3),
        ("ab 他进 cd", 3),
        ("\uf900\ufaff", 1),
        ("한국어 문장 입니다", 3),
    ],
)
def test_words(line, number):
    assert filters.words(line) == number


@pytest.mark.parametrize(
    "text, found",
    [
        (" two\twords ", ["two", "words"]),
        ("ab他进 cd", ["ab", "他", "进", "cd"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("", []),
    ],
)
def test_separated(text, found):
    assert filters.separated(text) == found


def test_length_has_both_limits_inside():
    counts = collections.Counter()
    lines = ["x" * n for n in (9, 10, 5000, 5001)]
    assert filters.kept(lines, filters.length_fault, counts) == lines[1:3]
    assert counts == {"under 10 characters": 1, "over 5,000 characters": 1}


def test_pairs():
    counts = collections.Counter()
    good = [
        "Yes.\tJa.",
        "hand\tHand",
        "winter in Berlin\tWinter in Berlin",
        "He is here now.\tEr ist jetzt da.",
    ]
    lines = [
        *("OK\tOK", "12\t12 %", "x\t" + "y" * 5001),
        "Click here to log in.\tclick here to log in",
        "The house is red.\tThe house is red!",
        "今天天气很好，我们走吧。\t今天天气很好，我们走吧！",
    ]
    assert filters.kept([*good, *lines], filters.pair_fault, counts) == good
    assert counts == {
        "both sides equal": 1,
        "both sides equal but for case and punctuation": 3,
        "a side without a letter": 1,
        "over 5,000 characters": 1,
    }


@pytest.mark.parametrize("hostile", ["", "\x00", "\x85", "\ufffe", "\U0010ffff", "\t"])
def test_any_character_can_be_identified(hostile):
    text = f"{hostile} This is a sentence in English, and here is another one."
    assert filters.identify(text) == "en"
    assert filters.identify(hostile) is None


def test_identified_languages_have_modern_codes():
    known = filters.identified_languages()
    assert {"he", "jv", "zh", "sw"} <= set(known)
    assert not {"iw", "jw", "zh-Hant", "un"} & set(known)


@pytest.mark.parametrize("letters", ["ⵜⴰⵎⴰⵣⵉⵖⵜ", "ᨅᨔ ᨕᨘᨁᨗ", "𐌰𐍄𐍄𐌰 𐌿𐌽𐍃𐌰𐍂"])
def test_a_script_is_not_a_language(letters):
    text = f"{letters} " * 20
    reliable, _, found = pycld2.detect(text)
    assert reliable and found[0][1].startswith("xx-")
    assert filters.identify(text) is None


def test_languages_of_real_paragraphs(shared_data):
    right = wrong = unclear = 0
    for path in sorted(shared_data.glob("text/*/wikipedia-*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = [line.strip() for line, _ in zip(file, range(60)) if line.strip()]
        found = [filters.identify(line) for line in lines]
        right += found.count(path.parent.name)
        unclear += found.count(None)
        wrong += len(found) - found.count(path.parent.name) - found.count(None)
    assert right > 1000
    assert wrong < 0.02 * right
    assert unclear < 0.05 * right
