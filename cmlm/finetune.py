"""Fine-tunes an encoder for your labels, GLUE or Amazon reviews, and scores it.

    python -m cmlm.finetune --model=MODEL --task=file:train.tsv --dev=dev.tsv \\
        --predict=new.tsv --output=tuned
    python -m cmlm.finetune --model=tuned --predict=newer.tsv --output=answers

    python -m cmlm.finetune --model=MODEL --task=rte --data_dir=glue --seeds=0,1,2 \\
        --output=rte
    python -m cmlm.finetune --model=MODEL --task=glue --data_dir=glue --output=glue_dev

Your files are .tsv without quoting, or .csv. Their first line names the columns:
`text`, or `text1` and `text2`; and `label` (a class), `labels` (any number of classes,
separated by |) or `score` (a number). Without --dev, a tenth of the examples is held
out. --output then has model/1, a SavedModel from strings to predictions, and a file of
predictions for each file of --predict. With such an output as --model and without
--task, the command only predicts.

--data_dir holds GLUE's public files as distributed (RTE/train.tsv, dev.tsv, test.tsv
...), in the folder itself or in its subfolder glue/. Tasks: cola sst2 mrpc qqp stsb
mnli qnli rte wnli; glue, all of these but wnli; and amazon, trained on English reviews
of books, DVDs and music (english/books/train.review) and scored in English, French,
German and Japanese.

The command trains all weights. GLUE's tasks and your own files have a head over [CLS],
with both sentences of a pair in one sequence. The reviews have a head on
[u, v, |u - v|, u * v], where u and v are the encoder's sentence vectors of title and
text. The defaults are those of BERT and ULR: 3 epochs in batches of 32 (8 to 64 are
usual), AdamW 3e-5. For your own file, the default is as many epochs as make 500 steps,
from 3 to 30.

--output is a folder: results.json (every seed, mean, deviation, maximum, data and
settings) and the test predictions of the seed that is best on dev, in the form of
gluebenchmark.com. For public tasks, report.md and report.html show published rows and
their sources beside yours. With several tasks the folder holds a folder for each task,
and results.json and the report have GLUE's average. The folder appears at the end.
Until then, the directory OUTPUT.work holds the finished seeds, and the same command
resumes a run that was killed or diverged; its --task and --seeds may change.

The row `constant` predicts the same for every example: the most frequent training
label, the mean of the scores, or every label that more than half of the examples have.
A small encoder may not beat it.
"""

import contextlib
import functools
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "model",
    None,
    "A model_dir (best: or untrained: may precede it), a checkpoint, an export, or "
    "weights of another program.",
)
flags.DEFINE_list(
    "task",
    [],
    "Tasks by name, comma-separated, such as rte or amazon; glue; or file:FILE.",
)
flags.DEFINE_string("data_dir", None, "The folder of the task's files.")
flags.DEFINE_string(
    "dev",
    None,
    "For file:FILE, the labelled file to score on. Default: a tenth of FILE.",
)
flags.DEFINE_list(
    "predict",
    [],
    "Files to predict, comma-separated; labels are optional. For file:FILE, or for a "
    "--model that file:FILE has tuned.",
)
flags.DEFINE_string("output", None, "The folder to write; default: print only.")
flags.DEFINE_bool("overwrite", False, "Replace --output if it exists.")
flags.DEFINE_list("seeds", ["0"], "A list of seeds, such as 0,1,2; a run for each.")
flags.DEFINE_integer(
    "epochs",
    None,
    "Passes over the training examples. Default: 3; for file:FILE, as many as make 500 "
    "steps, from 3 to 30.",
)
flags.DEFINE_integer("batch_size", 32, "Examples in a step.")
flags.DEFINE_float(
    "learning_rate",
    3e-5,
    "AdamW's peak rate, at the end of the warm-up. A higher one needs fewer epochs.",
)
flags.DEFINE_float(
    "warmup_share", 0.1, "The share of the steps in which the rate warms up."
)
flags.DEFINE_float("weight_decay", 0.01, "AdamW's weight decay.")
flags.DEFINE_float(
    "dropout_rate",
    0.1,
    "Dropout in the encoder and, except for amazon, before the logits.",
)
flags.DEFINE_integer(
    "seq_length",
    None,
    "The longest sequence in tokens. Default: 128; for amazon, the encoder's limit.",
)

