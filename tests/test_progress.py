"""The progress line and the rows of metrics."""

import json
import os
from pathlib import Path

import pytest
import tqdm

from cmlm.common import progress
from cmlm.training import metrics_log


def lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_line_shows_step_metrics_pace_and_time_to_go(capsys, monkeypatch):
    clock = iter([0.0, 60.0, 60.0, 70.0, 70.0, 80.0, 80.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    line = progress.ProgressLine(total_steps=100, start_step=0)
    # The first loop compiles for a minute: no pace is taken from it.
    line.update(10, {"cmlm/loss": 9.5}, examples_per_step=32)
    line.update(20, {"cmlm/loss": 8.25, "lr": 1e-4}, examples_per_step=32)
    line.update(30, {"cmlm/loss": 8.0}, examples_per_step=32)
    assert lines(capsys) == [
        "step 10/100  cmlm/loss 9.500",
        "step 20/100  cmlm/loss 8.250  lr 1.0e-04  32 examples/s  ETA 1m 20s",
        "step 30/100  cmlm/loss 8.000  32 examples/s  ETA 1m 10s",
    ]


def test_a_validation_is_no_part_of_the_pace(capsys, monkeypatch):
    seconds = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    line = progress.ProgressLine(total_steps=100, start_step=0)
    for step in (10, 20):
        seconds += 20
        line.update(step, {}, examples_per_step=32)
    seconds += 600
    line.interrupt(600)
    seconds += 20
    line.update(30, {}, examples_per_step=32)
    assert lines(capsys)[-1] == "step 30/100  16 examples/s  ETA 2m 20s"


def test_a_log_file_gets_a_line_every_ten_seconds_and_the_last(capsys, monkeypatch):
    seconds = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    line = progress.ProgressLine(total_steps=30, start_step=0)
    for step in range(1, 31):
        seconds += 1.0
        line.update(step, {}, examples_per_step=1)
    shown = [text.split("  ")[0] for text in lines(capsys)]
    assert shown == ["step 1/30", "step 11/30", "step 21/30", "step 30/30"]


@pytest.mark.parametrize("terminal", [False, True, None])
@pytest.mark.parametrize("kind", ["pipe", "disk"])
def test_a_run_outlives_the_reader_of_its_log(monkeypatch, kind, terminal):
    if kind == "disk":
        gone = open("/dev/full", "w")
    else:
        reader, writer = os.pipe()
        os.close(reader)
        gone = os.fdopen(writer, "w")
    monkeypatch.setattr(progress.sys, "stderr", gone)
    size = os.terminal_size((30, 9))
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda _: size)
    if terminal is None:
        for _ in range(2):
            with progress.Bar(total=2, desc="encoding") as bar:
                bar.set_description("writing")
    else:
        line = progress.ProgressLine(total_steps=2, start_step=0)
        line._terminal = terminal
        line.update(1, {}, examples_per_step=1)
        line.interrupt()
        line.update(2, {}, examples_per_step=1)
    if kind == "pipe":
        # Later output of the command goes nowhere, too.
        print("saved", file=gone, flush=True)
        gone.close()
    else:
        with pytest.raises(OSError):
            gone.close()


def test_other_output_begins_on_a_line_of_its_own(capfd, monkeypatch):
    size = os.terminal_size((30, 9))
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda _: size)
    line = progress.ProgressLine(total_steps=2, start_step=0)
    line._terminal = True
    line.interrupt()
    line.update(1, {}, examples_per_step=1)
    line.interrupt()
    line.interrupt()
    line.update(2, {}, examples_per_step=1)
    line.interrupt()
    shown = capfd.readouterr().err.replace("\r", "").split("\n")
    assert [text.split("  ")[0] for text in shown] == ["step 1/2", "step 2/2", ""]


def test_a_long_step_shows_its_micro_batches(capsys, monkeypatch):
    seconds = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    line = progress.ProgressLine(total_steps=10, start_step=0)
    seconds = 30.0
    line.within_step(0, 0, 4)
    seconds = 60.0
    # Half a step in a minute: two minutes a step, ten steps to go.
    line.within_step(0, 2, 4)
    assert lines(capsys) == [
        "step 0/10  micro-batch 1 of 4 of the next step",
        "step 0/10  micro-batch 3 of 4 of the next step  ETA 20m 00s",
    ]


