"""Scores encoders on public test sets.

    python -m cmlm.evaluate --model=MODEL [--model=OTHER ...] --data_dir=DIR \\
        --tasks=sts,senteval --output=report

DIR holds the sets as they are distributed, each in the folder itself or in a subfolder
of its name (senteval/, tatoeba/). --output is a folder (results.json, report.md and
report.html with pictures) or a .json file.

--tasks takes families, tasks, one language of a task (tatoeba-de), and your own files:
classification:FILE.tsv, classification:TRAIN.tsv:TEST.tsv, pairs:FILE.tsv,
retrieval:DIR (BEIR's layout), sts:FILE.tsv, bitext:FILE.tsv, bitext:FILE.en:FILE.de,
agnosticity:FILE.en:FILE.de, geometry:FILE, neighbours:FILE (text without labels, laid
out as training text).

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

--list_tasks=tr lists the tasks in a language.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Callable, Iterable

from absl import flags

from cmlm import cli
from cmlm.encoders import reading_flags
from cmlm.errors import UserError

flags.DEFINE_multi_string(
    "model",
    [],
    "An export, a model_dir (best:, untrained:, bow: or both: may precede it), weights "
    "of another program, http://HOST:8501/v1/models/NAME, vectors:TXT:NPY, or "
    "languages:en=MODEL,fr=MODEL for an encoder of each language. NAME=MODEL names the "
    "model in tables",
)
flags.DEFINE_string("data_dir", None, "The folder of test sets.")
flags.DEFINE_list(
    "tasks", ["all"], "Names of families or tasks, comma-separated; or all."
)
flags.DEFINE_integer(
    "repeats",
    1,
    "Train each classifier this many times, each time with another seed.",
    lower_bound=1,
)
# The older name. In every other command, --seeds is a list.
flags.DEFINE_alias("seeds", "repeats")
flags.DEFINE_enum(
    "classifier",
    "logistic",
    ["logistic", "logistic-adam", "mlp"],
    "SentEval's classifier: scikit-learn's logistic regression, run to its optimum; or "
    "logistic regression or a network of 50 hidden units (mlp), both trained by Adam "
    "with early stopping, as in SentEval's PyTorch mode.",
)
flags.DEFINE_integer(
    "jobs",
    0,
    "The processors for searches and classifiers; 0 for all.",
    lower_bound=0,
)
flags.DEFINE_string(
    "pcr", None, "A file of cmlm.pcr: remove its components. It belongs to one model."
)
flags.DEFINE_bool(
    "mean_of_models",
    False,
    "Add a row with the mean and the deviation over the models, which are runs of one "
    "recipe with different seeds.",
)
flags.DEFINE_multi_string(
    "group",
    [],
    "NAME=fr,es,it: for tasks with a score for each language, add the average over "
    "these languages",
)
flags.DEFINE_string("output", None, "The folder or the .json file to write.")
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
    "--data_dir, list the available files too.",
)
reading_flags.define()
reading_flags.define_precision()

FLAGS = flags.FLAGS


def main(_) -> int | None:
    if FLAGS.list_tasks:
        with cli.quiet_imports("evaluate"):
            from cmlm.evaluation import listing

        print("\n".join(listing.rows(FLAGS.list_tasks, FLAGS.data_dir)))
        return 0
    if not FLAGS.sentences:
        cli.require(model="an export or a model_dir")
    # FAMILY:FILE names its files itself.
    own = FLAGS.tasks and all(":" in task for task in FLAGS.tasks)
    if not own:
        cli.require(data_dir="a folder of test sets")
    groups = groups_of(FLAGS.group)
    output = FLAGS.output and FLAGS.output.rstrip("/")
    with cli.quiet_imports("evaluate"):
        from cmlm.common import outputs
        from cmlm.evaluation import catalogue, layout, run, tables
        from cmlm.evaluation.tasks import base

    named = run.named(FLAGS.model)
    work_dir = f"{output}.work" if output and named else None
    outputs.check(
        {"--output": output, "--sentences": FLAGS.sentences},
        {
            "--model": named.values(),
            "--data_dir": FLAGS.data_dir,
            "--tasks": FLAGS.tasks,
            "--pcr": FLAGS.pcr,
        },
        FLAGS.overwrite,
        {"--cache_dir": FLAGS.cache_dir, "--output": work_dir},
    )

    if named:
        prepare_models(named.values())

    # ---------------------------------------------------------------- tasks
    settings = {
        "data_dir": FLAGS.data_dir or os.path.curdir,
        "seeds": list(range(base.SEED, base.SEED + FLAGS.repeats)),
        "classifier": FLAGS.classifier,
    }
    chosen = catalogue.select(
        FLAGS.tasks, settings["seeds"], FLAGS.classifier, FLAGS.jobs
    )
    tasks, failed = run.read(chosen, settings["data_dir"])
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    if FLAGS.sentences and tasks:
        count = write_sentences(FLAGS.sentences, run.sentences(tasks))
        print(f"sentences  {FLAGS.sentences}  {count:,} lines")

    # ----------------------------------------------------- scoring, results
    written = None
    with outputs.work_directory(work_dir if tasks else None) as work_dir:
        models = score_models(named, tasks, work_dir, failed) if tasks else {}
        if models:
            results = results_of(settings, tasks, models, groups, failed)
            print("\n\n".join(map(layout.plain, tables.tables(results))))
            written = write_results(output, results) if output else None
    if written:
        print(f"results  {written}")
    if failed:
        raise UserError(f"not scored: {', '.join(failed)}")


def groups_of(values: list[str]) -> dict[str, list[str]]:
    """The languages of each --group, by its name.

    Raises:
        UserError: a value is malformed, or two groups have one name.
    """
    groups: dict[str, list[str]] = {}
    for value in values:
        name, _, languages = value.partition("=")
        parts = [part for part in languages.split(",") if part]
        if not name or len(parts) < 2 or name in groups:
            raise UserError(
                f"--group has {value!r}; allowed: NAME=LANGUAGE,LANGUAGE,...; each "
                "name once"
            )
        groups[name] = list(dict.fromkeys(parts))
    return groups


def prepare_models(models: Iterable[str]) -> None:
    """Sets TensorFlow up for the models; refuses names without an encoder.

    Raises:
        UserError: there is no such encoder.
    """
    with cli.quiet_imports("evaluate"):
        from cmlm.encoders import by_language, opening

    reading = reading_flags.with_precision(reading_flags.reading())
    parts = [part for each in models for part in by_language.models(each).values()]
    cli.tune_for_inference({opening.precision(part, reading) for part in parts})
    for part in parts:
        opening.check(part)


def score_models(
    named: dict[str, str], tasks, work_dir: str | None, failed: dict[str, str]
) -> dict[str, dict]:
    """Scores each --model.

    Args:
        named: the models by name.
        tasks: the tasks with their data.
        work_dir: the directory for the scores of a killed run, or None.
        failed: gets a message for each task that a model cannot be scored on.

    Returns:
        The entry of results.json for each model with scores.
    """
    with cli.quiet_imports("evaluate"):
        from cmlm.common import files
        from cmlm.encoders import by_language, removal
        from cmlm.evaluation import report, run

    models = {}
    # The scores so far, for the file of a run that is killed.
    scored: dict[str, dict] = {}
    sentences = run.sentences(tasks)
    reading = reading_flags.with_precision(reading_flags.reading())

    def tell(name: str, task, scores: dict[str, float]) -> None:
        print(f"{name}: {task.name} {scores[task.main_metric]:.2f}", file=sys.stderr)
        if work_dir:
            scored.setdefault(name, {"scores": {}})["scores"][task.name] = scores
            path = os.path.join(work_dir, "scores.csv")
            with files.atomic_text(path) as file:
                report.write_csv(file, {"models": scored})

    for name, model in named.items():
        encoder = by_language.open_encoders(model, reading)
        pcr = removal.Removal(FLAGS.pcr, encoder, name) if FLAGS.pcr else None
        unscored: dict[str, str] = {}
        result = score_model(
            encoder, tasks, pcr, work_dir, functools.partial(tell, name), unscored
        )
        for task, reason in unscored.items():
            failed[f"{task} of {name}"] = reason
            print(f"{name}: {task}: {reason}", file=sys.stderr)
        if not result.scores:
            continue
        entry = {
            **info_of(encoder),
            **result.as_dict(),
            "truncated_sentences": truncated(encoder, sentences),
        }
        label = name
        if pcr:
            entry["pcr"] = {**pcr.about, "unchanged": pcr.unchanged(result.languages)}
            tell_unchanged(entry["pcr"]["unchanged"])
            label += " + PCR" * pcr.changes(result.languages)
        models[label] = entry
    return models


def tell_unchanged(languages: list[str]) -> None:
    """Names the languages that --pcr left alone; a task may name no language."""
    if languages:
        names = (name or "texts without a language" for name in languages)
        print(
            f"note: --pcr has no components for {', '.join(names)}: their vectors are "
            "unchanged",
            file=sys.stderr,
        )


def score_model(
    encoder, tasks, pcr, work_dir: str | None, tell: Callable, unscored: dict[str, str]
):
    """Scores a model, and keeps its scores for a run that continues this one.

    Args:
        encoder: the model.
        tasks: the tasks with their data.
        pcr: the `Removal` of its principal components, or None.
        work_dir: the directory for the scores of a killed run, or None.
        tell: called with each task and its scores.
        unscored: gets a message for each task that the model cannot be scored on.

    Returns:
        The `run.ModelScores`.
    """
    import threadpoolctl

    from cmlm.common import versions
    from cmlm.evaluation import run
    from cmlm.evaluation.kept import Kept, identity

    kept = None
    if work_dir:
        about = {
            "model": identity(encoder),
            "pcr": pcr and pcr.about,
            "versions": versions.installed(),
        }
        kept = Kept(work_dir, about)
    with threadpoolctl.threadpool_limits(FLAGS.jobs or None):
        return run.score(
            encoder,
            tasks,
            cache_of(encoder),
            progress=True,
            report=tell,
            change=pcr,
            kept=kept,
            failed=unscored,
        )


def results_of(
    settings: dict, tasks, models: dict, groups: dict, failed: dict[str, str]
) -> dict:
    """The content of results.json, with the averages of each model.

    Args:
        settings: the folder of test sets, the seeds and the classifier.
        tasks: the tasks with their data.
        models: the entries of the models; gets their averages, and with
            --mean_of_models their mean.
        groups: the languages of each --group.
        failed: a message for each task without scores.
    """
    from cmlm.common import versions
    from cmlm.evaluation import averages, catalogue, run

    described = {item.task.name: catalogue.describe(item) for item in tasks}
    own_groups = averages.own_groups(groups, described)
    first = next(iter(models.values()))
    for model in models.values():
        model["averages"] = averages.of(model["scores"], own_groups)
    if FLAGS.mean_of_models and len(models) > 1:
        models[f"mean of {len(models)} models"] = run.mean_of(list(models.values()))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **settings,
        "versions": versions.installed(),
        "tasks": described,
        "groups": groups,
        "averages": averages.describe(first["scores"], own_groups),
        "not_scored": failed,
        "models": models,
    }


def write_results(output: str, results: dict) -> str:
    """Writes the .json file or the folder; returns the path of the file to look at."""
    from cmlm.common import files
    from cmlm.evaluation import report

    if output.endswith(".json"):
        with files.atomic_text(output) as file:
            report.write_json(file, results)
        return output
    with files.atomic_directory(output, FLAGS.overwrite) as directory:
        report.write(directory, results)
    return os.path.join(output, "report.html")


def info_of(encoder) -> dict:
    """The description of a model in results.json."""
    if isinstance(encoder, dict):
        return {"languages": {name: part.info for name, part in encoder.items()}}
    return {**encoder.info, "seq_length": encoder.seq_length}


def cache_of(encoder) -> str | None:
    """The model's own folder in --cache_dir; None if there is no usable cache."""
    from cmlm.evaluation import store

    if not FLAGS.cache_dir:
        return None
    folder = store.folder_in(FLAGS.cache_dir, encoder)
    if not folder:
        print("--cache_dir is not used: the model has no fingerprint", file=sys.stderr)
    return folder


def truncated(encoder, sentences: list[str]) -> int | None:
    """The number of sentences that the encoder cuts; None if it is unknown."""
    if isinstance(encoder, dict) or encoder.seq_length is None:
        return None
    return int((encoder.lengths(sentences) > encoder.seq_length).sum())


def write_sentences(path: str, sentences: list[str]) -> int:
    """Writes one sentence a line and returns the number of sentences.

    Raises:
        UserError: a sentence contains a line break.
    """
    from cmlm.common import files

    for text in sentences:
        if "\n" in text or "\r" in text:
            raise UserError(
                f"--sentences={path} cannot hold {text[:60]!r}: it has a line break"
            )
    with files.atomic_text(path) as file:
        file.writelines(text + "\n" for text in sentences)
    return len(sentences)


if __name__ == "__main__":
    cli.run(main, never_trains=True)
