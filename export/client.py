"""Requests vectors from a running model server.

    python -m export.client --server=http://localhost:8501 --text='Where is the file?'
    python -m export.client --server=grpc://localhost:8500 --input=sentences.txt \\
        --output=vectors.npy
    python -m export.client --server=grpc://localhost:8500 --signature=pcr \\
        --language=de --text='Wo ist die Datei?'

http:// and https:// use REST, grpc:// and grpcs:// use gRPC. The address may name the
model: http://localhost:8501/v1/models/cmlm. Without --output, the command prints a line
{"text": ..., "vector": [...]} for each sentence. --normalize scales the vectors of any
signature to length 1. CMLM_SERVER_TOKEN in the environment is the token of a protected
server.
"""

import itertools
import json

from absl import flags

from cmlm import cli
from cmlm.encoders import signatures
from cmlm.errors import UserError, naming

flags.DEFINE_string(
    "server",
    None,
    "http(s)://HOST:PORT or grpc(s)://HOST:PORT; /v1/models/NAME may follow.",
)
flags.DEFINE_string(
    "model_name",
    None,
    "Name of the model on the server; default: as in --server, else cmlm.",
)
flags.DEFINE_integer(
    "version", None, "Version of the model; default: the newest.", lower_bound=1
)
flags.DEFINE_string(
    "signature",
    signatures.DEFAULT,
    f"The signature to request: {', '.join(signatures.TEXT_SIGNATURES)}, or a prompt's "
    "name; docs/serving.md explains each.",
)
flags.DEFINE_string("language", None, "Language of all sentences, for --signature=pcr.")
flags.DEFINE_multi_string("text", [], "A sentence")
flags.DEFINE_string("input", None, "Text, one sentence a line: .txt or .txt.gz.")
flags.DEFINE_string(
    "output",
    None,
    "The .npy file to write; default: print texts and vectors as lines of JSON.",
)
flags.DEFINE_bool("normalize", False, "Scale every vector to length 1.")
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
flags.DEFINE_float("timeout", 60, "Seconds to wait for one answer, more than 0.")

FLAGS = flags.FLAGS


def main(_) -> None:
    _check_flags()
    with cli.quiet_imports():
        from cmlm.encoders import model_server

        if FLAGS.input or FLAGS.output or FLAGS.normalize:
            # These modules need TensorFlow, which takes seconds to import.
            from cmlm.common import arrays, files, outputs
            from cmlm.encoders import vector_files
    if FLAGS.output:
        about = vector_files.path_of(FLAGS.output)
        outputs.check(
            {"--output": FLAGS.output, "the description of --output": about},
            {"--input": FLAGS.input},
            FLAGS.overwrite,
        )
    server = model_server.connect(
        FLAGS.server, FLAGS.model_name, FLAGS.version, FLAGS.timeout
    )

    def ask(lines):
        languages = [FLAGS.language] * len(lines) if FLAGS.language else None
        vectors = server.encode(lines, FLAGS.signature, languages)
        return lines, arrays.unit_length(vectors) if FLAGS.normalize else vectors

    if FLAGS.input:
        with naming("--input"):
            paths = files.expand(FLAGS.input)
        total = files.count_lines(paths)
        if not total:
            raise UserError(
                f"--input={FLAGS.input} is empty; allowed: at least one line"
            )
        answers = (ask(lines) for lines in files.windows(paths))
    else:
        total = len(FLAGS.text)
        answers = iter([ask(FLAGS.text)])

    if FLAGS.language and not server.has_components(FLAGS.language, FLAGS.signature):
        raise UserError(
            f"--language is {FLAGS.language}; allowed: a language with components in "
            "the export, see export.tfhub --pcr"
        )
    if FLAGS.output:
        _write(answers, total)
        return
    for lines, answer in answers:
        for line, vector in zip(lines, answer.tolist(), strict=True):
            print(json.dumps({"text": line, "vector": vector}, ensure_ascii=False))


def _check_flags() -> None:
    """Raises UserError if flags are missing, or contradict each other."""
    cli.require(server="http://... or grpc://...")
    if bool(FLAGS.text) == bool(FLAGS.input):
        given = "both given" if FLAGS.text else "not given"
        raise UserError(f"--text and --input are {given}; allowed: one of them")
    takes_language = signatures.of_text(FLAGS.signature, "--signature").takes_language
    if takes_language and not FLAGS.language:
        raise UserError(
            f"--language is not given; allowed with --signature={FLAGS.signature}: a "
            "language such as de"
        )
    if FLAGS.language and not takes_language:
        raise UserError(
            f"--language is {FLAGS.language}; allowed: with --signature=pcr, which an "
            "export with --pcr has"
        )
    # Python's sockets count up to 292 years.
    if not 0 < FLAGS.timeout < 1e9:
        raise UserError(
            f"--timeout is {FLAGS.timeout:g}; allowed: seconds, above 0 and below 1e9"
        )
    if FLAGS.output and not FLAGS.output.endswith(".npy"):
        raise UserError(
            f"--output is {FLAGS.output}; allowed: a path that ends in .npy"
        )


def _write(answers, total: int) -> None:
    """Writes --output; the description of an array that it replaces goes.

    Args:
        answers: yields lines and their vectors, float32 [lines, dim].
        total: the number of all lines.

    Raises:
        UserError: there are more or fewer lines.
    """
    import tensorflow as tf

    from cmlm.common import arrays, outputs
    from cmlm.encoders import vector_files

    first = next(answers)
    shape = (total, first[1].shape[1])
    written = 0
    with (
        outputs.named_together(FLAGS.output) as begin,
        arrays.npy_writer(FLAGS.output, shape) as write,
    ):
        for _, answer in itertools.chain([first], answers):
            write(answer)
            written += len(answer)
        if written != total:
            raise UserError(
                f"{FLAGS.input} changed while the command read it; run it again"
            )
        begin()
        about = vector_files.path_of(FLAGS.output)
        if tf.io.gfile.exists(about):
            tf.io.gfile.remove(about)
    print(f"{FLAGS.output}  float32 {list(shape)}")


if __name__ == "__main__":
    cli.run(main, texts=("text",))
