"""Mines translation pairs and hard negatives, and filters a bitext, with an encoder.

    python -m cmlm.mine --model=MODEL --source='de/*.txt.gz' --target='en/*.txt.gz' \\
        --output=mined.tsv
    python -m cmlm.mine --model=WEAKER --bitext='de-en/*.tsv.gz' --hard_negatives=3 \\
        --output=hard.tsv
    python -m cmlm.mine --model=MODEL --bitext='de-en/*.tsv.gz' --score \\
        --output=good.tsv

The output is a bitext for cmlm.train --bitext_data: source TAB target, then one column
for each hard negative. The second and third forms also read queries and passages, for
--pair_data.

The first form mines pairs from two unaligned texts, one sentence a line. Repeated lines
count once. The command leaves out pairs of two equal lines. The best pairs come first,
and mined.scores holds score TAB cosine for each line. LaBSE's rule (the nearest
sentence with a cosine of at least 0.6) is --margin=absolute --retrieval=forward
--repeat_sentences.

The second form adds hard negatives to the pairs of a bitext: the texts of --pool (by
default all targets) that are nearest to the source and are not its translations. It
leaves out pairs with fewer than --hard_negatives of them.

The third form keeps the pairs of a bitext whose cosine is at least --threshold, in
their order; good.scores holds the cosines.

With --workers or --beam_options, processes of Apache Beam encode and search; the
output stays the same.

--work_dir keeps texts, vectors, cosines and neighbours. A stopped run resumes from it,
and a second run with another margin, retrieval or threshold takes seconds. A run
with LaBSE's rule searches for the neighbours of one side only; the second run then
first searches for the neighbours of the other side.
"""

import dataclasses
import functools
import pathlib
import shlex
import sys

from absl import flags

from cmlm import cli
from cmlm.common import beam_flags, choices
from cmlm.encoders import reading_flags
from cmlm.errors import UserError, naming

flags.DEFINE_string("model", None, "A model in any form that cmlm.encode accepts.")
flags.DEFINE_string(
    "source",
    None,
    "Text in one language: files, globs or a list (.txt, .txt.gz); or a folder "
    "that cmlm.encode wrote.",
)
flags.DEFINE_string(
    "target", None, "Text in the other language, in the form of --source."
)
flags.DEFINE_string(
    "bitext",
    None,
    "Bitext (.tsv, .tsv.gz), with lines source<TAB>target: files, globs or a list.",
)
flags.DEFINE_string(
    "pool",
    None,
    "Text to take hard negatives from: files, globs or a list (.txt, .txt.gz). "
    "Default: the targets of --bitext.",
)
flags.DEFINE_bool(
    "score", False, "Keep the pairs of --bitext with a cosine of --threshold or more."
)
flags.DEFINE_string("output", None, "The .tsv or .tsv.gz file to write.")
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
flags.DEFINE_string(
    "work_dir",
    None,
    "Folder for intermediate files, kept for the next run. Default: OUTPUT.work, "
    "deleted at the end.",
)
flags.DEFINE_integer(
    "neighbours", 4, "k, the number of neighbours for the margin.", lower_bound=1
)
flags.DEFINE_enum(
    "margin",
    "ratio",
    choices.MARGINS,
    "Score: the cosine divided by the neighbours' mean cosine (ratio), the cosine "
    "minus this mean (distance), or the cosine itself (absolute).",
)
flags.DEFINE_enum(
    "retrieval",
    "max",
    choices.RETRIEVALS,
    "Candidate pairs: the best target of each source (forward), the best source of "
    "each target (backward), the pairs in both (intersection) or in either (max).",
)
flags.DEFINE_float(
    "threshold",
    None,
    "Lowest score to keep. Default: 1.04 (ratio), 0 (distance), 0.6 (absolute, and "
    "with --score).",
)
flags.DEFINE_bool(
    "repeat_sentences",
    False,
    "Let a sentence occur in several pairs. Default: only in its best pair.",
)
flags.DEFINE_bool("one_to_one", True, "Older flag: the opposite of --repeat_sentences.")
flags.DEFINE_integer(
    "hard_negatives",
    3,
    "Hard negatives for each pair of --bitext; pairs with fewer are left out.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "skip_nearest",
    0,
    "Skip this many nearest texts, which may be correct translations.",
    lower_bound=0,
)
flags.DEFINE_float(
    "max_cosine", 1.0, "Highest cosine of a hard negative with its source.", -1, 1
)
flags.DEFINE_enum(
    "index",
    "auto",
    ["auto", *choices.INDEXES],
    "Neighbour search: exact (flat), in cells (ivf), in cells with compressed vectors "
    "(pq), or by size and --max_memory_gb (auto).",
)
flags.DEFINE_integer(
    "cells",
    0,
    "Number of cells for ivf and pq; 0: four times the square root of the number of "
    "sentences on the longer side, at most an eighth of all sentences; fewer if one "
    "side is short.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "probes",
    32,
    "Cells to search for each sentence; more cells find more and take longer.",
    lower_bound=1,
)
flags.DEFINE_float(
    "max_memory_gb",
    4.0,
    "Memory limit of each process in GB, without the model's weights; the program "
    "itself takes 1 GB of the limit.",
    lower_bound=1.25,
)
reading_flags.define()
reading_flags.define_precision()
flags.DEFINE_string(
    "source_prompt_name",
    None,
    "The name of the prompt of --source, or of the first column of --bitext, such as "
    "query. Default: the prompt of --prompt_name or --prompt.",
)
flags.DEFINE_string(
    "target_prompt_name",
    None,
    "The name of the prompt of --target and --pool, or of the second column of "
    "--bitext, such as passage. Default: the prompt of --prompt_name or --prompt.",
)
beam_flags.define_for_tasks()

