"""Makes training text, one sentence a line, from plain files or from dumps.

    python -m cmlm.prepare --input='books/*.txt' --layout=wrapped --output=corpus
    python -m cmlm.train --train_data='corpus/*.txt.gz' ...

The command splits plain text into sentences. Each input file gives one .txt.gz file,
with a blank line between documents. Layouts:

    lines     one paragraph a line, a blank line ends a document
    wrapped   hard-wrapped lines, a blank line ends a paragraph; one document a file
    wikitext  one paragraph a line in WikiText's tokenisation; `= Title =` starts a
              document

Dumps, and plain text with --steps, --quality_model, --remove_sentences_of or
--max_sentences, go through a Beam pipeline (`pip install 'cmlm[corpus]'`) on all cores,
or on a cluster with --beam_options:

    python -m cmlm.prepare --input='*.wet.gz' --layout=wet --language=en,de --output=out
    python -m cmlm.train --train_data='en=out/en/*.txt.gz,de=out/de/*.txt.gz' ...

    wet        Common Crawl's WET files
    wikipedia  MediaWiki XML dumps, pages-articles*.xml.bz2
    json       one JSON object a line with the text of a document, see --text_field
    csv        one document a row, with the text in the column --text_field
    tsv        bitext, source TAB target; --language=en-de
    gettext    bitext from .po or .mo catalogues; --language=en-de

The steps run in this order. Without --steps, wet uses all steps except near_duplicates;
wikipedia, json and csv use length and duplicate_documents; bitext uses duplicate_lines:

    c4                   the line and page rules of C4
    length               keeps lines of 10 to 5,000 characters, as LaBSE does
    language             CLD2 detects the language; --language names the ones to keep
    duplicate_documents  keeps the first of equal documents
    near_duplicates      MinHash: keeps the first of documents that share 80 % of their
                         five-word sequences (five characters in scripts without
                         spaces)
    duplicate_lines      keeps the first of equal lines

From bitext, the command always drops a pair if its sides are equal, if its sides of
four or more words differ in case and punctuation only, or if a side has no letter or
more than 5,000 characters.

These layouts and steps write OUTPUT/LANGUAGE/00000-of-00004.txt.gz and so on (.tsv.gz
for bitext), and OUTPUT/stats.json.
"""

import contextlib
import os
import shlex
from collections.abc import Sequence

from absl import flags

from cmlm import cli
from cmlm.common import beam_flags, choices
from cmlm.common.counts import counted
from cmlm.errors import UserError, naming

_PLAIN = choices.TEXT_LAYOUTS

flags.DEFINE_string(
    "input", None, "Files, globs or a comma-separated list: plain, .gz or .bz2."
)
flags.DEFINE_string("output", None, "Folder to write, new or empty; see --overwrite.")
flags.DEFINE_enum(
    "layout",
    "lines",
    [*_PLAIN, *choices.STEPS_OF_LAYOUT],
    "Layout of the input, from the lists above.",
)
flags.DEFINE_string(
    "language",
    "en",
    "ISO 639 code of the text's language; en-de for bitext. With the step `language`: "
    "the languages to keep, such as en,de or all.",
)
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
flags.DEFINE_list(
    "steps", None, "Steps from the list above, comma-separated; --steps= means none."
)
flags.DEFINE_integer(
    "shards",
    0,
    "Files for each language; 0: one per 64 MB of input, or fewer if --language is all "
    "or names several.",
    0,
    choices.MAX_SHARDS,
)
flags.DEFINE_integer(
    "seed",
    0,
    "Seed of the assignment to shards and of the choice under --max_sentences.",
)
flags.DEFINE_string(
    "text_field",
    "text",
    "With --layout=json or csv, the field or the column that holds the text.",
)
flags.DEFINE_string(
    "quality_model",
    "",
    "File of cmlm.quality: drop documents that score below --min_quality.",
)
flags.DEFINE_float("min_quality", 0.5, "Keep documents with this score or more.", 0, 1)
flags.DEFINE_string(
    "remove_sentences_of",
    "",
    "Evaluation files, one sentence a line or tab-separated: remove their sentences.",
)
flags.DEFINE_integer(
    "max_sentences", 0, "Maximum number of sentences a language; 0: no limit.", 0
)
beam_flags.define(0, "Processes on this machine; 0: one per core.")

FLAGS = flags.FLAGS

# Files of fewer sentences on average may well be one document each.
_MANY_SENTENCES = 1_000
_HINT = (
    "without a blank line, each file is one document; if each line is a document, "
    "awk '{print; print \"\"}' OLD > NEW separates them"
)
_FLAGS_OF_STEPS = ("quality_model", "remove_sentences_of", "max_sentences")


def main(_) -> None:
    cli.require(
        input="files, globs or a list of them", output="a directory, new or empty"
    )
    _refuse_ignored()
    with cli.quiet_imports():
        from cmlm.common import outputs

    outputs.check(
        {"--output": FLAGS.output},
        {
            "--input": FLAGS.input,
            "--quality_model": FLAGS.quality_model,
            "--remove_sentences_of": FLAGS.remove_sentences_of,
        },
        FLAGS.overwrite,
    )
    if FLAGS.layout in _PLAIN and not FLAGS.steps and not _given(_FLAGS_OF_STEPS):
        cli.refuse_given(
            _given(("shards", "seed", "beam_options", "workers")),
            "with --steps, --quality_model, --remove_sentences_of or --max_sentences, "
            f"because only they start Beam for --layout={FLAGS.layout}",
        )
        _split()
    else:
        _run_pipeline()


