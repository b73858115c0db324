"""What killed runs left is named and removed; what living runs write stays."""

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from cmlm.common import atomic, files, leftovers, locks, path_names, scratch
from cmlm.errors import UserError


def test_what_killed_runs_left_is_named_and_removed(tmp_path, caplog):
    target = str(tmp_path / "o.npy")
    left = ["o.npy.tmp-0a1b2c3d", "o.npy.tmp-0a1b2c3e.words.tsv"]
    other = ["o.npy.tmp-mine", "x.npy.tmp-0a1b2c3d", "o.npy.tmp-0a1b2c3d4"]
    for name in [*left, *other]:
        (tmp_path / name).touch()
    (tmp_path / "o.npy.tmp-ffffffff").mkdir()
    (tmp_path / "o.npy.tmp-ffffffff" / "part").touch()
    leftovers.tidy(target)
    assert sorted(os.listdir(tmp_path)) == sorted(other)
    named = [message.split()[1].strip(",") for message in caplog.messages]
    assert named == [f"{tmp_path}/{name}" for name in [*left, "o.npy.tmp-ffffffff"]]


def test_backups_with_a_date_or_a_hash_stay(tmp_path, caplog):
    own = ["o.old-20261127", "o.old-20261127.1", "o.tmp-20261127", "o.tmp-20261127.tar"]
    # The hash of a commit.
    hashed = "o.old-1a2b3c4d"
    for name in [*own, hashed]:
        (tmp_path / name).mkdir()
    leftovers.tidy_within(str(tmp_path), ["o"])
    # A directory that is replaced has such a name, a file has not.
    (tmp_path / "o.old-a01b2c3d").touch()
    (tmp_path / "o").mkdir()
    leftovers.tidy(str(tmp_path / "o"))
    here = {*own, hashed, "o", "o.old-a01b2c3d"}
    assert set(os.listdir(tmp_path)) == here
    assert not caplog.messages
    assert path_names.final(hashed) == hashed
    for name in own:
        assert not path_names.is_temporary(name)
        assert path_names.output_of(name) == path_names.final(name) == name


def test_generated_names_are_known_and_are_no_dates():
    for kind in ("tmp", "old"):
        name = path_names.temporary("o", kind)
        assert path_names.final(name) == path_names.final(f"{name}.words.tsv") == "o"
        assert not name.rpartition("-")[2].isdigit()
    # TensorFlow's names may have digits alone.
    for name in (path_names.temporary("o"), "o.tmp-0a1b2c3d", "o.tmp12345678901234"):
        assert path_names.is_temporary(name) and path_names.output_of(name) == "o"


def test_a_remote_path_is_absolute():
    assert path_names.absolute("gs://b/e/serving/1") == "gs://b/e/serving/1"
    assert path_names.absolute("e/serving/1") == f"{os.getcwd()}/e/serving/1"


def test_within_a_directory_only_the_commands_own_leftovers_go(tmp_path):
    left = ["own.tmp-0a1b2c3d", "own/a.npy.old-a01b2c3d", "own/b/c.tmp-0a1b2c3d"]
    other = ["export.old-a01b2c3d", "other/a.npy.tmp-0a1b2c3d", "own/b/c.tmp-mine"]
    for name in [*left, *other]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    leftovers.tidy_within(str(tmp_path), ("own", "cosines"))
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in other)


def _lock_as_nfs(handle, operation, flock=fcntl.flock):
    """Locks as a process of another host: a lock on a directory stays on its host."""
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        return
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "not open for writing")
    flock(handle, operation)


@pytest.mark.parametrize("is_nfs", [False, True])
@pytest.mark.parametrize("kind", ["file", "directory", "working"])
def test_what_a_living_run_writes_stays(tmp_path, caplog, monkeypatch, kind, is_nfs):
    if is_nfs:
        monkeypatch.setattr(locks.fcntl, "flock", _lock_as_nfs)
    target = str(tmp_path / "o")
    making = {
        "file": atomic.file,
        "directory": atomic.directory,
        "working": atomic.working_path,
    }[kind](target)
    with making as temporary:
        if kind == "working":
            Path(f"{temporary}.totals.json").touch()
        before = sorted(os.listdir(tmp_path))
        leftovers.tidy(target)
        assert sorted(os.listdir(tmp_path)) == before and len(before) > 0
        assert "delete it if no run is writing it" in caplog.messages[0]
        if kind == "directory":
            # A directory and the file that marks it have one message.
            assert len(caplog.messages) == 1 and not caplog.messages[0].count(".lock")
            with pytest.raises(UserError, match="no file matches"):
                files.expand(f"{tmp_path}/*")
        if kind == "file":
            Path(temporary).write_text("x")
        if kind == "working":
            os.remove(f"{temporary}.totals.json")
    assert sorted(os.listdir(tmp_path)) == ([] if kind == "working" else ["o"])


