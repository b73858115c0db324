"""The flags that select a `Reading`: --pooling, --sentence_vector, --seq_length.

Commands define these flags before they import TensorFlow, so `Reading.validate` checks
the values later.
"""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS


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
        "Default: the length of the training, as far as the encoder has positions.",
    )


def reading():
    """The `Reading` that the flags describe."""
    from cmlm.encoders.trained import Reading

    return Reading(FLAGS.pooling, FLAGS.sentence_vector, FLAGS.seq_length)
