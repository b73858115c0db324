"""Finds meaningful n-grams by pointwise mutual information, for MiSAD.

    python -m cmlm.ngrams --input='corpus/*.txt.gz' --output=ngrams.tsv \\
        --marked_output=marked
    python -m cmlm.train --flagfile=configs/ulr.flags --train_data='marked/*.txt.gz' ...

The input is text in the training format. --output lists all selected n-grams in
alphabetical order, one `n-gram TAB score` a line. --marked_output receives a copy of
the text. In this copy, the selected n-grams of a sentence follow the sentence.

The command counts n-grams in the whole corpus and selects the --top best n-grams of
each document. A --min_count that is too small lets rare, long n-grams win; the best
number depends on the text. The authors' released code counts each document separately:
--form=released --counts=document --min_count=1.

Counting needs little memory for any corpus, because it sorts in files in TMPDIR. With
--scope=document, memory also holds one document; blank lines separate documents. Words
end at white space and punctuation, and each Chinese character is a word. Thai, Japanese
and other languages without spaces need --unit=pieces and the run's vocabulary. For a
cased run, or one that keeps accents, words need --vocab_file, too, or its rules
(--nolower_case, --nostrip_accents).
"""

import collections
import contextlib
import shlex

from absl import flags

from cmlm import cli
from cmlm.common import choices
from cmlm.common.counts import counted
from cmlm.errors import UserError, naming

flags.DEFINE_string(
    "input", None, "Files, globs or a comma-separated list (.txt, .txt.gz)."
)
flags.DEFINE_string(
    "output", None, "File to write; gzip-compressed if its name ends in .gz."
)
flags.DEFINE_string(
    "marked_output",
    None,
    "Folder for the text with marked n-grams, new or empty; see --overwrite.",
)
flags.DEFINE_enum(
    "form",
    "paper",
    choices.NGRAM_FORMS,
    "Score: PMI divided by the length (paper), or the released code's log C(w) - sum "
    "log C(w_k) (released).",
)
flags.DEFINE_enum(
    "counts",
    "corpus",
    choices.NGRAM_COUNTS,
    "Count in the whole corpus (the paper's section 3.1), or in each document by "
    "itself (its section 4, and the released code).",
)
flags.DEFINE_enum(
    "scope",
    "document",
    choices.NGRAM_SCOPES,
    "Keep the --top best n-grams of each document, or of the whole corpus.",
)
flags.DEFINE_integer("longest", 6, "Number of words or pieces in the longest n-gram.")
flags.DEFINE_integer("top", 3000, "N-grams to keep, see --scope; 0: all.")
flags.DEFINE_float("threshold", None, "Lowest score of an n-gram to keep.")
flags.DEFINE_integer(
    "min_count",
    20,
    "Least number of occurrences of an n-gram, in the corpus or (--counts=document) in "
    "the document.",
)
flags.DEFINE_enum(
    "unit",
    "words",
    ["words", "pieces"],
    "An n-gram consists of words, or of the word pieces of --vocab_file.",
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "WordPiece vocabulary of the run: its rules for case and accents, and its pieces.",
)
flags.DEFINE_bool(
    "lower_case",
    True,
    "Lower-case the text; --vocab_file decides if it is given.",
)
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Drop accents, so that é is e. Default: as --lower_case, or as --vocab_file.",
)
flags.DEFINE_integer(
    "max_entries", 1_000_000, "Distinct n-grams in memory; the rest is on disk."
)
flags.DEFINE_bool("overwrite", False, "Replace existing output.")

FLAGS = flags.FLAGS


def main(_) -> None:
    cli.require(input="text: files, globs or a list of them", output="a file to write")
    if FLAGS.unit == "pieces" and not FLAGS.vocab_file:
        raise UserError("--unit is pieces; allowed: with --vocab_file=FILE, or words")
    with cli.quiet_imports():
        from cmlm.common import atomic, fields, files, outputs
        from cmlm.data import ngram_files, other_formats
        from cmlm.ngram_lists import extraction

    outputs.check(
        {"--output": FLAGS.output, "--marked_output": FLAGS.marked_output},
        {"--input": FLAGS.input, "--vocab_file": FLAGS.vocab_file},
        FLAGS.overwrite,
    )
    config = extraction.NgramConfig(
        form=FLAGS.form,
        counts=FLAGS.counts,
        scope=FLAGS.scope,
        longest=FLAGS.longest,
        top=FLAGS.top,
        threshold=FLAGS.threshold,
        min_count=FLAGS.min_count,
        max_entries=FLAGS.max_entries,
    )
    fields.check(config, "--")
    units = _units()
    with naming("--input"):
        paths = files.expand(FLAGS.input)
    other_formats.warn(paths)
    with contextlib.ExitStack() as stack:
        # After a kill between the two names, a later run may replace them.
        begin = stack.enter_context(outputs.named_together(FLAGS.output))
        directory = None
        if FLAGS.marked_output:
            extraction.check_names(paths)
            directory = stack.enter_context(
                atomic.directory(FLAGS.marked_output, overwrite=True)
            )
        totals = collections.Counter()
        found = extraction.extract(paths, units, config, directory, totals)
        number = ngram_files.write(found, FLAGS.output, begin if directory else None)
    print(
        f"{counted(number, 'n-gram')} of {counted(totals['documents'], 'document')} in"
        f" {counted(len(paths), 'file')}"
    )
    print(FLAGS.output)
    if FLAGS.marked_output:
        marked = shlex.quote(f"{files.pattern(FLAGS.marked_output)}/*")
        print(f"train on the marked text with --train_data={marked}")


def _units():
    """The `Units` that the flags describe, by the rules of --vocab_file if given."""
    with cli.quiet_imports():
        from cmlm.ngram_lists.units import Units
        from cmlm.tokenization.rules import Rules
        from cmlm.tokenization.word_pieces import WordPiece
        from cmlm.vocabulary.settings import VocabularyConfig

    if not FLAGS.vocab_file:
        return Units(Rules(FLAGS.lower_case, FLAGS.strip_accents))
    settings = VocabularyConfig(
        file=FLAGS.vocab_file,
        lower_case=FLAGS.lower_case,
        strip_accents=FLAGS.strip_accents,
    )
    names = ("lower_case", "strip_accents")
    settings.adopt_file({f"--{name}" for name in names if FLAGS[name].present}, "--")
    tokenizer = settings.tokenizer(FLAGS.vocab_file)
    if not isinstance(tokenizer, WordPiece):
        raise UserError(
            f"--vocab_file is {FLAGS.vocab_file}, of {tokenizer.title}; allowed: a "
            "WordPiece vocabulary, which MiSAD needs for n-grams"
        )
    return Units(tokenizer.rules, tokenizer if FLAGS.unit == "pieces" else None)


if __name__ == "__main__":
    cli.run(main)
