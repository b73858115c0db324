"""Encodes a file of sentences, one sentence a line.

    python -m cmlm.encode --model=MODEL --input=sentences.txt --output=vectors.npy
    python -m cmlm.encode --model=MODEL --input=sentences.txt --query='How are you?'

    python -m cmlm.encode --model=MODEL --input='en/*.gz' --output=FOLDER --workers=0

The first command writes float32 [lines, dim], a vector for every line, empty lines
included, in the order of the file; numpy.load reads it. With --dtype=float16, the file
takes half of the space. vectors.npy.json names the encoder. The second command prints
the lines nearest to a sentence. Memory does not grow with the file.

The third command encodes a text of any size for cmlm.mine; with --workers or
--beam_options, processes of Apache Beam encode it. FOLDER/texts has the distinct lines,
FOLDER/vectors their unit vectors in shards. The same command resumes a stopped run, and
encodes the new lines of a text that grew at its end.

--pooling, --sentence_vector, --seq_length, --dimensions, --prompt, --prompts and
--precision change the vectors of a model_dir or of another program's weights. Exports,
servers and stored vectors have fixed values, and the command refuses others.
--prompt_name selects a prompt of the model for the lines. --query gets the prompt
`query`, if the model has it. Without --output, --prompt and --prompt_name, the lines
get the model's prompt `document`, `passage` or `corpus`: the first one that is not
empty, or an empty one if the model has no other.
"""

import contextlib
import functools
import shlex
import sys

from absl import flags

from cmlm import cli
from cmlm.common import beam_flags, choices
from cmlm.common.counts import counted
from cmlm.encoders import reading_flags
from cmlm.errors import UserError, naming

flags.DEFINE_string(
    "model",
    None,
    "An export, a model_dir (best:, untrained:, bow: or both: may precede it), a "
    "checkpoint, weights of another program, the address of a model server, or "
    "vectors:SENTENCES.txt:VECTORS.npy.",
)
flags.DEFINE_string(
    "input",
    None,
    "Text, one sentence a line: files, globs or a list (.txt, .txt.gz).",
)
flags.DEFINE_string(
    "output",
    None,
    "The .npy file to write, or a folder of shards: a path that does not end in .npy.",
)
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
flags.DEFINE_bool("normalize", False, "Scale every vector to length 1.")
flags.DEFINE_enum(
    "dtype",
    choices.DTYPES[0],
    choices.DTYPES,
    "Type of the numbers in --output. float16 halves the files.",
)
flags.DEFINE_multi_string(
    "query", [], "Print the lines of --input nearest to this sentence"
)
flags.DEFINE_integer(
    "neighbours", 3, "How many lines to print for each --query.", lower_bound=1
)
reading_flags.define()
reading_flags.define_precision()
beam_flags.define_for_tasks()

FLAGS = flags.FLAGS
# Of the search for equal lines.
_MEMORY = 2 << 30
# Of a file that is not plain text.
_EFFECT = "each line gets one vector"
# Names of files, which --output would make folders.
_OTHER_FILES = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".npz", ".gz", ".bin")
_OTHER_FILES += (".pt", ".h5", ".pkl", ".parquet", ".safetensors")


def main(_) -> None:
    cli.require(
        model="an export, a model_dir, weights of another program, or a server's "
        "address",
        input="text: files, globs or a list of them",
    )
    if not FLAGS.output and not FLAGS.query:
        raise UserError(
            "--output and --query are not given; allowed: --output=FILE.npy, "
            "--output=FOLDER or --query='a sentence'"
        )
    if not FLAGS.output:
        cli.refuse_given(["dtype", "normalize", "overwrite"], "with --output")
    if not FLAGS.query:
        cli.refuse_given(["neighbours"], "with --query")
    if FLAGS.output and FLAGS.output.endswith(_OTHER_FILES):
        raise UserError(
            f"--output is {FLAGS.output}; allowed: an .npy file, or a folder for shards"
        )
    if FLAGS.output and not FLAGS.output.endswith(".npy"):
        if FLAGS.query or FLAGS.overwrite:
            raise UserError(
                f"--output is {FLAGS.output}; allowed with --query or --overwrite: a "
                "path that ends in .npy"
            )
        _fill_folder()
        return
    if FLAGS.workers != 1 or FLAGS.beam_options:
        given = f"--output is {FLAGS.output or 'not given'}"
        raise UserError(
            f"{given}; allowed with --workers or --beam_options: a folder, without .npy"
        )
    _encode_lines()


