"""Finds translations in two texts, and hard negatives for translations.

    python -m cmlm.mine --model=OUT --source='de/*.txt.gz' --target='en/*.txt.gz' \\
        --output=mined.tsv
    python -m cmlm.mine --model=WEAKER --bitext='de-en/*.tsv.gz' --hard_negatives=3 \\
        --output=hard.tsv

Both write what cmlm.train --bitext_data reads: source TAB target, and after them the
hard negatives, a column each.

The first takes two texts, one sentence a line, equal lines once. mined.scores has a
line for each of mined.tsv, score TAB cosine; the best pairs come first. LaBSE's rule,
the nearest sentence by plain cosine from 0.6 on, is --margin=absolute
--retrieval=forward --noone_to_one.

The second takes translations, and for each source the texts of --pool (by default all
targets) that are near to it by the model and are none of its targets.

Vectors and neighbours lie in --work_dir: a run that was stopped goes on from there,
and another margin, retrieval or threshold takes seconds.
"""

import contextlib
import fcntl
import os
import shutil
import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "model", None, "Whatever cmlm.encode takes, or http://HOST:8501/v1/models/NAME."
)
flags.DEFINE_string("source", None, "Text: files, globs or a list (.txt, .txt.gz).")
flags.DEFINE_string("target", None, "The same in the other language.")
flags.DEFINE_string("bitext", None, "Translations: files of source TAB target.")
flags.DEFINE_string("pool", None, "Text to take hard negatives from.")
flags.DEFINE_string("output", None, "The .tsv or .tsv.gz file to write.")
flags.DEFINE_bool("overwrite", False, "Replace an output file that exists.")
flags.DEFINE_string(
    "work_dir",
    None,
    "Where vectors and neighbours stay for the next run; by default OUTPUT.work, which "
    "is deleted at the end.",
)
flags.DEFINE_integer(
    "neighbours", 4, "k, which the margin is taken over.", lower_bound=1
)
flags.DEFINE_enum(
    "margin",
    "ratio",
    ["ratio", "distance", "absolute"],
    "Cosine over the average one of the two sentences' neighbours, less it, or alone.",
)
flags.DEFINE_enum(
    "retrieval",
    "max",
    ["forward", "backward", "intersection", "max"],
    "The best of each source, of each target, what is in both, or all of both.",
)
flags.DEFINE_float(
    "threshold",
    None,
    "Lowest score; by default 1.04 (ratio), 0 (distance) or 0.6 (absolute).",
)
flags.DEFINE_bool("one_to_one", True, "Take a sentence once, in the best of its pairs.")
flags.DEFINE_integer(
    "hard_negatives", 3, "How many for each pair of --bitext.", lower_bound=1
)
flags.DEFINE_integer(
    "skip_nearest", 0, "Of the wrong texts leave out the nearest ones.", lower_bound=0
)
flags.DEFINE_float("max_cosine", 1.0, "What is nearer to the source is no negative.")
flags.DEFINE_enum(
    "index",
    "auto",
    ["auto", "flat", "ivf", "pq"],
    "Exact; in cells; in cells and compressed. auto: by size and --max_memory_gb.",
)
flags.DEFINE_integer(
    "cells", 0, "Of ivf and pq; 0: four times the root of the sentences.", lower_bound=0
)
flags.DEFINE_integer(
    "probes", 32, "Cells to look into for each sentence; more find more.", lower_bound=1
)
flags.DEFINE_float(
    "max_memory_gb",
    4.0,
    "For all but the model's own layers; 1 of it is for the program.",
    lower_bound=1.25,
)

FLAGS = flags.FLAGS
_PROGRAM_GB = 1


def main(_) -> None:
    mining = bool(FLAGS.source or FLAGS.target)
    if mining == bool(FLAGS.bitext):
        raise UserError("give either --source and --target, or --bitext")
    for name in ("model", "output", *(("source", "target") if mining else ())):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    if FLAGS.pool and mining:
        raise UserError("--pool goes with --bitext")
    if not FLAGS.output.endswith((".tsv", ".tsv.gz")):
        raise UserError(f"--output={FLAGS.output} must end in .tsv or .tsv.gz")
    with cli.quiet_imports("mine"):
        from cmlm.common import files
        from cmlm.encoders import opening
        from cmlm.mining import neighbours

    # ------------------------------------------------------ inputs and model
    inputs = {
        name: files.expand(getattr(FLAGS, name))
        for name in ("source", "target", "bitext", "pool")
        if getattr(FLAGS, name)
    }
    for path in {FLAGS.output, scores_path(FLAGS.output)} if mining else {FLAGS.output}:
        files.refuse_existing(path, FLAGS.overwrite)
    work_dir = FLAGS.work_dir or f"{FLAGS.output}.work"
    settings = neighbours.Search(
        FLAGS.index,
        FLAGS.cells,
        FLAGS.probes,
        int((FLAGS.max_memory_gb - _PROGRAM_GB) * 2**30),
    )
    with disk_errors(), locked(work_dir):
        run = mine_pairs if mining else mine_negatives
        run(inputs, opening.open_encoder(FLAGS.model), work_dir, settings)
    if not FLAGS.work_dir:
        shutil.rmtree(work_dir)

    # --------------------------------------------------- what, and where it is
    print(
        "train  python -m cmlm.train --flagfile=configs/multilingual_small.flags "
        f"--bitext_data={FLAGS.output} --train_data=... --model_dir=..."
    )


