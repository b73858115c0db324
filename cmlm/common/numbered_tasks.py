"""Numbered tasks that each leave a file: in this process, or on Beam's workers.

    def start():  # once in each process: opens what all tasks need
        encoder = ...

        def do(number, report): ...
        return do

    Workers("", 2).run(start, missing, "encoding", total, left)

The file of a task depends on the task's number alone, not on the number of workers. A
stopped run resumes with the tasks whose files are missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cmlm.common import machine, progress
from cmlm.common.protocols import Task
from cmlm.errors import needing


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that do tasks.

    Attributes:
        beam_options: Beam's options, see `beam_runner.run`; "": this machine.
        number: the processes on this machine; 1: this process, without Beam; 0: one per
            core.
    """

    beam_options: str = ""
    number: int = 1

    @property
    def are_here(self) -> bool:
        """Whether this process does the tasks."""
        return not self.beam_options and (self.number or machine.processors()) == 1

    def run(
        self,
        start: Callable[[], Task],
        numbers: Sequence[int],
        what: str,
        total: int,
        left: int,
    ) -> None:
        """Does tasks and waits until all are done.

        Args:
            start: returns the task; called once in each process. With Beam, pickle must
                be able to send it.
            numbers: the numbers of the tasks.
            what: the description of the progress bar.
            total: the sentences of all tasks, those of earlier runs included.
            left: the sentences of these tasks.

        Raises:
            UserError: a task raised it, a worker died, or Beam is not installed.
        """
        if not numbers:
            return
        if self.are_here:
            with progress.bar(total, what) as bar:
                # Earlier sentences do not count for the displayed pace.
                bar.initial = bar.n = total - left
                do = start()
                for number in numbers:
                    do(number, bar.update)
            return
        # Beam is an extra, and takes seconds to import.
        with needing("corpus"):
            from cmlm.common import beam_tasks

        beam_tasks.run(start, numbers, what, left, self.beam_options, self.number)


HERE = Workers()
