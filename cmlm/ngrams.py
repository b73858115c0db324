"""Finds n-grams that mean something, by pointwise mutual information, for MiSAD.

    python -m cmlm.ngrams --input='corpus/*.txt.gz' --output=ngrams.tsv
    python -m cmlm.train --flagfile=configs/ulr.flags --train_data='corpus/*.txt.gz' \\
        --params_override=task.misad.ngrams_file=ngrams.tsv ...

The input is in the training format. The output is text, `n-gram TAB score` sorted by
n-gram; any such file can be trained on, a list of named entities too. Counting needs
little memory however large the corpus is: what does not fit goes to TMPDIR. Words are
split at white space and punctuation, Chinese characters each by itself; for Thai,
Japanese and others without spaces use --unit=pieces and the run's vocabulary.
"""

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "input", None, "Files, globs or a comma-separated list of them (.txt, .txt.gz)."
)
flags.DEFINE_string("output", None, "File to write; a name in .gz is packed.")
flags.DEFINE_enum(
    "form",
    "paper",
    ["paper", "released"],
    "PMI divided by the length (paper), or the released code's: of counts, undivided.",
)
flags.DEFINE_enum(
    "scope",
    "document",
    ["document", "corpus"],
    "What is counted and scored together, and what --top is of.",
)
flags.DEFINE_integer("longest", 6, "Units in the longest n-gram.")
flags.DEFINE_integer("top", 3000, "The most n-grams to keep; 0: all.")
flags.DEFINE_float("threshold", None, "Lowest score to keep.")
flags.DEFINE_integer(
    "min_count", 1, "How often an n-gram must occur in the document or the corpus."
)
flags.DEFINE_enum("unit", "words", ["words", "pieces"], "What n-grams consist of.")
flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, for --unit=pieces.")
flags.DEFINE_bool("lower_case", True, "Lower-case the text and strip its accents.")
flags.DEFINE_integer(
    "max_entries", 1_000_000, "Different n-grams in memory; the rest is on disk."
)
flags.DEFINE_bool("overwrite", False, "Replace an output file that exists.")

FLAGS = flags.FLAGS


def main(_) -> None:
    for name in ("input", "output"):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    if (FLAGS.unit == "pieces") != bool(FLAGS.vocab_file):
        raise UserError("--unit=pieces and --vocab_file=FILE go together")
    with cli.quiet_imports():
        from cmlm.common import fields, files
        from cmlm.data import ngrams
        from cmlm.data.tokenization import Tokenizer

    files.refuse_existing(FLAGS.output, FLAGS.overwrite)
    config = ngrams.NgramConfig(
        form=FLAGS.form,
        scope=FLAGS.scope,
        longest=FLAGS.longest,
        top=FLAGS.top,
        threshold=FLAGS.threshold,
        min_count=FLAGS.min_count,
        max_entries=FLAGS.max_entries,
    )
    fields.check(config, "--")
    tokenizer = (
        Tokenizer(FLAGS.vocab_file, FLAGS.lower_case) if FLAGS.vocab_file else None
    )
    units = ngrams.Units(FLAGS.lower_case, tokenizer)
    paths = files.expand(FLAGS.input)
    number = ngrams.write(ngrams.extract(paths, units, config), FLAGS.output)
    print(f"{number:,} n-grams of {len(paths):,} files")
    print(FLAGS.output)


if __name__ == "__main__":
    cli.run(main)
