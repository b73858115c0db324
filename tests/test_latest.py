"""The latest checkpoint of a directory, whatever kills and disks did to it."""

import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from cmlm.common import path_names
from cmlm.errors import UserError
from cmlm.modeling import latest


@pytest.fixture
def folder(tmp_path):
    """A directory with ckpt-5, ckpt-10 and ckpt-20."""
    value = tf.Variable(0.0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(value=value), str(tmp_path), max_to_keep=3
    )
    for step in (5, 10, 20):
        value.assign(step)
        manager.save(checkpoint_number=step)
    return tmp_path


def test_the_step_is_that_of_the_latest_checkpoint(folder, tmp_path):
    assert latest.step(str(folder)) == 20
    assert latest.step(str(tmp_path / "empty")) == 0


@pytest.mark.parametrize(
    "name, opens, deletes",
    [("lr1", True, True), ("lr?", True, False), ("lr*", True, False), ("[1]", 0, 0)],
)
def test_a_folder_that_is_a_pattern_is_refused_where_it_does_harm(name, opens, deletes):
    """TensorFlow deletes all checkpoints that it matches, also those of `lr1`."""
    for allowed, values in ((opens, {}), (deletes, {"deletes": True})):
        if allowed:
            path_names.refuse_pattern(f"runs/{name}", "--model_dir", **values)
            continue
        with pytest.raises(UserError, match=r"--model_dir is runs/.*; allowed: a path"):
            path_names.refuse_pattern(f"runs/{name}", "--model_dir", **values)


def value_of(path) -> float:
    reader = tf.train.load_checkpoint(path)
    return float(reader.get_tensor("value/.ATTRIBUTES/VARIABLE_VALUE"))


def lost(folder, *names):
    for name in names:
        for path in folder.glob(f"{name}*"):
            path.unlink()


DAMAGE = {
    "missing": lambda folder: (folder / "checkpoint").unlink(),
    "empty": lambda folder: (folder / "checkpoint").write_bytes(b""),
    "garbage": lambda folder: (folder / "checkpoint").write_bytes(b"\xff\0{{{"),
    "text": lambda folder: (folder / "checkpoint").write_text("to be done"),
    "other": lambda folder: (folder / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-70"\n'
    ),
    "older": lambda folder: (folder / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-10"\n'
    ),
    "elsewhere": lambda folder: (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/ckpt-70"\n'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_checkpoint_counts_whatever_the_state_says(folder, damage, caplog):
    DAMAGE[damage](folder)
    assert latest.find(str(folder)) == f"{folder}/ckpt-20" and not caplog.messages
    latest.repair(str(folder))
    # TensorFlow reads it too, and deletes the oldest checkpoints in the right order.
    value = tf.Variable(0.0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(value=value), str(folder), max_to_keep=2
    )
    assert manager.latest_checkpoint == f"{folder}/ckpt-20"
    manager.save(checkpoint_number=30)
    steps = sorted(int(path.stem[5:]) for path in folder.glob("*.index"))
    assert steps == [20, 30]


@pytest.mark.parametrize("hours", [(1, 0), (1, 1), (0, 1), (0, 0)])
def test_a_clock_that_was_set_keeps_no_old_checkpoint(tmp_path, monkeypatch, hours):
    """TensorFlow never deletes checkpoints that are older than the run's start."""
    value, now = tf.Variable(0.0), time.time

    def manager():
        latest.repair(str(tmp_path))
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(value=value), str(tmp_path), max_to_keep=2
        )

    # How far the clock is ahead at the start, and at the checkpoints.
    start, saving = hours
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * start)
    first = manager()
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * saving)
    for step in (5, 10):
        first.save(checkpoint_number=step)
    # The run is killed, and resumes by the right time.
    monkeypatch.setattr(time, "time", now)
    second = manager()
    assert second.latest_checkpoint == f"{tmp_path}/ckpt-10"
    for step in (20, 30):
        second.save(checkpoint_number=step)
    steps = sorted(int(path.stem[5:]) for path in tmp_path.glob("*.index"))
    assert steps == [20, 30]


@pytest.mark.parametrize("share", [None, 0, 0.5, 0.99])
def test_a_kill_while_the_index_is_written_leaves_the_one_before(folder, share, caplog):
    index = folder / "ckpt-20.index"
    if share is None:
        index.unlink()
    else:
        os.truncate(index, int(index.stat().st_size * share))
    assert value_of(latest.find(str(folder))) == 10
    assert "ckpt-20 is not whole" in caplog.text
    assert "ckpt-10 is the newest" in caplog.text


def test_a_checkpoint_without_data_is_not_whole(folder):
    (folder / "ckpt-20.data-00000-of-00001").unlink()
    assert value_of(latest.find(str(folder))) == 10


def test_a_name_that_is_not_utf8_in_a_model_dir_does_no_harm(folder):
    (folder / os.fsdecode(b"caf\xe9.txt")).touch()
    assert latest.step(str(folder)) == 20


def test_a_run_that_lost_all_checkpoints_is_not_a_new_run(folder):
    for path in folder.glob("*.index"):
        path.unlink()
    with pytest.raises(UserError, match="held checkpoints, and none of them is whole"):
        latest.find(str(folder))
    (folder / "checkpoint").unlink()
    with pytest.raises(UserError, match="held checkpoints, and none of them is whole"):
        latest.find(str(folder))


def test_a_run_killed_in_its_first_save_is_a_new_run(folder):
    assert latest.find(str(folder / "missing")) is None
    lost(folder, "checkpoint", "ckpt-5", "ckpt-10")
    (folder / "ckpt-20.index").unlink()
    assert latest.find(str(folder)) is None


def test_a_run_that_lost_an_index_but_not_its_best_is_not_a_new_run(folder):
    lost(folder, "checkpoint", "ckpt-5", "ckpt-10")
    (folder / "best").mkdir()
    for path in folder.glob("ckpt-20*"):
        shutil.copy(path, folder / "best" / path.name)
    (folder / "ckpt-20.index").unlink()
    with pytest.raises(UserError, match="held checkpoints, .*: put their files back"):
        latest.find(str(folder))
    # A kill in the first save, after a validation.
    (folder / "ckpt-20_temp").mkdir()
    assert latest.find(str(folder)) is None


def test_a_list_of_checkpoints_elsewhere_deletes_nothing_there(folder, tmp_path):
    """Old entries of the list are deleted as soon as a new checkpoint is saved."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("precious.index", "precious.data-00000-of-00001"):
        (other / name).touch()
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-20"\n'
        f'all_model_checkpoint_paths: "{other}/precious"\n'
        'all_model_checkpoint_paths: "ckpt-20"\n'
    )
    latest.repair(str(folder))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(value=tf.Variable(0.0)), str(folder), max_to_keep=1
    )
    manager.save(checkpoint_number=30)
    assert len(os.listdir(other)) == 2
    assert np.all([path.stem == "ckpt-30" for path in folder.glob("*.index")])
