"""Progress on stderr: a line for training runs and a bar for everything else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping

import tqdm

from cmlm.common import native_log


class ProgressLine:
    """One line on stderr: step, losses, learning rate, examples/s, remaining time.

    On a terminal, the line is rewritten; a log file gets a line at most every 10
    seconds.

    Args:
        total_steps: the last step of the run.
        start_step: the first step; above 0 for a resumed run.
    """

    def __init__(self, total_steps: int, start_step: int):
        self._total = total_steps
        self._terminal = sys.stderr.isatty()
        self._last_print = 0.0
        # (time, step) after each of the last loops; the pace is measured over them.
        self._window = [(time.monotonic(), start_step)]
        self._paced = False
        # Whether the line on the terminal has no end yet.
        self._is_open = False

    def update(
        self, step: int, metrics: Mapping[str, float], examples_per_step: float
    ) -> None:
        """Shows the state after `step` steps.

        Args:
            step: number of finished updates.
            metrics: name to value, in display order.
            examples_per_step: the mean over the last steps, of all objectives together.
        """
        now = time.monotonic()
        self._window.append((now, step))
        # The first loop compiles the graph, so its time does not count.
        if len(self._window) > 30 or (len(self._window) > 2 and not self._paced):
            self._window.pop(0)
            self._paced = True
        done = step >= self._total
        parts = [f"{name} {_short(value)}" for name, value in metrics.items()]
        if self._paced:
            seconds = self._seconds_per_step()
            parts.append(f"{examples_per_step / seconds:,.0f} examples/s")
            if not done:
                parts.append(self._time_to_go(step, seconds))
        self._print(step, parts, done)

    def within_step(
        self, step: int, done: int, of: int, passes: int = 1, objective: str = ""
    ) -> None:
        """Shows the progress inside a long step.

        Args:
            step: number of updates before this step.
            done: number of finished micro-batches of this step, in all passes.
            of: number of micro-batches of a pass.
            passes: how often the step goes through its micro-batches.
            objective: the objective of these micro-batches, if a step may have several;
                they are then an unknown share of the step.
        """
        whose = f"{objective} in " if objective else ""
        which = f"pass {done // of + 1} of {passes}, " if passes > 1 else ""
        parts = [f"{which}micro-batch {done % of + 1} of {of} of {whose}the next step"]
        if self._paced:
            parts.append(self._time_to_go(step, self._seconds_per_step()))
        elif done and not objective:
            since, first = self._window[-1]
            steps = step - first + done / (of * passes)
            parts.append(self._time_to_go(step, (time.monotonic() - since) / steps))
        self._print(step, parts, False)

    def _seconds_per_step(self) -> float:
        (since, first), (now, step) = self._window[0], self._window[-1]
        return max(now - since, 1e-9) / max(step - first, 1)

    def _time_to_go(self, step: int, seconds_per_step: float) -> str:
        return f"ETA {duration((self._total - step) * seconds_per_step)}"

    def _print(self, step: int, parts: list[str], done: bool) -> None:
        now = time.monotonic()
        if not (self._terminal or done or now - self._last_print >= 10):
            return
        self._last_print = now
        line = "  ".join([f"step {step:,}/{self._total:,}", *parts])
        with native_log.outliving(sys.stderr):
            if self._terminal:
                width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
                end = "\n" if done else ""
                line = "\r" + line[:width].ljust(width)
                print(line, end=end, file=sys.stderr, flush=True)
                self._is_open = not done
            else:
                print(line, file=sys.stderr, flush=True)

    def interrupt(self, seconds: float = 0) -> None:
        """Ends the line, so that other output can follow.

        Args:
            seconds: the time since the last step, which does not count for the pace.
        """
        self._window = [(when + seconds, step) for when, step in self._window]
        if self._is_open:
            with native_log.outliving(sys.stderr):
                print(file=sys.stderr, flush=True)
            self._is_open = False


def duration(seconds: float) -> str:
    """Formats seconds: `75` -> `1m 15s`, `1e9` -> `31.7 years`."""
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


class _BarStream:
    """stderr for a bar, without its errors."""

    def write(self, text: str) -> None:
        with native_log.outliving(sys.stderr):
            sys.stderr.write(text)

    def flush(self) -> None:
        with native_log.outliving(sys.stderr):
            sys.stderr.flush()

    def __getattr__(self, name: str):
        return getattr(sys.stderr, name)


class Bar(tqdm.tqdm):
    """A bar of tqdm that measures by a clock that nobody sets.

    A log file gets a line every 10 seconds. By the time of day, tqdm's own clock, a
    clock that is set back gives negative times and stops the bar.
    """

    def __init__(self, *args, **kwargs):
        # With any other value a thread of tqdm compares these times with its clock.
        interval = 0.1 if sys.stderr.isatty() else 10
        super().__init__(
            *args,
            file=_BarStream(),
            dynamic_ncols=True,  # tqdm measures the width of its own stderr only
            miniters=1,
            mininterval=interval,
            **kwargs,
        )
        self._time = time.monotonic
        self.start_t = self.last_print_t = time.monotonic()


def bar(
    total: int | None,
    description: str = "",
    unit: str = "sentences",
    disable: bool = False,
    iterable: Iterable | None = None,
) -> Bar:
    """Opens a progress bar on stderr.

    Args:
        total: the number of units, None if unknown.
        description: shown before the bar.
        unit: the name of the units, in the plural.
        disable: whether to show nothing.
        iterable: what a loop over the bar yields; each item is a unit.
    """
    return Bar(
        iterable,
        total=total,
        desc=description or None,
        unit=f" {unit}",
        disable=disable,
        leave=False,
        delay=1,
    )