def mine_pairs(inputs, encoder, work_dir, settings) -> None:
    """Writes pairs and their scores."""
    from cmlm.common import files
    from cmlm.mining import pairs as pairs_lib
    from cmlm.mining import texts as texts_lib

    sides = {
        name: texts_lib.gather(
            lambda name=name: texts_lib.read_lines(inputs[name]),
            os.path.join(work_dir, name),
            f"--{name}",
            settings.memory,
        )
        for name in ("source", "target")
    }
    searcher = open_searcher(sides, encoder, work_dir, settings)
    found = {
        side: searcher.find(side, FLAGS.neighbours)
        for side in pairs_lib.needed(FLAGS.retrieval, FLAGS.margin)
    }
    threshold = FLAGS.threshold
    if threshold is None:
        threshold = pairs_lib.THRESHOLDS[FLAGS.margin]
    pairs = pairs_lib.mine(
        found.get("source"),
        found.get("target"),
        FLAGS.margin,
        FLAGS.retrieval,
        threshold,
        FLAGS.one_to_one,
    )
    if not len(pairs):
        raise UserError(
            f"no pair has a score of {threshold:g} or more: lower --threshold"
        )
    # The pairs last: where they are, all is.
    with files.atomic_text(scores_path(FLAGS.output)) as file:
        for score, cosine in zip(pairs.score, pairs.cosine, strict=True):
            file.write(f"{score:.6f}\t{cosine:.6f}\n")
    with files.atomic_text(FLAGS.output) as file:
        for start in range(0, len(pairs), 65_536):
            part = pairs.where(slice(start, start + 65_536))
            texts = sides["source"].take(part.source), sides["target"].take(part.target)
            file.writelines(f"{a}\t{b}\n" for a, b in zip(*texts, strict=True))
    print(
        f"{FLAGS.output}  {len(pairs):,} pairs with a score ({FLAGS.margin}) of "
        f"{threshold:g} or more, the best first"
    )
    print(f"{scores_path(FLAGS.output)}  score TAB cosine of its lines")


def mine_negatives(inputs, encoder, work_dir, settings) -> None:
    """Writes translations with hard negatives beside them."""
    from cmlm.common import files
    from cmlm.data import bitext
    from cmlm.mining import negatives
    from cmlm.mining import texts as texts_lib

    report = bitext.inspect(inputs["bitext"])
    print(f"{FLAGS.bitext}: {report}", file=sys.stderr)
    if report.columns > 2:
        print("its hard negatives are replaced", file=sys.stderr)
    source, target = (
        texts_lib.gather(
            lambda column=column: texts_lib.read_column(
                inputs["bitext"], report.columns, column
            ),
            os.path.join(work_dir, f"bitext-{column + 1}"),
            f"--bitext, column {column + 1}",
            settings.memory,
        )
        for column in range(2)
    )
    sides = {"bitext-1": source, "bitext-2": target}
    pool = target
    if FLAGS.pool:
        pool = texts_lib.gather(
            lambda: texts_lib.read_lines(inputs["pool"]),
            os.path.join(work_dir, "pool"),
            "--pool",
            settings.memory,
        )
        sides = {"bitext-1": source, "pool": pool}
    count, skip = FLAGS.hard_negatives, FLAGS.skip_nearest
    k = negatives.neighbours_for(count, skip, len(pool))
    searcher = open_searcher(sides, encoder, work_dir, settings)
    rows = negatives.choose(
        *(source, target, pool, searcher.find("source", k)),
        *(count, skip, FLAGS.max_cosine, work_dir),
    )
    written = 0
    with files.atomic_text(FLAGS.output) as file:
        for a, b in zip(source.rows, target.rows, strict=True):
            if rows[a, 0] >= 0:
                cells = [*source.take([a]), *target.take([b]), *pool.take(rows[a])]
                file.write("\t".join(cells) + "\n")
                written += 1
        if not written:
            raise UserError(
                f"no pair has {count} hard negatives: raise --max_cosine or give a "
                "larger --pool"
            )
    print(
        f"{FLAGS.output}  {written:,} pairs with {count} hard negatives each; "
        f"{source.lines - written:,} left out that have fewer"
    )


def open_searcher(sides, encoder, work_dir, settings):
    """Encodes what is not encoded yet."""
    from cmlm.mining import neighbours, vectors

    for texts in sides.values():
        print(
            f"{texts.name}: {texts.lines:,} sentences, {len(texts):,} different",
            file=sys.stderr,
        )
    encoded = [
        vectors.encode(texts, encoder, os.path.join(work_dir, f"{name}-vectors"))
        for name, texts in sides.items()
    ]
    searcher = neighbours.Searcher(
        *encoded, os.path.join(work_dir, "-".join([*sides, "neighbours"])), settings
    )
    print(f"index: {searcher.kind}", file=sys.stderr)
    return searcher


def scores_path(output: str) -> str:
    """`mined.tsv.gz` -> `mined.scores.gz`: no glob of .tsv files finds it."""
    stem, _, packed = output.rpartition(".tsv")
    return f"{stem}.scores{packed}"


@contextlib.contextmanager
def locked(directory):
    """Keeps a second run out of a work directory."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{directory} is in use by another run") from error
        yield


@contextlib.contextmanager
def disk_errors():
    """Says in one line what the disk says: full, read-only, no such directory."""
    import tensorflow as tf

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or FLAGS.output}: {error.strerror}"
        ) from error
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(error.message) from error


if __name__ == "__main__":
    cli.run(main)