def test_a_directory_in_use_stays_without_its_mark(tmp_path):
    with atomic.directory(f"{tmp_path}/o") as made:
        os.remove(f"{made}.lock")
        leftovers.tidy(f"{tmp_path}/o")
        assert os.path.isdir(made)


@pytest.mark.parametrize("kind", ["tmp", "scratch"])
def test_the_directory_of_another_host_stays_until_it_is_killed(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(locks.fcntl, "flock", _lock_as_nfs)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def others():
        if kind == "tmp":
            leftovers.tidy(f"{tmp_path}/o")
        else:
            with scratch.directory():
                pass

    making = scratch.directory()
    if kind == "tmp":
        making = atomic.directory(f"{tmp_path}/o")

    def make():
        with making:
            Path(tmp_path, "begun").touch()
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=make)
    process.start()
    while not Path(tmp_path, "begun").exists():
        time.sleep(0.01)
    before = sorted(os.listdir(tmp_path))
    others()
    assert sorted(os.listdir(tmp_path)) == before and len(before) == 3
    process.kill()
    process.join()
    others()
    assert os.listdir(tmp_path) == ["begun"]


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
    leftovers.remove_directory = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    with atomic.directory(target, overwrite=True) as temporary:
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
    leftovers.tidy(str(target))
    assert os.listdir(tmp_path) == ["o"] and os.listdir(target) == content
    assert ("is restored" in caplog.text) == (moment == 2)


def test_a_work_directory_stays_after_a_failure_and_goes_after_success(
    tmp_path, monkeypatch
):
    def rmtree(path, *arguments, rmtree=shutil.rmtree, **values):
        # Over NFS, a directory with an open file cannot be removed.
        handles = [f"/proc/self/fd/{handle}" for handle in os.listdir("/proc/self/fd")]
        opened = [os.readlink(each) for each in handles if os.path.islink(each)]
        assert not any(each.startswith(f"{path}/") for each in opened)
        rmtree(path, *arguments, **values)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    path = tmp_path / "o.work"
    with pytest.raises(ZeroDivisionError):
        with leftovers.work_directory(str(path), ("kept",)) as directory:
            Path(directory, "kept").touch()
            raise ZeroDivisionError
    with leftovers.work_directory(str(path), ("kept",)) as directory:
        assert "kept" in os.listdir(directory)
    assert os.listdir(tmp_path) == []
    with leftovers.work_directory(None, ()) as directory:
        assert directory is None


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("others", [[], ["mine.txt", "notes"]])
def test_what_a_user_keeps_in_a_work_directory_stays(tmp_path, caplog, is_link, others):
    path, folder = tmp_path / "o.work", tmp_path / ("there" if is_link else "o.work")
    folder.mkdir()
    if is_link:
        path.symlink_to("there")
    for name in others:
        (folder / name).mkdir()
        (folder / name / "text").touch()
    # A run was killed while it removed its files.
    (folder / "removed.tmp-0a1b2c3d").mkdir()
    with leftovers.work_directory(str(path), ("own", "[0-9]")) as directory:
        assert sorted(os.listdir(directory)) == sorted(["lock", *others])
        for name in ("own", "1", "own.tmp-0a1b2c3e"):
            Path(directory, name).mkdir()
            Path(directory, name, "part").touch()
    assert path.is_symlink() == is_link and path.exists() == bool(others or is_link)
    if path.exists():
        assert sorted(os.listdir(folder)) == others
        assert all(os.listdir(folder / name) == ["text"] for name in others)
    said = f"{path} stays, because it has 2 files or folders of your own, such as "
    assert (said in caplog.text) == bool(others)
