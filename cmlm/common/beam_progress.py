"""A progress bar for the processes of a Beam pipeline on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from cmlm.common.progress import Bar


class Progress:
    """A progress bar for several processes of this machine.

    The workers call `add`, which appends to one file. The main process calls `shown`,
    which reads the file. Workers on other machines do not see the file: their `add`
    does nothing, and the bar shows only the elapsed time.

    Args:
        total: the amount that makes 100 %.
        unit: the unit of the amount.
        afterwards: the description of the bar after 100 %.
        description: the description of the bar until then.
    """

    def __init__(
        self, total: int, unit: str = "B", afterwards: str = "", description: str = ""
    ):
        self._description = description
        self._total, self._unit, self._afterwards = total, unit, afterwards
        self._path: str | None = None
        self._pending, self._written = 0, 0.0

    def add(self, amount: int) -> None:
        """Counts finished work; fast enough for a call with every record."""
        self._pending += amount
        now = time.monotonic()
        if now - self._written > 0.5:
            self.flush()
            self._written = now

    def flush(self) -> None:
        """Writes the amounts since the last write; call it at the end of a bundle."""
        if self._pending and self._path and os.path.exists(self._path):
            # A short write in append mode is atomic: the processes' lines do not mix.
            with open(self._path, "a", encoding="ascii") as file:
                file.write(f"{self._pending}\n")
        self._pending = 0

    @contextlib.contextmanager
    def shown(self, folder: str) -> Iterator[None]:
        """Shows the bar until the block ends, then deletes the file.

        Args:
            folder: of the file. Workers get copies that are made in the block.
        """
        self._path = os.path.join(folder, "progress")
        open(self._path, "x", encoding="ascii").close()
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            # A program that cleans old files may have removed it.
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)

    def _follow(self, ended: threading.Event) -> None:
        bar = Bar(
            total=self._total,
            desc=self._description or None,
            unit=self._unit,
            unit_scale=True,
        )
        with bar, open(self._path, encoding="ascii") as file:
            last = False
            while not last:
                last = ended.wait(0.5)
                bar.update(sum(map(int, file.read().split())))
                if bar.n >= self._total:
                    bar.set_description(self._afterwards, refresh=False)
                if sys.stderr.isatty():
                    bar.refresh()
