"""The flags that say how vectors are read: --pooling, --sentence_vector, --seq_length.

Commands define them before TensorFlow is imported, so values are checked later, in
`Reading.validate`.
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
    """The `Reading` of the flags."""
    from cmlm.encoders.trained import Reading

    return Reading(FLAGS.pooling, FLAGS.sentence_vector, FLAGS.seq_length)
