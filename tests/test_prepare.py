"""The commands `prepare` and `vocab` as a user runs them, on text and on dumps."""

import gzip
import json
import lzma
import os
import re
import shlex
import subprocess
import sys

import commands
import pytest
import wet_files
from conftest import ROOT

from cmlm.common import files
from cmlm.data import languages


def run(module, *arguments):
    return commands.run(f"cmlm.{module}", *arguments)


@pytest.fixture
def raw(tmp_path):
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        text = f"First of many {name}s here. Second\nof it.\n\nThird one.\n\n12.\n\n"
        (directory / "text.txt").write_text(text * 40)
    return f"{tmp_path}/*/text.txt"


def test_prepare_then_vocab(raw, tmp_path):
    output = tmp_path / "corpus"
    done = run("prepare", f"--input={raw}", "--layout=wrapped", f"--output={output}")
    assert done.returncode == 0, done.stderr
    assert "240 sentences in 2 documents of 2 files" in done.stdout
    assert "80 without a letter" in done.stdout
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(output)) == ["text-2.txt.gz", "text.txt.gz"]
    with gzip.open(output / "text.txt.gz", "rt") as file:
        assert file.read().startswith(
            "First of many as here.\nSecond of it.\nThird one.\nFirst"
        )

    again = run("prepare", f"--input={raw}", f"--output={output}")
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1 and "exists" in again.stderr

    vocab = tmp_path / "vocab.txt"
    learnt = run("vocab", f"--input={output}/*.gz", f"--output={vocab}", "--size=200")
    assert learnt.returncode == 0, learnt.stderr
    assert "0.000% of the tokens [UNK]" in learnt.stdout
    tokens = vocab.read_text().splitlines()
    assert tokens[0] == "[PAD]" and "second" in tokens


def test_a_file_of_many_lines_without_a_blank_one_gets_a_hint(tmp_path):
    path, output = tmp_path / "tickets.txt", tmp_path / "corpus"
    path.write_text("The printer is broken again.\n" * 1000)
    options = ["--layout=lines", f"--input={path}", f"--output={output}"]
    done = run("prepare", *options)
    assert "1,000 sentences in 1 document of 1 file" in done.stdout
    assert done.stdout.count("if each line is a document, awk '{print; print") == 1
    path.write_text("The printer is broken again.\n\n" * 1000)
    done = run("prepare", *options, "--overwrite")
    assert "1,000 sentences in 1,000 documents of 1 file" in done.stdout
    assert "awk" not in done.stdout


def test_documents_without_a_blank_line_get_the_hint_of_the_pipeline(tmp_path):
    """The first text would decide the language of all."""
    texts = [
        "The printer on the second floor is broken again since this morning.",
        "Der Drucker im zweiten Stock ist seit heute Morgen wieder kaputt.",
    ]
    path, output = tmp_path / "tickets.txt", tmp_path / "corpus"
    options = [
        *("--layout=lines", f"--input={path}", f"--output={output}", "--overwrite"),
        *("--steps=language", "--language=all", "--workers=1"),
    ]
    for end, hints in (("\n", 1), ("\n\n", 0)):
        # 500 lines of two sentences.
        path.write_text("".join(f"{text} {text}{end}" for text in texts * 250))
        done = run("prepare", *options)
        assert done.returncode == 0, done.stderr
        said = "if each line is a document, awk '{print; print"
        assert done.stdout.count(said) == hints
        assert ("de: 250 documents" in done.stdout) == (not hints)


@pytest.mark.parametrize("steps", [[], ["--steps=length", "--workers=1"]])
def test_the_printed_flag_names_the_output(raw, tmp_path, steps):
    output = tmp_path / "it's news, [2019]"
    options = [f"--input={raw}", f"--output={output}", "--language=tr", *steps]
    done = run("prepare", *options)
    assert done.returncode == 0, done.stderr
    flag = shlex.split(done.stdout.splitlines()[-1])[-1]
    listed = languages.split(flag.removeprefix("--train_data="))
    assert [*listed] == ["tr"]
    found = [path for paths in listed.values() for path in files.expand(paths)]
    assert sorted(found) == sorted(map(str, output.rglob("*.gz")))


def test_prepare_without_a_sentence_leaves_nothing(tmp_path):
    (tmp_path / "text.txt").write_text(f"12.\n\n---\n\n{'word ' * 3000}\n")
    done = run("prepare", f"--input={tmp_path}/text.txt", f"--output={tmp_path}/corpus")
    assert done.returncode == 1
    assert "error:" in done.stderr and "no sentence" in done.stderr
    assert "2 without a letter, 1 with more than 10,000 characters" in done.stderr
    assert os.listdir(tmp_path) == ["text.txt"]


