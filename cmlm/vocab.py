"""Learns a WordPiece vocabulary from text and says how well it covers it.

    python -m cmlm.vocab --input='corpus/*.txt.gz' --output=vocab.txt --size=30522
    python -m cmlm.train --vocab_file=vocab.txt ...

Training does this by itself where no vocabulary is given; the command is for sharing
one between runs. The input is in the training format, one sentence a line.
"""

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "input",
    None,
    "Files, globs or a comma-separated list of them (.txt, .txt.gz).",
)
flags.DEFINE_string("output", None, "File to write.")
flags.DEFINE_integer("size", 30522, "Number of tokens, special ones included.")
flags.DEFINE_bool("lower_case", True, "Lower-case the text and strip its accents.")
flags.DEFINE_float(
    "sampling_exponent",
    0.3,
    "With languages, each one's words count in proportion to their number to this "
    "power.",
)
flags.DEFINE_bool("overwrite", False, "Replace an output file that exists.")

FLAGS = flags.FLAGS

_COVERAGE_BYTES = 16 * 2**20


def main(_) -> None:
    for name in ("input", "output"):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    with cli.quiet_imports():
        import tensorflow as tf

        from cmlm import files
        from cmlm.data import languages, tokenization, vocabulary

    if tf.io.gfile.exists(FLAGS.output) and not FLAGS.overwrite:
        raise UserError(
            f"--output={FLAGS.output} exists: name another file or pass --overwrite"
        )
    config = vocabulary.VocabularyConfig(size=FLAGS.size, lower_case=FLAGS.lower_case)
    config.sampling_exponent = FLAGS.sampling_exponent
    config.validate()
    paths = {
        language: files.expand(patterns)
        for language, patterns in languages.split(FLAGS.input).items()
    }
    vocabulary.learn(paths, config, FLAGS.output)

    # ------------------------------------------------------------------ coverage
    tokenizer = tokenization.Tokenizer(FLAGS.output, FLAGS.lower_case)
    print(f"{tokenizer.vocab_size:,} tokens")
    for language, of in paths.items():
        counts = vocabulary.count_words(of, FLAGS.lower_case, _COVERAGE_BYTES)
        coverage = vocabulary.coverage(tokenizer, counts)
        print(
            (f"{language}: " if language else "")
            + f"{coverage.words_in_one_piece:.1%} of the words in one piece,"
            f" {coverage.tokens_per_word:.3f} tokens a word,"
            f" {coverage.unknown_tokens:.3%} of the tokens [UNK]"
        )
    print(FLAGS.output)


if __name__ == "__main__":
    cli.run(main)
