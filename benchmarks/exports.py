"""Exports against each other: requests of several sizes, in turn, in one process.

    python benchmarks/exports.py --export=BEFORE --export=AFTER --text='*.txt.gz'

Each is loaded as a model server loads it. A request is so many sentences in one call of
`serving_default`. Prints sentences a second, medians over the rounds, and the ratio of
each export to the first.
"""

import random
import statistics
import time

import workers
from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_multi_string("export", [], "Folders of export.tfhub; repeatable.")
flags.DEFINE_string("text", None, "Files with one sentence a line.")
flags.DEFINE_list("requests", ["1", "8", "32", "120", "800"], "Sentences in a call.")
flags.DEFINE_integer("rounds", 7, "Timed rounds of each request size.")
flags.DEFINE_integer("threads", 1, "Threads of the session.")

FLAGS = flags.FLAGS


def main(_) -> None:
    cli.require(
        export="a folder of export.tfhub", text="files with one sentence a line"
    )
    with cli.quiet_imports():
        import tensorflow_text  # noqa: F401  (registers ops)

        from cmlm.common import files

    lines = []
    for path in files.expand(FLAGS.text):
        with files.open_text(path) as file:
            lines += [line.strip() for line in file if len(line.strip()) > 20]
    sizes = [int(size) for size in FLAGS.requests]
    needed = max(sizes) * (FLAGS.rounds + 1)
    if len(lines) < needed:
        raise UserError(
            f"--text has {len(lines):,} lines of more than 20 characters; allowed: "
            f"{needed:,} or more, --rounds and one times the largest of --requests"
        )
    random.Random(0).shuffle(lines)

    runs = {
        export: workers.serving_signature(export, FLAGS.threads)
        for export in FLAGS.export
    }
    print(f"| sentences | {' | '.join(runs)} |")
    print("|---" * (1 + len(runs)) + "|")
    for size in sizes:
        seconds = {export: [] for export in runs}
        for number in range(FLAGS.rounds + 1):
            texts = lines[number * size : (number + 1) * size]
            for export, run in runs.items():
                begin = time.perf_counter()
                run(texts)
                if number:  # the first call warms up
                    seconds[export].append(time.perf_counter() - begin)
        first, *_ = medians = [statistics.median(taken) for taken in seconds.values()]
        cells = [f"{size / m:.1f} ({first / m:.2f})" for m in medians]
        print(f"| {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    cli.run(main)
