"""A model server under load: errors, wrong vectors, latency and memory.

    python benchmarks/serving_soak.py --export=EXPORT --seconds=600
    python benchmarks/serving_soak.py --export=EXPORT --server='batching stand-in'
    python benchmarks/serving_soak.py --export=EXPORT --server=tensorflow_model_server

The seconds are shared by the numbers of --clients. Half of the clients use REST, half
gRPC. A request holds 0 to 100 strings of mixed lengths, some with bytes that are not
UTF-8. Every vector is compared with the vector of its string in a request of its
own. Memory is the resident memory of the server's process and of its children at five
times from the first requests to the end, its growth for each 1,000 requests in both
halves, and what stays at the end when the allocator returns its free pages: memory that
requests leak grows in both halves and stays. --samples writes every sample. The
stand-ins (tests/servers.py) are Python and run in a process of their own, so their
latency says little about that of a model server.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
from absl import flags

from cmlm import cli
from cmlm.errors import UserError, one_line

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

_SERVERS = ("stand-in", "batching stand-in", "tensorflow_model_server")

flags.DEFINE_string("export", None, "Folder of export.tfhub.")
flags.DEFINE_enum("server", _SERVERS[0], _SERVERS, "Server to test.")
flags.DEFINE_list(
    "clients", ["8", "64"], "Clients at the same time, one after another."
)
flags.DEFINE_integer("seconds", 600, "Duration of all rounds together.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Seed of the requests.")
flags.DEFINE_string(
    "samples", None, "File to write: clients, seconds, requests and MB of each sample."
)

FLAGS = flags.FLAGS

_SIZES = (0, 1, 1, 1, 1, 2, 4, 8, 32, 100)
_WORDS = "the station committee said on Friday that it would publish a report".split()
# Larger differences, relative to the largest entry of a vector, are not rounding.
_TOLERANCE = 1e-4
# Seconds; a slow answer counts by its latency, not as an error.
_TIMEOUT = 600
# Of the memory in the time of one number of clients.
_SAMPLES = 100


def main(_) -> int:
    cli.require(export="a folder of export.tfhub")
    numbers = [int(number) for number in FLAGS.clients]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(FLAGS.server, f"{FLAGS.export}/serving", theirs)
    )
    process.start()
    try:
        theirs.close()
        try:
            addresses = ours.recv()
        except EOFError:
            raise UserError(f"--server={FLAGS.server} ended at its start") from None
        with cli.quiet_imports():
            from cmlm.encoders import model_server
        connected = [
            model_server.connect(address, timeout=_TIMEOUT) for address in addresses
        ]
        texts = _texts(random.Random(FLAGS.seed))
        single = [
            np.concatenate([_ask(server, [text]) for text in texts])
            for server in connected
        ]
        apart = _difference(single[0], single[1]).max()
        print(f"{len(texts)} strings; REST and gRPC differ by {apart:.1e}")
        print(
            "| clients | seconds | requests | strings | a second | errors | wrong |"
            " largest difference | p50 ms | p99 ms | MB at 0, 1/4, 1/2, 3/4, 1 |"
            " MB per 1,000 requests, halves | MB when trimmed |"
        )
        print("|---" * 13 + "|")
        samples = ["clients\tseconds\trequests\tMB\n"]
        failed = 0
        for clients in numbers:
            # The first requests of a kind make buffers that stay.
            _load(connected, texts, single, clients, min(5.0, FLAGS.seconds / 10))
            found = _load(
                connected,
                texts,
                single,
                clients,
                FLAGS.seconds / len(numbers),
                process.pid,
            )
            failed += len(found.errors) + found.wrong
            ours.send("trim")
            ours.recv()
            print(found.row(clients, _megabytes(process.pid)), flush=True)
            for sample in found.memory:
                samples.append("\t".join(f"{v:.1f}" for v in (clients, *sample)) + "\n")
            for error in sorted(set(found.errors))[:5]:
                print(f"    {found.errors.count(error)} times: {error}")
        if FLAGS.samples:
            Path(FLAGS.samples).write_text("".join(samples))
        return int(bool(failed))
    finally:
        ours.close()
        process.join(30)
        process.kill()


def _serve(kind: str, serving: str, pipe) -> None:
    """The process of the server, until the other end of the pipe closes."""
    with cli.quiet_imports():
        import servers
        import tensorflow_text  # noqa: F401  (registers ops)
    with servers.start(kind, serving) as addresses:
        pipe.send(addresses)
        with contextlib.suppress(EOFError):
            while pipe.recv() == "trim":
                # The pages of another program are its own affair.
                ctypes.CDLL(None).malloc_trim(0)
                pipe.send("trimmed")


def _texts(draw: random.Random) -> list[bytes]:
    """Strings of all lengths: empty, short, far too long, and no UTF-8."""
    texts = [
        b"",
        b" ",
        b"\0",
        "\u65e5\u672c\u8a9e".encode(),
        b"\xff\xfe",
        b"caf\xe9 \xed\xa0\x80",
    ]
    for length in [*range(1, 30), 60, 120, 400, 2000] * 2:
        text = " ".join(draw.choices(_WORDS, k=length)).encode()
        if draw.random() < 0.1:
            place = draw.randrange(len(text))
            text = text[:place] + bytes([draw.randrange(128, 256)]) + text[place:]
        texts.append(text)
    return texts


def _ask(server, texts: list[bytes]) -> np.ndarray:
    return server.predict("serving_default", {"text": texts})["default"]


def _difference(vectors: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The largest difference of each row, relative to the largest entry: [n]."""
    scale = np.abs(wanted).max(-1)
    # A comparison with NaN is False everywhere else.
    return np.nan_to_num(np.abs(vectors - wanted).max(-1) / scale, nan=np.inf)