FLAGS = flags.FLAGS
_PROGRAM_GB = 1
# Of a file that is not plain text.
_EFFECT = "each line counts as one sentence"
# The entries of the work directory, as patterns.
_COMPUTED = ("*-vectors", "*-neighbours", "cosines")
_ENTRIES = ("source", "target", "pool", "bitext-*", "negatives.npy*", *_COMPUTED)
# With one neighbour, the mean cosine is at least the cosine. So scores end here.
_HIGHEST_WITH_ONE = {"ratio": 1, "distance": 0}
# The three jobs, and the jobs that read a flag.
_JOBS = {
    "pairs": "--source and --target",
    "scores": "--bitext and --score",
    "negatives": "--bitext without --score",
}
_READ_BY = {
    "neighbours": ("pairs",),
    "margin": ("pairs",),
    "retrieval": ("pairs",),
    "repeat_sentences": ("pairs",),
    "one_to_one": ("pairs",),
    "threshold": ("pairs", "scores"),
    "pool": ("negatives",),
    "hard_negatives": ("negatives",),
    "skip_nearest": ("negatives",),
    "max_cosine": ("negatives",),
    "index": ("pairs", "negatives"),
    "cells": ("pairs", "negatives"),
    "probes": ("pairs", "negatives"),
}


def main(_) -> None:
    _check_flags()
    with cli.quiet_imports():
        from cmlm.common import files, leftovers

    work_dir = FLAGS.work_dir or leftovers.work_path(FLAGS.output)
    inputs = _inputs(work_dir)
    mine = _read_bitext if FLAGS.bitext else _mine_pairs
    with leftovers.work_directory(work_dir, _ENTRIES, _stays):
        leftovers.tidy_within(work_dir, _ENTRIES)
        told = mine(_job(work_dir), inputs)
    print("\n".join(told))
    output = shlex.quote(files.pattern(FLAGS.output))
    print(
        "train  python -m cmlm.train --flagfile=configs/multilingual_small.flags "
        f"--bitext_data=SOURCE-TARGET={output} --train_data=... --model_dir=..."
    )
    if FLAGS.bitext:
        print(
            "queries and passages  python -m cmlm.train "
            f"--flagfile=configs/adapt_pairs.flags --pair_data={output} "
            "--init_checkpoint=... --model_dir=..."
        )