def _refuse_ignored() -> None:
    """Raises UserError for a flag that has no use beside the other flags."""
    if not FLAGS.quality_model:
        cli.refuse_given(
            ["min_quality"], "with --quality_model=FILE, which scores the documents"
        )
    if FLAGS.layout not in ("json", "csv"):
        use = f"with --layout=json or csv, not {FLAGS.layout}"
        cli.refuse_given(["text_field"], use)
    if FLAGS.quality_model and FLAGS.layout in choices.BITEXT_LAYOUTS:
        raise UserError(
            f"--quality_model is {FLAGS.quality_model}; allowed: without"
            f" --layout={FLAGS.layout}, because it scores documents, not pairs"
        )
    if FLAGS.language == "all" and "language" not in _steps():
        raise UserError(
            "--language is all; allowed: with the step `language`, or one language"
            " such as en"
        )


def _steps() -> Sequence[str]:
    if FLAGS.steps is None:
        return choices.STEPS_OF_LAYOUT.get(FLAGS.layout, ())
    return FLAGS.steps


def _given(names) -> list[str]:
    return [name for name in names if getattr(FLAGS, name)]


# ---------------------------------------------------------------------- plain text
def _split() -> None:
    with cli.quiet_imports():
        from cmlm.common import files
        from cmlm.data import sentences
        from cmlm.preparation import plain

    with naming("--input"):
        paths = files.expand(FLAGS.input)
    totals = plain.split(
        paths, FLAGS.output, FLAGS.layout, FLAGS.language, FLAGS.overwrite
    )
    print(
        f"{counted(totals['sentences'], 'sentence')} in"
        f" {counted(totals['documents'], 'document')} of {counted(len(paths), 'file')}"
    )
    print(
        f"dropped: {sentences.describe_dropped(totals)}; lines with invalid UTF-8"
        f" replaced: {totals['invalid UTF-8']:,}"
    )
    if (
        FLAGS.layout == "lines"
        and totals["documents"] <= len(paths)
        and totals["sentences"] >= _MANY_SENTENCES * len(paths)
    ):
        print(_HINT)
    named = files.pattern(os.path.join(FLAGS.output, "*.txt.gz"))
    # A run needs the name for the lower case of Turkish, and for its log.
    _print_use("train_data", f"{FLAGS.language}={named}")


# ---------------------------------------------------------------------- on Beam
def _run_pipeline() -> None:
    with cli.quiet_imports("corpus"):
        from cmlm.common import files
        from cmlm.data import other_formats
        from cmlm.preparation import on_beam, report
        from cmlm.preparation import settings as settings_lib

    with naming("--input"):
        paths = files.expand(FLAGS.input)
    with naming("--remove_sentences_of"):
        guard = FLAGS.remove_sentences_of
        guard_paths = files.expand(guard) if guard else []
    for path in paths:
        # The pipeline opens a file several times.
        files.refuse_streams(path)
    if FLAGS.layout in _PLAIN:
        # The pipeline itself reads a damaged file, up to its damage.
        with contextlib.suppress(UserError):
            other_formats.warn(paths, FLAGS.layout)
    steps = settings_lib.ordered(_steps())
    settings = settings_lib.Settings(
        paths=tuple(paths),
        layout=FLAGS.layout,
        steps=steps,
        languages=settings_lib.languages_of(FLAGS.language, FLAGS.layout, steps),
        shards=FLAGS.shards,
        seed=FLAGS.seed,
        text_field=FLAGS.text_field,
        quality_model=FLAGS.quality_model,
        min_quality=FLAGS.min_quality,
        remove_sentences_of=tuple(guard_paths),
        max_sentences=FLAGS.max_sentences,
    )
    stats = on_beam.run(
        settings, FLAGS.output, FLAGS.overwrite, FLAGS.beam_options, FLAGS.workers
    )
    print(report.summary(stats))
    read = {unit: flow["out"] for unit, flow in stats["steps"]["read"].items()}
    # The steps see documents: a document has one language. One above 10 MB is cut.
    n_files, n_cut = stats["source"]["files"], stats["source"].get("documents cut", 0)
    # The steps may drop sentences, and lines may be paragraphs.
    n_kept = sum(kept["sentences"] for kept in stats["languages"].values())
    if (
        FLAGS.layout == "lines"
        and read["documents"] - n_cut <= n_files
        and max(read["lines"], n_kept) >= _MANY_SENTENCES * n_files
    ):
        print(_HINT)
    for damage in stats["damaged_files"]:
        print(f"damaged, read up to the damage: {damage}")
    for reason in stats["files_left_out"]:
        print(f"left out: {reason}")
    ending = "*.tsv.gz" if settings.is_bitext else "*.txt.gz"
    folder = files.pattern(FLAGS.output)
    named = ",".join(
        f"{language}={os.path.join(folder, language, ending)}"
        for language in sorted(stats["languages"])
    )
    _print_use("bitext_data" if settings.is_bitext else "train_data", named)


def _print_use(flag: str, value: str) -> None:
    print(f"train on the output with --{flag}={shlex.quote(value)}")


if __name__ == "__main__":
    cli.run(main)
