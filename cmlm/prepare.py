"""Makes training text, one sentence a line, .txt.gz: of plain files or of dumps.

    python -m cmlm.prepare --input='books/*.txt' --layout=wrapped --output=corpus
    python -m cmlm.train --train_data='corpus/*.txt.gz' ...

Plain text is only split: each input file gives one output file; a blank line stands
between documents. Layouts:

    lines     one paragraph a line, a blank line ends a document
    wrapped   hard-wrapped lines, a blank line ends a paragraph, a file is a document
    wikitext  one paragraph a line in WikiText's tokenisation, `= Title =` starts a
              document

Dumps, and plain text with --steps=... or any flag of a step, go through a Beam pipeline
(`pip install 'cmlm[corpus]'`) on all cores, or on a cluster by --beam_options:

    python -m cmlm.prepare --input='*.wet.gz' --layout=wet --language=en,de --output=out
    python -m cmlm.train --train_data='en=out/en/*.txt.gz,de=out/de/*.txt.gz' ...

    wet        Common Crawl's WET files
    wikipedia  MediaWiki XML dumps, pages-articles*.xml.bz2
    json       a JSON object a line with the text of a document, see --text_field
    tsv        translations, source TAB target; --language=en-de
    gettext    translations, .po or .mo catalogues; --language=en-de

Steps, in their order; without --steps, wet takes all but near_duplicates, wikipedia and
json take length and duplicate_documents, translations take duplicate_lines:

    c4                   the line and page heuristics of C4
    length               lines of 10 to 5,000 characters, as LaBSE
    language             told by CLD2 for each document; --language says which to keep
    duplicate_documents  equal text, the first one stays
    near_duplicates      MinHash: 80 % of the runs of five words in common
    duplicate_lines      the first one stays

Writes OUTPUT/LANGUAGE/00000-of-00004.txt.gz and so on, and OUTPUT/stats.json.
"""

import contextlib
import os
import tempfile

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

# Here, because --help must not import what knows it: see cmlm.preparation.
_PLAIN = ("lines", "wrapped", "wikitext")
_STEPS_OF_LAYOUT = {
    "wet": (
        "c4",
        "length",
        "language",
        "duplicate_documents",
        "duplicate_lines",
    ),
    "wikipedia": ("length", "duplicate_documents"),
    "json": ("length", "duplicate_documents"),
    "tsv": ("duplicate_lines",),
    "gettext": ("duplicate_lines",),
}

flags.DEFINE_string(
    "input", None, "Files, globs or a comma-separated list of them: plain, .gz or .bz2."
)
flags.DEFINE_string("output", None, "Directory to write, new or empty.")
flags.DEFINE_enum(
    "layout", "lines", [*_PLAIN, *_STEPS_OF_LAYOUT], "How the text is laid out."
)
flags.DEFINE_string(
    "language",
    "en",
    "ISO 639 code of the text's language, en-de for translations. With the step "
    "`language`, those to keep: en,de or all.",
)
flags.DEFINE_bool("overwrite", False, "Replace an output directory that exists.")
flags.DEFINE_list("steps", None, "Steps to take, see above; --steps= takes none.")
flags.DEFINE_integer(
    "shards", 0, "Files for each language; 0: one for every 64 MB of input.", 0
)
flags.DEFINE_integer(
    "seed", 0, "Decides who goes to which shard, and what a limit keeps."
)
flags.DEFINE_string("text_field", "text", "Field of layout json that has the text.")
flags.DEFINE_string("quality_model", "", "Drop documents by a file of cmlm.quality.")
flags.DEFINE_float("min_quality", 0.5, "Least score to keep a document.", 0, 1)
flags.DEFINE_string(
    "remove_sentences_of",
    "",
    "Evaluation files, a sentence a line or tab-separated: none of theirs is written.",
)
flags.DEFINE_integer("max_sentences", 0, "Limit for each language; 0: none.", 0)
flags.DEFINE_integer("workers", 0, "Processes on this machine; 0: one a core.", 0)
flags.DEFINE_string(
    "beam_options",
    "",
    "Options for Beam, as '--runner=FlinkRunner --flink_master=HOST:8081'.",
)

FLAGS = flags.FLAGS

_FLAGS_OF_STEPS = ("quality_model", "remove_sentences_of", "max_sentences")
_INPUT_BYTES_A_SHARD = 64 << 20
# What is compared at a time comes of so much input: up to about 50 MB of fingerprints,
# or 80 MB of what near_duplicates compares. Small inputs have buckets for all workers.
_INPUT_BYTES_A_BUCKET = 64 << 20
_MIN_BUCKETS = 64
# Where the number of workers is not known.
_READERS_ELSEWHERE = 16


def main(_) -> None:
    for name in ("input", "output"):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    if FLAGS.layout in _PLAIN and not FLAGS.steps and not _given(_FLAGS_OF_STEPS):
        ignored = _given(("shards", "beam_options", "workers"))
        if ignored:
            raise UserError(
                f"--{ignored[0]} belongs to the Beam pipeline; layout {FLAGS.layout}"
                " without --steps is only split"
            )
        _split()
    else:
        _run_pipeline()


