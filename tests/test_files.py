"""Files are found, streamed, and written whole or not at all."""

import bz2
import concurrent.futures
import gzip
import hashlib
import json
import logging
import lzma
import os
import re
import resource
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import tensorflow as tf

from cmlm import cli
from cmlm.common import arrays, atomic, checksums, files, leftovers, scratch
from cmlm.data import line_files
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir
from tests import commands

ROOT = Path(__file__).resolve().parent.parent


def test_expand_takes_lists_and_globs_and_names_each_file_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.txt.gz"):
        (tmp_path / name).touch()
    patterns = f"{tmp_path}/*.txt, {tmp_path}/c.txt.gz,{tmp_path}/a.txt"
    names = [os.path.basename(path) for path in files.expand(patterns)]
    assert names == ["a.txt", "b.txt", "c.txt.gz"]


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    """Its second reading would find nothing; an open without a writer would wait."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    assert files.expand(pipe) == [pipe]
    said = f"^{pipe} is a pipe or a device; allowed: a file, which can be read"
    with pytest.raises(UserError, match=said), files.open_text(pipe):
        pass
    with pytest.raises(UserError, match=said):
        arrays.map_any_npy(pipe)
    assert DataDir(str(tmp_path)).find("pipe") == pipe


def test_expand_takes_a_name_with_glob_characters_literally(tmp_path):
    (tmp_path / "[1].txt").touch()
    assert files.expand(f"{tmp_path}/[1].txt") == [f"{tmp_path}/[1].txt"]


def test_expand_names_a_file_whose_name_is_not_utf8(tmp_path):
    (tmp_path / "a.txt").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).touch()
    said = r"\*.txt matches .*/caf\\xe9.txt; allowed: files whose names are UTF-8"
    with pytest.raises(UserError, match=said):
        files.expand(f"{tmp_path}/*.txt")
    assert files.expand(f"{tmp_path}/a*.txt") == [f"{tmp_path}/a.txt"]


@pytest.mark.parametrize(
    "pattern, allowed",
    [
        ("", "; allowed: a file, a glob or a list"),
        (",", "; allowed: a file, a glob or a list"),
        ("missing.txt", "; allowed: files that exist, and globs of such files"),
        ("*.nothing", "; allowed: files that exist, and globs of such files"),
        (".", " (it is a directory: name the files in it, as in DIR/*.txt)"),
    ],
)
def test_expand_names_the_pattern_that_matches_nothing(
    tmp_path, pattern, allowed, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        files.expand(pattern)
    assert str(raised.value) == f"no file matches {pattern!r}{allowed}"


@pytest.mark.parametrize(
    "command, flag, others",
    [
        ("cmlm.encode", "input", ["--output=a.npy", "--model=m"]),
        ("cmlm.encode", "input", ["--output=a", "--model=m", "--workers=1"]),
        ("cmlm.vocab", "input", ["--output=v.txt"]),
        ("cmlm.ngrams", "input", ["--output=n.tsv"]),
        ("cmlm.quality", "good", ["--output=q.npz", "--bad=there.txt"]),
        ("cmlm.quality", "bad", ["--output=q.npz", "--good=there.txt"]),
        ("cmlm.prepare", "input", ["--output=o", "--steps=length"]),
        ("cmlm.prepare", "remove_sentences_of", ["--output=o", "--input=there.txt"]),
        ("export.client", "input", ["--server=http://localhost:1", "--output=a.npy"]),
    ],
)
def test_a_command_names_the_flag_of_a_file_that_is_missing(
    command, flag, others, tmp_path
):
    (tmp_path / "there.txt").write_text("One.\n")
    done = commands.run(command, f"--{flag}=no.txt", *others, cwd=tmp_path)
    said = f"error: --{flag}: no file matches 'no.txt'; allowed: files that exist, "
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(said)


def test_a_flag_of_vocab_is_named_before_a_word_in_the_place_of_a_language(tmp_path):
    arguments = ("--input=english=a.txt", "--output=v.txt")
    done = commands.run("cmlm.vocab", *arguments, cwd=tmp_path)
    assert done.stderr.startswith("error: --input: no file matches 'english=a.txt'; al")


def test_a_home_is_written_in_full(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    said = r"no file matches '~/\*.txt' \(write the path in full: '/home/me/\*.txt'\)"
    with pytest.raises(UserError, match=said):
        files.expand("~/*.txt")


def test_a_comma_in_a_name_is_written_as_a_question_mark(tmp_path):
    path = tmp_path / "news, [2019]" / "a,b.txt"
    path.parent.mkdir()
    path.touch()
    with pytest.raises(UserError, match=re.escape("news? ?2019?/a?b.txt'")):
        files.expand(str(path))
    for name in (str(path), f"{path.parent}/*.txt"):
        assert files.expand(files.pattern(name)) == [str(path)]


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    path = str(tmp_path / "new" / name)
    text = "first line\nsecond \u2028 line: ä€𝄞\r\n" + "x" * 1_000_000 + "\n"
    with atomic.text(path) as stream:
        stream.write(text)
    with files.open_text(path) as stream:
        lines = list(stream)
    assert "".join(lines) == text
    assert len(lines) == 3
    opened = gzip.open if name.endswith("gz") else open
    with opened(path, "rb") as stream:
        assert stream.read() == text.encode()


@pytest.mark.parametrize("name", ["empty.txt", "empty.txt.gz"])
def test_an_empty_text_is_a_file_too(tmp_path, name):
    with atomic.text(str(tmp_path / name)):
        pass
    with files.open_text(str(tmp_path / name)) as stream:
        assert stream.read() == ""


def test_equal_text_gives_equal_gzip_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        with atomic.text(str(tmp_path / name)) as stream:
            stream.write("text\n")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_open_text_refuses_a_line_that_would_fill_the_memory(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"x" * 100 + b"\n" + b"y" * 99 + b"\n")
        for _ in range(256):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    with files.open_text(str(path), max_line_characters=100) as lines:
        assert [len(next(lines)), len(next(lines))] == [101, 100]
        message = "bomb.txt.gz line 3 is longer than 100 characters"
        with pytest.raises(UserError, match=message):
            next(lines)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_open_text_drops_the_byte_order_mark_and_replaces_bad_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xe9\n")
    with files.open_text(str(path)) as stream:
        assert stream.read() == "caf\ufffd\n"


def test_a_file_of_two_that_were_joined_has_a_byte_order_mark_inside(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("One.\nTwo.\n".encode("utf-8-sig") * 2)
    with files.open_text(str(path)) as stream:
        assert [*stream] == ["One.\n", "Two.\n"] * 2


@pytest.mark.parametrize(
    "content, said",
    [
        (
            "One.\nTwo.\n".encode("utf-16"),
            "text.txt is UTF-16; allowed: UTF-8, as",
        ),
        (b"One.\nTw\0o.\n", "text.txt is not text: line 2 has a NUL byte"),
        (
            b"ok\n" * 8 + b"caf\xe9\n" * 11,
            "text.txt is not UTF-8: 11 of its 19 lines",
        ),
    ],
    ids=["utf-16", "nul", "latin-1"],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_text_in_another_encoding_is_refused(tmp_path, pack, content, said):
    ending = {gzip.compress: ".gz", bz2.compress: ".bz2"}.get(pack, "")
    path = tmp_path / f"text.txt{ending}"
    path.write_bytes(pack(content))
    with pytest.raises(UserError) as error, files.open_text(str(path)) as lines:
        list(lines)
    assert said.replace("text.txt", path.name) in str(error.value)


def test_a_few_bad_bytes_have_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("cmlm"), "propagate", True)
    path = tmp_path / "text.txt"
    path.write_bytes("\ufffd is a character\n".encode() * 9 + b"caf\xe9\n")
    for _ in range(2):
        with files.open_text(str(path)) as lines:
            assert list(lines)[-1] == "caf\ufffd\n"
    said = "text.txt is UTF-8 in part: 1 of its 10 lines have invalid bytes, line 10 f"
    assert [said in record.message for record in caplog.records] == [True]
    # It would spoil the good lines.
    assert "iconv" not in caplog.text


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.xz", lzma.compress(b"One.\n"), "is xz; allowed: plain text, .gz"),
        ("a.gz", bz2.compress(b"One.\n"), "is bzip2 under another name; allowed:"),
        ("a.txt", gzip.compress(b"One.\n"), "is gzip under another name; allowed:"),
        ("a.zip", b"PK\x03\x04\x14\0", "is zip; allowed: plain text, .gz"),
    ],
    ids=["xz", "bzip2", "gzip", "zip"],
)
@pytest.mark.parametrize("for_tensorflow", [False, True])
def test_a_file_packed_in_another_way_is_named(
    tmp_path, name, content, said, for_tensorflow
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} {said}") as error:
        with files.open_text(str(tmp_path / name), for_tensorflow=for_tensorflow):
            pass
    assert (".bz2" in str(error.value)) != for_tensorflow


def test_a_broken_gzip_file_is_named(tmp_path):
    whole = gzip.compress(os.urandom(1000))
    for content in (b"plain text", whole[:500]):
        path = tmp_path / "text.gz"
        path.write_bytes(content)
        with pytest.raises(UserError, match="text.gz is not a whole gzip file"):
            with files.open_bytes(str(path)) as stream:
                stream.read()


ZEROS = "has zeros before or after its gzip data"
DAMAGED = "is not a whole gzip file"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda packed: packed, ""),
        (lambda packed: packed * 3, ""),
        (lambda _: b"", ""),
        (lambda packed: packed + bytes(1000), ZEROS),
        (lambda packed: packed + bytes(2) + packed, ZEROS),
        (lambda packed: packed[:-3], DAMAGED),
        (lambda packed: packed[:2000], DAMAGED),
        (lambda packed: packed[:-6] + b"\1\2" + packed[-4:], DAMAGED),
        (lambda packed: packed + b"junk", DAMAGED),
    ],
)
def test_what_tensorflow_cannot_unpack_is_named_before(tmp_path, content, said):
    text = "".join(f"line {number}\n" for number in range(3000)).encode()
    packed = content(gzip.compress(text))
    path = str(tmp_path / "text.gz")
    (tmp_path / "text.gz").write_bytes(packed)
    if said:
        with pytest.raises(UserError, match=f"text.gz {said}"):
            with files.open_bytes(path, for_tensorflow=True) as stream:
                list(stream)
        return
    with files.open_bytes(path, for_tensorflow=True) as stream:
        lines = list(stream)
    assert lines == gzip.decompress(packed).splitlines(keepends=True)
    unpacked = tf.data.TextLineDataset(path, "GZIP").as_numpy_iterator()
    assert [line + b"\n" for line in unpacked] == lines


def test_what_tensorflow_does_not_unpack_is_refused(tmp_path):
    path = str(tmp_path / "text.txt.bz2")
    (tmp_path / "text.txt.bz2").write_bytes(bz2.compress(b"One.\n"))
    said = "text.txt.bz2 is bzip2; allowed for training: plain text or .gz"
    for opened in (files.open_bytes, files.open_text):
        with pytest.raises(UserError, match=said), opened(path, for_tensorflow=True):
            pass
    # The inspection of a large corpus does not come as far as this file.
    with pytest.raises(UserError, match=said):
        line_files.named([path])
    with files.open_text(path) as lines:
        assert list(lines) == ["One.\n"]


def test_damage_that_only_tensorflow_meets_is_one_line(tmp_path, capsys):
    (tmp_path / "text.gz").write_bytes(b"no gzip")
    dataset = tf.data.TextLineDataset(str(tmp_path / "text.gz"), "GZIP")
    with pytest.raises(SystemExit):
        cli.guard(lambda: list(dataset))
    said = "error: a gzip file of the input is damaged, or has bytes after its end"
    printed = capsys.readouterr().err
    assert printed.startswith(said) and printed.count("\n") == 1


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        with atomic.text(str(path)) as stream:
            stream.write("new" * 1_000_000)
            raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["text.txt.gz"]


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o664])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "text.txt"
    path.write_text("old")
    path.chmod(mode)
    with atomic.text(str(path)) as stream:
        (written,) = tmp_path.glob("text.txt.tmp-*")
        assert written.stat().st_mode & 0o077 == 0
        stream.write("new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == mode | 0o200


def test_another_group_gets_no_more_than_everyone(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.touch()
    own = path.stat()
    older = SimpleNamespace(
        st_mode=stat.S_IFREG | 0o664, st_uid=own.st_uid, st_gid=own.st_gid + 1
    )
    monkeypatch.setattr(os, "chown", mock.Mock(side_effect=PermissionError))
    atomic._give_access(str(path), older)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_in_the_place_of_a_link_has_the_permissions_of_a_new_one(tmp_path):
    (tmp_path / "private").touch(0o600)
    (tmp_path / "link").symlink_to("private")
    for name in ("link", "new"):
        with atomic.text(str(tmp_path / name)) as stream:
            stream.write("new")
    link, new = tmp_path / "link", tmp_path / "new"
    assert not link.is_symlink() and link.stat().st_mode == new.stat().st_mode


def test_a_directory_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "target"
    with atomic.directory(str(target)) as temporary:
        (tmp_path / temporary / "file").write_text("new")
        assert not target.exists()
    assert (target / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["target"]


def test_two_runs_into_one_directory_lose_nothing(tmp_path):
    target = tmp_path / "target"
    with pytest.raises(UserError, match="target appeared .*; allowed") as raised:
        with atomic.directory(str(target)) as second:
            with atomic.directory(str(target)) as first:
                (tmp_path / first / "first").touch()
            (tmp_path / second / "second").touch()
    assert os.listdir(target) == ["first"]
    (own,) = set(os.listdir(tmp_path)) - {"target"}
    assert f"its output is {tmp_path / own};" in str(raised.value)
    assert os.listdir(tmp_path / own) == ["second"]
    leftovers.tidy(str(target))
    assert sorted(os.listdir(tmp_path)) == ["target", own]


def test_an_existing_directory_is_replaced_only_on_request_and_only_by_a_whole_one(
    tmp_path,
):
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(UserError, match="target exists"):
        with atomic.directory(str(target)):
            pass
    with pytest.raises(ZeroDivisionError):
        with atomic.directory(str(target), overwrite=True) as temporary:
            (tmp_path / temporary / "new").touch()
            raise ZeroDivisionError
    assert os.listdir(target) == ["old"]
    with atomic.directory(str(target), overwrite=True) as temporary:
        (tmp_path / temporary / "new").touch()
        assert os.listdir(target) == ["old"]
    assert os.listdir(target) == ["new"]
    assert os.listdir(tmp_path) == ["target"]


def test_an_error_of_a_write_names_the_output(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught:
        with atomic.file(str(tmp_path / "x.npy")):
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"x")
    assert caught.value.filename == str(tmp_path / "x.npy")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_a_full_disk_is_the_error_that_is_raised(tmp_path, name):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Small enough to reach the disk only when the file is closed.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(tf.errors.OpError, match="File too large"):
            with atomic.text(str(tmp_path / name)) as file:
                file.write("".join(map(chr, range(40, 120))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


def test_an_error_of_a_write_is_not_blamed_on_the_file_that_is_read(tmp_path):
    (tmp_path / "in.txt").write_text("text\n")
    with pytest.raises(tf.errors.OpError, match="/dev/full; No space left"):
        with files.open_text(str(tmp_path / "in.txt")) as lines:
            list(lines)
            with tf.io.gfile.GFile("/dev/full", "w") as full:
                full.write("x" * 10)


def test_an_empty_directory_counts_as_none(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    with atomic.directory(str(target)) as temporary:
        (tmp_path / temporary / "new").touch()
    assert os.listdir(target) == ["new"]


@pytest.mark.parametrize("end", ["", "/"])
def test_replacing_a_directory_spares_what_its_links_lead_to(tmp_path, end):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.txt").write_text("mine")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "link").symlink_to(tmp_path / "mine")
    with atomic.directory(f"{tmp_path}/old{end}", overwrite=True) as made:
        (Path(made) / "new").write_text("")
    assert (tmp_path / "mine" / "data.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "old"]
    assert [p.name for p in (tmp_path / "old").iterdir()] == ["new"]


@pytest.mark.parametrize("target", ["export-1", "not there"])
def test_an_output_that_is_a_link_stays_a_link(tmp_path, target):
    (tmp_path / "disk" / "export-1").mkdir(parents=True)
    (tmp_path / "disk" / "export-1" / "old").write_text("")
    link = tmp_path / "export"
    link.symlink_to(tmp_path / "disk" / target)
    with atomic.directory(str(link), overwrite=True) as made:
        (Path(made) / "new").write_text("")
    assert link.is_symlink()
    assert [p.name for p in (tmp_path / "disk" / target).iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir() if p != link] == ["disk"]


def test_scratch_of_a_killed_process_goes_and_that_of_a_living_one_stays(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal; from cmlm.common import scratch;"
        "made = scratch.directory(); made.__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT)
    left, mark = sorted(tmp_path.iterdir())
    assert mark.name == f"{left.name}.lock"
    # A kill before the directory is there leaves its mark.
    (tmp_path / "cmlm-scratch-0.lock").touch()
    (tmp_path / "other").mkdir()
    with scratch.directory() as first, scratch.directory() as second:
        found = {str(path) for path in tmp_path.iterdir() if path.is_dir()}
        assert found == {first, second, str(tmp_path / "other")}
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert caplog.messages == [f"removed {left}, left by a run that was killed"]


def test_threads_that_make_scratch_at_once_keep_theirs(tmp_path, monkeypatch):
    # A file is without its lock for a moment, in which others may find it.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work(_):
        for _ in range(200):
            with scratch.directory() as made:
                (Path(made) / "folder").mkdir()
                (Path(made) / "folder" / "file").touch()
                assert os.listdir(made) == ["folder"]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not list(tmp_path.iterdir())


def test_writers_of_one_file_and_those_who_tidy_up_beside_it_lose_nothing(tmp_path):
    path = str(tmp_path / "output")

    def work(number):
        for _ in range(100):
            leftovers.tidy(path)
            with atomic.file(path) as temporary:
                Path(temporary).write_text(str(number))
            with atomic.directory(f"{path}-{number}", overwrite=True) as made:
                leftovers.tidy(f"{path}-{number}")
                (Path(made) / "file").touch()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert {made.name for made in tmp_path.iterdir()} == {
        "output",
        *(f"output-{number}" for number in range(4)),
    }


def test_the_sha256_is_that_of_hashlib(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "_CHUNK_BYTES", 3)
    content = gzip.compress(b"one\ntwo\n")
    (tmp_path / "a.gz").write_bytes(content)
    found = checksums.sha256(str(tmp_path / "a.gz"))
    assert found == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "a/../../b"])
def test_checksums_of_files_outside_are_refused(tmp_path, name):
    path = tmp_path / checksums.FILE_NAME
    path.write_text(json.dumps({name: [1, "00000000"]}))
    with pytest.raises(UserError, match="names '.*'; allowed: paths inside the folder"):
        checksums.check(str(tmp_path), str(path))
