"""A model_dir after kills, beside other runs, and without its files."""

import os
import shutil
from pathlib import Path

import pytest
import toys
from absl import flags
from absl.testing import flagsaver

from cmlm import train
from cmlm.common import locks
from cmlm.config import overrides
from cmlm.errors import UserError
from cmlm.training import unfinished

pytestmark = pytest.mark.usefixtures("eager")


def main(directory: Path, *arguments: str):
    """`python -m cmlm.train` in this process."""
    config = directory.parent / "train.yaml"
    with flagsaver.flagsaver():
        flags.FLAGS(
            ["train", f"--config_file={config}", f"--model_dir={directory}", *arguments]
        )
        return train.main([])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The model_dir of a finished run of four steps."""
    directory = tmp_path_factory.mktemp("trained")
    text = toys.write_corpus(directory / "corpus.txt")
    settings = {
        "trainer.train_steps": 4,
        "trainer.checkpoint_interval": 2,
        "trainer.validation_interval": 4,
    }
    config = toys.run_config(text, **settings)
    (directory / "train.yaml").write_text(overrides.to_yaml(config))
    with toys.eagerly():
        assert main(directory / "run") is None
    return directory / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of that model_dir."""
    shutil.copy(trained.parent / "train.yaml", tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def files_of(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_finished_run_holds_no_lock_and_no_leftover(trained):
    names = {path.name for path in trained.iterdir()}
    assert "lock" not in names
    assert not [name for name in names if "tmp" in name or "temp" in name]


def test_a_finished_run_says_how_it_goes_on(run, capsys):
    main(run)
    said = "the run has finished its 4 steps; a larger trainer.train_steps continues it"
    assert said in capsys.readouterr().err


def test_a_model_dir_in_use_is_refused_and_may_be_validated(run, capsys):
    with locks.held(str(run)):
        before = files_of(run)
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"):
            main(run)
        main(run, "--mode=eval")
        assert "cmlm/loss\t" in capsys.readouterr().out
        assert files_of(run) == before


def test_a_folder_in_which_the_user_may_not_write_may_be_validated(
    run, capsys, monkeypatch
):
    # The superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)
    with pytest.raises(UserError, match="--model_dir"):
        main(run)
    folders = {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]}
    main(run, "--mode=eval")
    assert "cmlm/loss\t" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]}
    assert after == folders


def test_a_missing_vocabulary_is_not_learnt_again(run):
    (run / "vocab.txt").unlink()
    with pytest.raises(UserError, match="vocab.txt is missing, and .* need it"):
        main(run, "--params_override=trainer.train_steps=6")
    assert not (run / "vocab.txt").exists()
    assert not list(run.glob("ckpt-6*"))


LEFT = [
    "ckpt-6_temp/part-00000-of-00001.data-00000-of-00001",
    "vocab.txt.tmp-0123abcd",
    "checkpoint.tmp0123456789abcdef0123456789abcdef",
    "ckpt-3.data-00000-of-00001",
    "best/checkpoint.tmp0123456789abcdef0123456789abcdef",
    "teacher_bases/0123456789abcdef.tmp-0123abcd",
    "lock",
    "stages/1-layers/ckpt-2_temp/part-00000-of-00001.data-00000-of-00001",
]
THEIRS = ["notes.tmp", "ckpt-notes_temp", "ckpt-3.txt", "teacher_bases/" + "0" * 16]


def test_what_a_kill_left_goes_and_a_lost_state_is_no_new_run(run, caplog):
    numbers = toys.stored(run / "ckpt-4")
    for name in [*LEFT, *THEIRS]:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    (run / "checkpoint").unlink()
    assert main(run) is None
    assert not [name for name in LEFT if (run / name).exists()]
    assert all((run / name).exists() for name in THEIRS)
    for name in ("ckpt-6_temp", "vocab.txt.tmp-0123abcd", "ckpt-3.data"):
        assert f"removed {run}/{name}" in caplog.text
    assert (run / "checkpoint").exists()
    again = toys.stored(run / "ckpt-4")
    assert all((numbers[name] == again[name]).all() for name in numbers)
    assert {path.stem for path in run.glob("*.index")} == {"ckpt-2", "ckpt-4"}


def test_in_a_folder_of_the_user_only_parts_of_first_files_go(tmp_path):
    theirs = ["english.old-a01b2c3d", "notes.txt.tmp-0a1b2c3d", "ckpt-1_temp"]
    for name in ["vocab.txt.tmp-0a1b2c3d", "params.yaml.tmp-0a1b2c3d", *theirs]:
        (tmp_path / name).touch()
    unfinished.remove(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(theirs)


def test_data_without_any_index_is_kept_for_the_user(run):
    (run / "checkpoint").unlink()
    for path in run.glob("*.index"):
        path.unlink()
    with pytest.raises(UserError, match="held checkpoints, and none of them is whole"):
        unfinished.remove(str(run))
    assert len(list(run.glob("ckpt-*.data-*"))) == 2


def test_a_stage_that_has_lost_its_checkpoints_does_not_stop_the_run(run):
    stage = run / "stages" / "1-layers"
    stage.mkdir(parents=True)
    shutil.copy(run / "checkpoint", stage)
    unfinished.remove(str(run))
    assert (stage / "checkpoint").exists()
