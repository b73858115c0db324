"""The length of a loop of steps: about a second, and never across an interval."""

from __future__ import annotations

import time

from cmlm.config.experiment import TrainerConfig


class Pace:
    """Chooses the number of steps until the next look at the clock and at signals.

    Args:
        settings: the intervals.
        step: the number of updates so far.

    Attributes:
        steps: number of steps that take about a second.
    """

    def __init__(self, settings: TrainerConfig, step: int):
        self._settings = settings
        self._loop_began, self._loop_step = time.monotonic(), step
        self.steps = 1

    def next_loop(self, step: int) -> int:
        """Returns the steps of the next loop, which never crosses an interval."""
        settings = self._settings
        self._loop_began, self._loop_step = time.monotonic(), int(step)
        steps = self.steps
        for interval in (settings.summary_interval, settings.checkpoint_interval):
            steps = min(steps, interval - int(step) % interval)
        return steps

    def looped(self, step: int) -> None:
        """Sets `steps` to the steps that take about a second. Call it after a loop."""
        seconds = max(time.monotonic() - self._loop_began, 1e-9)
        in_a_second = int((step - self._loop_step) / seconds)
        self.steps = min(self._settings.steps_per_loop, max(1, in_a_second))
