"""How long does a run with many languages take before its first batch is asked for?

    python benchmarks/many_languages.py --languages=30

Builds the datasets of training and validation for each language, from a file of 2,000
lines each, and prints the processor time of the building. Nothing is read.
"""

import os
import sys
import tempfile
import time

from absl import flags

from cmlm import cli

with cli.quiet_imports():
    import tensorflow as tf
    from tensorflow.python.autograph.core import ag_ctx

    from cmlm.data import streams
    from cmlm.data.passages import Passages

flags.DEFINE_integer("languages", 30, "Languages of the run.")

FLAGS = flags.FLAGS


def _count(lines: tf.Tensor) -> tf.Tensor:
    """Stands for a tokenizer: string [n] -> int32 [n]."""
    return tf.strings.length(lines)


def main() -> None:
    FLAGS(sys.argv)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text.txt")
        with open(path, "w") as file:
            file.writelines(f"This is line {number}\n" for number in range(2000))
        # Objectives build their datasets without AutoGraph, too.
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.DISABLED):
            for name, source in (
                ("sentence_pairs", streams.sentence_pairs),
                ("passage_pairs", Passages(_count, 30).pairs),
            ):
                began = time.process_time()
                for seed in range(FLAGS.languages):
                    for part in ("train", "validation"):
                        portion = streams.Portion([path], part, 0.01, None, seed)
                        source(portion)
                seconds = time.process_time() - began
                print(f"{name}: {seconds:.1f} processor seconds")


if __name__ == "__main__":
    main()
