"""The flags that select a `Reading`: --pooling, --sentence_vector, --seq_length,
--dimensions, --prompt, --prompt_name, --prompts; and --precision, for commands that
encode.

Commands define these flags before they import TensorFlow, so `Reading.validate` checks
the values later.
"""

from __future__ import annotations

from absl import flags

from cmlm.common import choices

FLAGS = flags.FLAGS
NAMES = (
    *("pooling", "sentence_vector", "seq_length", "dimensions"),
    *("prompt", "prompt_name", "prompts", "precision"),
)
# The flags belong to the command that defines them, so its --help lists them.
flags.disclaim_key_flags()


def define() -> None:
    """Defines the flags."""
    flags.DEFINE_string(
        "pooling",
        None,
        "How token vectors become a sentence vector, such as mean, max, cls or pooler "
        "([CLS] through BERT's pooler). Default: as trained.",
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
        "Default: the limit that the starting weights state; else the longest training "
        "sequence; for weights of another program, 128. Maximum: the encoder's "
        "positions minus model.num_views.",
    )
    flags.DEFINE_integer(
        "dimensions",
        None,
        "Keep the first N dimensions of each vector; 0: all. Default: as trained; "
        "for a folder of sentence-transformers, its truncate_dim.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "prompt",
        None,
        "A text that precedes every text, such as 'query: ' for E5. Default: as "
        "trained; for a folder of sentence-transformers, its default prompt.",
    )
    flags.DEFINE_string(
        "prompt_name",
        None,
        "The name of a prompt of the model, such as query; instead of --prompt.",
    )
    flags.DEFINE_multi_string(
        "prompts",
        None,
        "A prompt by name, such as 'query=query: '; once for each prompt. Default: the "
        "prompts of the model; an empty value: no prompts",
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


def precision() -> str | None:
    """The precision that --precision names; None for `auto`."""
    return None if FLAGS.precision == "auto" else FLAGS.precision


def reading(with_precision: bool = True):
    """The `Reading` that the flags describe.

    Args:
        with_precision: whether the command has --precision by `define_precision`.
    """
    from cmlm.common import native_log

    # TensorFlow and Model Garden warn about themselves.
    with native_log.dropped():
        from cmlm.common import prompts
        from cmlm.encoders.reading import Reading

    return Reading(
        FLAGS.pooling,
        FLAGS.sentence_vector,
        FLAGS.seq_length,
        FLAGS.dimensions,
        FLAGS.prompt,
        FLAGS.prompt_name,
        None if FLAGS.prompts is None else prompts.parse(FLAGS.prompts),
        precision() if with_precision else None,
    )
