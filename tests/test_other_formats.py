"""Files of another format get a warning that names the way to read them."""

import bz2
import re
import textwrap

import commands
import pytest
from texts import write

from cmlm.data import other_formats
from cmlm.data.settings import TextDataConfig
from cmlm.preparation import plain

PROSE = [
    "The letter came on a Monday, and nobody",
    "in the house had waited for it. She read",
    "it twice before she put it down.",
    "Then she called her brother, who was",
    "asleep in the garden behind the house.",
] * 10
CHINESE = "他进入了三一学院，喜欢阅读，也写了很多关于数学的书，后来住在伦敦。"
SENTENCES = ["She read it twice.", "iPhones ring.", "Nobody had waited", "Then rain"]
TABLE = [f"A house {n}\tEin Haus {n}" for n in range(20)]
PO = 'msgid ""\nmsgstr ""\n\nmsgid "House"\nmsgstr "Haus"\n'


@pytest.mark.parametrize(
    "content, sign",
    [
        ("\n".join(TABLE), "looks like a table: lines have 1 tab, .*--bitext_data"),
        ("\n".join([*TABLE, "One line"]), "looks like a table"),
        ("a\tb\t1\n" * 10, "lines have 2 tabs"),
        ('{"text": "One."}\n\n{"text": "Two."}\n', "JSON lines; .*--layout=json"),
        ('<mediawiki xmlns="a">\n<page>', "dump of MediaWiki; .*--layout=wikipedia"),
        ("WARC/1.0\r\nWARC-Type: a\r\n", "web archive; .*--layout=wet"),
        (PO, "catalogue of gettext; .*--layout=gettext"),
        ("\n".join(PROSE), "hard-wrapped: .*--layout=wrapped"),
        ("\n".join(re.findall(".{1,30}", CHINESE * 20)), "hard-wrapped"),
        (
            "\n".join(textwrap.wrap("यह इस भाषा का पहला वाक्य है। " * 50, 60)),
            "hard-wrapped",
        ),
        ("\r\n".join(f"  {line} " for line in PROSE), "hard-wrapped"),
    ],
)
def test_another_format_gets_a_warning(tmp_path, caplog, content, sign):
    good = write(tmp_path / "good.txt", "One.\nTwo.\n")
    path = write(tmp_path / "a.txt", content)
    other_formats.warn([good, path, path])
    (message,) = caplog.messages
    assert message.startswith(f"{path} looks ") and "\n" not in message
    assert re.search(sign, message)


@pytest.mark.parametrize("name", ["a.csv", "A.CSV.gz"])
def test_a_csv_is_known_by_its_name(tmp_path, caplog, name):
    other_formats.warn([str(tmp_path / name)])
    (message,) = caplog.messages
    assert message.endswith(f"{name} looks like a CSV; python -m cmlm.prepare "
                            "--layout=csv reads it")  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["\t"] * 20,
        SENTENCES * 20,
        # A document of text without capitals, and one that hardly has full stops.
        [line.lower() for line in PROSE],
        ["a house", "two dogs run", "rain in a town"] * 20,
        # Indented paragraphs; the marked text of MiSAD; too few lines to tell.
        [f"\t{line}" for line in SENTENCES] * 20,
        [f"{line}{extra}" for line in SENTENCES for extra in ("", "\ta b", "\ta\tb")],
        TABLE[:9],
        ["{a} is a set."] * 20,
        # Sentences of one length, with and without stops.
        [CHINESE] * 20,
        ["联系我们"] * 20,
        # A long paragraph, Thai sentences, and titles of nearly one length.
        [CHINESE * 12_000],
        ["This is a very long sentence. " * 40_000],
        ["ในวันนี้เขาไปเที่ยวที่เชียงใหม่กับเพื่อน", "เมื่อวานนี้ฝนตกหนักมากในกรุงเทพมหานคร"] * 10,
        ["The Old House Behind the Garden", "A Letter That Came on a Monday"] * 10,
    ],
)
def test_plain_text_gets_none(tmp_path, caplog, lines):
    other_formats.warn([write(tmp_path / "a.txt", "\n".join(lines))])
    assert not caplog.messages


def test_wrapped_text_of_the_layout_wrapped_gets_none(tmp_path, caplog):
    path = write(tmp_path / "a.txt", "\n".join(PROSE))
    other_formats.warn([path], layout="wrapped")
    assert not caplog.messages
    other_formats.warn([path], layout="lines")
    assert "hard-wrapped" in caplog.text


def test_training_and_preparation_warn(tmp_path, caplog):
    table = "\n".join(TABLE)
    path = write(tmp_path / "a.txt.gz", table)
    TextDataConfig(input_path=path).load(str(tmp_path / "work"))
    assert f"{path} looks like a table" in caplog.text
    caplog.clear()
    path = write(tmp_path / "a.txt.bz2", bz2.compress(table.encode()))
    plain.split([path], str(tmp_path / "out"), "lines", "en", overwrite=False)
    assert f"{path} looks like a table" in caplog.text


@pytest.mark.parametrize(
    "command, effect",
    [
        ("cmlm.encode --input=a.txt --output=o.npy", "each line gets one vector"),
        ("cmlm.encode --input=a.txt --output=o", "each line gets one vector"),
        ("cmlm.mine --source=a.txt --target=b.txt --output=o.tsv", "one sentence"),
        ("cmlm.mine --source=b.txt --target=a.txt --output=o.tsv", "one sentence"),
        ("cmlm.mine --bitext=c.tsv --pool=a.txt --output=o.tsv", "one sentence"),
        ("cmlm.pcr --text=en=a.txt --output=o.npz", "one sentence"),
        ("cmlm.vocab --input=de=b.txt,en=a.txt --output=v.txt", "counts as words"),
        ("export.tfhub --whitening=a.txt --export_dir=o", "one sentence"),
    ],
)
def test_other_commands_warn_before_they_open_a_model(tmp_path, command, effect):
    write(tmp_path / "a.txt", '{"text": "Gr\\u00fcn."}\n' * 20)
    write(tmp_path / "b.txt", "\n".join(SENTENCES))
    # Tabs are not told here: the commands refuse or read such text.
    write(tmp_path / "c.tsv", "\n".join(TABLE))
    module, *arguments = command.split()
    if module != "cmlm.vocab":
        flag = "--from" if module == "export.tfhub" else "--model"
        arguments.append(f"{flag}=./none")
    done = commands.run(module, *arguments, cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if "looks like" in line]
    assert len(told) == 1, done.stderr
    assert "a.txt looks like JSON lines; " in told[0] and effect in told[0]
    assert told[0].endswith("; python -m cmlm.prepare --layout=json reads it")
    is_vocabulary = module == "cmlm.vocab"
    assert (done.returncode == 0) == is_vocabulary


def test_tables_and_wrapped_text_are_a_vocabularys_text(tmp_path):
    for name, lines in (("table.txt", TABLE), ("wrapped.txt", PROSE)):
        write(tmp_path / name, "\n".join(lines))
    arguments = "--input=de=table.txt,en=wrapped.txt", "--output=v.txt"
    done = commands.run("cmlm.vocab", *arguments, cwd=tmp_path)
    assert not done.returncode and "looks" not in done.stderr
