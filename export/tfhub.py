"""Exports a trained encoder as SavedModels, by the TF Hub text API.

    python -m export.tfhub --model_dir=/tmp/my_encoder --export_dir=/tmp/my_export

writes preprocessor/ (strings to token ids), encoder/ (token ids to vectors),
serving/ (strings to vectors, for a model server) and export.json (what it is), and
compares what it wrote with the checkpoint.
"""

import os
import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string("model_dir", None, "The run to export.")
flags.DEFINE_string(
    "from", None, "Weights of another program to export, instead of a run."
)
flags.DEFINE_string("export_dir", None, "The folder to write.")
flags.DEFINE_string(
    "checkpoint", "latest", "latest, best, or the path of a checkpoint."
)
flags.DEFINE_integer(
    "seq_length",
    None,
    "Longest sentence in tokens, [CLS] and [SEP] included; longer ones are cut. "
    "By default 128, or what the encoder has positions for.",
)
flags.DEFINE_string(
    "pcr", None, "A file of cmlm.pcr: serve vectors without principal components too."
)
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16"],
    "Of the layers in serving/; vectors and encoder/ are float32 in any case.",
)
flags.DEFINE_bool(
    "overwrite", False, "Replace --export_dir; the old one stays until then."
)

FLAGS = flags.FLAGS


def main(_) -> None:
    source = FLAGS["from"].value
    if source and FLAGS.model_dir:
        raise UserError(f"--from={source} stands instead of --model_dir; give one")
    for flag in ("export_dir",) if source else ("model_dir", "export_dir"):
        if not FLAGS[flag].value:
            raise UserError(f"--{flag} is not given; allowed: a directory")
    with cli.quiet_imports():
        from cmlm.common import files
        from cmlm.encoders import identity, opening, pcr
        from cmlm.encoders.trained import resolve_seq_length
        from export import model_card, saved_models

    # ------------------------------------------------------------- reading
    # Entered first: an --export_dir that may not be written is refused at once.
    with files.atomic_directory(FLAGS.export_dir, FLAGS.overwrite) as directory:
        model = opening.open_trained(source, FLAGS.model_dir, FLAGS.checkpoint)
        seq_length = resolve_seq_length(model, FLAGS.seq_length)
        components = None
        if FLAGS.pcr:
            components = pcr.load(FLAGS.pcr)
            components.check_model(identity.fingerprint(model), f"--pcr={FLAGS.pcr}")
        print(
            f"{model.checkpoint} -> {FLAGS.export_dir}, up to {seq_length} tokens",
            file=sys.stderr,
        )
        if seq_length > model.seq_length and not source:
            print(
                f"note: trained on {model.seq_length} tokens; the positions up to "
                f"{seq_length} are as they were initialised",
                file=sys.stderr,
            )

        # ------------------------------------------------ writing, comparing
        options = (seq_length, components, FLAGS.precision)
        saved_models.write(model, directory, *options)
        model_card.write(model, directory, seq_length)
        difference = saved_models.compare(model, directory, *options)
        print(f"largest difference to the checkpoint: {difference:.1e}")

    # -------------------------------------------------------- where it is
    out = FLAGS.export_dir.rstrip("/")
    print(f"preprocessor  {os.path.join(out, 'preprocessor')}")
    print(f"encoder       {os.path.join(out, 'encoder')}")
    print(f"serving       {os.path.join(out, 'serving')}")
    print(
        f"encode        python -m cmlm.encode --model={out} --input=FILE --output=..."
    )


if __name__ == "__main__":
    cli.run(main)
