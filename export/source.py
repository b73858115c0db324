"""The flags that name the encoder to export and set the reading of its vectors."""

from __future__ import annotations

import contextlib
import os

from absl import flags

from cmlm.encoders import reading_flags
from cmlm.errors import UserError

FLAGS = flags.FLAGS
# The flags belong to the command that defines them, so its --help lists them.
flags.disclaim_key_flags()


def define(output: str) -> None:
    """Defines the flags.

    Args:
        output: the name of the flag for the folder to write.
    """
    flags.DEFINE_string("model_dir", None, "The run to export.")
    flags.DEFINE_string(
        "from", None, "Weights of another program to export, instead of a run."
    )
    flags.DEFINE_string(output, None, "The folder to write.")
    flags.DEFINE_string(
        "checkpoint", "latest", "latest, best, or the path of a checkpoint."
    )
    flags.DEFINE_bool(
        "overwrite",
        False,
        f"Replace --{output} if it exists, as soon as the new folder is complete.",
    )
    reading_flags.define()


def check(output: str) -> None:
    """Checks that the flags name one encoder and one output.

    Raises:
        UserError: a flag is missing, or the flags name two encoders.
    """
    source = FLAGS["from"].value
    if bool(FLAGS.model_dir) == bool(source):
        given = "both given" if source else "not given"
        raise UserError(f"--model_dir and --from are {given}; allowed: one of them")
    if source and FLAGS.checkpoint != "latest":
        raise UserError(
            f"--checkpoint is {FLAGS.checkpoint}; allowed: with --model_dir, not with "
            "--from"
        )
    if not FLAGS[output].value:
        raise UserError(f"--{output} is not given; allowed: a directory")
    if os.path.isfile(FLAGS[output].value):
        # --overwrite replaces directories only.
        raise UserError(
            f"--{output} is {FLAGS[output].value}, a file; allowed: a directory"
        )


def refuse_others(output: str, directory: str) -> None:
    """Refuses to replace the folder of a run or a server, or of several encoders.

    Args:
        output: the name of the flag for the folder to write.
        directory: its value.

    Raises:
        UserError: --overwrite would remove more than one export.
    """
    import tensorflow as tf

    from cmlm.common import files, folders
    from cmlm.config import model_dir
    from cmlm.modeling import export_layout
    from cmlm.modeling.foreign import modules

    def found(path: str, *names: str) -> list[str]:
        folder = files.escaped(path)
        return tf.io.gfile.glob([os.path.join(folder, name) for name in names])

    if not tf.io.gfile.isdir(directory):
        return
    if model_dir.is_model_dir(directory):
        raise UserError(
            f"--{output} is {directory}, the folder of a run; allowed: another folder"
        )
    encoder = [model_dir.PARAMS, export_layout.DESCRIPTION, modules.FILE_NAME]
    if not found(directory, modules.FILE_NAME):
        # The modules of one encoder may have weights in folders of their own.
        encoder.append("*.safetensors")
    version = [export_layout.PROVENANCE, export_layout.TUNED_TASK]
    for name in folders.entries(directory):
        inner = os.path.join(directory, name)
        versions = found(inner, *(os.path.join("*", each) for each in version))
        # An export has one version of its own.
        own = 1 if name.rstrip("/") == export_layout.SERVING else 0
        if found(inner, *version) or len(versions) > own:
            raise UserError(
                f"--{output} is {directory}, and {inner} is for model servers; "
                "allowed: another folder (copy an export's serving/N to add version N "
                "to a server's folder)"
            )
        if found(inner, *encoder):
            raise UserError(
                f"--{output} is {directory}, and {inner} is an encoder; allowed: a "
                "folder without other encoders"
            )


def inputs() -> dict[str, str | None]:
    """The values of the flags that name the encoder, by flag."""
    # `latest` and `best` are in the model_dir.
    is_path = FLAGS.checkpoint not in ("latest", "best")
    return {
        "--model_dir": FLAGS.model_dir,
        "--from": FLAGS["from"].value,
        "--checkpoint": FLAGS.checkpoint if is_path else None,
    }


def open_weights():
    """Returns the `OpenedWeights` that the flags name, and their longest sentence.

    Raises:
        UserError: the encoder does not exist, is damaged or has weights that are not
            finite.
    """
    import tensorflow as tf

    from cmlm.config import model_dir
    from cmlm.encoders import opening, pretrained, run_weights
    from cmlm.encoders.opened_weights import resolve_seq_length

    # --precision of export.tfhub concerns the files, not the weights.
    reading = reading_flags.reading(with_precision=False)
    checkpoint = inputs()["--checkpoint"]
    if checkpoint and not any(
        tf.io.gfile.exists(path) for path in (checkpoint, f"{checkpoint}.index")
    ):
        raise UserError(
            f"--checkpoint is {checkpoint}; allowed: latest, best, or the path of a "
            "checkpoint without .index"
        )
    if FLAGS["from"].value:
        path = FLAGS["from"].value
        opened = opening.open_weights(path, reading)
    else:
        path = FLAGS.model_dir
        if not model_dir.is_model_dir(path):
            _refuse_foreign(path)
        opened = run_weights.load(path, FLAGS.checkpoint, reading)
    default = opened.tokenizer.prompt
    pretrained.warn_without_default(path, opened.prompts, default, reading)
    check_finite(opened)
    return opened, resolve_seq_length(opened, reading.seq_length)


def _refuse_foreign(path: str) -> None:
    """Raises UserError if --model_dir names weights that --from reads."""
    from cmlm.modeling import foreign

    source = None
    with contextlib.suppress(UserError):
        source = foreign.find(path)
    if source:
        raise UserError(
            f"--model_dir is {path}, which no run wrote; allowed: the folder of a run, "
            f"or --from={path} for the weights there"
        )


def check_finite(opened) -> None:
    """Raises UserError if a weight of `OpenedWeights` is NaN or infinite."""
    import numpy as np

    for variable in opened.encoder.trainable_variables:
        if not np.isfinite(variable.numpy()).all():
            raise UserError(
                f"{opened.checkpoint}: the weight {variable.name} is not finite"
            )