def _given(names) -> list[str]:
    return [name for name in names if getattr(FLAGS, name)]


# ---------------------------------------------------------------------- plain text
def _split() -> None:
    with cli.quiet_imports():
        import collections

        from cmlm.common import files
        from cmlm.data import sentences

    language = sentences.check_language(FLAGS.language)
    paths = files.expand(FLAGS.input)

    # ------------------------------------------------------------------ split
    totals = collections.Counter()
    with files.atomic_directory(FLAGS.output, FLAGS.overwrite) as directory:
        for path, name in zip(paths, _output_names(paths), strict=True):
            totals += sentences.write_sentences(
                path,
                os.path.join(directory, name),
                FLAGS.layout,
                language,
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
        stem = os.path.basename(path).removesuffix(".gz").removesuffix(".bz2")
        stem = stem.removesuffix(".txt")
        name, number = f"{stem}.txt.gz", 1
        while name in names:
            number += 1
            name = f"{stem}-{number}.txt.gz"
        names[name] = None
    return list(names)


# ---------------------------------------------------------------------- dumps
def _run_pipeline() -> None:
    with cli.quiet_imports():
        import json

        from cmlm.common import beam_runner, files
        from cmlm.preparation import assembly, report, sources

    # ------------------------------------------------------------------ settings
    paths = files.expand(FLAGS.input)
    size = sum(map(sources.size, paths))
    settings = assembly.Settings(
        paths=tuple(paths),
        layout=FLAGS.layout,
        steps=_steps(assembly.STEPS),
        languages=(),
        shards=FLAGS.shards or 1 + size // _INPUT_BYTES_A_SHARD,
        seed=FLAGS.seed,
        text_field=FLAGS.text_field,
        quality_model=FLAGS.quality_model,
        min_quality=FLAGS.min_quality,
        remove_sentences_of=tuple(
            files.expand(FLAGS.remove_sentences_of) if FLAGS.remove_sentences_of else ()
        ),
        max_sentences=FLAGS.max_sentences,
        buckets=max(_MIN_BUCKETS, size // _INPUT_BYTES_A_BUCKET),
    )
    settings = assembly.with_languages(settings, FLAGS.language)
    steps = [step.name for step in settings.document_steps()]
    steps += [step for step in settings.steps if step not in steps]
    local = beam_runner.is_local(FLAGS.beam_options)
    where = "here" if local else FLAGS.beam_options
    readers = (FLAGS.workers or os.cpu_count()) if local else _READERS_ELSEWHERE
    print(
        f"{len(paths):,} files, {size / 1e6:,.1f} MB, layout {FLAGS.layout}; Beam"
        f" {where}; steps: {', '.join(steps)}",
        flush=True,
    )

    # ------------------------------------------------------------------ run
    with (
        files.atomic_directory(FLAGS.output, FLAGS.overwrite) as directory,
        _scratch(directory) if local else contextlib.nullcontext() as scratch,
    ):
        counts_path = os.path.join(directory, "counts.json")
        progress = beam_runner.Progress(size, afterwards="comparing and writing")
        beam_runner.run(
            lambda pipeline: assembly.build(
                pipeline, settings, directory, counts_path, progress, readers, scratch
            ),
            FLAGS.beam_options,
            FLAGS.workers,
            progress,
        )
        stats = report.statistics(beam_runner.read_counts(counts_path), settings)
        text = report.summary(stats)
        if not stats["languages"]:
            print(text)
            raise UserError(f"nothing of --input={FLAGS.input} was kept")
        with files.atomic_text(os.path.join(directory, "stats.json")) as output:
            json.dump(stats, output, indent=1, ensure_ascii=False)
        beam_runner.tidy(directory, counts_path)

    # ------------------------------------------------------------------ report
    print(text)
    for damage in stats["damaged_files"]:
        print(f"damaged, read as far as it goes: {damage}")
    ending = "*.tsv.gz" if settings.is_bitext else "*.txt.gz"
    named = ",".join(
        f"{language}={os.path.join(FLAGS.output, language, ending)}"
        for language in sorted(stats["languages"])
    )
    flag = "bitext_data" if settings.is_bitext else "train_data"
    print(f"train on them with --{flag}='{named}'")


def _scratch(directory: str) -> tempfile.TemporaryDirectory:
    """Where workers keep what waits: with the output, or here if that is far away."""
    return tempfile.TemporaryDirectory(
        prefix="scratch-",
        dir=directory if os.path.isdir(directory) else None,
        ignore_cleanup_errors=True,  # of a run that failed, a worker may still write
    )


def _steps(allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The steps that the flags name, or those of the layout, in their order."""
    chosen = FLAGS.steps
    if chosen is None:
        chosen = _STEPS_OF_LAYOUT.get(FLAGS.layout, ())
    for step in chosen:
        if step not in allowed:
            raise UserError(f"--steps={step}: allowed are {', '.join(allowed)}")
    return tuple(step for step in allowed if step in chosen)


if __name__ == "__main__":
    cli.run(main)