class _Found:
    """What the clients of one load saw."""

    def __init__(self):
        self.errors: list[str] = []
        self.milliseconds: list[float] = []
        self.strings = self.wrong = 0
        self.largest = self.seconds = 0.0
        # (seconds, requests, MB), from the beginning to the end.
        self.memory: list[tuple[float, int, float]] = []

    def row(self, clients: int, trimmed: float) -> str:
        p50, p99 = np.percentile(self.milliseconds or [np.nan], [50, 99])
        memory = np.array(self.memory)
        places = np.linspace(0, len(memory) - 1, 5).astype(int)
        at = ", ".join(f"{value:.0f}" for value in memory[places, 2])
        halves = np.array_split(memory, 2)
        growth = [np.polyfit(half[:, 1] / 1000, half[:, 2], 1)[0] for half in halves]
        return (
            f"| {clients} | {self.seconds:.0f} | {len(self.milliseconds):,}"
            f" | {self.strings:,} | {self.strings / self.seconds:.0f}"
            f" | {len(self.errors)} | {self.wrong} | {self.largest:.1e}"
            f" | {p50:.0f} | {p99:.0f} | {at}"
            f" | {growth[0]:+.1f}, {growth[1]:+.1f} | {trimmed:.0f} |"
        )


def _load(
    connected, texts, single, clients: int, seconds: float, process: int | None = None
) -> _Found:
    """Lets clients ask until the time is over; samples the memory of a process."""
    found, lock = _Found(), threading.Lock()
    began = time.monotonic()

    def client(number: int) -> None:
        server, wanted = connected[number % 2], single[number % 2]
        draw = random.Random(f"{FLAGS.seed} {clients} {number}")
        while time.monotonic() < began + seconds:
            rows = draw.choices(range(len(texts)), k=draw.choice(_SIZES))
            asked = time.monotonic()
            try:
                vectors = _ask(server, [texts[row] for row in rows])
                error = ""
            # Another error would end the client without a count.
            except Exception as failure:
                error = one_line(repr(failure))
            taken = 1000 * (time.monotonic() - asked)
            with lock:
                found.milliseconds.append(taken)
                if error:
                    found.errors.append(error)
                    continue
                found.strings += len(rows)
                if not rows:
                    found.wrong += vectors.size
                    continue
                if vectors.shape != wanted[rows].shape:
                    found.wrong += len(rows)
                    continue
                differences = _difference(vectors, wanted[rows])
                found.wrong += int((differences > _TOLERANCE).sum())
                found.largest = max(found.largest, float(differences.max()))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    while process and time.monotonic() < began + seconds:
        sample = time.monotonic() - began, len(found.milliseconds), _megabytes(process)
        found.memory.append(sample)
        time.sleep(seconds / _SAMPLES)
    for thread in threads:
        thread.join()
    found.seconds = time.monotonic() - began
    return found


def _megabytes(process: int) -> float:
    """The resident memory of a process and of its children."""
    total = 0.0
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            total += int(line.split()[1]) / 1024
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        # The server's threads come and go.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += sum(map(_megabytes, map(int, children.read_text().split())))
    return total


if __name__ == "__main__":
    cli.run(main)
