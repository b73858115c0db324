"""Peak memory and speed of the training pipeline for a corpus and for ten times it.

    python benchmarks/data_memory.py --input='corpus/*.txt.gz'
    python benchmarks/data_memory.py            # the built-in corpus

The corpus is copied under distinct names until it has about --megabytes, and ten times
that. Each size runs in a process of its own, one pass over its pairs as training reads
them: shuffled, bucketed, tokenised, masked. "skip" is the time to the first batch of a
run that resumes in the middle of that pass. Takes about two minutes on two cores.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BATCH_SIZE = 64


def measure(files: list[str], vocab_file: str) -> dict[str, float]:
    """Reads one pass of training batches; returns the numbers of this process."""
    from cmlm.data import (
        batches,
        corpus,
        inspection,
        masked_pipelines,
        masking,
        settings,
    )
    from cmlm.tokenization import word_pieces

    tokenizer = word_pieces.WordPiece(vocab_file)
    config = settings.TextDataConfig(input_path="-", global_batch_size=BATCH_SIZE)
    report = inspection.inspect(files, max_bytes=1 << 40)

    def read(skip_batches):
        return iter(
            masked_pipelines.conditional_pairs(
                batches.Feed(
                    config,
                    tokenizer,
                    corpus.Corpus({"": files}, {"": report.sentences}),
                    batch_size=BATCH_SIZE,
                    part="train",
                    skip_batches=skip_batches,
                ),
                masking.MaskingConfig(),
                passages=False,
            )
        )

    n_batches = report.pairs // BATCH_SIZE
    began = time.monotonic()
    iterator = read(0)
    n_tokens = n_cells = 0
    for _ in range(n_batches):
        batch = next(iterator)
        for side in ("context_mask", "input_mask"):
            n_tokens += int(batch[side].numpy().sum())
            n_cells += batch[side].numpy().size
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.monotonic()
    next(read(n_batches // 2))
    return {
        "text_mb": report.bytes / 1e6,
        "pairs": report.pairs,
        "peak_rss_mb": peak,
        "pairs_per_s": n_batches * BATCH_SIZE / seconds,
        "tokens_per_s": n_tokens / seconds,
        "padding": 1 - n_tokens / n_cells,
        "skipped_batches": n_batches // 2,
        "skip_s": time.monotonic() - began,
    }


def prepare(input_path: str, work: str) -> dict[str, object]:
    """Makes the corpus and a vocabulary for it."""
    from cmlm.data import inspection, settings
    from cmlm.vocabulary import of_run
    from cmlm.vocabulary.settings import VocabularyConfig

    config = settings.TextDataConfig(input_path=input_path, global_batch_size=1)
    (files,) = config.load(work).files.values()
    vocab_file = of_run.prepare(VocabularyConfig(size=8000), {"": files}, work)
    n_bytes = inspection.inspect(files, max_bytes=1 << 40).bytes
    return {"files": files, "vocab_file": vocab_file, "bytes": n_bytes}


def run(*arguments: str) -> dict:
    """Runs a step in a process of its own.

    Linux counts a parent's memory into the peak of a child that it forks, so that this
    process must stay small: it imports nothing of TensorFlow.
    """
    command = [sys.executable, __file__, "--child", *arguments]
    return json.loads(subprocess.check_output(command).splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", default="builtin:python-docs")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        step, first, second = arguments.child
        if step == "prepare":
            result = prepare(first, second)
        else:
            result = measure(sorted(entry.path for entry in os.scandir(first)), second)
        print(json.dumps(result))
        return

    with tempfile.TemporaryDirectory() as work:
        corpus = run("prepare", arguments.input, work)
        for size in (arguments.megabytes, 10 * arguments.megabytes):
            directory = os.path.join(work, f"{size:.0f}")
            os.mkdir(directory)
            for copy in range(max(1, round(size * 1e6 / corpus["bytes"]))):
                for path in corpus["files"]:
                    name = f"{copy:04d}-{os.path.basename(path)}"
                    shutil.copy(path, os.path.join(directory, name))
            result = run("measure", directory, corpus["vocab_file"])
            print(
                "{text_mb:.0f} MB text, {pairs:,} pairs: peak RSS {peak_rss_mb:.0f} MB,"
                " {pairs_per_s:,.0f} pairs/s, {tokens_per_s:,.0f} tokens/s,"
                " {padding:.0%} padding, skip of {skipped_batches:,} batches"
                " {skip_s:.1f} s".format(**result),
                flush=True,
            )


if __name__ == "__main__":
    main()
