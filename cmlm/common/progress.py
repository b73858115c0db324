"""What a person sees of a run, one line, and what a program reads, rows of metrics."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping

import tensorflow as tf
import tqdm

from cmlm.common import files


class ProgressLine:
    """One line on stderr: step, losses, learning rate, examples/s, time to go.

    On a terminal it rewrites itself; in a log file it is printed every 10 seconds at
    most.

    Args:
        total_steps: where the run ends.
        start_step: where it begins, above 0 for a resumed run.
    """

    def __init__(self, total_steps: int, start_step: int):
        self._total = total_steps
        self._terminal = sys.stderr.isatty()
        self._last_print = 0.0
        # (time, step) of the last loops: what the pace is measured over.
        self._window = [(time.monotonic(), start_step)]
        self._paced = False

    def update(
        self, step: int, metrics: Mapping[str, float], examples_per_step: float
    ) -> None:
        """Shows the state after `step` steps.

        Args:
            step: updates done.
            metrics: name to value, in the order to be shown.
            examples_per_step: global batch, summed over objectives.
        """
        now = time.monotonic()
        self._window.append((now, step))
        # The first loop includes the compilation of the graph: not the pace.
        if len(self._window) > 30 or (len(self._window) > 2 and not self._paced):
            self._window.pop(0)
            self._paced = True
        since, first = self._window[0]
        steps_per_second = (step - first) / max(now - since, 1e-9)
        done = step >= self._total
        parts = [f"{name} {_short(value)}" for name, value in metrics.items()]
        if self._paced:
            parts.append(f"{steps_per_second * examples_per_step:,.0f} examples/s")
            if not done:
                parts.append(self._time_to_go(step, 1 / steps_per_second))
        self._print(step, parts, done)

    def within_step(self, step: int, done: int, of: int) -> None:
        """Shows how far a long step is.

        Args:
            step: updates done before it.
            done: micro-batches of it that are done.
            of: micro-batches it has.
        """
        since, first = self._window[-1]
        parts = [f"micro-batch {done + 1} of {of} of the next step"]
        if done:
            steps = step - first + done / of
            parts.append(self._time_to_go(step, (time.monotonic() - since) / steps))
        self._print(step, parts, False)

    def _time_to_go(self, step: int, seconds_per_step: float) -> str:
        return f"ETA {duration((self._total - step) * seconds_per_step)}"

    def _print(self, step: int, parts: list[str], done: bool) -> None:
        now = time.monotonic()
        if not (self._terminal or done or now - self._last_print >= 10):
            return
        self._last_print = now
        line = "  ".join([f"step {step:,}/{self._total:,}", *parts])
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            end = "\n" if done else ""
            print(
                "\r" + line[:width].ljust(width), end=end, file=sys.stderr, flush=True
            )
        else:
            print(line, file=sys.stderr, flush=True)

    def interrupt(self) -> None:
        """Ends the line, so that something else can be printed."""
        if self._terminal:
            print(file=sys.stderr)


class MetricsLog:
    """Rows of metrics in `metrics.jsonl` and in TensorBoard.

    Args:
        path: of the JSON lines file.
        tensorboard_dir: directory for event files.
        start_step: rows beyond it are dropped: they belong to steps that a resumed run
            is going to repeat.
    """

    def __init__(self, path: str, tensorboard_dir: str, start_step: int):
        self._path = path
        if tf.io.gfile.exists(path):
            rows = [row for row in read_metrics(path) if row["step"] <= start_step]
            with files.atomic_text(path) as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        self._writer = tf.summary.create_file_writer(tensorboard_dir)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one row; it is on disk when this returns."""
        row = {"step": step, "time": round(time.time(), 3), **metrics}
        with tf.io.gfile.GFile(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        with self._writer.as_default():
            for name, value in metrics.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()


def read_metrics(path: str) -> list[dict]:
    """The rows of a `metrics.jsonl`; a last line cut off by a kill is left out."""
    rows = []
    with tf.io.gfile.GFile(path) as file:
        for line in file:
            if line.endswith("\n"):
                rows.append(json.loads(line))
    return rows


def duration(seconds: float) -> str:
    """`75` -> `1m 15s`; `1e9` -> `31.7 years`."""
    if seconds >= 2 * 365 * 86_400:
        return f"{seconds / (365 * 86_400):,.1f} years"
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.1f} days"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"


def _short(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-2 else f"{value:.3f}"


def sentence_bar(total: int, disable: bool = False) -> tqdm.tqdm:
    """A bar that counts sentences on stderr, and is short in a log file."""
    return tqdm.tqdm(
        total=total,
        unit=" sentences",
        disable=disable,
        leave=False,
        delay=1,
        mininterval=0.1 if sys.stderr.isatty() else 10,
    )
