"""Files on Beam's filesystems are whole or absent, and no path is a glob."""

import gzip
import os
from pathlib import Path

import pytest

from cmlm.common import beam_files


def test_atomic_text_appears_whole_and_packs_equally(tmp_path):
    for name in ("a.txt.gz", "b.txt.gz"):
        with beam_files.atomic_text(str(tmp_path / name)) as output:
            output.write("eine Zeile\nüber zwei\n")
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()
    with gzip.open(tmp_path / "a.txt.gz", "rt", encoding="utf-8") as file:
        assert file.read() == "eine Zeile\nüber zwei\n"


@pytest.mark.parametrize("name", ["a.txt", "a[1].txt"])
def test_atomic_text_that_fails_leaves_the_older_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        with beam_files.atomic_text(str(path)) as output:
            output.write("new")
            output.write(str(1 / 0))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("folder", ["out", "out[1]", "o*t?"])
def test_tidy_removes_what_dead_workers_left(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    for name in ("counts.json", "en/00000.txt.gz.tmp-a2345678", "en/00000.txt.gz"):
        for directory in (folder, "out1"):
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    beam_files.tidy(folder, f"{folder}/counts.json")
    assert os.listdir(folder) == ["en"]
    assert os.listdir(f"{folder}/en") == ["00000.txt.gz"]
    # `out[1]` is no glob for `out1`.
    assert len(os.listdir("out1/en")) == 2


def test_a_path_is_no_glob(tmp_path):
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(name)
    (found,) = beam_files.match(str(tmp_path / "a[1].txt"))
    assert found.path == str(tmp_path / "a[1].txt") and found.size_in_bytes == 8
    assert not beam_files.match(str(tmp_path / "a[2].txt"))
