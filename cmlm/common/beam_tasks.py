"""Numbered tasks on Beam's workers; `numbered_tasks.Workers` calls it.

A process opens what its tasks need once, whatever the number of its threads and
bundles: an encoder of gigabytes is in memory once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.utils import shared

from cmlm.common import beam_progress, beam_runner
from cmlm.common.protocols import Task


def run(
    start: Callable[[], Task],
    numbers: Sequence[int],
    what: str,
    left: int,
    beam_options: str,
    workers: int,
) -> None:
    """Does tasks on Beam, see `numbered_tasks.Workers.run`.

    Args:
        start, numbers, what, left: as there.
        beam_options, workers: see `beam_runner.run`.
    """
    progress = beam_progress.Progress(left, " sentences", description=what)

    def build(pipeline):
        (
            pipeline
            | "Numbers" >> beam.Create(list(numbers))
            | "Spread" >> beam.Reshuffle()
            | "Do" >> beam.ParDo(_Do(start, progress))
        )

    beam_runner.run(build, beam_options, workers, progress)


class _Started:
    """A task that `shared.Shared` can refer to."""

    def __init__(self, start: Callable[[], Task]):
        self.do = start()
        # A task uses all threads of the libraries; a second one would only wait.
        self.lock = threading.Lock()


class _Do(beam.DoFn):
    """Does the task of each number.

    Args:
        start: returns the task.
        progress: receives the numbers of finished sentences.
    """

    def __init__(self, start: Callable[[], Task], progress: beam_progress.Progress):
        self._start, self._progress = start, progress
        self._shared = shared.Shared()

    def setup(self):
        self._started = self._shared.acquire(lambda: _Started(self._start))

    def process(self, number: int):
        with self._started.lock:
            self._started.do(number, self._progress.add)

    def finish_bundle(self):
        self._progress.flush()
