"""Splits raw text into the training format: one sentence a line, .txt.gz.

    python -m cmlm.prepare --input='books/*.txt' --layout=wrapped --output=corpus
    python -m cmlm.train --train_data='corpus/*.txt.gz' ...

Each input file gives one output file; a blank line stands between documents. Layouts:

    lines     one paragraph a line, a blank line ends a document
    wrapped   hard-wrapped lines, a blank line ends a paragraph, a file is a document
    wikitext  one paragraph a line in WikiText's tokenisation, `= Title =` starts a
              document
"""

import os

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "input", None, "Files, globs or a comma-separated list of them: text or .gz."
)
flags.DEFINE_string("output", None, "Directory to write, new or empty.")
flags.DEFINE_enum(
    "layout", "lines", ["lines", "wrapped", "wikitext"], "How the text is laid out."
)
flags.DEFINE_string("language", "en", "ISO 639 code of the text's language.")
flags.DEFINE_bool("overwrite", False, "Replace an output directory that exists.")

FLAGS = flags.FLAGS


def main(_) -> None:
    for name in ("input", "output"):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    with cli.quiet_imports():
        import collections

        from cmlm import files
        from cmlm.data import sentences

    paths = files.expand(FLAGS.input)

    # ------------------------------------------------------------------ split
    totals = collections.Counter()
    with files.atomic_directory(FLAGS.output, FLAGS.overwrite) as directory:
        for path, name in zip(paths, _output_names(paths), strict=True):
            totals += sentences.write_sentences(
                path,
                os.path.join(directory, name),
                FLAGS.layout,
                FLAGS.language,
                progress=True,
            )
        if not totals["sentences"]:
            raise UserError(f"--input={FLAGS.input} has no sentence in it")

    # ------------------------------------------------------------------ report
    print(
        f"{totals['sentences']:,} sentences in {totals['documents']:,} documents of"
        f" {len(paths):,} files"
    )
    print(
        f"dropped: {totals['no letter']:,} without a letter,"
        f" {totals['too long']:,} of more than {sentences.MAX_CHARACTERS:,} characters;"
        f" kept with bytes replaced that are not UTF-8: {totals['invalid UTF-8']:,}"
    )
    pattern = os.path.join(FLAGS.output, "*.txt.gz")
    print(f"train on them with --train_data='{pattern}'")


def _output_names(paths: list[str]) -> list[str]:
    """Names each output after its input; equal names get a number."""
    names: dict[str, None] = {}
    for path in paths:
        stem = os.path.basename(path).removesuffix(".gz").removesuffix(".txt")
        name, number = f"{stem}.txt.gz", 1
        while name in names:
            number += 1
            name = f"{stem}-{number}.txt.gz"
        names[name] = None
    return list(names)


if __name__ == "__main__":
    cli.run(main)
