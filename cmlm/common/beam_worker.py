"""A worker process of Beam on this machine: `python -m cmlm.common.beam_worker`.

Beam's own worker outlives a killed main process by minutes, with its memory.
"""

from __future__ import annotations

import os
import sys
import threading
import time


def end_after(main_process: int) -> None:
    """Ends this process as soon as its parent is another than the main process."""
    while os.getppid() == main_process:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_after, args=(os.getppid(),), daemon=True).start()

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