def test_a_folder_of_short_files_in_utf16_without_a_mark_is_refused(tmp_path):
    for number in range(6):
        text = f"Dear Ada, this is letter {number}.\n\nThe next one is late.\n"
        (tmp_path / f"{number}.txt").write_bytes(text.encode("utf-16-le"))
    names = f"--input={tmp_path}/?.txt", f"--output={tmp_path}/out"
    done = run("prepare", *names, "--steps=length", "--workers=1")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    # A NUL behind the last line feed is a line.
    said = "error: --input is not UTF-8: 24 of its 24 lines have a NUL byte; `iconv"
    assert said in done.stderr


@pytest.mark.parametrize("name", ["input", "quality_model"])
def test_the_pipeline_refuses_a_pipe(raw, tmp_path, name):
    """Its second reading would find nothing; an open without a writer would wait."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    given = {"input": raw, "output": tmp_path / "out", "steps": "length", name: pipe}
    done = run("prepare", "--workers=1", *(f"--{n}={v}" for n, v in given.items()))
    assert done.returncode == 1
    assert f"error: {pipe} is a pipe or a device; allowed: a file" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("steps", [[], ["--steps=length", "--workers=1"]])
def test_a_folder_of_short_files_in_another_encoding_is_refused(tmp_path, steps):
    """Each file has too few lines to be refused alone."""
    for number in range(6):
        lines = (
            f"Die Grüße aus Köln sind Brief {number}.\n\nFür März fehlt er {number}.\n"
        )
        (tmp_path / f"{number}.txt").write_bytes(lines.encode("latin-1"))
    names = f"--input={tmp_path}/?.txt", f"--output={tmp_path}/out"
    done = run("prepare", *names, "--language=de", *steps)
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert re.search(
        r"\nerror: --input is not UTF-8: 12 of its 18 lines have invalid bytes; `iconv "
        "-f LATIN1 ", "\n" + done.stderr
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output=x"], "--input is not given"),
        (
            ["--input=missing*.txt", "--output=x"],
            "error: --input: no file matches 'missing",
        ),
        ([f"--input={ROOT}/README.md", "--output=x", "--layout=html"], "lines|wrapped"),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--language=xx"],
            "language is 'xx'; allowed",
        ),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--steps=c5"],
            "allowed: c4, length",
        ),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--workers=2"],
            "--workers=2 is given; allowed: with --steps, ",
        ),
        (["--shards=1048577"], "flag --shards=1048577: 1048577 is not an integer in"),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--min_quality=0.9"],
            "--min_quality=0.9 is given; allowed: with --quality_model=FILE",
        ),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--text_field=body"],
            "--text_field=body is given; allowed: with --layout=json or csv, not lines",
        ),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--seed=5"],
            "--seed=5 is given; allowed: with --steps, ",
        ),
        (
            [f"--input={ROOT}/README.md", "--output=x", "--language=all"],
            "--language is all; allowed: with the step `language`",
        ),
        (
            [
                f"--input={ROOT}/README.md",
                "--output=x",
                "--layout=tsv",
                "--language=en-de",
                "--quality_model=q.npz",
            ],
            "--quality_model is q.npz; allowed: without --layout=tsv",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    done = run("prepare", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content, said",
    [
        (gzip.compress(b"One text.\tOne more text.\n" * 20), "looks like a table"),
        (gzip.compress(b"One sentence here.\n" * 20)[:-4], "up to the damage: "),
    ],
    ids=["table", "cut"],
)
def test_the_pipeline_warns_of_a_table_and_goes_on_after_damage(
    tmp_path, content, said
):
    (tmp_path / "a.txt.gz").write_bytes(content)
    arguments = [f"--input={tmp_path}/a.txt.gz", f"--output={tmp_path}/out"]
    done = run("prepare", *arguments, "--steps=length", "--workers=1")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr + done.stdout


def test_evaluation_data_that_cannot_be_read_stops_before_the_work(tmp_path):
    (tmp_path / "a.txt").write_text("Ein Café war da. Ein Haus war da.\n" * 20)
    known = tmp_path / "known.tsv"
    known.write_text("1\tEin Haus war da.\n")
    latin = "Ein Café war da.\n".encode("latin-1")
    output = tmp_path / "out"
    command = [
        f"--input={tmp_path}/a.txt",
        "--language=de",
        "--workers=1",
        f"--output={output}",
    ]
    for name, content, said in [
        ("latin.txt", latin * 20, "latin.txt is not UTF-8: 20 of its 20 lines"),
        ("a.xz", lzma.compress(latin), "a.xz is xz; allowed: plain text, .gz, .bz2"),
        ("empty.txt", b"\n12\t13\n", "empty.txt has no sentence; allowed: lines of"),
    ]:
        (tmp_path / name).write_bytes(content)
        guards = f"--remove_sentences_of={known},{tmp_path / name}"
        done = run("prepare", *command, guards)
        assert done.returncode == 1 and said in done.stderr
        assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
        assert not output.exists()

    done = run("prepare", *command, f"--remove_sentences_of={known}")
    assert done.returncode == 0, done.stderr
    # The line as a whole, and its cell with letters.
    assert "--remove_sentences_of: 2 sentences of 1 file\n" in done.stdout
    with gzip.open(output / "de" / "00000-of-00001.txt.gz", "rt") as file:
        assert set(file.read().split("\n")) == {"Ein Café war da.", ""}


PAGE = (
    "Home | Contact\nThis is the first sentence of page {0} here. It goes on.\n"
    "The second line of page {0} ends here.\nWe use cookies on this page, sorry.\n"
)


def test_a_dump_becomes_shards_by_language(tmp_path):
    pages = [PAGE.format(n) for n in range(30)]
    wet_files.write(tmp_path / "a.wet.gz", [*pages, pages[3]])
    whole = (tmp_path / "a.wet.gz").read_bytes()
    (tmp_path / "cut.wet.gz").write_bytes(whole[: len(whole) // 2])
    output = tmp_path / "corpus"
    arguments = [
        f"--input={tmp_path}/*.wet.gz",
        "--layout=wet",
        f"--output={output}",
        "--shards=2",
    ]
    done = run("prepare", *arguments, "--workers=1")
    assert done.returncode == 0, done.stderr
    assert "en: 30 documents, 90 sentences" in done.stdout
    assert "policy" in done.stdout and "no terminal punctuation" in done.stdout
    assert f"damaged, read up to the damage: {tmp_path}/cut.wet.gz: " in done.stdout
    assert f"--train_data='en={output}/en/*.txt.gz'" in done.stdout
    assert "Traceback" not in done.stderr

    files = {p.name: p.read_bytes() for p in output.glob("en/*")}
    assert sorted(files) == ["00000-of-00002.txt.gz", "00001-of-00002.txt.gz"]
    assert sorted(os.listdir(output)) == ["en", "stats.json"]
    stats = json.loads((output / "stats.json").read_text())
    assert stats["languages"]["en"]["sentences"] == 90
    assert stats["dropped"]["write"]["documents"]["en"]["duplicate document"] > 0
    assert stats["settings"]["steps"] == [
        "c4",
        "length",
        "language",
        "duplicate_documents",
        "duplicate_lines",
    ]

    again = run("prepare", *arguments)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1 and "exists" in again.stderr


@pytest.mark.large
def test_a_killed_run_leaves_nothing_and_two_workers_are_as_one(tmp_path):
    wet_files.write(tmp_path / "a.wet.gz", [PAGE.format(n) for n in range(300)])
    command = [f"--input={tmp_path}/a.wet.gz", "--layout=wet", "--steps=c4,language"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "cmlm.prepare", *command, f"--output={tmp_path}/out"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    killed.stdout.readline()  # what it will do: the pipeline starts
    killed.kill()
    killed.wait()
    assert not (tmp_path / "out").exists()

    outputs = []
    for workers in (1, 2):
        output = tmp_path / f"out{workers}"
        done = run("prepare", *command, f"--output={output}", f"--workers={workers}")
        assert done.returncode == 0, done.stderr
        outputs.append({p.name: p.read_bytes() for p in output.glob("*/*.gz")})
    assert outputs[0] == outputs[1]


def test_a_dump_of_another_format_leaves_nothing(tmp_path):
    (tmp_path / "a.wet.gz").write_bytes(gzip.compress(b"Only text.\n" * 100))
    done = run(
        "prepare",
        f"--input={tmp_path}/a.wet.gz",
        "--layout=wet",
        f"--output={tmp_path}/corpus",
        "--workers=1",
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert "a.wet.gz is not of layout wet: not a WARC record" in line
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["a.wet.gz"]
