"""The flags that select a `Reading`: --pooling, --sentence_vector, --seq_length; and
--precision, --workers and --beam_options, for commands that encode.

Commands define these flags before they import TensorFlow, so `Reading.validate` checks
the values later.
"""

from __future__ import annotations

from absl import flags

from cmlm.common import choices

FLAGS = flags.FLAGS
# The flags belong to the command that defines them, so its --help lists them.
flags.disclaim_key_flags()


def define() -> None:
    """Defines the flags."""
    flags.DEFINE_string(
        "pooling",
        None,
        "How token vectors become a sentence vector, such as mean, max or cls. "
        "Default: as trained.",
    )
    flags.DEFINE_string(
        "sentence_vector",
        None,
        "pooled, or projected: the mean of CMLM's projections of the pooled vector. "
        "Default: as trained.",
    )
    flags.DEFINE_integer(
        "seq_length",
        None,
        "Longest sentence in tokens, [CLS] and [SEP] included; longer ones are cut. "
        "Default: the limit that the starting weights state; without such a limit, the "
        "training's length. At most the positions of the encoder.",
    )


def define_precision() -> None:
    """Defines --precision."""
    flags.DEFINE_enum(
        "precision",
        "auto",
        ["auto", *choices.PRECISIONS],
        "Precision of the layers; vectors are always float32. auto: an export's own; "
        "bfloat16 for a run with runtime.mixed_precision_dtype=bfloat16; else float32.",
    )


def define_workers() -> None:
    """Defines --workers and --beam_options."""
    flags.DEFINE_integer(
        "workers",
        1,
        "Processes on this machine. 1: this process only. More than 1: Beam "
        "runs them. 0: one per core.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "beam_options",
        "",
        "Beam's options, such as '--runner=FlinkRunner --flink_master=HOST:8081'.",
    )


def workers():
    """The `Workers` that the flags of `define_workers` describe."""
    from cmlm.common.tasks import Workers

    return Workers(FLAGS.beam_options, FLAGS.workers)


def precision() -> str | None:
    """The precision that --precision names; None for `auto`."""
    return None if FLAGS.precision == "auto" else FLAGS.precision


def reading(with_precision: bool = True):
    """The `Reading` that the flags describe.

    Args:
        with_precision: whether the command has --precision by `define_precision`.
    """
    from cmlm.encoders.reading import Reading

    return Reading(
        FLAGS.pooling,
        FLAGS.sentence_vector,
        FLAGS.seq_length,
        precision() if with_precision else None,
    )
