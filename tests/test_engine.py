"""Whole runs: exact resume after kill -9, signals, best checkpoint, refusals."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import commands
import numpy as np
import pytest
import tensorflow as tf
import toys
from official.core import config_definitions

from cmlm.common import distributed, machine, workers
from cmlm.config import loading, model_dir, overrides, run_records
from cmlm.encoders import run_weights
from cmlm.errors import UserError
from cmlm.modeling import optimization
from cmlm.objectives.cmlm import CmlmConfig
from cmlm.tokenization import rules
from cmlm.training import (
    agreement,
    building,
    checkpoints,
    engine,
    inputs,
    metrics_log,
    signals,
    validation,
    warm_start,
)
from cmlm.training.finite import NonFiniteError
from cmlm.training.stages import Stage
from cmlm.training.start import Start


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    return toys.write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


def run_config(text, *settings):
    """The configuration of `end`, with dropout."""
    dropout = {"model.dropout_rate": 0.2, "model.attention_dropout_rate": 0.2}
    more = dict(setting.split("=") for setting in settings)
    return toys.run_config(text, **dropout, **more)


@dataclasses.dataclass
class Finished:
    """A run of two steps, the weights of its encoder before them, its validation.

    It is saved and validated after each step.
    """

    run: building.Run
    start: list[np.ndarray]
    validation: dict[str, float]


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory) -> Finished:
    settings = {
        "trainer.train_steps": 2,
        "trainer.checkpoint_interval": 1,
        "trainer.validation_interval": 1,
    }
    config = toys.run_config(text, **settings)
    run = building.build(Stage(config, str(tmp_path_factory.mktemp("finished"))))
    start = run.trainer.model.encoder.get_weights()
    with toys.eagerly():
        validation = engine.train(run)
    return Finished(run, start, validation)


def end(text, directory, *settings, path: Path, signum: int) -> tuple[int, str]:
    """Ends `python -m cmlm.train` by a signal as soon as it has written a file.

    It runs eagerly; `test_workers` kills and stops runs in graphs.

    Returns:
        Its exit code and messages.
    """
    file = Path(directory).with_suffix(".yaml")
    file.write_text(overrides.to_yaml(run_config(text)))
    (ended,) = commands.signalled(
        *("train_eagerly", f"--config_file={file}", f"--model_dir={directory}"),
        "--distribution_strategy=one_device",
        *(f"--params_override={setting}" for setting in settings),
        path=path,
        signum=signum,
    )
    return ended


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_kill_9_and_resume_equals_a_straight_run(text, tmp_path):
    """A command is killed; this process takes its run to the end."""
    settings = [
        *("trainer.train_steps=8", "trainer.checkpoint_interval=2"),
        *("trainer.validation_interval=8", "trainer.validation_steps=1"),
    ]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    # Killed at some step after the first checkpoint, wherever that is. This file is
    # written last, and whole: from here on there is something to resume from.
    path = killed / "checkpoint"
    code, said = end(text, killed, *settings, path=path, signum=signal.SIGKILL)
    assert code == -signal.SIGKILL, said
    config = run_config(text, *settings, "runtime.distribution_strategy=one_device")
    resumed = building.build(Stage(config, str(killed)))
    assert resumed.trainer.step in (2, 4, 6), "the run was over before it was killed"
    engine.train(resumed, validate=False)
    engine.train(building.build(Stage(config, str(straight))), validate=False)
    toys.assert_equal_checkpoints(straight / "ckpt-8", killed / "ckpt-8")


# Without the settings of the tests: graphs are optimised, XLA too, and threads are two.
FUSED = """
import pathlib
import sys

from cmlm import cli

with cli.quiet_imports():
    import tensorflow as tf
    import toys

    from cmlm.training import building, engine
    from cmlm.training.stages import Stage

text, directory = map(pathlib.Path, sys.argv[1:])
tf.config.threading.set_inter_op_parallelism_threads(2)
for precision in ("float32", "bfloat16"):
    config = toys.run_config(
        str(text),
        **{
            "model.dropout_rate": 0.2,
            "model.attention_dropout_rate": 0.2,
            "trainer.train_steps": 6,
            "trainer.checkpoint_interval": 3,
            "trainer.fused_layers": "always",
            "runtime.distribution_strategy": "one_device",
            "runtime.mixed_precision_dtype": precision,
        },
    )
    straight = directory / precision
    engine.train(building.build(Stage(config, str(straight))), validate=False)
    resumed = toys.rewind(straight, straight.with_suffix(".resumed"), 3)
    run = building.build(Stage(config, str(resumed)))
    assert run.trainer.step == 3 and run.trainer.fused
    engine.train(run, validate=False)
    toys.assert_equal_checkpoints(straight / "ckpt-6", resumed / "ckpt-6")