FLAGS = flags.FLAGS
# The flags of a training.
_OF_TRAINING = (
    "data_dir",
    "dev",
    "seeds",
    "epochs",
    "batch_size",
    "learning_rate",
    "warmup_share",
    "weight_decay",
    "dropout_rate",
    "seq_length",
)


def main(_) -> None:
    cli.tune_for_training()
    own = all(name.startswith("file:") for name in FLAGS.task)
    predicts_only = bool(FLAGS.predict and not FLAGS.task)
    cli.require(
        model="a model_dir, a checkpoint, an export, or weights of another program"
    )
    if predicts_only:
        cli.refuse_given(_OF_TRAINING, "with --task")
    else:
        cli.require(task="tasks by name, glue, or file:FILE")
        if own:
            cli.refuse_given(
                ["data_dir"], "with public tasks; file:FILE is a path of its own"
            )
    seeds = _parse_seeds(FLAGS.seeds)
    output = FLAGS.output and FLAGS.output.rstrip("/")
    with cli.quiet_imports("evaluate"):
        from cmlm.common import fields, leftovers, outputs, path_names
        from cmlm.finetuning import catalogue, labelled, training

    if output and own and not predicts_only:
        path_names.refuse_pattern(output, "--output")
    outputs.check(
        {"--output": output},
        {
            "--model": FLAGS.model,
            "--data_dir": FLAGS.data_dir,
            "--task": [
                name.removeprefix(labelled.PREFIX)
                for name in FLAGS.task
                if name.startswith(labelled.PREFIX)
            ],
            "--dev": FLAGS.dev,
            "--predict": FLAGS.predict,
        },
        FLAGS.overwrite,
        {"--output": None if predicts_only else leftovers.work_path(output)},
    )
    if predicts_only:
        _predict(output)
        return
    # A file without file: is an unknown task, rather than a task without a folder.
    chosen = catalogue.find_tasks(FLAGS.task, FLAGS.dev, FLAGS.predict)
    if not own:
        cli.require(data_dir="the folder of the task's files")
        if not os.path.isdir(FLAGS.data_dir):
            raise UserError(f"--data_dir is {FLAGS.data_dir}; allowed: a folder")
    settings = training.Settings(
        epochs=FLAGS.epochs,
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        warmup_share=FLAGS.warmup_share,
        weight_decay=FLAGS.weight_decay,
        dropout_rate=FLAGS.dropout_rate,
        seq_length=FLAGS.seq_length,
    )
    fields.check(settings, "--")

    if own:
        _finetune_own(chosen[0], settings, seeds, output)
    else:
        _finetune_public(chosen, settings, seeds, output)


def _finetune_public(tasks, settings, seeds: list[int], output: str | None) -> None:
    """Trains on public tasks; writes results and predictions of each."""
    with cli.quiet_imports("evaluate"):
        from cmlm.evaluation import layout
        from cmlm.evaluation.data_dir import DataDir
        from cmlm.finetuning import report, run, task_data

    outcomes, several = [], len(tasks) > 1
    if several:
        for task in tasks:
            task_data.check(task, DataDir(FLAGS.data_dir))
    with _new_folders(output) as (directory, work):
        for task in tasks:
            source = DataDir(FLAGS.data_dir)
            outcome = run.finetune(
                FLAGS.model, task, source, settings, seeds, work_dir=work
            )
            outcomes.append(outcome)
            _print_table(outcome.rows)
        scores = {item.task.name: report.scores_of(item.results) for item in outcomes}
        table = report.table(FLAGS.model, scores)
        if several or table.sources:
            print(layout.plain(table, with_sources=True))
        if not directory:
            return
        # Several tasks have a folder each, one task has the output itself.
        folders = [item.task.name if several else "" for item in outcomes]
        for folder, item in zip(folders, outcomes, strict=True):
            report.write(os.path.join(directory, folder), item)
        if several:
            report.write_summary(directory, scores)
        report.write_table(directory, table)
    print(f"results      {os.path.join(output, 'results.json')}")
    for folder, item in zip(folders, outcomes, strict=True):
        for answer in item.predictions:
            path = os.path.join(output, folder, answer)
            print(f"predictions  {path}  of seed {item.results['best_seed']}")


