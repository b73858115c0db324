"""Child processes that measure on command, so that programs of two environments can
take turns on one machine, and exports as they run there. Imports the standard library
only: environments without TensorFlow import it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


class Worker:
    """A child process that answers questions, one at a time.

    Args:
        command: of a program that calls `serve`.
        threads: processors it may use; it is pinned to the first ones.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        threads: int,
        environment: Mapping[str, str] | None = None,
    ):
        # Whoever inherits the mask sees so many processors and makes so many threads.
        processors = sorted(os.sched_getaffinity(0))[:threads]
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                **(environment or {}),
            },
            preexec_fn=lambda: os.sched_setaffinity(0, processors),
        )

    def ask(self, question: str, **arguments):
        """Sends a question and waits for its answer.

        Raises:
            RuntimeError: the child ended; it has said why on stderr.
        """
        request = json.dumps({"do": question, **arguments})
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args[:3]} ended at {request}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the child."""
        self._process.stdin.close()
        self._process.wait()


def serve(**handlers: Callable) -> None:
    """Answers questions from stdin until it ends; libraries may print, to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(handlers[request.pop("do")](**request)) + "\n")
        answers.flush()


def seconds(function: Callable[[], object]) -> dict[str, float]:
    """Wall and processor time of a call, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    function()
    return {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
    }


def latencies(function: Callable[[], object], times: int) -> list[float]:
    """Wall seconds of each of some calls in a row."""
    return [seconds(function)["wall"] for _ in range(times)]


def serving_signature(export: str, threads: int) -> Callable:
    """The serving signature as a model server loads and runs it: texts to vectors."""
    import tensorflow as tf

    settings = tf.compat.v1.ConfigProto(
        # As in the printed command of the server.
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=threads,
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=settings)
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(
            session, ["serve"], f"{export}/serving/1"
        )
    signature = loaded.signature_def["serving_default"]
    text, default = signature.inputs["text"].name, signature.outputs["default"].name
    # What the first request of assets.extra does in a model server.
    session.run(default, {text: ["Where is the nearest station, please?"]})
    return lambda texts: session.run(default, {text: texts})