def test_gradient_caching_shows_its_two_passes(capsys, monkeypatch):
    seconds = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    line = progress.ProgressLine(total_steps=10, start_step=0)
    seconds = 30.0
    line.within_step(0, 3, 4, passes=2)
    seconds = 60.0
    # 4 of 8 micro-batches in a minute: two minutes a step, ten steps to go.
    line.within_step(0, 4, 4, passes=2)
    seconds = 90.0
    line.within_step(0, 5, 4, passes=2, objective="bitext")
    assert lines(capsys) == [
        "step 0/10  pass 1 of 2, micro-batch 4 of 4 of the next step  ETA 13m 20s",
        "step 0/10  pass 2 of 2, micro-batch 1 of 4 of the next step  ETA 20m 00s",
        "step 0/10  pass 2 of 2, micro-batch 2 of 4 of bitext in the next step",
    ]


def test_several_objectives_share_the_pace_of_whole_steps(capsys, monkeypatch):
    seconds = 10.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    line = progress.ProgressLine(total_steps=10, start_step=0)
    # A third of the masked LM is an unknown share of the first step.
    line.within_step(0, 1, 3, objective="mlm")
    for step in (1, 2, 3):
        seconds += 10.0
        line.update(step, {}, examples_per_step=1)
    seconds += 12.0
    # Seven steps of 10 s to go, whatever part of the next one has passed.
    line.within_step(3, 1, 3, objective="mlm")
    shown = lines(capsys)
    assert shown[0] == "step 0/10  micro-batch 2 of 3 of mlm in the next step"
    assert shown[-1] == (
        "step 3/10  micro-batch 2 of 3 of mlm in the next step  ETA 1m 10s"
    )


def test_a_bar_goes_by_a_clock_that_nobody_sets(capsys, monkeypatch):
    seconds = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    # The time of day jumps back by an hour whenever ten seconds have passed.
    monkeypatch.setattr(tqdm.std, "time", lambda: -360 * seconds)
    with progress.bar(100) as bar:
        for _ in range(3):
            seconds += 10.0
            bar.update(10)
    shown = capsys.readouterr().err
    for state in ("10/100 [00:10<01:30", "20/100 [00:20<01:20", "30/100 [00:30<01:10"):
        assert state in shown


def test_metrics_log_survives_a_cut_line_and_a_step_back(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    rows = [{"step": step, "time": 1.0} for step in (5, 10, 15)]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 20, "ti'
    Path(path).write_text(text)
    log = metrics_log.MetricsLog(str(tmp_path), start_step=10)
    log.write(12, {"a": 1.0})
    assert [row["step"] for row in metrics_log.read_metrics(path)] == [5, 10, 12]


def test_metrics_log_begins_anew_where_no_row_is_left(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    Path(path).write_text('{"step": 15, "time": 1.0}\n')
    log = metrics_log.MetricsLog(str(tmp_path), start_step=10)
    assert metrics_log.read_metrics(path) == []
    log.write(12, {"a": 1.0})
    assert [row["step"] for row in metrics_log.read_metrics(path)] == [12]


def test_metrics_log_makes_no_file_elsewhere(tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "metrics.jsonl"
    path.symlink_to(tmp_path / "elsewhere")
    log = metrics_log.MetricsLog(str(tmp_path / "run"), start_step=0)
    log.write(1, {"a": 1.0})
    assert sorted(os.listdir(tmp_path)) == ["run"] and not path.is_symlink()
    assert [row["step"] for row in metrics_log.read_metrics(str(path))] == [1]


def test_metrics_log_leaves_out_foreign_lines_and_says_so(tmp_path, caplog):
    path = str(tmp_path / "metrics.jsonl")
    bad = (
        "",
        "x",
        "[1]",
        "5",
        '{"a": 1}',
        '{"step": "3"}',
        '{"step": null}',
        "[" * 9999,
    )
    text = '{"step": 5, "time": 1.0}\n' + "".join(f"{line}\n" for line in bad)
    Path(path).write_bytes(text.encode() + b'\xff\x00\n{"step": 7}\n')
    metrics_log.MetricsLog(str(tmp_path), start_step=10)
    assert f"{path}: 9 lines are not rows of metrics" in caplog.text
    assert "line 2 is the first" in caplog.text
    caplog.clear()
    assert [row["step"] for row in metrics_log.read_metrics(path)] == [5, 7]
    assert not caplog.text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (5, "5s"),
        (75, "1m 15s"),
        (3720, "1h 02m"),
        (3e5, "3.5 days"),
        (1e9, "31.7 years"),
    ],
)
def test_durations(seconds, text):
    assert progress.duration(seconds) == text
