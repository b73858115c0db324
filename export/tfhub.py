"""Exports a trained encoder as SavedModels that follow the TF Hub text API.

    python -m export.tfhub --model_dir=/tmp/my_encoder --export_dir=/tmp/my_export

The command writes preprocessor/ (strings to token ids), encoder/ (token ids to
vectors), serving/ (strings to vectors, for a model server), export.json (a description)
and README.md (a model card). It compares the vectors of the SavedModels with those of
the checkpoint.
"""

import os
import shlex
import sys

from absl import flags

from cmlm import cli
from cmlm.common import choices, path_names
from cmlm.errors import UserError
from export import fitting_flags, source

source.define("export_dir")
flags.DEFINE_string(
    "pcr", None, "A file of cmlm.pcr: adds signatures that remove principal components."
)
fitting_flags.define()
flags.DEFINE_enum(
    "precision",
    "float32",
    choices.PRECISIONS,
    "Precision of the layers in serving/; vectors and encoder/ are always float32.",
)
flags.DEFINE_integer(
    "version",
    1,
    "The version folder in serving/; a server loads the largest version that it finds.",
    lower_bound=1,
    upper_bound=(1 << 63) - 1,
)
FLAGS = flags.FLAGS


def main(_) -> None:
    source.check("export_dir")
    path_names.refuse_pattern(FLAGS.export_dir, "--export_dir")
    if FLAGS.whitening and FLAGS.pcr:
        raise UserError(
            "--whitening and --pcr are both given; allowed: one of them, because a "
            "file of cmlm.pcr belongs to vectors without whitening"
        )
    with cli.quiet_imports():
        from cmlm.common import atomic, outputs, prompts
        from cmlm.encoders import components_file, fingerprints, signatures
        from cmlm.encoders.opened_weights import describe_cut
        from cmlm.modeling import export_layout
        from export import (
            former_export,
            model_card,
            saved_models,
            server_files,
        )

    # ------------------------------------------------------------- reading
    former = os.path.join(FLAGS.export_dir, export_layout.SERVING)
    # Where this check fails, --overwrite, the advice of the next one, does not help.
    former_export.refuse_other_versions(former, FLAGS.version)
    source.refuse_others("export_dir", FLAGS.export_dir)
    outputs.check(
        {"--export_dir": FLAGS.export_dir},
        {**source.inputs(), "--pcr": FLAGS.pcr, **fitting_flags.inputs()},
        FLAGS.overwrite,
    )
    # The check may have restored an export, which a killed command had set aside.
    former_export.refuse_other_versions(former, FLAGS.version)
    texts = fitting_flags.files()
    # This comes first, so that a wrong --export_dir is refused at once.
    with atomic.directory(FLAGS.export_dir, FLAGS.overwrite) as directory:
        model, seq_length = source.open_weights()
        print(
            f"{model.checkpoint} -> {FLAGS.export_dir}; "
            f"{describe_cut(model, seq_length)}",
            file=sys.stderr,
        )
        trained = model.trained_seq_length
        if trained and seq_length > trained:
            print(
                f"note: trained at {trained} tokens; the training has not changed "
                f"positions {trained + 1} to {seq_length}",
                file=sys.stderr,
            )
        fitting_flags.add_layers(model, seq_length, texts)
        components = None
        if FLAGS.pcr:
            components = components_file.load(FLAGS.pcr)
            components.check_model(
                fingerprints.fingerprint(model),
                model.config.model.vector_width,
                f"--pcr={FLAGS.pcr}",
            )
        described = {
            "precision": FLAGS.precision,
            "seq_length": seq_length,
            "pooling": model.config.model.pooling,
            "sentence_vector": model.config.model.sentence_vector,
            "dimensions": model.config.model.dimensions,
            "prompt": model.tokenizer.prompt,
            "prompts": model.prompts,
            **dict.fromkeys(fitting_flags.NAMES),
            **fingerprints.describe_fitted(model),
        }
        unserved = model.prompts.keys() - signatures.of_prompts(model.prompts).keys()
        placeholders = prompts.placeholders(model.prompts)
        for name in sorted(placeholders):
            print(
                f"note: the empty prompt {name!r} gets no signature, because another "
                "prompt of its role has a text",
                file=sys.stderr,
            )
        for name in sorted(unserved - placeholders):
            print(
                f"note: the prompt {name!r} gets no signature; allowed: a name of "
                "letters, digits, _, . and -, with a letter or digit first, other than "
                f"{', '.join(signatures.SIGNATURES)}",
                file=sys.stderr,
            )
        changed = former_export.changes(former, described, components)
        if changed:
            print(f"note: {FLAGS.export_dir} had {'; '.join(changed)}", file=sys.stderr)

        # ------------------------------------------------ writing, comparing
        # The card comes first: the run may lose its files while the graphs are traced.
        model_card.write(model, directory, seq_length, components=components)
        export = saved_models.Export(
            model, directory, seq_length, components, FLAGS.precision, FLAGS.version
        )
        export.write()
        difference = export.compare()
        server_files.keep_configuration(
            former, os.path.join(directory, export_layout.SERVING)
        )
        print(
            "largest difference of the exported vectors from the original: "
            f"{difference:.1e}"
        )

    # -------------------------------------------------------- where it is
    out = FLAGS.export_dir.rstrip("/")
    print(f"preprocessor  {os.path.join(out, export_layout.PREPROCESSOR)}")
    print(f"encoder       {os.path.join(out, export_layout.ENCODER)}")
    print(f"serving       {os.path.join(out, export_layout.SERVING)}")
    print(
        f"encode        python -m cmlm.encode --model={shlex.quote(out)} --input=FILE "
        "--output=..."
    )
    print(f"serve         cmlm serve --model={shlex.quote(out)}")


if __name__ == "__main__":
    cli.run(main)
