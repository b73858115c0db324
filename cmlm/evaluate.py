"""Scores encoders on public test sets and on your own files.

    python -m cmlm.evaluate --model=MODEL [--model=OTHER ...] --data_dir=DIR \\
        --tasks=sts,senteval --output=report

DIR holds the sets as distributed, each in the folder itself or in a subfolder of its
name (senteval/, tatoeba/). --output is a folder (results.json, scores.csv,
report.md and report.html with figures) or a .json file.

--tasks takes families, tasks, one language of a task (tatoeba-de), and your own files:
classification:FILE.tsv, classification:TRAIN.tsv:TEST.tsv, pairs:FILE.tsv,
retrieval:FILE.tsv (queries and passages), retrieval:DIR (BEIR's layout), sts:FILE.tsv,
bitext:FILE.tsv, bitext:FILE.en:FILE.de, agnosticity:FILE.en:FILE.de, geometry:FILE,
neighbours:FILE (laid out as training text). A language may precede each path:
sts:en=FILE.tsv.

A small training budget can make an encoder worse than its initial weights. So score two
baselines beside it: --model=untrained:MODEL_DIR (the run's initial weights) and
--model=bow:MODEL_DIR (the mean of the run's word embeddings).

For encoders of other programs, --sentences=FILE writes the sentences of the tasks, and
--model=vectors:FILE:VECTORS.npy reads the vectors that the other program made of them.

--pcr=FILE removes the principal components that cmlm.pcr fitted, in every task that
knows the languages of its sentences.

The command names each missing or damaged data set or language, and each task that a
model does not support. It scores the other tasks, and exits with code 1. With --output,
the same command resumes a killed run: until the end, the directory OUTPUT.work holds
the scores, in scores.csv and other files.

--predictions adds predictions.csv, a line for each example, and a table of differences
from the first model with their 95 % intervals.

--merge=REPORT,OTHER --output=MERGED makes one report of several, without a model.

--list_tasks=tr lists the tasks in a language.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags

from cmlm import cli
from cmlm.common import choices, path_names
from cmlm.common.counts import counted
from cmlm.encoders import reading_flags
from cmlm.errors import UserError, printable

flags.DEFINE_multi_string(
    "model",
    [],
    "An export, a model_dir (best:, untrained:, bow: or both: may precede it), a "
    "checkpoint, weights of another program, a server's address (http://... or "
    "grpc://...), vectors:SENTENCES.txt:VECTORS.npy, or languages:en=MODEL,fr=MODEL "
    "for an encoder of each language. NAME=MODEL names the model in tables",
)
flags.DEFINE_string("data_dir", None, "The folder of test sets.")
flags.DEFINE_list(
    "tasks", ["all"], "Names of families or tasks, comma-separated; or all."
)


class _Repeats(flags.IntegerParser):
    """Explains the flag to users who give a list, as --seeds of cmlm.finetune takes."""

    def convert(self, argument: str | int) -> int:
        try:
            return super().convert(argument)
        except ValueError as error:
            raise ValueError(
                "allowed: a number N; each classifier trains N times, and the command "
                "chooses the N seeds"
            ) from error


flags.DEFINE(
    _Repeats(lower_bound=1, upper_bound=1000),
    "repeats",
    1,
    "Train each classifier N times, with N seeds. --seeds=N is the older name; --seeds "
    "of cmlm.finetune is a list.",
    serializer=flags.ArgumentSerializer(),
)
flags.DEFINE_alias("seeds", "repeats")
flags.DEFINE_enum(
    "classifier",
    "logistic",
    choices.CLASSIFIERS,
    "SentEval's classifier. logistic: scikit-learn's logistic regression, run to its "
    "optimum. logistic-adam and mlp: logistic regression, and a network of 50 hidden "
    "units, both trained by Adam with early stopping, as in SentEval's PyTorch mode. "
    "logistic-cmlm: logistic-adam with the batches and epochs of CMLM's authors.",
)
flags.DEFINE_integer(
    "jobs",
    0,
    "CPU cores for searches and classifiers; 0: all.",
    lower_bound=0,
    upper_bound=4096,
)
flags.DEFINE_string(
    "pcr",
    None,
    "A file of cmlm.pcr, fitted with the model: remove its components from the "
    "vectors.",
)
flags.DEFINE_bool(
    "mean_of_models",
    False,
    "Add a row with mean and standard deviation over the models, which are runs of one "
    "recipe with different seeds. The baselines untrained: and bow: count only if all "
    "models are baselines.",
)
flags.DEFINE_multi_string(
    "mean",
    [],
    "NAME=MODEL,MODEL: add a row NAME with mean and standard deviation over these "
    "models, by the names of --model=NAME=MODEL",
)
flags.DEFINE_bool(
    "predictions",
    False,
    "Write the predictions for single examples to predictions.csv in the report, and "
    "compare each model with the first one by a paired bootstrap.",
)
flags.DEFINE_multi_string(
    "group",
    [],
    "NAME=fr,es,it: for tasks with a score for each language, add the average over "
    "these languages",
)
flags.DEFINE_list(
    "merge",
    None,
    "Reports (folders or .json files), comma-separated: unite their models and tasks, "
    "and score nothing. NAME=REPORT puts NAME: before the names of its models.",
)
flags.DEFINE_string(
    "output", None, "The folder or the .json file to write; default: print only."
)
flags.DEFINE_bool("overwrite", False, "Replace an output that exists.")
flags.DEFINE_string(
    "cache_dir", None, "Keep vectors here for the next run, by the model's fingerprint."
)
flags.DEFINE_string(
    "sentences", None, "Write the tasks' sentences to this file, one a line."
)
flags.DEFINE_string(
    "list_tasks",
    None,
    "A language, such as tr, or all: list the tasks in it, and exit. With "
    "--data_dir, show whether the files of each task are there.",
)
reading_flags.define()
reading_flags.define_precision()

FLAGS = flags.FLAGS
# The flags that have no use beside --merge.
_OF_SCORING = (
    *("model", "data_dir", "tasks", "repeats", "classifier", "jobs", "pcr"),
    *("mean_of_models", "predictions", "cache_dir", "sentences"),
    *reading_flags.NAMES,
)


def main(_) -> None:
    if FLAGS.list_tasks:
        with cli.quiet_imports("evaluate"):
            from cmlm.evaluation import listing

        print("\n".join(listing.rows(FLAGS.list_tasks, FLAGS.data_dir)))
        return
    if FLAGS.merge:
        _merge_reports()
        return
    _score()


def _score() -> None:
    """Scores --model on --tasks, or writes the tasks' sentences.

    Raises:
        UserError: flags do not go together; or a task has no score, at the end.
    """
    output = FLAGS.output and FLAGS.output.rstrip("/")
    _check_flags(output)
    groups, asked = _lists_of("group", "LANGUAGE"), _lists_of("mean", "MODEL")
    with cli.quiet_imports("evaluate"):
        from cmlm.common import leftovers, outputs
        from cmlm.evaluation import averages, means, report, results, run, scoring

    averages.check_own(groups)
    named = run.named(FLAGS.model)
    means.check(asked, named)
    work_dir = leftovers.work_path(output) if named else None
    outputs.check(
        {"--output": output, "--sentences": FLAGS.sentences},
        {
            "--model": named.values(),
            "--data_dir": FLAGS.data_dir,
            # Other items are names of families and tasks.
            "--tasks": [task for task in FLAGS.tasks if ":" in task],
            "--pcr": FLAGS.pcr,
        },
        FLAGS.overwrite,
        {"--cache_dir": FLAGS.cache_dir, "--output": work_dir},
    )
    if named:
        _prepare_models(named)

    settings = results.settings(
        FLAGS.data_dir or os.path.curdir, FLAGS.repeats, FLAGS.classifier
    )
    tasks, failed = _read_tasks(settings)
    if FLAGS.sentences and tasks:
        count = run.write_sentences(FLAGS.sentences, tasks)
        print(f"sentences  {FLAGS.sentences}  {counted(count, 'line')}")
    if failed and not named:
        state = "lacks sentences" if tasks else "is not written"
        raise UserError(
            f"--sentences={FLAGS.sentences} {state}; not read: {', '.join(failed)}"
        )
    if not named:
        return
    if not tasks:
        raise _not_scored(failed)

    written = None
    with leftovers.work_directory(work_dir, scoring.NAMES) as work_dir:
        scored = scoring.Scoring(
            tasks, work_dir, FLAGS.cache_dir, FLAGS.jobs, FLAGS.predictions
        )
        for name, model in named.items():
            scored.add(name, *_opened(name, model))
        failed |= scored.failed
        if not scored.models:
            # The vectors stay in the work directory for another try.
            raise _not_scored(failed)
        rows = means.rows(asked, named, scored.models, failed, FLAGS.mean_of_models)
        found = results.collect(
            settings, tasks, scored.models, groups, failed, rows, scored.predictions
        )
        # First: a reader of the tables may leave, as `head` does.
        if output:
            written = report.save(output, found, FLAGS.overwrite, scored.predictions)
    _show(found)
    if written:
        print(f"results  {written}")
    if failed:
        raise _not_scored(failed)


def _check_flags(output: str | None) -> None:
    """Raises UserError if flags do not go together."""
    if not FLAGS.sentences:
        cli.require(
            model="an export, a model_dir, weights of another program, or a server's "
            "address"
        )
    if FLAGS.output and not FLAGS.model:
        raise UserError(f"--output is {FLAGS.output}; allowed: with --model")
    if FLAGS.cache_dir and not path_names.is_local(FLAGS.cache_dir):
        raise UserError(f"--cache_dir is {FLAGS.cache_dir}; allowed: a local folder")
    # FAMILY:FILE names its files itself.
    if not (FLAGS.tasks and all(":" in task for task in FLAGS.tasks)):
        cli.require(data_dir="a folder of test sets")
    if FLAGS.predictions and (not output or output.endswith(".json")):
        raise UserError(
            f"--output is {output or 'not given'}; allowed with --predictions: a folder"
        )


def _merge_reports() -> None:
    """Makes one report of those of --merge.

    Raises:
        UserError: a flag has no use here, or the reports do not fit together.
    """
    cli.refuse_given(_OF_SCORING, "without --merge, which scores nothing")
    groups = _lists_of("group", "LANGUAGE")
    with cli.quiet_imports("evaluate"):
        from cmlm.common import outputs
        from cmlm.evaluation import averages, means, merging, report, results

    averages.check_own(groups)
    output = FLAGS.output and FLAGS.output.rstrip("/")
    outputs.check(
        {"--output": output}, {"--merge": merging.paths(FLAGS.merge)}, FLAGS.overwrite
    )
    content, rows = merging.unite(FLAGS.merge, groups)
    asked = _lists_of("mean", "MODEL")
    means.check(asked, content["models"])
    for name in asked.keys() & rows.keys():
        if asked[name] != rows[name]:
            raise UserError(
                f"--mean has {name!r}; allowed: a name that no mean of a report has"
            )
    found = results.completed(content, rows | asked)
    # First: a reader of the tables may leave, as `head` does.
    written = output and report.save(output, found, FLAGS.overwrite)
    _show(found)
    if written:
        print(f"results  {written}")


def _show(found: dict[str, Any]) -> None:
    """Prints the tables of results."""
    from cmlm.evaluation import differences, layout, tables

    parts = [*map(layout.plain, tables.tables(found))]
    if "differences" in found:
        parts.append(layout.plain_lines(differences.lines(found["differences"])))
        parts.append(differences.NOTE)
    print(printable("\n\n".join(parts)))
    if note := tables.note_of_pcr(found):
        print(f"note: {note}", file=sys.stderr)


def _not_scored(failed: Iterable[str]) -> UserError:
    """The error that names the tasks without a score."""
    return UserError(f"not scored: {', '.join(failed)}")


def _read_tasks(settings: dict[str, Any]):
    """Reads --tasks; names each that cannot be read.

    Returns:
        The tasks with their data, and a message for each other task.
    """
    from cmlm.evaluation import catalogue, run

    chosen = catalogue.select(
        FLAGS.tasks, settings["seeds"], settings["classifier"], FLAGS.jobs
    )
    tasks, failed = run.read(chosen, settings["data_dir"])
    for name, reason in failed.items():
        print(printable(f"{name}: {reason}"), file=sys.stderr)
    return tasks, failed


def _lists_of(flag: str, kind: str) -> dict[str, list[str]]:
    """The lists of a repeatable flag NAME=ITEM,ITEM, by their names.

    Args:
        flag: the name of the flag.
        kind: the word for an item, for messages.

    Raises:
        UserError: a value is malformed, or two lists have one name.
    """
    lists: dict[str, list[str]] = {}
    for value in FLAGS[flag].value:
        name, _, items = value.partition("=")
        parts = list(dict.fromkeys(filter(None, items.split(","))))
        if not name or len(parts) < 2 or name in lists:
            raise UserError(
                f"--{flag} has {value!r}; allowed: NAME={kind},{kind},...; each name "
                "once"
            )
        lists[name] = parts
    return lists


def _prepare_models(named: dict[str, str]) -> None:
    """Sets TensorFlow up for the models; refuses those that cannot be scored.

    Args:
        named: the models by name.

    Raises:
        UserError: an encoder does not exist, or does not fit a flag.
    """
    with cli.quiet_imports("evaluate"):
        from cmlm.encoders import by_language, opening

    reading = reading_flags.reading()
    parts = [
        part for each in named.values() for part in by_language.models(each).values()
    ]
    cli.tune_for_inference({opening.precision(part, reading) for part in parts})
    for part in parts:
        opening.check(part)
    if FLAGS.pcr or reading.given():
        # An export of another precision, a model without the prompt, or one that the
        # file of --pcr does not belong to, would end the run after the first model.
        for each in [*named.items()][1:]:
            _opened(*each, only_described=True)


def _opened(name: str, model: str, only_described: bool = False):
    """Opens a model by the flags.

    Args:
        name, model: its name and path.
        only_described: see `by_language.open_encoders`.

    Returns:
        The encoder, or an encoder for each language; and the `Removal` of its
        principal components, or None.

    Raises:
        UserError: the model is damaged, or does not fit a flag.
    """
    with cli.quiet_imports("evaluate"):
        from cmlm.encoders import by_language, components_removal

    reading = reading_flags.reading()
    encoder = by_language.open_encoders(model, reading, only_described)
    if not FLAGS.pcr:
        return encoder, None
    return encoder, components_removal.Removal(FLAGS.pcr, encoder, name)


if __name__ == "__main__":
    cli.run(main, never_trains=True)