"""


@pytest.mark.large  # a process of its own, with XLA
def test_a_step_of_compiled_layers_resumes_exactly(text, tmp_path):
    """The step that runs on processors take, in both precisions."""
    environment = {key: os.environ[key] for key in os.environ if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", FUSED, text, str(tmp_path)],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def mirror_config(text, **values):
    """Mirror-BERT in two epochs, batches of 5."""
    return toys.run_config(
        text,
        **{
            "task.cmlm.weight": 0,
            "task.mirror.weight": 1,
            "task.mirror.train_data.input_path": text,
            "task.mirror.train_data.global_batch_size": 5,
            "task.mirror.train_data.seq_length": 16,
            "task.mirror.train_data.hold_out_fraction": 0,
            "trainer.best_checkpoint_metric": "",
            "trainer.checkpoint_interval": 1,
            "trainer.epochs": 2,
            **values,
        },
    )


@pytest.mark.usefixtures("eager")
def test_epochs_need_one_host(text, tmp_path, one_device, monkeypatch):
    """Each host of a TPU reads its own files, as a worker does."""
    four = SimpleNamespace(extended=SimpleNamespace(num_hosts=4))
    assert distributed.num_hosts(four) == 4
    assert distributed.num_hosts(one_device) == 1
    monkeypatch.setattr(distributed, "num_hosts", lambda _: 4)
    message = "trainer.epochs is 2; allowed with several workers or hosts of a TPU: 0 "
    with pytest.raises(UserError, match=message):
        building.build(Stage(mirror_config(text), str(tmp_path / "run")))


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_run_in_epochs_counts_its_steps_and_resumes_inside_one(tmp_path, caplog):
    """11 different strings of 15: two batches an epoch, one string left out."""
    lines = [f"{'a river ' * (n % 4 + 1)}{'boat ' * (n // 4)}fish" for n in range(11)]
    text = tmp_path / "strings.txt"
    text.write_text("\n".join([*lines, *lines[:4]]) + "\n")
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    with caplog.at_level("INFO", logger="cmlm"):
        done = building.build(Stage(mirror_config(str(text)), str(straight)))
    assert "epochs: 2 of 11 examples; steps of each: 2; examples left" in caplog.text
    assert "left out of each: 1" in caplog.text
    engine.train(done, validate=False)
    assert done.trainer.step == done.config.trainer.train_steps == 4
    assert building.build(Stage(mirror_config(str(text)), str(straight))).is_over
    # Step 1 is inside the first epoch.
    toys.rewind(straight, resumed, 1)
    again = building.build(Stage(mirror_config(str(text)), str(resumed)))
    assert again.trainer.step == 1 and not again.is_over
    engine.train(again, validate=False)
    toys.assert_equal_checkpoints(straight / "ckpt-4", resumed / "ckpt-4")

    large = mirror_config(str(text), **{"task.mirror.train_data.global_batch_size": 12})
    with pytest.raises(UserError, match="is 12; allowed: at most the 11 training exam"):
        building.build(Stage(large, str(tmp_path / "large")))


@pytest.mark.large
def test_sigterm_saves_and_leaves_with_one_line(text, tmp_path):
    directory = tmp_path / "run"
    code, stderr = end(
        *(text, directory, "trainer.train_steps=100000"),
        path=directory / "ckpt-10.index",
        signum=signal.SIGTERM,
    )
    assert code == 128 + signal.SIGTERM, stderr
    assert "Traceback" not in stderr
    assert "steps 0 to 100,000" in stderr
    step = int(re.search(r"stopped by SIGTERM at step (\d+)", stderr).group(1))
    assert tf.train.latest_checkpoint(str(directory)).endswith(f"ckpt-{step}")
    # The steps since the last row are told as well.
    assert (
        metrics_log.read_metrics(str(directory / model_dir.METRICS))[-1]["step"] == step
    )


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_run_keeps_its_latest_checkpoints(text, tmp_path):
    steps = {"trainer.train_steps": 4, "trainer.checkpoint_interval": 1}
    config = toys.run_config(text, **steps, **{"trainer.max_to_keep": 2})
    engine.train(building.build(Stage(config, str(tmp_path))), validate=False)
    found = sorted(path.stem for path in tmp_path.glob("ckpt-*.index"))
    assert found == ["ckpt-3", "ckpt-4"]
    # A run without validation has none.
    assert not metrics_log.has_validation(str(tmp_path), 4)
    assert toys.run_config(text).trainer.max_to_keep == 5


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_signal_in_the_last_validation_stops_the_run(text, tmp_path):
    """Or the next stage of a run in stages would begin."""
    run = building.build(
        Stage(toys.run_config(text, **{"trainer.train_steps": 1}), str(tmp_path))
    )
    real = run.trainer.evaluate

    def evaluate(num_steps):
        os.kill(os.getpid(), signal.SIGINT)
        return real(num_steps)

    run.trainer.evaluate = evaluate
    with pytest.raises(engine.Stopped, match="stopped by SIGINT at step 1") as caught:
        engine.train(run)
    assert caught.value.signum == signal.SIGINT
    assert (tmp_path / "ckpt-1.index").exists()
    assert metrics_log.has_validation(str(tmp_path), 1)


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_signal_is_told_if_the_run_does_not_stop_soon(seconds, monkeypatch, capfd):
    monkeypatch.setattr(signals, "_SECONDS", seconds)
    said = (
        "SIGINT: the run stops after this step or validation; "
        f"kill -9 {os.getpid()} ends it at once\n"
    )
    told, before = "", signal.getsignal(signal.SIGINT)
    with signals.Signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 20
        while not (seconds or told or time.monotonic() > deadline):
            time.sleep(0.01)
            told = capfd.readouterr().err
    assert received.received == signal.SIGINT
    assert told + capfd.readouterr().err == ("" if seconds else said)
    # Nothing of the context is left.
    assert signal.set_wakeup_fd(-1) == -1
    assert signal.getsignal(signal.SIGINT) is before
    assert not received._teller.is_alive()


@pytest.mark.usefixtures("eager")
def test_the_progress_line_ends_before_an_error(text, tmp_path, monkeypatch):
    config = toys.run_config(text, **{"trainer.train_steps": 1})
    run = building.build(Stage(config, str(tmp_path)))
    closed = []
    monkeypatch.setattr(engine.Reporter, "close", lambda each: closed.append(each))

    def fail(num_steps):
        raise NonFiniteError("the loss is not finite in step 1")

    run.trainer.train = fail
    with pytest.raises(NonFiniteError):
        engine.train(run)
    assert len(closed) == 1


def test_a_finished_run_says_where_everything_is(text, tmp_path, capfd):
    config = toys.run_config(text)
    config.trainer.best_checkpoint_metric = "cmlm/loss"
    run = building.build(Stage(config, str(tmp_path)))
    validation = engine.train(run)
    assert set(validation) == {
        "cmlm/loss",
        "cmlm/accuracy",
        "cmlm/shuffled_loss",
        "cmlm/shuffled_accuracy",
        "cmlm/conditioning_gain",
    }
    rows = metrics_log.read_metrics(str(tmp_path / model_dir.METRICS))
    trained = [row for row in rows if "train/cmlm/loss" in row]
    assert [row["step"] for row in trained] == [5, 10, 15, 20]
    assert all(row["train/examples_per_second"] > 0 for row in trained)
    assert [row["step"] for row in rows if "validation/cmlm/loss" in row] == [10, 20]
    assert trained[-1]["train/cmlm/loss"] < trained[0]["train/cmlm/loss"]
    # One tag in two folders: TensorBoard lays the two curves over each other.
    for part in ("train", "validation"):
        (path,) = (tmp_path / model_dir.TENSORBOARD / part).glob("events.*")
        events = tf.compat.v1.train.summary_iterator(str(path))
        tags = {value.tag for event in events for value in event.summary.value}
        assert "cmlm/loss" in tags
    best = tf.train.latest_checkpoint(str(tmp_path / model_dir.BEST))
    losses = {
        row["step"]: row["validation/cmlm/loss"]
        for row in rows
        if "validation/cmlm/loss" in row
    }
    assert best.endswith(f"ckpt-{min(losses, key=losses.get)}")
    # The last line of the progress names the last step and the losses.
    out, err = capfd.readouterr()
    assert not out
    assert re.search(r"step 20/20  cmlm/loss \d+\.\d+ .*lr .*examples/s", err)
    # A second run of the same command has nothing left to do and harms nothing.
    before = toys.rewind(tmp_path, tmp_path.with_suffix(".before"), 20)
    again = building.build(Stage(toys.run_config(text), str(tmp_path)))
    engine.train(again)
    toys.assert_equal_checkpoints(before / "ckpt-20", tmp_path / "ckpt-20")


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_best_is_chosen_anew_on_other_data(finished, tmp_path, caplog):
    caplog.set_level("INFO", "cmlm")
    directory = str(shutil.copytree(finished.run.directory, tmp_path / "run"))
    settings = finished.run.config.trainer.replace(train_steps=3)
    data = engine._data_of_best(finished.run)
    worse = {"cmlm/loss": finished.validation["cmlm/loss"] + 1}
    objective = finished.run.trainer.objectives["cmlm"]
    for setting, differs in (("weight", set()), ("skip", {"setting of the objective"})):
        other = objective.config.replace(**{setting: 2})
        changed = SimpleNamespace(config=other, data=objective.data)
        after = validation.described(changed, finished.run.config.trainer)
        assert {name for name in data if data[name] != after[name]} == differs

    def best(chosen_on):
        trainer = finished.run.trainer
        return checkpoints.BestCheckpoint(
            directory, settings, trainer, chosen_on, chooses=True
        )

    # A later version may describe more; an earlier one has described nothing.
    assert not best(data | {"more": 1}).offer(worse)
    assert not caplog.messages
    assert "kept" in best({}).offer(worse)
    assert not best(data).offer(worse)
    assert "kept" in best(data).offer(finished.validation)
    # Other text and a larger batch, beside a start that was killed.
    caplog.clear()
    text = toys.write_corpus(tmp_path / "other.txt", documents=50)
    config = toys.run_config(text, **{"trainer.train_steps": 3})
    config.task.cmlm.train_data.global_batch_size = 16
    config.trainer.optimizer.learning_rate = 1e-4
    building.build(Stage(config, directory))
    assert "the learning rate at step 2 was 0.001, and is now 0.0001" in caplog.messages
    engine.train(building.build(Stage(config, directory)))
    assert "best/ was chosen with another text, global_batch_size: the " in caplog.text
    assert tf.train.latest_checkpoint(f"{directory}/best").endswith("ckpt-3")
    skipped = "skips the first batches of the new text (2 of cmlm); to train on them"
    assert caplog.text.count(skipped) == 2
    assert f"--model_dir with --init_checkpoint={directory}" in caplog.text
    first, second = run_records.read_starts(directory)
    assert (first["step"], second["step"]) == (0, 2) and not first["changed"]
    assert first["versions"]["tensorflow"] == tf.__version__
    assert second["global_batch_size"] == {"cmlm": 16}
    assert second["text"] == {"cmlm": {"": [["other.txt", os.path.getsize(text)]]}}
    lines = Path(directory, model_dir.STARTS).read_text().splitlines()
    changed = [set(json.loads(line)["changed"]) for line in lines]
    assert "trainer.train_steps" in changed[1] and not changed[2]
    # A run that was killed before its last validation makes up for it.
    caplog.clear()
    metrics = Path(directory, model_dir.METRICS)
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(row for row in rows if "validation/" not in row))
    config.task.cmlm.train_data.global_batch_size = 8
    run = building.build(Stage(config, directory))
    engine.train(run)
    assert run.is_over
    assert "best/ was chosen with another global_batch_size: the run" in caplog.text


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_non_finite_loss_keeps_the_last_good_checkpoint(text, tmp_path):
    config = toys.run_config(text)
    config.trainer.checkpoint_interval = 2
    run = building.build(Stage(config, str(tmp_path)))
    real_train = run.trainer.train

    def poisoned(num_steps):
        if run.trainer.step == 3:
            kernel = run.trainer.model.projection().weights[4]
            kernel.assign(tf.fill(kernel.shape, np.nan))
        return real_train(1)

    run.trainer.train = poisoned
    with pytest.raises(
        NonFiniteError, match="the loss of cmlm is not finite in step 4"
    ):
        engine.train(run, validate=False)
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest.endswith("ckpt-2")
    assert all(np.isfinite(value).all() for value in toys.stored(latest).values())


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_an_update_that_is_not_finite_is_never_saved(text, tmp_path):
    """Loss and gradient of the step are finite; the weights after it are not."""
    settings = {
        "trainer.optimizer.type": "adamw",
        "trainer.optimizer.learning_rate": 1e38,
        "trainer.optimizer.weight_decay_rate": 10,
        "trainer.optimizer.warmup_steps": 0,
        "trainer.checkpoint_interval": 1,
    }
    run = building.build(Stage(toys.run_config(text, **settings), str(tmp_path)))
    with pytest.raises(NonFiniteError, match="is not finite after step 1"):
        engine.train(run, validate=False)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    assert not list(tmp_path.glob("ckpt*"))


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_program_that_cannot_assert_is_checked_after_its_steps(
    text, tmp_path, monkeypatch
):
    monkeypatch.setattr(distributed, "is_tpu", lambda strategy: True)
    run = building.build(Stage(toys.run_config(text), str(tmp_path)))
    kernel = run.trainer.model.projection().weights[4]
    kernel.assign(tf.fill(kernel.shape, np.nan))
    with pytest.raises(NonFiniteError, match="gradient_norm is not finite in steps 1 "):
        engine.train(run, validate=False)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_failed_last_validation_loses_no_step(text, tmp_path, monkeypatch):
    settings = {"trainer.train_steps": 2, "trainer.checkpoint_interval": 100}
    run = building.build(Stage(toys.run_config(text, **settings), str(tmp_path)))

    def fail(_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(run.trainer, "evaluate", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        engine.train(run)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-2")


@pytest.mark.usefixtures("eager")
def test_a_run_of_an_earlier_version_resumes(text, tmp_path, monkeypatch):
    """Its checkpoints do not count the updates of each weight."""
    settings = {"trainer.train_steps": 2}
    with monkeypatch.context() as patch:
        for name in (
            "_create_slots",
            "_resource_apply_dense",
            "_resource_apply_sparse",
        ):
            patch.delattr(optimization._OwnUpdates, name)
        before = building.build(Stage(toys.run_config(text, **settings), str(tmp_path)))
        engine.train(before, validate=False)
    settings["trainer.train_steps"] = 3
    after = building.build(Stage(toys.run_config(text, **settings), str(tmp_path)))
    assert after.trainer.step == 2
    optimizers = before.trainer.optimizer, after.trainer.optimizer
    both = (run.trainer.trained_variables for run in (before, after))
    for variables in zip(*both, strict=True):
        assert optimizers[1].get_slot(variables[1], "updates").numpy() == 2
        for slot in ("m", "v"):
            want, got = map(lambda o, v: o.get_slot(v, slot), optimizers, variables)
            np.testing.assert_array_equal(got, want)
    engine.train(after, validate=False)
    # From now on it counts them.
    again = building.build(Stage(toys.run_config(text, **settings), str(tmp_path)))
    updates = again.trainer.optimizer.get_slot(
        again.trainer.trained_variables[0], "updates"
    )
    assert updates.numpy() == 3


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_warm_start_takes_the_parts_there_are(text, tmp_path, caplog):
    config = toys.run_config(
        text,
        **{
            "trainer.best_checkpoint_metric": "",
            "task.cmlm.weight": 0,
            "task.mlm.weight": 1,
            "task.mlm.train_data.seq_length": 16,
            "task.mlm.train_data.global_batch_size": 8,
            "task.mlm.train_data.hold_out_fraction": 0.2,
            "trainer.train_steps": 2,
            "vocabulary.lower_case": False,
        },
    )
    config.task.mlm.train_data.input_path = text
    source = building.build(Stage(config, str(tmp_path / "mlm")))
    engine.train(source, validate=False)

    warm = toys.run_config(text, init_checkpoint=str(tmp_path / "mlm"))
    with caplog.at_level("INFO", logger="cmlm"):
        run = building.build(Stage(warm, str(tmp_path / "cmlm")))
    said = f"weights: encoder, masked_lm from {tmp_path}/mlm; new: projection"
    assert said in caplog.messages
    assert run.trainer.step == 0
    for part in ("encoder", "masked_lm"):
        for a, b in zip(
            source.trainer.model.parts[part].get_weights(),
            run.trainer.model.parts[part].get_weights(),
        ):
            np.testing.assert_array_equal(a, b)
    # A run that reads vectors through P(v) begins without one, too.
    warm = toys.run_config(
        text,
        init_checkpoint=str(tmp_path / "mlm"),
        **{"model.sentence_vector": "projected"},
    )
    projected = building.build(Stage(warm, str(tmp_path / "projected"))).trainer.model
    for a, b in zip(
        source.trainer.model.encoder.bert.get_weights(),
        projected.encoder.bert.get_weights(),
    ):
        np.testing.assert_array_equal(a, b)
    # The vocabulary comes along, and with it how text is to be read.
    assert warm.vocabulary.lower_case is False
    same = (tmp_path / "cmlm" / "vocab.txt").read_text()
    assert same == (tmp_path / "mlm" / "vocab.txt").read_text()


@pytest.mark.large
def test_another_models_directory_is_refused(text, finished):
    other = toys.run_config(text, **{"model.hidden_size": 32})
    with pytest.raises(UserError, match="holds a model with hidden_size=16, .* 32"):
        building.build(Stage(other, finished.run.directory))


@pytest.mark.large
def test_another_start_of_a_begun_run_is_refused(text, finished, tmp_path):
    other = toys.run_config(text, init_checkpoint="tiny/distil")
    message = (
        "started without --init_.*names tiny/distil; allowed: no --init_checkpoint"
    )
    with pytest.raises(UserError, match=message):
        building.build(Stage(other, finished.run.directory))
    warm = str(shutil.copytree(finished.run.directory, tmp_path / "warm"))
    begun = model_dir.read_config(warm)
    begun.init_checkpoint = "tiny/bert"
    model_dir.write_config(warm, begun)
    with pytest.raises(
        UserError,
        match="started from tiny/bert, .* names tiny/distil; allowed: "
        "--init_checkpoint=tiny/bert, even if these weights have moved, or",
    ):
        building.build(Stage(other, warm))
    # Another form of the path, and no path, leave the record as it is.
    for start in (os.path.abspath("tiny/bert/"), "./tiny/bert", ""):
        same = toys.run_config(text, init_checkpoint=start)
        assert agreement.begun_start(same, begun, warm) == "tiny/bert"
    building.build(Stage(toys.run_config(text), warm))
    assert model_dir.read_config(warm).init_checkpoint == "tiny/bert"


@pytest.mark.large
def test_a_start_reads_the_configuration_of_its_run_once(text, finished, monkeypatch):
    read, directories = model_dir.read_config, []

    def count(directory):
        directories.append(directory)
        return read(directory)

    monkeypatch.setattr(model_dir, "read_config", count)
    config = toys.run_config(text, **{"trainer.train_steps": 2})
    building.build(Stage(config, finished.run.directory))
    assert directories == [finished.run.directory]


@pytest.mark.large
def test_another_teacher_of_a_finished_run_is_refused(text, finished, tmp_path):
    """The run says so before it reads the text: here, no text and no teacher exist."""
    directory = str(shutil.copytree(finished.run.directory, tmp_path / "run"))
    distillation = {
        "task.cmlm.weight": 0,
        "task.distill.weight": 1,
        "task.distill.train_data.global_batch_size": 4,
        "task.distill.train_data.seq_length": 16,
        "task.distill.train_data.input_path": "nothing.txt",
        "trainer.best_checkpoint_metric": "",
    }

    def config(teacher, steps=2, epochs=0):
        return toys.run_config(
            text,
            **distillation,
            **{
                "task.distill.teacher": teacher,
                "trainer.train_steps": steps,
                "trainer.epochs": epochs,
            },
        )

    model_dir.write_config(directory, config("tiny/bert"))
    message = (
        "--teacher is tiny/other, and the run in .*run has finished its 2 steps; "
        "allowed: tiny/bert, a larger"
    )
    with pytest.raises(UserError, match=message):
        building.build(Stage(config("tiny/other"), directory))
    # Another form of the path, more steps, epochs (whose steps are not counted yet) and
    # a validation look for the text.
    for asked, writes in [
        (config(os.path.abspath("tiny/bert/")), True),
        (config("tiny/other", steps=3), True),
        (config("tiny/other", epochs=1), True),
        (config("tiny/other"), False),
    ]:
        with pytest.raises(UserError, match="nothing.txt"):
            building.build(Stage(asked, directory), writes=writes)


@pytest.mark.large
def test_another_optimizer_of_a_begun_run_is_refused(text, finished):
    other = toys.run_config(text, **{"trainer.optimizer.type": "adamw"})
    message = "trained with trainer.optimizer.type=lamb, .* adamw; allowed: lamb, or --"
    with pytest.raises(UserError, match=message):
        building.build(Stage(other, finished.run.directory))


@pytest.mark.parametrize("name", ["export.json", "modules.json", "saved_model.pb"])
def test_a_folder_of_another_encoder_is_refused(text, tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"holds {name}, a part of an encoder; allowed"):
        building.build(Stage(toys.run_config(text), str(tmp_path)))
    assert os.listdir(tmp_path) == [name]


def test_a_new_run_names_the_files_of_others_in_its_folder(tmp_path, caplog):
    folder = str(tmp_path)
    for name in ("vocab.txt", "vocab.txt.json", "lock", ".gitkeep"):
        (tmp_path / name).touch()
    (tmp_path / "text").mkdir()
    agreement.check_folder(folder)
    agreement.check_folder(f"{folder}/new")
    assert not caplog.messages
    # The last name is not UTF-8.
    for name in ("d.txt", "b.txt", "c.txt", "a", os.fsdecode(b"\xe9")):
        (tmp_path / name).touch()
    agreement.check_folder(folder)
    assert "no run wrote: a, b.txt, c.txt and 1 more; the run writes" in caplog.text
    for name in (model_dir.METRICS, model_dir.STARTS):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"holds {name}, which the run would rep"):
            agreement.check_folder(folder)
        (tmp_path / name).unlink()
    (tmp_path / model_dir.PARAMS).touch()
    caplog.clear()
    agreement.check_folder(folder)
    assert not caplog.messages


def test_the_folder_of_a_new_run_is_checked(tmp_path, caplog):
    (tmp_path / "notes.txt").touch()
    config = toys.run_config("missing.txt")
    with pytest.raises(UserError, match=r"missing\.txt"):
        building.build(Stage(config, str(tmp_path)))
    assert "no run wrote: notes.txt; the run writes" in caplog.text


def test_a_vocabulary_that_no_run_wrote_is_not_replaced(text, tmp_path, one_device):
    """A run without a vocabulary learns one; a file of the same tokens may stay."""
    given, own = tmp_path / "given.txt", tmp_path / "folder" / "vocab.txt"
    own.parent.mkdir()
    given.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    own.write_text(given.read_text())
    config = toys.run_config(text)
    start = Start(Stage(config, str(own.parent)), one_device)
    data = inputs.prepare_data(config, start.directory)
    said = f"{own} was there before the run, .*; allowed: .*--vocab_file={own}"
    with pytest.raises(UserError, match=said):
        inputs.prepare_vocabulary(start, data)
    assert own.read_text() == given.read_text()
    config.vocabulary.file, config.model.vocab_size = str(given), 0
    taken = inputs.prepare_vocabulary(start, data)
    assert taken == str(own) and own.read_text() == given.read_text()
    # Its rules come beside it, without the mark of a vocabulary of the run.
    record = rules.read(str(own))
    assert record.rules == config.vocabulary.rules().as_dict()
    assert record.origin == {"file": str(given)}
    # The user's record stays, so a start without the file does not learn over it.
    rules.write(str(own), config.vocabulary.rules(), {"size": 6})
    record = Path(rules.path_of(str(own)))
    content = record.read_text()
    config.vocabulary.file = str(own)
    inputs.prepare_vocabulary(start, data)
    assert record.read_text() == content
    config.vocabulary.file = ""
    with pytest.raises(UserError, match=said):
        inputs.prepare_vocabulary(start, data)
    config.vocabulary.file, config.vocabulary.lower_case = str(given), False
    with pytest.raises(UserError, match=said):
        inputs.prepare_vocabulary(start, data)


def test_a_vocabulary_that_another_run_wrote_is_not_replaced(
    text, tmp_path, one_device
):
    """Its record is no sign of this run. A killed run begins again."""

    def prepare(run: Path, **settings) -> str:
        config = toys.run_config(text, **settings)
        run.mkdir(exist_ok=True)
        data = inputs.prepare_data(config, str(run))
        inputs.prepare_vocabulary(Start(Stage(config, str(run)), one_device), data)
        return (run / "vocab.txt").read_text()

    own, copy = tmp_path / "own", tmp_path / "copy"
    tokens = prepare(own)
    shutil.copytree(own, copy)
    # The run would learn the same one.
    assert prepare(copy) == tokens
    cased = {"vocabulary.lower_case": "false"}
    with pytest.raises(UserError, match="copy/vocab.txt was there before the run, whi"):
        prepare(copy, **cased)
    assert (copy / "vocab.txt").read_text() == tokens
    assert prepare(own, **cased) != tokens


def test_other_weights_of_a_begun_run_are_refused(text, one_device, monkeypatch):
    """A checkpoint lacks them, or has weights that nothing reads any more."""
    own = CmlmConfig.weight_settings
    monkeypatch.setattr(
        CmlmConfig,
        "weight_settings",
        lambda self: own(self) | {"passages": self.passages},
    )
    settings = {
        # As an objective of one's own may say.
        "cmlm.passages": (False, True),
        "quickthought.encoders": ("one", "two"),
        "cmlm.skip": (False, True),
        "distill.projection": ("pca", "linear"),
    }

    def config(name: str, value):
        objective = name.partition(".")[0]
        values = {f"task.{objective}.weight": 1, f"task.{name}": value}
        values[f"task.{objective}.train_data.seq_length"] = 16
        if objective == "distill":
            values["task.distill.teacher"] = "tiny/bert"
        return toys.run_config(text, **values)

    for name, values in settings.items():
        for before, now in (values, reversed(values)):
            begun = config(name, before)
            stage = Stage(config(name, now), "run")
            agreement.check_begun(Start(Stage(begun, "run"), one_device, begun))
            said = (
                f"--model_dir=run trained with task.{name}={before}, but this command "
                f"asks for {now}; allowed: {before}, or --init_checkpoint=run with"
            )
            with pytest.raises(UserError, match=said):
                agreement.check_begun(Start(stage, one_device, begun))


@pytest.mark.large
def test_a_new_objective_of_a_begun_run_is_refused(text, finished):
    other = toys.run_config(text)
    other.task.mlm.weight = 1.0
    other.task.mlm.train_data = other.task.cmlm.train_data
    directory = finished.run.directory
    said = (
        f"{directory} trained cmlm, .* for mlm; allowed: --init_checkpoint={directory} "
    )
    with pytest.raises(UserError, match=said):
        building.build(Stage(other, directory))


@pytest.mark.large
def test_a_finished_run_keeps_its_settings(text, finished, tmp_path, caplog):
    directory = str(shutil.copytree(finished.run.directory, tmp_path / "run"))
    params = (tmp_path / "run" / model_dir.PARAMS).read_text()
    other = finished.run.config.replace()
    other.trainer.optimizer.learning_rate = 1e-4
    with caplog.at_level("INFO", logger="cmlm"):
        building.build(Stage(other, directory))
    assert "these settings have no effect: trainer.optimizer.lear" in caplog.text
    assert "resuming" not in caplog.text
    message = "train_steps is 1, and the run in .* has 2 steps; allowed: at least 2 "
    fewer = toys.run_config(text, **{"trainer.train_steps": 1})
    with pytest.raises(UserError, match=message):
        building.build(Stage(fewer, directory))
    assert (tmp_path / "run" / model_dir.PARAMS).read_text() == params
    building.build(
        Stage(toys.run_config(text, **{"trainer.train_steps": 3}), directory)
    )
    assert model_dir.read_config(directory).trainer.train_steps == 3


@pytest.mark.large
def test_other_text_that_a_vocabulary_does_not_know_is_refused(
    finished, tmp_path, one_device
):
    greek = tmp_path / "greek.txt"
    greek.write_text("νερό ποτάμι γέφυρα\nβάρκα ψάρι\n\n" * 40)
    config = toys.run_config(str(greek))
    directory = str(shutil.copytree(finished.run.directory, tmp_path / "run"))
    resumed = Start(Stage(config, directory), one_device, finished.run.config)
    message = r"are \[UNK\] .*\(the text of the run so far, another --model_dir, or voc"
    with pytest.raises(UserError, match=message):
        inputs.prepare(resumed)
    inputs.prepare(dataclasses.replace(resumed, writes=False))
    config = toys.run_config(str(greek), init_checkpoint=directory)
    message = r"\(weights with a vocabulary of this text, a run without --init_check"
    with pytest.raises(UserError, match=message):
        inputs.prepare(Start(Stage(config, str(tmp_path / "warm")), one_device))


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_warm_start_keeps_to_the_vocabulary_of_its_weights(text, tmp_path):
    config = toys.run_config(text, **{"trainer.train_steps": 1})
    run = building.build(Stage(config, str(tmp_path / "a")))
    run.manager.save(0)
    best = tf.train.Checkpoint(model=run.trainer.model)
    best.save(str(tmp_path / "a" / "best" / "ckpt"))
    words = (tmp_path / "a" / "vocab.txt").read_text()
    other = tmp_path / "vocab.txt"

    def start(checkpoint, directory):
        file = str(other) if other.exists() else ""
        warm = toys.run_config(
            text,
            init_checkpoint=str(tmp_path / checkpoint),
            **{"vocabulary.file": file},
        )
        return building.build(Stage(warm, str(tmp_path / directory)))

    start("a/best/ckpt-1", "b")
    assert (tmp_path / "b" / "vocab.txt").read_text() == words
    other.write_text(words)
    start("a", "c")
    # Of the same size, but its ids mean other words.
    *rest, last = words.splitlines()
    for changed in ([*rest[:-1], last, rest[-1]], [*rest, last, "onemore"]):
        other.write_text("\n".join(changed))
        with pytest.raises(UserError, match="vocab.txt differs from .*/a/vocab.txt"):
            start("a", "d")
    assert not (tmp_path / "d" / "vocab.txt").exists()


def test_the_run_of_a_checkpoint_is_its_own_folder(tmp_path):
    run = tmp_path / "run"
    (run / "best").mkdir(parents=True)
    (run / "old").mkdir()
    (run / model_dir.PARAMS).write_text("")
    for path in ("", "/", "/ckpt-3", "/best", "/best/", "/best/ckpt-3"):
        assert warm_start.own_run(f"{run}{path}") == str(run)
    # Other weights that lie in the folder of a run are not the run's.
    for path in ("/old", "/old/ckpt-3", "/old/best"):
        assert warm_start.own_run(f"{run}{path}") is None


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_checkpoint_without_its_run_needs_its_vocabulary(text, tmp_path):
    config = toys.run_config(text, **{"trainer.train_steps": 1})
    run = building.build(Stage(config, str(tmp_path / "a")))
    lone = tf.train.Checkpoint(model=run.trainer.model).save(str(tmp_path / "x/c"))
    warm = toys.run_config(text, init_checkpoint=lone)
    with pytest.raises(UserError, match="no params.yaml beside it; name its"):
        building.build(Stage(warm, str(tmp_path / "b")))


def _halve(data):
    os.truncate(data, os.path.getsize(data) // 2)


def _empty(data):
    os.truncate(data, 0)


def _flip(data):
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


@pytest.mark.parametrize("damage", [_halve, _empty, _flip])
def test_a_damaged_checkpoint_is_named_with_the_one_before(
    text, finished, tmp_path, damage
):
    damaged = shutil.copytree(finished.run.directory, tmp_path / "run")
    damage(next(damaged.glob("ckpt-2.data*")))
    said = r"ckpt-2 is damaged, or .*; delete (.*)/ckpt-2\.\* to resume from \1/ckpt-1$"
    with pytest.raises(UserError, match=said):
        building.build(Stage(toys.run_config(text), str(damaged)))
    for path in damaged.glob("ckpt-1.*"):
        path.unlink()
    with pytest.raises(UserError, match="ckpt-2 is damaged, or does not") as caught:
        building.build(Stage(toys.run_config(text), str(damaged)))
    assert "; delete" not in str(caught.value)


@pytest.mark.large
def test_untrained_encoder_is_the_one_the_run_began_with(finished):
    encoder, directory = finished.run.trainer.model.encoder, finished.run.directory
    untrained = run_weights.load(directory, "untrained").encoder
    latest = run_weights.load(directory).encoder
    for a, b in zip(untrained.get_weights(), finished.start, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(latest.get_weights(), encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(finished.start, encoder.get_weights()))


@pytest.mark.usefixtures("eager")
def test_bfloat16_trains_on_float32_weights(text, tmp_path):
    config = toys.run_config(text, **{"trainer.train_steps": 2})
    config.runtime.mixed_precision_dtype = "bfloat16"
    try:
        run = building.build(Stage(config, str(tmp_path)))
        validation = engine.train(run)
    finally:
        distributed.set_precision("float32")
    assert np.isfinite(validation["cmlm/loss"])
    floats = [
        value for value in toys.stored(tmp_path / "ckpt-2").values() if value.ndim
    ]
    assert {value.dtype for value in floats if value.dtype.kind == "f"} == {
        np.dtype(np.float32)
    }


@pytest.mark.usefixtures("eager")
def test_auto_precision_is_that_of_the_machine_and_then_of_the_run(
    text, tmp_path, monkeypatch, one_device
):
    def precision(flags, **runtime):
        config = toys.run_config(text, **{"trainer.train_steps": 1})
        config.runtime.mixed_precision_dtype = "auto"
        config.runtime.override(runtime)
        monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
        directory = str(tmp_path)
        begun = model_dir.begun_config(directory)
        agreement.choose_precision(Start(Stage(config, directory), one_device, begun))
        return config.runtime.mixed_precision_dtype

    assert precision({"avx512f", "avx512_bf16"}) == "bfloat16"
    assert precision({"avx512f"}) == "float32"
    assert precision({"amx_bf16"}, num_gpus=1) == "float32"
    assert precision({}, distribution_strategy="tpu") == "bfloat16"
    with monkeypatch.context() as patched:
        patched.setattr(workers, "on_chief", lambda strategy, choose: "bfloat16")
        assert precision({}) == "bfloat16"
    # A run that began in float32 goes on in float32 elsewhere.
    config = toys.run_config(text, **{"trainer.train_steps": 1})
    config.runtime.mixed_precision_dtype = "auto"
    engine.train(building.build(Stage(config, str(tmp_path))), validate=False)
    assert model_dir.read_config(str(tmp_path)).runtime.mixed_precision_dtype == (
        "float32"
    )
    assert precision({"amx_bf16"}) == "float32"


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_evaluating_a_finished_run_repeats_its_last_validation(text, finished):
    config = toys.run_config(text, **{"trainer.train_steps": 2})
    again = building.build(Stage(config, finished.run.directory), writes=False)
    assert engine.evaluate(again) == finished.validation


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_a_run_killed_in_a_validation_repeats_it(finished, tmp_path):
    """In the middle of the run, and after its last step."""
    config, straight = finished.run.config, Path(finished.run.directory)

    def power_cut(num_steps):
        raise RuntimeError("power cut")

    def evaluates_once(evaluate):
        calls = iter([evaluate, power_cut])
        return lambda num_steps: next(calls)(num_steps)

    for step in (1, 2):
        killed = building.build(Stage(config, str(tmp_path / "killed")))
        # At its start the second one does what the first one owed.
        real = killed.trainer.evaluate
        killed.trainer.evaluate = evaluates_once(real) if step == 2 else power_cut
        with pytest.raises(RuntimeError, match="power cut"):
            engine.train(killed)
        assert killed.trainer.step == step
    resumed = building.build(Stage(config, str(tmp_path / "killed")))
    for _ in range(2):  # Once it is done, it is not done again.
        engine.train(resumed)
    want, got = (
        [
            (row["step"], row["validation/cmlm/loss"])
            for row in metrics_log.read_metrics(str(run / model_dir.METRICS))
            if "validation/cmlm/loss" in row
        ]
        for run in (straight, tmp_path / "killed")
    )
    assert got == want and [step for step, _ in got] == [1, 2]
    best = [
        tf.train.latest_checkpoint(str(run / model_dir.BEST))
        for run in (straight, tmp_path / "killed")
    ]
    assert Path(best[0]).name == Path(best[1]).name


def test_unknown_devices_and_precisions_are_named(text, tmp_path):
    for field, value, message in (
        (
            "distribution_strategy",
            "horovod",
            "'horovod'; allowed: one_device, mirrored",
        ),
        ("distribution_strategy", "TPU", "'TPU'; allowed: one_device, mirrored"),
        ("mixed_precision_dtype", "float16", "'float16'; allowed: float32, bfloat16"),
        ("num_gpus", 64, "num_gpus is 64; allowed: at most"),
    ):
        config = toys.run_config(text)
        setattr(config.runtime, field, value)
        with pytest.raises(UserError, match=message):
            building.build(Stage(config, str(tmp_path)))
    assert not (tmp_path / model_dir.PARAMS).exists()


@pytest.mark.parametrize("gpus", [0, 2])
def test_idle_gpus_are_said(gpus, monkeypatch, caplog):
    devices = {"CPU": tf.config.list_logical_devices("CPU"), "GPU": ["a GPU"] * gpus}
    monkeypatch.setattr(tf.config, "list_logical_devices", devices.get)
    runtime = config_definitions.RuntimeConfig(distribution_strategy="one_device")
    distributed.build_strategy(runtime)
    assert ("2 GPU(s) of this machine stay idle" in caplog.text) == bool(gpus)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_params_yaml_repeats_a_run(finished, tmp_path):
    before = Path(finished.run.directory)
    config = loading.load("cmlm/english", [str(before / model_dir.PARAMS)], [])
    engine.train(building.build(Stage(config, str(tmp_path))), validate=False)
    toys.assert_equal_checkpoints(before / "ckpt-2", tmp_path / "ckpt-2")


def test_params_yaml_reads_back_equal(text, tmp_path):
    run = building.build(Stage(toys.run_config(text), str(tmp_path)))
    again = model_dir.read_config(str(tmp_path))
    assert again.as_dict() == run.config.as_dict()
    assert again.model.vocab_size > 50
