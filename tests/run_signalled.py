"""Runs a module in forks that a signal ends: `python -m tests.run_signalled FILE`.

FILE is a JSON file: the number of workers, a path, a signal, the module and its
arguments. Each fork becomes `python -m module arguments`; of several, each has its
TF_CONFIG. The first one gets the signal as soon as the path exists. Prints a line of
JSON for each: its exit code and its messages.
"""

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

# The modules of the tests import each other by their names alone.
sys.path.append(str(Path(__file__).parent))

from campaign import warm


def tf_configs(workers: int) -> list[str]:
    """TF_CONFIG of workers on free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(workers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        hosts = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    return [
        json.dumps(
            {
                "cluster": {"worker": hosts},
                "task": {"type": "worker", "index": index},
            }
        )
        for index in range(workers)
    ]


def main() -> None:
    workers, path, signum, module, arguments = json.loads(Path(sys.argv[1]).read_text())
    forks = []
    for number, config in enumerate(tf_configs(workers)):
        fork = os.fork()
        if not fork:
            if workers > 1:
                os.environ["TF_CONFIG"] = config
            warm.become(module, arguments, f"out-{number}", f"err-{number}")
        forks.append(fork)
    if path:
        looks = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not (Path(path).exists() or os.waitid(os.P_PID, forks[0], looks)):
            time.sleep(0.02)
        os.kill(forks[0], signum)
    for number, fork in enumerate(forks):
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        print(json.dumps([code, Path(f"err-{number}").read_text()]))


if __name__ == "__main__":
    main()
