"""Scores encoders on public test sets.

    python -m cmlm.evaluate --model=OUT [--model=OTHER ...] --data_dir=DIR \\
        --tasks=sts,senteval --output=report

DIR has the sets as they are given out, each in the folder itself or in a subfolder of
its name (senteval/, tatoeba/ ...). --output is a folder (results.json, report.md and
report.html with pictures) or a .json file.

--tasks takes families, tasks, one language of a task (tatoeba-de), and files of your
own: bitext:FILE.tsv, bitext:FILE.en:FILE.de, sts:FILE.tsv, parallel:FILE.en:FILE.de.

A number means little alone: at small budgets a trained encoder can lose to its own
beginning. So score the baselines beside it, --model=untrained:MODEL_DIR (the weights
the run started from) and --model=bow:MODEL_DIR (the mean of its word embeddings).

Encoders of other programs: --sentences=FILE writes down what the tasks ask for, and
--model=vectors:FILE:VECTORS.npy takes what the other program made of it.

A data set that is missing or damaged is named, the rest is scored, and the exit code
is 1.
"""

import datetime
import os
import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_multi_string(
    "model",
    [],
    "An export, a model_dir (best:, untrained: or bow: may stand before it), weights "
    "of another program, http://HOST:8501/v1/models/NAME, or vectors:TXT:NPY. "
    "Repeatable.",
)
flags.DEFINE_string("data_dir", None, "Where the test sets are.")
flags.DEFINE_list(
    "tasks", ["all"], "Names of families or tasks, comma-separated; or all."
)
flags.DEFINE_integer(
    "seeds", 1, "How many seeds for tasks that train a classifier.", lower_bound=1
)
flags.DEFINE_string("output", None, "The folder or the .json file to write.")
flags.DEFINE_bool("overwrite", False, "Replace the folder --output if it exists.")
flags.DEFINE_string(
    "cache_dir", None, "Keeps vectors here, by fingerprint of the model, for next time."
)
flags.DEFINE_string(
    "sentences", None, "Writes the tasks' sentences to this file, one a line."
)

FLAGS = flags.FLAGS


def main(_) -> int:
    if not FLAGS.model and not FLAGS.sentences:
        raise UserError("--model is not given; allowed: an export or a model_dir")
    if not FLAGS.data_dir:
        raise UserError("--data_dir is not given; allowed: a folder with test sets")
    output = FLAGS.output and FLAGS.output.rstrip("/")
    as_json = bool(output) and output.endswith(".json")
    with cli.quiet_imports("evaluate"):
        from cmlm.common import files, versions
        from cmlm.encoders import opening
        from cmlm.evaluation import base, catalogue, report, run, tables

    if output and not as_json:
        files.refuse_existing(output, FLAGS.overwrite)

    # ---------------------------------------------------------------- tasks
    seeds = range(base.SEED, base.SEED + FLAGS.seeds)
    tasks, failed = run.read(catalogue.select(FLAGS.tasks, seeds), FLAGS.data_dir)
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    if FLAGS.sentences and tasks:
        count = write_sentences(FLAGS.sentences, run.sentences(tasks))
        print(f"sentences  {FLAGS.sentences}  {count:,} lines")

    # -------------------------------------------------------------- scoring
    models = {}
    for name in dict.fromkeys(FLAGS.model) if tasks else ():
        encoder = opening.open_encoder(name)

        def tell(task, scores, name=name):
            score = scores[task.main_metric]
            print(f"{name}: {task.name} {score:.2f}", file=sys.stderr)

        result = run.score(encoder, tasks, cache_of(encoder), True, tell)
        models[name] = {
            **encoder.info,
            **result.as_dict(),
            "truncated_sentences": truncated(encoder, run.sentences(tasks)),
        }

    # -------------------------------------------- tables, and where it all is
    results = {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "data_dir": FLAGS.data_dir,
        "seeds": list(seeds),
        "versions": versions.installed(),
        "tasks": {item.task.name: catalogue.describe(item) for item in tasks},
        "not_scored": failed,
        "models": models,
    }
    if models:
        print("\n\n".join(tables.plain(table) for table in tables.tables(results)))
    if models and as_json:
        with files.atomic_text(output) as file:
            report.write_json(file, results)
    elif models and output:
        with files.atomic_directory(output, FLAGS.overwrite) as directory:
            report.write(directory, results)
    if models and output:
        print(f"results  {output if as_json else os.path.join(output, 'report.html')}")
    if failed:
        print(f"not scored: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def cache_of(encoder) -> str | None:
    """The model's own folder in --cache_dir.

    Raises:
        UserError: the model cannot be told from others.
    """
    if not FLAGS.cache_dir:
        return None
    fingerprint = encoder.info.get("fingerprint")
    if not fingerprint:
        print("no fingerprint: its vectors are not kept", file=sys.stderr)
        return None
    # Where sentences are cut decides over vectors too.
    return os.path.join(FLAGS.cache_dir, f"{fingerprint}-{encoder.seq_length}")


def truncated(encoder, sentences: list[str]) -> int | None:
    """How many sentences the encoder cuts; None where it does not say."""
    if encoder.seq_length is None:
        return None
    return int((encoder.lengths(sentences) > encoder.seq_length).sum())


def write_sentences(path: str, sentences: list[str]) -> int:
    """Writes them one a line; returns how many.

    Raises:
        UserError: a sentence has a line break in it.
    """
    from cmlm.common import files

    for text in sentences:
        if "\n" in text or "\r" in text:
            raise UserError(f"--sentences cannot hold {text[:60]!r}: a line break")
    with files.atomic_text(path) as file:
        file.writelines(text + "\n" for text in sentences)
    return len(sentences)


if __name__ == "__main__":
    cli.run(main)
