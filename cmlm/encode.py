"""Encodes a file of sentences, one a line.

    python -m cmlm.encode --model=OUT --input=sentences.txt --output=vectors.npy
    python -m cmlm.encode --model=OUT --input=sentences.txt --query='How are you?'

The first writes float32 [lines, dim], a vector for every line (empty ones too) in
their order; numpy.load reads it. The second prints the lines nearest to a sentence.
Memory does not grow with the file.
"""

import contextlib
import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "model", None, "An export or a model_dir, which may have best: in front."
)
flags.DEFINE_string("input", None, "Text, one sentence a line: .txt or .txt.gz.")
flags.DEFINE_string("output", None, "The .npy file to write.")
flags.DEFINE_bool("overwrite", False, "Replace an output file that exists.")
flags.DEFINE_bool("normalize", False, "Scale every vector to length 1.")
flags.DEFINE_multi_string(
    "query", [], "Print the lines of --input nearest to this sentence; repeatable."
)
flags.DEFINE_integer(
    "neighbours", 3, "How many lines to print for each --query.", lower_bound=1
)

FLAGS = flags.FLAGS


def main(_) -> None:
    if not FLAGS.model:
        raise UserError("--model is not given; allowed: an export or a model_dir")
    if not FLAGS.input:
        raise UserError("--input is not given; allowed: a .txt or .txt.gz file")
    if not FLAGS.output and not FLAGS.query:
        raise UserError("nothing to do: give --output=FILE.npy or --query='a sentence'")
    if FLAGS.output and not FLAGS.output.endswith(".npy"):
        raise UserError(f"--output={FLAGS.output} must end in .npy")
    with cli.quiet_imports():
        from cmlm.common import arrays, files, progress
        from cmlm.encoders import opening

    if FLAGS.output:
        files.refuse_existing(FLAGS.output, FLAGS.overwrite)

    # --------------------------------------------------- sentences and model
    paths = files.expand(FLAGS.input)
    total = arrays.count_lines(paths)
    encoder = opening.open_encoder(FLAGS.model)
    print(
        f"{total:,} lines of {FLAGS.input}, cut at {encoder.seq_length} tokens",
        file=sys.stderr,
    )
    nearest = arrays.NearestLines(encoder.encode(FLAGS.query), FLAGS.neighbours)

    # ------------------------------------------------------------- encoding
    with contextlib.ExitStack() as stack:
        write = None
        if FLAGS.output:
            shape = (total, encoder.dim)
            write = stack.enter_context(arrays.npy_writer(FLAGS.output, shape))
        bar = stack.enter_context(progress.bar(total))
        for lines in arrays.windows(paths):
            encoded = encoder.encode(lines, progress=False)
            if FLAGS.query:
                nearest.add(lines, encoded)
            if write:
                write(arrays.unit_length(encoded) if FLAGS.normalize else encoded)
            bar.update(len(lines))
        if bar.n != total:
            raise UserError(f"{FLAGS.input} changed while it was read")

    # --------------------------------------------------- what, and where it is
    for query, found in zip(FLAGS.query, nearest.found, strict=True):
        print(query)
        for cosine, line in found:
            print(f"  {cosine:.3f}  {line}")
    if FLAGS.output:
        print(f"{FLAGS.output}  float32 [{total}, {encoder.dim}]")


if __name__ == "__main__":
    cli.run(main)
