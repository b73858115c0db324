"""Outputs never damage inputs; what killed runs left is removed; locks end by kill."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cmlm import cli
from cmlm.common import files, locks, outputs
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
    with pytest.raises(UserError, match=f"may write, unlike {forbidden}$"):
        outputs.check({"--output": path}, {})
    with pytest.raises(UserError, match="--work_dir is "):
        outputs.check({}, {}, kept={"--work_dir": path})


def test_a_directory_that_gets_files_may_lie_in_one_that_gets_none(forbidden):
    path = os.path.join(forbidden, "open")
    outputs.check({"--output": f"{path}/out"}, {}, kept={"--work_dir": path + "/work"})
    outputs.check({}, {}, kept={"--work_dir": path})
    # It would be replaced by another directory of its name.
    with pytest.raises(UserError, match="may write, unlike"):
        outputs.check({"--output": path}, {})


def test_an_output_below_a_file_is_refused(place):
    with pytest.raises(UserError, match="in a folder, which .*D/a.txt is not"):
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


def test_an_output_that_lies_in_another_is_refused(place):
    with pytest.raises(UserError, match="--output=O/n.tsv lies in --marked_output=O"):
        outputs.check({"--output": "O/n.tsv", "--marked_output": "O"}, {})
    with pytest.raises(UserError, match="--cache_dir=O/c lies in --output=O"):
        outputs.check({"--output": "O"}, {}, kept={"--cache_dir": "O/c"})
    outputs.check({"--output": "O/report"}, {}, kept={"--cache_dir": "O"})


def test_an_existing_output_is_replaced_only_on_request(place):
    with pytest.raises(UserError, match="D/a.txt exists: .* --overwrite"):
        outputs.check({"--output": "D/a.txt"}, {})
    outputs.check({"--output": "D/a.txt"}, {}, overwrite=True)
    outputs.check({}, {}, kept={"--work_dir": "D"})


# -------------------------------------------------------------------- leftovers


def test_what_killed_runs_left_is_named_and_removed(tmp_path, caplog):
    target = str(tmp_path / "o.npy")
    left = ["o.npy.tmp-0a1b2c3d", "o.npy.tmp-0a1b2c3e.words.tsv"]
    other = ["o.npy.tmp-mine", "x.npy.tmp-0a1b2c3d", "o.npy.tmp-0a1b2c3d4"]
    for name in [*left, *other]:
        (tmp_path / name).touch()
    (tmp_path / "o.npy.tmp-ffffffff").mkdir()
    (tmp_path / "o.npy.tmp-ffffffff" / "part").touch()
    outputs.tidy(target)
    assert sorted(os.listdir(tmp_path)) == sorted(other)
    named = [message.split()[1].strip(",") for message in caplog.messages]
    assert named == [f"{tmp_path}/{name}" for name in [*left, "o.npy.tmp-ffffffff"]]


def test_within_a_directory_only_the_commands_own_leftovers_go(tmp_path):
    left = ["own.tmp-0a1b2c3d", "own/a.npy.old-0a1b2c3d", "own/b/c.tmp-0a1b2c3d"]
    other = ["export.old-0a1b2c3d", "other/a.npy.tmp-0a1b2c3d", "own/b/c.tmp-mine"]
    for name in [*left, *other]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    outputs.tidy_within(str(tmp_path), ("own", "cosines"))
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in other)


@pytest.mark.parametrize("kind", ["file", "directory", "working"])
def test_what_a_living_run_writes_stays(tmp_path, caplog, kind):
    target = str(tmp_path / "o")
    making = {
        "file": files.atomic_file,
        "directory": files.atomic_directory,
        "working": files.working_path,
    }[kind](target)
    with making as temporary:
        if kind == "working":
            Path(f"{temporary}.totals.json").touch()
        before = sorted(os.listdir(tmp_path))
        outputs.tidy(target)
        assert sorted(os.listdir(tmp_path)) == before and len(before) > 0
        assert "delete it if no run is writing it" in caplog.messages[0]
        if kind == "file":
            Path(temporary).write_text("x")
        if kind == "working":
            os.remove(f"{temporary}.totals.json")
    assert sorted(os.listdir(tmp_path)) == ([] if kind == "working" else ["o"])


def _replace(target, moment):
    """Replaces a directory and dies at the given rename of the two."""
    import tensorflow as tf

    rename, count = tf.io.gfile.rename, [0]

    def dying(*arguments):
        count[0] += 1
        if count[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)

    tf.io.gfile.rename = dying
    outputs.remove_directory = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    with files.atomic_directory(target, overwrite=True) as temporary:
        Path(temporary, "new").touch()


@pytest.mark.parametrize(
    ("moment", "content"), [(1, ["old"]), (2, ["old"]), (3, ["new"])]
)
def test_a_kill_between_the_two_renames_of_an_export_loses_nothing(
    tmp_path, caplog, moment, content
):
    target = tmp_path / "o"
    target.mkdir()
    (target / "old").touch()
    process = multiprocessing.get_context("fork").Process(
        target=_replace, args=(str(target), moment)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert target.exists() == (moment != 2)
    outputs.tidy(str(target))
    assert os.listdir(tmp_path) == ["o"] and os.listdir(target) == content
    assert ("is restored" in caplog.text) == (moment == 2)


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


def test_a_remote_directory_is_said_to_have_no_lock(caplog):
    caplog.set_level("INFO")
    with locks.held("gs://nowhere/run"):
        pass
    assert "gs://nowhere/run is not locked" in caplog.text


def test_a_lock_leaves_no_empty_directory(tmp_path):
    with pytest.raises(ZeroDivisionError), locks.held(str(tmp_path / "run")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_work_directory_stays_after_a_failure_and_goes_after_success(tmp_path):
    path = tmp_path / "o.work"
    with pytest.raises(ZeroDivisionError):
        with outputs.work_directory(str(path)) as directory:
            Path(directory, "kept").touch()
            raise ZeroDivisionError
    with outputs.work_directory(str(path)) as directory:
        assert "kept" in os.listdir(directory)
    assert os.listdir(tmp_path) == []
    with outputs.work_directory(None) as directory:
        assert directory is None
