"""Peak memory of counting n-grams, for a corpus and for ten times it.

    python benchmarks/ngrams_memory.py --input='corpus/*.txt.gz' [--scope=document]

The same lines ten times would be no more n-grams than once. So copy k of the text has
other words: each is replaced by the one k places further down the list of all words by
frequency. Every size runs in a process of its own, `python -m cmlm.ngrams`
as a user starts it. About ten minutes on two cores for WikiText-2.
"""

import argparse
import collections
import glob
import gzip
import os
import re
import resource
import subprocess
import sys
import tempfile
import time

_WORD = re.compile(r"\w+")


def read(pattern: str) -> list[str]:
    """The lines of all files."""
    lines = []
    for path in sorted(glob.glob(pattern)):
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8") as file:
            lines += file
    return lines


def write_copies(lines: list[str], copies: int, path: str) -> None:
    """Writes the text several times, each time with other words.

    Args:
        lines: of the text.
        copies: how many.
        path: of the file to write.
    """
    counts = collections.Counter(
        word for line in lines for word in _WORD.findall(line.lower())
    )
    words = [word for word, _ in counts.most_common()]
    rank = {word: number for number, word in enumerate(words)}
    with open(path, "w", encoding="utf-8") as file:
        for copy in range(copies):

            def other(match, copy=copy):
                return words[(rank[match.group()] + copy) % len(words)]

            file.writelines(_WORD.sub(other, line.lower()) for line in lines)
            file.write("\n")


def measure(path: str, scope: str, max_entries: int, work: str) -> str:
    """Counts the n-grams of a file; returns the time and memory as a line of text."""
    output = os.path.join(work, "ngrams.tsv")
    began = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "cmlm.ngrams", f"--input={path}"),
            *(f"--output={output}", f"--scope={scope}"),
            f"--max_entries={max_entries}",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    with open(output, "rb") as file:
        kept = sum(1 for _ in file)
    return (
        f"{scope}, {os.path.getsize(path) / 1e6:.0f} MB of text: peak RSS "
        f"{used.ru_maxrss / 1024:.0f} MB, {seconds:.0f} s, CPU {cpu:.0f} s, "
        f"{kept:,} n-grams kept"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", required=True)
    parser.add_argument("--scope", default="corpus", choices=["corpus", "document"])
    parser.add_argument("--max_entries", type=int, default=1_000_000)
    # A size a process: the peak of children is that of the largest there was.
    parser.add_argument("--copies", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.copies is None:
        for copies in (1, 10):
            subprocess.run([*sys.orig_argv, f"--copies={copies}"], check=True)
        return
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "text.txt")
        write_copies(read(arguments.input), arguments.copies, path)
        print(measure(path, arguments.scope, arguments.max_entries, work), flush=True)


if __name__ == "__main__":
    main()
