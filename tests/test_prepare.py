"""The commands `prepare` and `vocab`, run as a user runs them."""

import gzip
import os
import subprocess
import sys

import pytest
from conftest import ROOT


def run(module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"cmlm.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


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


def test_prepare_without_a_sentence_leaves_nothing(tmp_path):
    (tmp_path / "text.txt").write_text("12.\n\n---\n")
    done = run("prepare", f"--input={tmp_path}/text.txt", f"--output={tmp_path}/corpus")
    assert done.returncode == 1
    assert "error:" in done.stderr and "no sentence" in done.stderr
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output=x"], "--input is not given"),
        (["--input=missing*.txt", "--output=x"], "no file matches 'missing*.txt'"),
        (["--input=README.md", "--output=x", "--layout=html"], "lines|wrapped"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    done = run("prepare", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