def _stays(work_dir: str, error: BaseException | None) -> bool:
    """Whether the work directory stays for the next run, after an error or success."""
    # Signals and errors of the system keep it.
    if FLAGS.work_dir or not isinstance(error, UserError):
        return bool(FLAGS.work_dir) or error is not None
    # Path.glob reads no pattern in the folder's own name.
    return any(any(pathlib.Path(work_dir).glob(name)) for name in _COMPUTED)


def _check_flags() -> None:
    """Raises UserError if the flags do not name one of the three forms."""
    mining = bool(FLAGS.source or FLAGS.target)
    if mining == bool(FLAGS.bitext):
        given = "--bitext and --source or --target are given"
        raise UserError(
            f"{given if mining else 'no text is given'}; allowed: either --source and "
            "--target, or --bitext"
        )
    cli.require(output="a name in .tsv or .tsv.gz")
    if mining:
        text = "text: files, globs or a list of them; or a folder of cmlm.encode"
        cli.require(source=text, target=text)
    if FLAGS.score and mining:
        raise UserError("--score is given with --source; allowed: with --bitext")
    job = "scores" if FLAGS.score else "negatives"
    if mining:
        job = "pairs"
    for name, jobs in _READ_BY.items():
        if job not in jobs:
            allowed = ", or with ".join(_JOBS[reader] for reader in jobs)
            cli.refuse_given([name], f"with {allowed}")
    is_cosine = FLAGS.score or FLAGS.margin == "absolute"
    if is_cosine and FLAGS.threshold is not None and FLAGS.threshold > 1:
        raise UserError(
            f"--threshold is {FLAGS.threshold:g}; allowed: at most 1, as it is a cosine"
        )
    highest = _HIGHEST_WITH_ONE.get(FLAGS.margin)
    if mining and FLAGS.neighbours == 1 and highest is not None:
        # The default of `ratio` is above 1; that of `distance` is 0.
        by_default = FLAGS.threshold is None and FLAGS.margin == "ratio"
        if by_default or (FLAGS.threshold or 0) > highest:
            raise UserError(
                "--neighbours is 1; allowed: at least 2, --threshold up to "
                f"{highest}, or --margin=absolute, because one neighbour gives no "
                f"{FLAGS.margin} above {highest}"
            )
    if FLAGS.index == "flat":
        cli.refuse_given(("cells", "probes"), "with --index=ivf, pq or auto")
    both = FLAGS["one_to_one"].present and FLAGS["repeat_sentences"].present
    if both and FLAGS.one_to_one == FLAGS.repeat_sentences:
        raise UserError(
            "--one_to_one and --repeat_sentences contradict each other; allowed: one "
            "of them"
        )
    if not FLAGS.output.endswith((".tsv", ".tsv.gz")):
        raise UserError(
            f"--output is {FLAGS.output}; allowed: a name in .tsv or .tsv.gz"
        )


def _inputs(work_dir: str) -> dict:
    """Checks the paths. Returns the folder or the files of each given text, by flag.

    Raises:
        UserError: a text has no file, an output is an input or exists, or a model is
            needed and not given.
    """
    with cli.quiet_imports("mine"):
        from cmlm.common import files, outputs, path_names
        from cmlm.data import other_formats
        from cmlm.mining import encoded, jobs

    if not path_names.is_local(work_dir):
        raise UserError(
            f"--work_dir is {work_dir}; allowed: a directory that every worker mounts"
        )
    names = ("source", "target", "bitext", "pool")
    texts = {name: FLAGS[name].value for name in names}
    written = {"--output": FLAGS.output}
    if FLAGS.score or not FLAGS.bitext:
        written["the scores of --output"] = jobs.scores_path(FLAGS.output)
    outputs.check(
        written,
        {
            "--model": FLAGS.model,
            **{f"--{name}": value for name, value in texts.items()},
        },
        FLAGS.overwrite,
        {"--work_dir": work_dir},
    )
    found = {}
    for name, value in texts.items():
        if value:
            is_folder = name in ("source", "target") and encoded.is_folder(value)
            with naming(f"--{name}"):
                found[name] = value if is_folder else files.expand(value)
            if name != "bitext" and not is_folder:
                other_formats.warn(found[name], tables=False, effect=_EFFECT)
    # Texts of folders are encoded already.
    if not all(isinstance(value, str) for value in found.values()):
        cli.require(model="a model that cmlm.encode accepts")
    if not FLAGS.model:
        own = ("source_prompt_name", "target_prompt_name")
        cli.refuse_given((*reading_flags.NAMES, *own), "with --model")
    return found


