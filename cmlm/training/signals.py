"""SIGTERM and SIGINT: a run notes them, saves, and stops."""

from __future__ import annotations

import os
import signal
import sys
import threading

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Most runs have stopped after so many seconds.
_SECONDS = 3.0


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

    Python runs no handler while TensorFlow computes. During a step, repeated signals
    count as one, and the run stops after it. In a step of minutes, a thread says so.

    Attributes:
        received: the last signal, or None.
    """

    def __init__(self):
        self.received: int | None = None
        self._previous: dict = {}
        self._left = threading.Event()

    def __enter__(self):
        # Python writes the number of each signal there as it arrives.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        try:
            self._previous_writer = signal.set_wakeup_fd(
                self._writer, warn_on_full_buffer=False
            )
        except ValueError:
            # Only the main thread receives signals.
            os.close(self._reader)
            os.close(self._writer)
            raise
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()
        for signum in _SIGNALS:
            self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_writer)
        self._left.set()
        # The thread reads the end of the pipe.
        os.close(self._writer)
        self._teller.join()
        os.close(self._reader)

    def _note(self, signum, _frame):
        self.received = signum
        signal.signal(signum, self._previous[signum])

    def _tell(self):
        """Says that a signal has arrived if the run does not stop soon."""
        while read := os.read(self._reader, 1):
            signum = read[0]
            if signum in _SIGNALS and not self._left.wait(_SECONDS):
                # The progress line of a terminal has no end yet.
                start = "\n" if sys.stderr.isatty() else ""
                print(
                    f"{start}{signal.Signals(signum).name}: the run stops after this "
                    f"step or validation; kill -9 {os.getpid()} ends it at once",
                    file=sys.stderr,
                    flush=True,
                )
                return
