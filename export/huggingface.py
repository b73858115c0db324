"""Exports a trained encoder to the libraries of Hugging Face.

    python -m export.huggingface --model_dir=/tmp/my_encoder --output=/tmp/my_folder

writes a folder for sentence_transformers.SentenceTransformer and
transformers.AutoModel: weights as safetensors, configuration, tokenizer, pooling and a
model card. --from=PATH takes it from weights of another program instead of a run.
"""

import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string("model_dir", None, "The run to export.")
flags.DEFINE_string("from", None, "Weights of another program, instead of a run.")
flags.DEFINE_string("output", None, "The folder to write.")
flags.DEFINE_string(
    "checkpoint", "latest", "latest, best, or the path of a checkpoint."
)
flags.DEFINE_integer(
    "seq_length",
    None,
    "Longest sentence in tokens, [CLS] and [SEP] included; longer ones are cut. "
    "By default 128, or what the encoder has positions for.",
)
flags.DEFINE_bool(
    "normalize", False, "Add the module that scales every vector to length 1."
)
flags.DEFINE_bool("overwrite", False, "Replace --output; the old one stays until then.")

FLAGS = flags.FLAGS


def main(_) -> None:
    source = FLAGS["from"].value
    if bool(FLAGS.model_dir) == bool(source):
        raise UserError("give one of --model_dir and --from")
    if not FLAGS.output:
        raise UserError("--output is not given; allowed: a directory")
    with cli.quiet_imports():
        from cmlm.common import files
        from cmlm.encoders import opening
        from cmlm.encoders.trained import resolve_seq_length
        from export import huggingface_folder

    # Entered first: an --output that may not be written is refused at once.
    with files.atomic_directory(FLAGS.output, FLAGS.overwrite) as directory:
        model = opening.open_trained(source, FLAGS.model_dir, FLAGS.checkpoint)
        seq_length = resolve_seq_length(model, FLAGS.seq_length)
        print(
            f"{model.checkpoint} -> {FLAGS.output}, up to {seq_length} tokens",
            file=sys.stderr,
        )
        huggingface_folder.write(model, directory, seq_length, FLAGS.normalize)
    print(f"folder  {FLAGS.output}")
    print(f"load    sentence_transformers.SentenceTransformer({FLAGS.output!r})")


if __name__ == "__main__":
    cli.run(main)
