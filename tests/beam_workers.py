"""Beam's workers of this machine as forks: `python -m tests.beam_workers SOCKET`.

It runs in a fork of the warm process, and leaves a process that forks a worker for each
program that connects to SOCKET. The first connection is no worker: with it, all ends.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

# The modules of the tests import each other by their names alone.
sys.path.append(str(Path(__file__).parent))

from campaign import warm

# What Beam starts in place of Python. It ends when the fork ends, and as the fork ends;
# when Beam kills it, the fork ends too.
CLIENT = """#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
order = [sys.argv[2], dict(os.environ)]
connection.sendall(json.dumps(order).encode() + b"\\n")
code = int(connection.makefile().readline())
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def keep(connection: socket.socket) -> None:
    """Forks the worker of a connection, and waits for both."""
    module, environment = json.loads(connection.makefile().readline())
    worker = os.fork()
    if not worker:
        connection.close()
        os.environ.clear()
        os.environ.update(environment)
        sys.path += environment.get("PYTHONPATH", "").split(os.pathsep)
        warm.become(module, [], os.devnull, os.devnull)
    while not (done := os.waitpid(worker, os.WNOHANG))[0]:
        if select.select([connection], [], [], 0.02)[0]:
            os.kill(worker, signal.SIGKILL)
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(done[1]))


def serve(listening: socket.socket) -> None:
    first, _ = listening.accept()
    # The kernel forgets ended children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while first not in select.select([first, listening], [], [])[0]:
        connection, _ = listening.accept()
        if not os.fork():
            first.close()
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keep(connection)
            return
        connection.close()


def main() -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    if not os.fork():
        try:
            serve(listening)
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