def _encode_lines() -> None:
    """Writes a vector for every line, and prints the lines nearest to each --query."""
    with cli.quiet_imports():
        from cmlm.common import (
            arrays,
            atomic,
            files,
            identity,
            outputs,
            progress,
            prompts,
        )
        from cmlm.data import other_formats
        from cmlm.encoders import nearest_lines, vector_files

    about = vector_files.path_of(FLAGS.output) if FLAGS.output else None
    outputs.check(
        {"--output": FLAGS.output, "the description of --output": about},
        {"--input": FLAGS.input, "--model": FLAGS.model},
        FLAGS.overwrite,
    )

    # --------------------------------------------------- sentences and model
    with naming("--input"):
        paths = files.expand(FLAGS.input)
    other_formats.warn(paths, effect=_EFFECT)
    total = files.count_lines(paths)
    if not total:
        raise UserError(f"--input={FLAGS.input} is empty; allowed: at least one line")
    encoder = cli.open_encoder(FLAGS.model, reading_flags.reading())
    limit = encoder.seq_length
    cut = f"; longer ones are cut at {limit} tokens" if limit else ""
    print(f"{counted(total, 'line')} of {FLAGS.input}{cut}", file=sys.stderr)
    asking = encoder.for_role(prompts.QUERY)
    nearest = nearest_lines.NearestLines(asking.encode(FLAGS.query), FLAGS.neighbours)
    prompt_name = prompts.of_role(encoder, prompts.DOCUMENT)
    is_chosen = FLAGS.prompt is not None or FLAGS.prompt_name is not None
    if FLAGS.query and prompt_name and not is_chosen:
        if FLAGS.output:
            given = f"--prompt_name={shlex.quote(prompt_name)}"
            print(
                "note: --output and --query take the lines without the prompt "
                f"{prompt_name!r} of the model; {given} adds it",
                file=sys.stderr,
            )
        else:
            encoder = encoder.prompted(prompt_name)

    # ------------------------------------------------------------- encoding
    with contextlib.ExitStack() as stack:
        write = None
        if FLAGS.output:
            shape = (total, encoder.dim)
            # The description gets its name first, and both are on disk before.
            begin = stack.enter_context(outputs.named_together(FLAGS.output))
            write = stack.enter_context(
                arrays.npy_writer(FLAGS.output, shape, FLAGS.dtype)
            )
            record = stack.enter_context(atomic.file(about))
            vector_files.describe(record, encoder, FLAGS.normalize, shape)
        bar = stack.enter_context(progress.bar(total))
        for lines in files.windows(paths):
            encoded = encoder.encode(lines, progress=False)
            if FLAGS.query:
                nearest.add(lines, encoded)
            if write:
                write(arrays.unit_length(encoded) if FLAGS.normalize else encoded)
            bar.update(len(lines))
        if bar.n != total:
            raise UserError(
                f"{FLAGS.input} changed while the command read it; run it again"
            )
        if write:
            begin()

    # -------------------------------------------------------------- results
    for query, found in zip(FLAGS.query, nearest.found, strict=True):
        print(query)
        for cosine, line in found:
            print(f"  {cosine:.3f}  {line}")
    if FLAGS.output:
        made_by = f"encoder {identity.revision(encoder)}"
        print(f"{FLAGS.output}  {FLAGS.dtype} [{total}, {encoder.dim}], {made_by}")


def _fill_folder() -> None:
    """Writes distinct lines and their vectors; those of a former run stay."""
    with cli.quiet_imports():
        from cmlm.common import files, leftovers, locks, outputs, path_names
        from cmlm.data import other_formats
        from cmlm.encoders import opening
        from cmlm.mining import encoded, vectors

    outputs.check(
        {},
        {"--input": FLAGS.input, "--model": FLAGS.model},
        kept={"--output": FLAGS.output},
    )
    if not path_names.is_local(FLAGS.output):
        raise UserError(
            f"--output is {FLAGS.output}; allowed: a folder that every worker mounts"
        )
    with naming("--input"):
        paths = files.expand(FLAGS.input)
    other_formats.warn(paths, tables=False, effect=_EFFECT)
    reading = reading_flags.reading()
    with locks.held(FLAGS.output):
        encoded.refuse_others(FLAGS.output)
        leftovers.tidy_within(FLAGS.output, encoded.NAMES)
        encoder = cli.open_encoder(FLAGS.model, reading)
        reopen = functools.partial(opening.open_encoder, FLAGS.model, reading)
        texts, stored = encoded.write(
            FLAGS.output,
            paths,
            "--input",
            vectors.Reader(encoder, reopen),
            _MEMORY,
            beam_flags.workers(),
            FLAGS.dtype,
        )
    print(
        f"{FLAGS.output}  {counted(texts.lines, 'line')} with text, {len(texts):,} "
        f"distinct; {FLAGS.dtype} [{len(stored)}, {stored.dim}], unit length"
    )


if __name__ == "__main__":
    cli.run(main, never_trains=True, texts=("query",))
