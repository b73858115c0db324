"""Operations side by side; TensorFlow sets its threads once in a process."""

import os
import subprocess
import sys

import commands
import model_dirs
import pytest

from cmlm.common import machine

BEGIN = """
import os
import threading
import time
import tensorflow as tf
from cmlm.common import machine, threads
machine.processors = lambda: 2
settings = tf.config.threading
"""
SIDE_BY_SIDE = """
threads.one_for_each_operation()
assert settings.get_intra_op_parallelism_threads() == 1
meet = threading.Barrier(2, timeout=60)
def half(i):
    meet.wait()
    return float(tf.constant(i) / 2)
assert list(threads.each(half, range(6))) == [0, 0.5, 1, 1.5, 2, 2.5]
"""
IN_TURN = """
threads.one_for_each_operation()
assert settings.get_intra_op_parallelism_threads() != 1
names = threads.each(lambda i: (i, threading.current_thread().name), range(3))
assert list(names) == [(i, threading.main_thread().name) for i in range(3)]
"""
AN_ERROR = """
threads.one_for_each_operation()
begun = []
def fail(i):
    begun.append(i)
    # Else a loaded machine begins all before it sees the first error.
    time.sleep(0.01 if i else 0)
    raise ValueError(i)
try:
    list(threads.each(fail, range(1000)))
except ValueError as error:
    assert error.args == (0,)
assert len(begun) < 1000
"""
UNTRAINED = """
import numpy as np
import tensorflow_text
from cmlm.encoders import opening
threads.one_for_each_operation()
encoder = opening.open_encoder("untrained:{model_dir}")
words = "the cat sat on a mat while dogs ran away".split()
lines = [" ".join(np.roll(words, i)[: 1 + i % 9]) + f" {{i}}" for i in range(3000)]
vectors = encoder.encode(lines)
for _ in range(5):
    np.testing.assert_array_equal(encoder.encode(lines), vectors)
"""


@pytest.mark.parametrize(
    ("limits", "processors"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "900000 100000\n"}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.quota": "200000\n", "cpu.period": "100000\n"}, 2),
        ({"cpu.quota": "-1\n", "cpu.period": "100000\n"}, 4),
        ({}, 4),
    ],
)
def test_a_container_limits_the_processors(tmp_path, monkeypatch, limits, processors):
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_LIMIT", f"{tmp_path}/cpu.max")
    monkeypatch.setattr(machine, "_LIMIT_OF_1", f"{tmp_path}/cpu.{{}}")
    monkeypatch.setattr(machine, "_limit", machine._limit.__wrapped__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    assert machine.processors() == processors


@pytest.mark.parametrize(
    "body",
    [
        SIDE_BY_SIDE,
        AN_ERROR,
        # The user has chosen a number, in the environment or in the program.
        "os.environ['TF_NUM_INTRAOP_THREADS'] = '2'\n" + IN_TURN,
        "settings.set_intra_op_parallelism_threads(2)\n" + IN_TURN,
    ],
    ids=["side by side", "an error", "environment", "program"],
)
def test_operations_run_side_by_side_unless_the_user_chose_threads(tmp_path, body):
    (tmp_path / "threads_program.py").write_text(BEGIN + body)
    done = commands.run("threads_program", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_untrained_encoder_is_safe_in_threads(tmp_path):
    """oneDNN's FusedBatchNorm is not, and stands where layer norm is not recognised."""
    settings = {"model.hidden_size": 128, "model.intermediate_size": 128}
    settings["model.num_layers"] = 2
    model_dir = model_dirs.write(tmp_path / "run", **settings)
    # A clean process, as a user's program is.
    result = subprocess.run(
        [sys.executable, "-c", BEGIN + UNTRAINED.format(model_dir=model_dir)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
