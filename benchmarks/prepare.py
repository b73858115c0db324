"""How fast `cmlm.prepare` is by step, and that it is linear: a WET file, and two of it.

    python benchmarks/prepare.py --input='text/*/*.txt.gz' --work_dir=/tmp/prepare
    python benchmarks/prepare.py --input=... --work_dir=... --megabytes=20 --workers=1

Makes pages of the real text, with the boilerplate of web pages around it, as WET files
of Common Crawl's format. In every line one word is changed, every tenth page is an
exact copy. Prints

1. MB of text a second on one core for each step alone, in processor time;
2. wall time, processor time and peak memory of the whole command, of the main process
   and of the largest worker, for one file and for two.
"""

import collections
import glob
import gzip
import io
import os
import random
import subprocess
import sys
import threading
import time

from absl import app, flags

flags.DEFINE_string(
    "input", None, "Glob of text files, .txt or .txt.gz.", required=True
)
flags.DEFINE_string("work_dir", None, "Folder for the files.", required=True)
flags.DEFINE_integer("megabytes", 200, "Unpacked size of one WET file.")
flags.DEFINE_integer("workers", 0, "Processes of the command; 0: one per core.")
flags.DEFINE_integer("step_megabytes", 10, "Text for the measurement of each step.")
flags.DEFINE_bool("near_duplicates", False, "Run the step near_duplicates, too.")

FLAGS = flags.FLAGS

_STEPS = ["c4", "length", "language", "duplicate_documents", "duplicate_lines"]


def make_wet(path: str, texts: list[list[str]], megabytes: int, seed: int) -> None:
    """Writes a WET file of about so many megabytes, unpacked; a page is of one text."""
    from warcio.warcwriter import WARCWriter

    generator = random.Random(seed)
    written, page = 0, b""
    sizes = [len(lines) for lines in texts]
    with open(path + ".part", "wb") as file:
        writer = WARCWriter(file, gzip=True)
        while written < megabytes * 1_000_000:
            if generator.random() > 0.1 or not page:
                text = ["Home | About | Contact | Search"]
                (lines,) = generator.choices(texts, sizes)
                start = generator.randrange(len(lines))
                for line in lines[start : start + generator.randint(4, 40)]:
                    words = line.split()
                    words[generator.randrange(len(words))] = generator.choice(words)
                    text.append(" ".join(words))
                text += ["We use cookies to make this page better.", "Read more ..."]
                page = "\n".join(text).encode()
            writer.write_record(
                writer.create_warc_record(
                    f"http://example.org/{written}",
                    "conversion",
                    payload=io.BytesIO(page),
                    warc_content_type="text/plain",
                )
            )
            written += len(page)
    os.rename(path + ".part", path)


def time_steps(path: str) -> None:
    """Prints the speed of every step on documents that the steps before let through."""
    from cmlm.preparation import deduplication, documents, sources, spreading, steps
    from cmlm.preparation.settings import Settings

    start = time.process_time()
    found, size = [], 0
    for _, lines in sources.read(path, "wet", collections.Counter()):
        number = documents.number(0, len(found))
        found.append(documents.Document(number, documents.UNKNOWN, lines))
        size += sum(len(line.encode()) + 1 for line in lines)
        if size > FLAGS.step_megabytes * 1_000_000:
            break
    whole = size
    total = _told("read", size, time.process_time() - start)
    settings = Settings((path,), "wet", tuple(_STEPS), languages=(), shards=4)
    for step in steps.chosen(settings):
        step.start_bundle()
        size = _bytes(found)
        start = time.process_time()
        found = [kept for document in found for kept in step.process(document)]
        total += _told(step.name, size, time.process_time() - start)
    size, spread = _bytes(found), spreading.Spread(settings)
    spread.start_bundle()
    start = time.process_time()
    sent = [item for document in found for item in spread.process(document)]
    sent += list(spread.finish_bundle())
    total += _told("fingerprints and packing", size, time.process_time() - start)
    if FLAGS.near_duplicates:
        start = time.process_time()
        for document in found:
            deduplication.signature(" ".join(document.lines))
        total += _told("near_duplicates", size, time.process_time() - start)
    print(f"{'all of these':26} {whole / total / 1e6:8.1f} MB/s of raw text")


def _bytes(found) -> int:
    return sum(len(line.encode()) + 1 for d in found for line in d.lines)


def _told(name: str, size: int, seconds: float) -> float:
    print(f"{name:26} {size / seconds / 1e6:8.1f} MB/s", flush=True)
    return seconds


def run(paths: list[str], output: str) -> None:
    """Runs the command and prints its times and peak memory."""
    steps = [*_STEPS, "near_duplicates"] if FLAGS.near_duplicates else _STEPS
    command = [
        *(sys.executable, "-m", "cmlm.prepare", f"--input={','.join(paths)}"),
        *("--layout=wet", "--language=all", f"--output={output}", "--overwrite"),
        *(f"--workers={FLAGS.workers}", f"--steps={','.join(steps)}", "--shards=8"),
    ]
    before = os.times()
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    peaks: dict[int, int] = {}
    thread = threading.Thread(target=_watch, args=(process, peaks), daemon=True)
    thread.start()
    text = process.stdout.read()
    if process.wait():
        sys.exit(f"{' '.join(command)} failed:\n{text}")
    thread.join()
    seconds = time.monotonic() - start
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    main = peaks.pop(process.pid)
    worker = f", largest worker {max(peaks.values()) / 1000:.0f} MB" if peaks else ""
    print(
        f"{len(paths)} file(s): {seconds:.1f} s, {cpu:.1f} CPU seconds; peak memory:"
        f" main process {main / 1000:.0f} MB{worker}",
        flush=True,
    )
    print("  " + "\n  ".join(text.splitlines()[1:-1]))


def _watch(process: subprocess.Popen, peaks: dict[int, int]) -> None:
    """Notes the peak memory in kB of a process and its children until it ends."""
    while process.poll() is None:
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        pids = [process.pid]
        for task in glob.glob(f"/proc/{process.pid}/task/*/children") or [children]:
            try:
                with open(task, encoding="ascii") as file:
                    pids += map(int, file.read().split())
            except OSError:
                continue
        for pid in pids:
            try:
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    (peak,) = [x for x in file if x.startswith("VmHWM")]
                # The last one: until a child calls `exec` it has its parent's.
                peaks[pid] = int(peak.split()[1])
            except (OSError, ValueError):
                continue
        time.sleep(0.2)


def main(_) -> None:
    texts = []
    for path in sorted(glob.glob(FLAGS.input)):
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            texts.append([line.strip() for line in file if len(line) > 40])
    texts = [lines for lines in texts if lines]
    if not texts:
        sys.exit(f"--input={FLAGS.input} has no text")
    os.makedirs(FLAGS.work_dir, exist_ok=True)
    paths = []
    for seed in (0, 1):
        name = f"{FLAGS.megabytes}mb-{seed}.warc.wet.gz"
        paths.append(os.path.join(FLAGS.work_dir, name))
        if not os.path.exists(paths[-1]):
            make_wet(paths[-1], texts, FLAGS.megabytes, seed)
    time_steps(paths[0])
    for some in (paths[:1], paths):
        run(some, os.path.join(FLAGS.work_dir, "output"))


if __name__ == "__main__":
    app.run(main)
