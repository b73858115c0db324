"""Asks a running model server for vectors.

    python -m export.client --server=http://localhost:8501 --text='Where is the file?'
    python -m export.client --server=grpc://localhost:8500 --input=sentences.txt \\
        --output=vectors.npy
    python -m export.client --server=grpc://localhost:8500 --signature=pcr \\
        --language=de --text='Wo ist die Datei?'

http:// and https:// speak REST, grpc:// speaks gRPC. Without --output each vector is
printed, as one line of JSON.
"""

import json

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "server", None, "http://HOST:PORT, https://HOST:PORT or grpc://HOST:PORT."
)
flags.DEFINE_string("model_name", "cmlm", "The model's name on the server.")
flags.DEFINE_integer("version", None, "Its version; by default the newest.")
flags.DEFINE_enum(
    "signature",
    "serving_default",
    ["serving_default", "normalized", "pcr"],
    "What to ask for, see export/serving.py.",
)
flags.DEFINE_string("language", None, "Of all sentences, for --signature=pcr.")
flags.DEFINE_multi_string("text", [], "A sentence; repeatable.")
flags.DEFINE_string("input", None, "Text, one sentence a line: .txt or .txt.gz.")
flags.DEFINE_string("output", None, "The .npy file to write.")
flags.DEFINE_float("timeout", 60, "Seconds to wait for one answer.", lower_bound=0)

FLAGS = flags.FLAGS


def main(_) -> None:
    if not FLAGS.server:
        raise UserError("--server is not given; allowed: http://... or grpc://...")
    if bool(FLAGS.text) == bool(FLAGS.input):
        raise UserError("give either --text='a sentence' or --input=FILE")
    if bool(FLAGS.language) != (FLAGS.signature == "pcr"):
        raise UserError("--language goes with --signature=pcr, and only with it")
    if FLAGS.output and not FLAGS.output.endswith(".npy"):
        raise UserError(f"--output={FLAGS.output} must end in .npy")
    with cli.quiet_imports():
        from cmlm.common import arrays, files
        from cmlm.encoders import model_server

    # -------------------------------------------------------------- asking
    server = model_server.connect(
        FLAGS.server, FLAGS.model_name, FLAGS.version, FLAGS.timeout
    )

    def ask(lines):
        languages = [FLAGS.language] * len(lines) if FLAGS.language else None
        return lines, server.encode(lines, FLAGS.signature, languages)

    if FLAGS.input:
        paths = files.expand(FLAGS.input)
        total = arrays.count_lines(paths)
        answers = (ask(lines) for lines in arrays.windows(paths))
    else:
        total = len(FLAGS.text)
        answers = iter([ask(FLAGS.text)])

    # ------------------------------------------------- writing or printing
    if not FLAGS.output:
        for lines, answer in answers:
            for line, vector in zip(lines, answer.tolist(), strict=True):
                print(json.dumps({"text": line, "vector": vector}))
        return
    first = next(answers, None)
    if first is None:
        raise UserError(f"{FLAGS.input} has no line")
    shape = (total, first[1].shape[1])
    with arrays.npy_writer(FLAGS.output, shape) as write:
        write(first[1])
        written = len(first[1])
        for _, answer in answers:
            write(answer)
            written += len(answer)
        if written != total:
            raise UserError(f"{FLAGS.input} changed while it was read")
    print(f"{FLAGS.output}  float32 {list(shape)}")


if __name__ == "__main__":
    cli.run(main)
