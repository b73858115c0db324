"""Outputs never damage inputs; locks end by kill."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cmlm import cli
from cmlm.common import locks, outputs
from cmlm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Inputs: D/a.txt, D/b.txt, a model_dir M with a file, a link L to D."""
    monkeypatch.chdir(tmp_path)
    for name in ("D/a.txt", "D/b.txt", "M/params.yaml", "M/best/ckpt-3.index"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "L").symlink_to("D")
    return tmp_path


@pytest.fixture
def forbidden():
    """A folder that this process may only read; in it, `open`, which it may write."""
    folder, user = tempfile.mkdtemp(), os.geteuid()
    os.mkdir(os.path.join(folder, "open"))
    os.chmod(os.path.join(folder, "open"), 0o777)
    os.chmod(folder, 0o555)
    # The superuser may write everywhere.
    os.seteuid(user or 65534)
    yield folder
    os.seteuid(user)
    os.chmod(folder, 0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["out.txt", "new/folder/out"])
def test_an_output_that_cannot_be_written_is_refused(forbidden, name):
    path = os.path.join(forbidden, name)
    with pytest.raises(UserError, match=f"write to; {forbidden} is not writable$"):
        outputs.check({"--output": path}, {})
    with pytest.raises(UserError, match="--work_dir is "):
        outputs.check({}, {}, kept={"--work_dir": path})


def test_a_directory_that_gets_files_may_lie_in_one_that_gets_none(forbidden):
    path = os.path.join(forbidden, "open")
    outputs.check({"--output": f"{path}/out"}, {}, kept={"--work_dir": path + "/work"})
    outputs.check({}, {}, kept={"--work_dir": path})
    # It would be replaced by another directory of its name.
    with pytest.raises(UserError, match="is not writable"):
        outputs.check({"--output": path}, {})


def test_an_output_below_a_file_is_refused(place):
    with pytest.raises(UserError, match="in a folder; .*D/a.txt is not a folder"):
        outputs.check({"--output": "D/a.txt/b"}, {})


