"""Two workers on the loopback: equal to two replicas, and stopped in every way."""

import json
import re
import signal
from pathlib import Path
from unittest import mock

import commands
import numpy as np
import pytest
import tensorflow as tf
import toys
import worker
from official.core import config_definitions

from cmlm.common import distributed, workers
from cmlm.config import model_dir, overrides
from cmlm.errors import UserError
from cmlm.tokenization import vocabulary_file
from cmlm.training import agreement, metrics_log

# ------------------------------------------------------------ in one process


def test_alone_a_worker_is_worker_0_of_1(one_device):
    assert workers.cluster(one_device) == (0, 1)
    assert workers.exchange(one_device, {"a": 1}) == [{"a": 1}]
    assert workers.on_chief(one_device, lambda: 7) == 7
    with pytest.raises(tf.errors.UnavailableError), workers.lost_workers(one_device):
        raise tf.errors.UnavailableError(None, None, "a disk, not a worker")


@pytest.mark.parametrize(
    "tf_config, message",
    [
        ("", "lacks the addresses of the workers: set TF_CONFIG="),
        ("{", "does not name a worker"),
        ('{"cluster": {"worker": ["a:1"]}}', "does not name a worker"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "does not name a worker",
        ),
        (
            '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
            "does not name a worker",
        ),
    ],
)
def test_a_cluster_that_is_none_is_named(tf_config, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    runtime = config_definitions.RuntimeConfig(
        distribution_strategy="multi_worker_mirrored"
    )
    with pytest.raises(UserError, match=message):
        distributed.build_strategy(runtime)


def test_workers_with_other_flags_are_refused(monkeypatch):
    """Each worker has its own number; every other setting is the same."""
    config = toys.run_config("text.txt")

    def exchange(strategy, settings):
        third = json.loads(json.dumps(settings))
        third["trainer"]["optimizer"]["learning_rate"] = 0.5
        return [settings, json.loads(json.dumps(settings)), third]

    monkeypatch.setattr(workers, "exchange", exchange)
    config.runtime.task_index = 1
    said = "worker 2 was started with trainer.optimizer.learning_rate=0.5, and worker"
    with pytest.raises(UserError, match=f"^{said} 0 with 0.001; allowed: the same "):
        agreement.refuse_other_settings(config, None)


@pytest.mark.parametrize(
    "error",
    [
        None,
        RuntimeError('TPU "local" is not yet ready; state: "PREEMPTED"'),
        type("ApplicationDefaultCredentialsError", (Exception,), {})("no credentials"),
    ],
)
def test_no_tpu_is_one_line(error, monkeypatch):
    if error is not None:
        search = mock.Mock(side_effect=error)
        monkeypatch.setattr(
            tf.distribute.cluster_resolver, "TPUClusterResolver", search
        )
    runtime = config_definitions.RuntimeConfig(distribution_strategy="tpu", tpu="local")
    with pytest.raises(
        UserError, match=f"--tpu=local: {error or '.*'}; the package tensorflow has "
    ):
        distributed.build_strategy(runtime)


# -------------------------------------------------------------- two workers


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """What two workers left of a run that was killed, and of `tests/worker.py`."""
    folder = tmp_path_factory.mktemp("workers")
    kill_a_run(folder)
    found = commands.signalled("worker", folder, workers=2)
    assert [code for code, _ in found] == [0, 0], found
    return folder


def of_workers(directory: Path, scenario: str) -> list[dict]:
    """What each worker found."""
    return [
        json.loads((directory / f"worker-{number}.json").read_text())[scenario]
        for number in range(2)
    ]


def kill_a_run(folder: Path) -> None:
    """Two workers lose worker 0 after their first checkpoint."""
    config = toys.run_config(
        toys.write_corpus(folder / "corpus.txt"),
        **{
            "trainer.train_steps": 100_000,
            "trainer.checkpoint_interval": 2,
            "trainer.validation_interval": 100_000,
            # Worker 0 alone shows the progress within a step.
            "trainer.micro_batch_size": 2,
            "model.dropout_rate": 0.2,
            "model.attention_dropout_rate": 0.2,
        },
    )
    (folder / "killed.yaml").write_text(overrides.to_yaml(config))
    killed = folder / "killed"
    (zero, _), (one, errors) = commands.signalled(
        *("cmlm.train", f"--config_file={folder / 'killed.yaml'}"),
        f"--model_dir={killed}",
        "--distribution_strategy=multi_worker_mirrored",
        path=killed / "checkpoint",
        workers=2,
    )
    # Worker 1 does not wait for the other one for ever.
    assert (zero, one) == (-signal.SIGKILL, 1), errors
    assert errors.splitlines()[-1].startswith("error: worker 1 of 2 lost worker 0: ")
    assert "Traceback" not in errors


@pytest.mark.large
def test_two_workers_are_two_replicas(directory, two_replicas):
    zero, one = of_workers(directory, "agree")
    # The same global batches in one process, dropout included.
    trainer = worker.toy_trainer(two_replicas)
    metrics = trainer.train(4)
    assert zero["metrics"] == one["metrics"] == pytest.approx(metrics, rel=1e-5)
    assert metrics["bitext/candidates"] == 4
    want = worker.weights(trainer)
    for number in range(2):
        got = np.load(directory / f"worker-{number}.npz")
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    validation = trainer.evaluate(-1)
    assert zero["validation"] == one["validation"]
    assert zero["validation"] == pytest.approx(validation, abs=1e-5)

    # Masks are a function of worker and step, and nothing else.
    for found in (zero, one):
        assert found["masks"][0] == found["masks"][2] != found["masks"][1]
    assert zero["masks"][0] != one["masks"][0]

    said = [{"number": 0, "long": ""}, {"number": 1, "long": "ä"}]
    assert zero["exchanged"] == one["exchanged"] == said
    assert zero["other seed"] == one["other seed"]
    assert "started with trainer.seed=1, and worker 0 with 0" in zero["other seed"]
    assert zero["no text"] == one["no text"]
    assert "nothing.txt" in zero["no text"]
    assert zero["non-finite"] == one["non-finite"]
    assert "the loss of cmlm is not finite in step 5" in zero["non-finite"]


@pytest.mark.large
def test_a_signal_to_worker_1_stops_both_at_one_step(directory):
    zero, one = of_workers(directory, "finish")
    assert zero == one
    for name in ("killed", "straight"):
        begun, said, latest = one[name]
        step = int(re.fullmatch(r"stopped by SIGTERM at step (\d+)", said)[1])
        assert latest == str(directory / name / f"ckpt-{step}")
        assert tf.train.latest_checkpoint(str(directory / name)) == latest
    # What one worker alone would leave, and nothing more.
    left = {
        "checkpoint",
        model_dir.METRICS,
        model_dir.PARAMS,
        model_dir.STARTS,
        model_dir.TENSORBOARD,
        vocabulary_file.FILE_NAME,
        f"{vocabulary_file.FILE_NAME}.json",
    }
    for name, more in (("straight", set()), ("killed", {"best", "lock"})):
        names = {path.name for path in (directory / name).iterdir()}
        assert {each for each in names if not each.startswith("ckpt-")} == left | more
    events = (directory / "straight" / model_dir.TENSORBOARD).rglob("events.*")
    assert [path.parent.name for path in events] == ["train"]


@pytest.mark.large
def test_killed_and_resumed_equals_a_straight_run(directory):
    (begun, _, got), (start, _, want) = of_workers(directory, "finish")[1].values()
    assert begun > start == 0
    toys.assert_equal_checkpoints(got, want)
    # The validation that the killed run owes comes first.
    rows = metrics_log.read_metrics(str(directory / "killed" / model_dir.METRICS))
    validated = [row["step"] for row in rows if "validation/cmlm/loss" in row]
    assert validated == [begun, begun + 2]
    events = (directory / "killed" / model_dir.TENSORBOARD).rglob("events.*")
    assert [path.parent.name for path in events].count("validation") == 1