def _job(work_dir: str):
    """Opens the model. Returns the `Job` that the flags describe."""
    with cli.quiet_imports():
        from cmlm.mining import index, jobs

    source = target = None
    if FLAGS.model:
        reading = reading_flags.reading()
        opened = cli.open_encoder(FLAGS.model, reading)
        source = _reader(opened, reading, "source_prompt_name")
        if FLAGS.source_prompt_name or FLAGS.target_prompt_name:
            target = _reader(opened, reading, "target_prompt_name")
    search = index.SearchSettings(
        FLAGS.index,
        FLAGS.cells,
        FLAGS.probes,
        int((FLAGS.max_memory_gb - _PROGRAM_GB) * 2**30),
    )
    workers = beam_flags.workers()
    return jobs.Job(source, FLAGS.output, work_dir, search, workers, target)


def _reader(encoder, reading, flag: str):
    """Returns the `Reader` of a side: the model with the prompt that a flag names.

    Raises:
        UserError: the encoder lacks the prompt.
    """
    with cli.quiet_imports():
        from cmlm.common import prompts
        from cmlm.encoders import opening
        from cmlm.mining import vectors

    name = FLAGS[flag].value
    if name:
        prompts.check_name(name, encoder.prompts, FLAGS.model, f"--{flag}")
        encoder = encoder.prompted(name)
        reading = dataclasses.replace(reading, prompt=None, prompt_name=name)
    reopen = functools.partial(opening.open_encoder, FLAGS.model, reading)
    return vectors.Reader(encoder, reopen)


def _mine_pairs(job, inputs: dict) -> list[str]:
    """Mines pairs. Returns the lines to print."""
    from cmlm.mining import jobs, pairs

    one_to_one = FLAGS.one_to_one and not FLAGS.repeat_sentences
    threshold = _threshold(FLAGS.margin)
    rule = pairs.PairRule(FLAGS.margin, FLAGS.retrieval, threshold, one_to_one)
    sides = inputs["source"], inputs["target"]
    return jobs.mine_pairs(job, *sides, FLAGS.neighbours, rule)


def _threshold(margin: str) -> float:
    """Returns the lowest score to keep."""
    from cmlm.mining import pairs

    return pairs.THRESHOLDS[margin] if FLAGS.threshold is None else FLAGS.threshold


def _read_bitext(job, inputs: dict) -> list[str]:
    """Filters a bitext, or adds hard negatives. Returns the lines to print."""
    from cmlm.data import bitext
    from cmlm.mining import jobs, negatives

    report = bitext.inspect(inputs["bitext"])
    print(f"{FLAGS.bitext}: {report}", file=sys.stderr)
    if FLAGS.score:
        threshold = _threshold("absolute")
        return jobs.score_pairs(job, inputs["bitext"], report.columns, threshold)
    if report.columns > 2:
        print(f"the hard negatives of {FLAGS.bitext} are replaced", file=sys.stderr)
    rule = negatives.NegativeRule(
        FLAGS.hard_negatives, FLAGS.skip_nearest, FLAGS.max_cosine
    )
    return jobs.mine_negatives(
        job, inputs["bitext"], report.columns, inputs.get("pool"), rule
    )


if __name__ == "__main__":
    cli.run(main, never_trains=True)
