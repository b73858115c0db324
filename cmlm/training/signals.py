"""SIGTERM and SIGINT: a run notes them, saves, and stops."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """SIGTERM or SIGINT arrived, and the run is saved.

    Attributes:
        signum: the signal.
    """

    def __init__(self, signum: int, step: int):
        super().__init__(f"stopped by {signal.Signals(signum).name} at step {step}")
        self.signum = signum


class Signals:
    """Notes SIGTERM or SIGINT within a context; a repeated signal has its usual effect.

    Attributes:
        received: the last signal, or None.
    """

    def __init__(self):
        self.received: int | None = None
        self._previous: dict = {}

    def __enter__(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum, _frame):
        self.received = signum
        signal.signal(signum, self._previous[signum])