@pytest.mark.parametrize(
    ("output", "given", "said"),
    [
        ("D/a.txt", "D/a.txt", "is the input"),
        ("./D/../D/a.txt", "D/*.txt", "is the input"),
        ("L/a.txt", "D/a.txt", "is the input"),
        ("D", "D/*.txt", "contains D/a.txt of --input"),
        ("D/", "{cwd}/D/a.txt", "contains"),
        ("L", "D/a.txt", "contains"),
        (".", "D/a.txt", "contains"),
        ("D", "en=M/*.yaml,de=D/b.txt", "contains D/b.txt"),
        ("D", "M/params.yaml, D/b.txt", "contains D/b.txt"),
        ("M", "best:M", "is the input M of --input"),
        ("M/export", "untrained:M", "lies in M of --input"),
        ("M/best", "M", "lies in M"),
        ("M", "M/best/ckpt-3", "contains M/best/ckpt-3.index"),
        ("D/a.txt", "vectors:D/a.txt:D/b.txt", "is the input"),
        ("D/b.txt", "vectors:D/a.txt:D/b.txt", "is the input"),
        ("M", "languages:en=D,fr=best:M", "is the input"),
        ("D/b.txt", "bitext:D/a.txt:D/b.txt", "is the input"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_that_is_contains_or_lies_in_an_input_is_refused(
    place, output, given, said, overwrite
):
    before = sorted(path for path in place.rglob("*"))
    given = given.format(cwd=place)
    with pytest.raises(UserError, match=f"--output={output.rstrip('/')} {said}"):
        outputs.check({"--output": output}, {"--input": [given]}, overwrite)
    with pytest.raises(UserError, match=said):
        outputs.check({}, {"--input": given}, kept={"--output": output})
    assert sorted(path for path in place.rglob("*")) == before


@pytest.mark.parametrize(
    ("output", "given"),
    [
        ("out", "D/*.txt"),
        ("D2", "D/*.txt"),
        ("D/c.txt", "D/*.txt"),
        ("M_export", "best:M"),
        ("out", "missing/*.txt"),
        ("out", "http://localhost:8501/v1/models/M"),
        ("out", None),
        ("out", "with\0nul"),
        ("gs-like", "builtin:python-docs"),
    ],
)
def test_outputs_apart_from_the_inputs_are_accepted(place, output, given):
    outputs.check({"--output": output}, {"--input": given})


def test_a_hard_link_to_an_input_is_seen(place):
    os.link(place / "D/a.txt", place / "same.txt")
    with pytest.raises(UserError, match="same.txt is the input"):
        outputs.check({"--output": "same.txt"}, {"--input": "D/a.txt"}, True)


def test_the_same_command_goes_on_if_its_output_matches_its_own_glob(place):
    """A glob of inputs names files: a directory that it matches may be the output."""
    for flags in ({"--work_dir": "D/a.txt.en.work"}, {"--model_dir": "D/run"}):
        (directory,) = flags.values()
        (place / directory).mkdir()
        outputs.check({}, {"--input": ["D/a*", "D/*"]}, kept=flags)
        with pytest.raises(UserError, match=f"{directory} is the input {directory}"):
            outputs.check({}, {"--input": directory}, kept=flags)


def test_a_name_that_is_not_utf8_beside_an_output_does_no_harm(place):
    odd = os.fsencode(place) + b"/M/caf\xe9.txt"
    os.close(os.open(odd, os.O_CREAT))
    outputs.check({"--output": "M/new"}, {}, kept={"--work_dir": "M/new.work"})
    # An input is missed by no check.
    with pytest.raises(UserError, match=r"M/\*.txt matches M/caf\\xe9.txt; allowed"):
        outputs.check({"--output": "new"}, {"--input": "M/*.txt"})
    # A directory with such a name alone is not empty.
    os.mkdir("full")
    os.rename(odd, b"full/caf\xe9.txt")
    with pytest.raises(UserError, match="full exists"):
        outputs.check({"--output": "full"}, {})


def test_an_output_that_lies_in_another_is_refused(place):
    with pytest.raises(UserError, match="--output=O/n.tsv lies in --marked_output=O"):
        outputs.check({"--output": "O/n.tsv", "--marked_output": "O"}, {})
    with pytest.raises(UserError, match="--cache_dir=O/c lies in --output=O"):
        outputs.check({"--output": "O"}, {}, kept={"--cache_dir": "O/c"})
    outputs.check({"--output": "O/report"}, {}, kept={"--cache_dir": "O"})


def test_a_link_is_replaced_where_it_is_unless_it_leads_to_a_directory(forbidden):
    there, links = Path(forbidden, "open", "there"), Path(forbidden, "open", "links")
    (there / "folder").mkdir(parents=True)
    (there / "file").touch()
    links.mkdir()
    for name in ("folder", "file", "none"):
        (links / name).symlink_to(there / name)
    links.chmod(0o555)
    outputs.check({"--output": str(links / "folder")}, {})
    for name in ("file", "none"):
        with pytest.raises(UserError, match=f"write to; {links} is not writable$"):
            outputs.check({"--output": str(links / name)}, {}, overwrite=True)
    links.chmod(0o755)


def test_leftovers_beside_a_link_go(place):
    (place / "new").symlink_to("M/new")
    for name in ("new.tmp-0a1b2c3d", "M/new.tmp-0a1b2c3e"):
        (place / name).touch()
    outputs.check({"--output": "new"}, {})
    assert not [*place.rglob("*.tmp-*")]


@pytest.mark.parametrize("kept", [False, True])
def test_a_home_is_written_in_full(place, monkeypatch, kept):
    monkeypatch.setenv("HOME", "/home/me")
    said = r"--output is ~/x; allowed: the path in full \(/home/me/x\), or ./~/x"
    given = {"--output": "~/x"}
    with pytest.raises(UserError, match=said):
        outputs.check({} if kept else given, {}, kept=given if kept else None)
    outputs.check({"--output": "./~/x"}, {})


def test_an_existing_output_is_replaced_only_on_request(place):
    with pytest.raises(UserError, match="D/a.txt exists; .* --overwrite"):
        outputs.check({"--output": "D/a.txt"}, {})
    outputs.check({"--output": "D/a.txt"}, {}, overwrite=True)
    outputs.check({}, {}, kept={"--work_dir": "D"})


# ------------------------------------------------------------------------ pairs


def test_half_of_a_pair_may_be_replaced_by_the_same_command(tmp_path):
    pair = {"--output": f"{tmp_path}/o/m.tsv", "scores": f"{tmp_path}/o/m.scores"}
    outputs.check(pair, {})
    with outputs.named_together(pair["--output"]) as begin:
        begin()
        Path(pair["scores"]).touch()
        # Here a kill leaves the sign.
        outputs.check(pair, {})
    with pytest.raises(UserError, match="m.scores exists"):
        outputs.check(pair, {})
    assert os.listdir(tmp_path / "o") == ["m.scores"]


def test_the_sign_stands_only_while_outputs_get_their_names(tmp_path, caplog):
    output, sign = tmp_path / "m.tsv", tmp_path / "m.tsv.naming"
    with outputs.named_together(str(output)) as begin:
        assert not sign.exists()
        begin()
        assert sign.exists()
    # A failure between the names leaves it, one before them does not.
    with pytest.raises(ZeroDivisionError), outputs.named_together(str(output)) as begin:
        begin()
        raise ZeroDivisionError
    assert sign.exists()
    sign.unlink()
    output.touch()
    # A killed run has left its sign: the next one that succeeds takes it away.
    sign.touch()
    with pytest.raises(ZeroDivisionError), outputs.named_together(str(output)):
        raise ZeroDivisionError
    outputs.check({"--output": str(output)}, {})
    assert f"{output} is replaced: a run was killed" in caplog.text
    with outputs.named_together(str(output)):
        pass
    with pytest.raises(UserError, match="m.tsv exists"):
        outputs.check({"--output": str(output)}, {})


def test_a_directory_that_takes_no_file_is_named_with_the_output(capsys):
    def write():
        with outputs.named_together("/proc/n.tsv") as begin:
            begin()

    with pytest.raises(SystemExit):
        cli.guard(write)
    assert capsys.readouterr().err == "error: /proc/n.tsv: No such file or directory\n"


# ------------------------------------------------------------------------ locks

HOLDER = """
import sys, time
from cmlm.common import locks
with locks.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_names_its_holder_and_ends_by_kill_9(tmp_path):
    directory = str(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert holder.stdout.readline() == "held\n"
        said = f"{directory} is in use by process {holder.pid} on {os.uname().nodename}"
        with pytest.raises(UserError, match=said):
            with locks.held(directory):
                pass
    finally:
        holder.kill()
        holder.wait()
    assert os.listdir(directory) == ["lock"]
    with locks.held(directory):
        with pytest.raises(UserError, match=f"process {os.getpid()} "):
            with locks.held(directory):
                pass
    assert os.listdir(directory) == []


@pytest.mark.parametrize(
    "link, said",
    [
        (os.symlink, "/lock is a symbolic link; allowed: a regular file"),
        (
            os.link,
            "/lock is one of several hard links.*; allowed: a file of the folder's",
        ),
    ],
)
def test_a_lock_that_is_a_link_is_refused(tmp_path, link, said):
    (tmp_path / "mine").write_text("text")
    (tmp_path / "run").mkdir()
    link(tmp_path / "mine", tmp_path / "run/lock")
    with pytest.raises(UserError, match=said):
        with locks.held(str(tmp_path / "run")):
            pass
    assert (tmp_path / "mine").read_text() == "text"


def test_a_remote_directory_is_said_to_have_no_lock(caplog):
    caplog.set_level("INFO")
    with locks.held("gs://nowhere/run"):
        pass
    assert "gs://nowhere/run is not locked" in caplog.text


def test_a_lock_leaves_no_empty_directory(tmp_path):
    with pytest.raises(ZeroDivisionError), locks.held(str(tmp_path / "run")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