def _finetune_own(task, settings, seeds: list[int], output: str | None) -> None:
    """Trains on the user's own files; writes results, predictions and the model."""
    with cli.quiet_imports("evaluate"):
        from cmlm.common import atomic
        from cmlm.evaluation.data_dir import DataDir
        from cmlm.finetuning import report, run, saving

    def keep(model, tokenizer, seq_length, logits, folder):
        with atomic.directory(folder or saved, overwrite=True) as written:
            saving.write(written, task, model, tokenizer, seq_length)
            dev = task.dev[0][1]
            rows = itertools.islice(task.examples(dev, task.find(None, dev)), 64)
            texts = [row.texts for row in rows]
            difference = saving.check(written, texts, logits[dev][: len(texts)])
        print(
            "largest difference of the SavedModel's outputs from the trained model: "
            f"{difference:.1e}",
            file=sys.stderr,
        )

    with _new_folders(output) as (directory, work):
        saved = directory and os.path.join(directory, "model", saving.VERSION)
        source = DataDir(os.path.curdir)
        kept = keep if directory else None
        outcome = run.finetune(FLAGS.model, task, source, settings, seeds, kept, work)
        _print_table(outcome.rows)
        if not directory:
            return
        if outcome.kept:
            shutil.copytree(outcome.kept, saved)
        report.write(directory, outcome)
    print(f"results      {os.path.join(output, 'results.json')}")
    print(f"model        {os.path.join(output, 'model', saving.VERSION)}")
    for answer in outcome.predictions:
        print(f"predictions  {os.path.join(output, answer)}")
    tuned = shlex.quote(output)
    print(
        f"predict      python -m cmlm.finetune --model={tuned} --predict=FILE "
        "--output=..."
    )
    print(f"serve        python -m export.serve --model={tuned}")


@contextlib.contextmanager
def _new_folders(output: str | None) -> Iterator[tuple[str | None, str | None]]:
    """Begins the output before the training, which a bad --output would waste.

    Yields:
        The folder of the output, and the directory for the finished seeds of a stopped
        run; None for each that there is not.
    """
    from cmlm.common import atomic, leftovers
    from cmlm.evaluation import resuming

    with contextlib.ExitStack() as stack:
        work_path = leftovers.work_path(output)
        work = leftovers.work_directory(work_path, resuming.NAMES)
        work = stack.enter_context(work)
        begun = atomic.directory(output, FLAGS.overwrite) if output else None
        yield begun and stack.enter_context(begun), work


def _predict(output: str | None) -> None:
    """Predicts --predict with the tuned --model, without training.

    Raises:
        UserError: --output is not given, or the model or a file is damaged.
    """
    with cli.quiet_imports("evaluate"):
        from cmlm.common import atomic
        from cmlm.finetuning import labelled, saving

    cli.require(output="a folder for the predictions")
    tuned = saving.Tuned(FLAGS.model)
    found = labelled.answers(FLAGS.predict)
    with atomic.directory(output, FLAGS.overwrite) as directory:
        for answer, path in found.items():
            # Read twice: only the logits of a large file stay in memory.
            read = functools.partial(tuned.task.read, path, with_labels=False)
            logits = tuned.logits(row.texts for row in read())
            with atomic.text(os.path.join(directory, answer)) as file:
                indices = (row.index for row in read())
                tuned.task.write_predictions(file, indices, logits)
    for answer in found:
        print(f"predictions  {os.path.join(output, answer)}")


def _parse_seeds(texts: list[str]) -> list[int]:
    """Parses --seeds; each seed once.

    Raises:
        UserError: no seed is given, or one is not a whole number below 2**32.
    """
    seeds = []
    for text in texts:
        if not text.strip().isdecimal() or int(text) >= 1 << 32:
            raise UserError(
                f"--seeds has {text!r}; allowed: numbers as in 0,1,2, below 2**32"
            )
        seeds.append(int(text))
    if not seeds:
        raise UserError("--seeds is empty; allowed: numbers as in 0,1,2")
    return list(dict.fromkeys(seeds))


def _print_table(rows: dict[str, dict[str, float]]) -> None:
    """Prints a line for each row and a column for each metric."""
    from cmlm.evaluation import layout

    names = list(next(iter(rows.values())))
    lines = [
        [title, *(layout.number_text(row.get(name)) for name in names)]
        for title, row in rows.items()
    ]
    print(layout.plain_lines([["", *names], *lines]))


if __name__ == "__main__":
    cli.run(main)
