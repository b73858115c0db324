"""A worker process of Beam on this machine: `python -m cmlm.common.beam_worker`.

TMPDIR is the folder of the run, see `beam_runner.run`. Beam's own worker outlives a
killed main process by minutes, with its memory.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def stop_sign(folder: str) -> str:
    """The file that ends the workers of a run when it appears in the run's folder."""
    return os.path.join(folder, "stop")


def end_after(main_process: int, folder: str) -> None:
    """Ends this process if the main process has ended, or the stop sign is there."""
    sign = stop_sign(folder)
    while os.getppid() == main_process and not os.path.exists(sign):
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    # A terminal sends Ctrl-C to all processes; the main process ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends = (os.getppid(), os.environ["TMPDIR"])
    threading.Thread(target=end_after, args=ends, daemon=True).start()

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
