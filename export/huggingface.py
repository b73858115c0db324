"""Exports a trained encoder for the libraries of Hugging Face.

    python -m export.huggingface --model_dir=/tmp/my_encoder --output=/tmp/my_folder

The command writes a folder for sentence_transformers.SentenceTransformer and
transformers.AutoModel: weights as safetensors, configuration, tokenizer, pooling and a
model card. --from=PATH exports weights of another program instead of a run. Such a
folder cannot hold projected vectors: the command refuses --sentence_vector=projected.
"""

import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError
from export import fitting_flags, source

source.define("output")
fitting_flags.define()
flags.DEFINE_bool(
    "normalize",
    None,
    "Add the module that scales every vector to length 1. Default: true if the run "
    "started from a Hugging Face folder with this module.",
)

FLAGS = flags.FLAGS


def main(_) -> None:
    source.check("output")
    with cli.quiet_imports():
        from cmlm.common import atomic, outputs, path_names
        from cmlm.encoders.opened_weights import describe_cut
        from cmlm.modeling import weights
        from cmlm.modeling.foreign import huggingface_token_ids
        from export import huggingface_folder

    if not path_names.is_local(FLAGS.output):
        # The library safetensors opens its file itself.
        raise UserError(f"--output is {FLAGS.output}; allowed: a local folder")
    source.refuse_others("output", FLAGS.output)
    outputs.check(
        {"--output": FLAGS.output},
        {**source.inputs(), **fitting_flags.inputs()},
        FLAGS.overwrite,
    )
    texts = fitting_flags.files()
    # This comes first, so that a wrong --output is refused at once.
    with atomic.directory(FLAGS.output, FLAGS.overwrite) as directory:
        model, seq_length = source.open_weights()
        print(
            f"{model.checkpoint} -> {FLAGS.output}; {describe_cut(model, seq_length)}",
            file=sys.stderr,
        )
        fitting_flags.add_layers(model, seq_length, texts)
        normalize = FLAGS.normalize
        if normalize is None:
            normalize = model.config.model.normalized
        huggingface_folder.write(model, directory, seq_length, normalize)
        added = huggingface_token_ids.added_to_text(directory)
        if added:
            print(
                "note: Hugging Face finds these added tokens in a text, and here they "
                f"count as text: {weights.listed(added)}",
                file=sys.stderr,
            )
    print(f"folder  {FLAGS.output}")
    # Version 5 of sentence-transformers does not read the dimensions of the folder.
    cut = model.config.model.dimensions
    given = f"{FLAGS.output!r}, truncate_dim={cut}" if cut else repr(FLAGS.output)
    print(f"load    sentence_transformers.SentenceTransformer({given})")


if __name__ == "__main__":
    cli.run(main)
