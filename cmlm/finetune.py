"""Fine-tunes an encoder for a task of GLUE, or for Amazon's reviews, and scores it.

    python -m cmlm.finetune --model=OUT --task=rte --data_dir=glue --seeds=0,1,2 \\
        --output=rte

DIR has GLUE's public files as they are (RTE/train.tsv, dev.tsv, test.tsv ...), in the
folder itself or in glue/. Tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli; and
amazon, trained on English reviews (english/books/train.review) and scored on English,
German and French ones.

All weights move: a head over [CLS] on top, both sentences of a pair in one sequence.
Defaults are those of BERT and of the paper on universal language representation: 3
epochs of batches of 32 (8 to 64 are usual), AdamW 3e-5.

--output is a folder: results.json (every seed, mean, deviation, data and settings), and
the test predictions of the seed that is best on dev, as gluebenchmark.com takes them.
The row `constant` is the most frequent label of the training examples, for all: a
small encoder may not be above it.
"""

import datetime
import gc
import json
import os
import statistics
import sys

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string(
    "model",
    None,
    "A model_dir (best: or untrained: may stand before it), a checkpoint, an export, "
    "or weights of another program.",
)
flags.DEFINE_string("task", None, "One of the tasks above, such as rte.")
flags.DEFINE_string("data_dir", None, "Where the task's files are.")
flags.DEFINE_string("output", None, "The folder to write; none: print the table only.")
flags.DEFINE_bool("overwrite", False, "Replace the folder --output if it exists.")
flags.DEFINE_list("seeds", ["0"], "A run for each of these numbers.")
flags.DEFINE_integer("epochs", 3, "Passes over the training examples.")
flags.DEFINE_integer("batch_size", 32, "Examples of a step.")
flags.DEFINE_float("learning_rate", 3e-5, "Of AdamW, at the end of the warm-up.")
flags.DEFINE_float("warmup_share", 0.1, "Share of the steps that warm up.")
flags.DEFINE_float("weight_decay", 0.01, "Of AdamW.")
flags.DEFINE_float("dropout_rate", 0.1, "In the encoder and before the logits.")
flags.DEFINE_integer(
    "seq_length", None, "The longest example in tokens; 128, or what the encoder can."
)

FLAGS = flags.FLAGS


def main(_) -> None:
    for name in ("model", "task", "data_dir"):
        if not getattr(FLAGS, name):
            raise UserError(f"--{name} is not given")
    seeds = parse_seeds(FLAGS.seeds)
    output = FLAGS.output and FLAGS.output.rstrip("/")
    with cli.quiet_imports("evaluate"):
        import numpy as np

        from cmlm.common import fields, files, versions
        from cmlm.common.progress import ProgressLine
        from cmlm.encoders import identity, opening
        from cmlm.encoders.trained import resolve_seq_length
        from cmlm.evaluation import reading
        from cmlm.finetuning import catalogue, examples, glue, tasks, training

    if output:
        files.refuse_existing(output, FLAGS.overwrite)

    task = catalogue.find_task(FLAGS.task)
    settings = training.Settings(
        epochs=FLAGS.epochs,
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        warmup_share=FLAGS.warmup_share,
        weight_decay=FLAGS.weight_decay,
        dropout_rate=FLAGS.dropout_rate,
    )
    fields.check(settings, "--")

    # ----------------------------------------------------------------- data
    source = reading.DataDir(FLAGS.data_dir)
    paths = {
        name: tasks.find_file(source, task, name)
        for name in (task.train, *(name for _, name in task.dev))
    }
    tests = {}
    for answer, name in task.tests:
        try:
            paths[name] = tasks.find_file(source, task, name)
            tests[name] = answer
        except reading.MissingData as error:
            print(f"no predictions in {answer}: {error}", file=sys.stderr)
    trained = opening.open_trained(FLAGS.model)
    # GLUE's usual length.
    seq_length = resolve_seq_length(trained, FLAGS.seq_length, default=128)
    data = {
        name: examples.encode(
            task.read(path, with_labels=name not in tests),
            trained.tokenizer,
            seq_length,
        )
        for name, path in paths.items()
    }
    train = data[task.train]
    steps = settings.epochs * settings.steps_per_epoch(len(train))
    sizes = ", ".join(f"{len(part):,} in {name}" for name, part in data.items())
    cut = sum(part.truncated for part in data.values())
    print(f"{task.name}: {sizes}; {cut:,} cut at {seq_length} tokens", file=sys.stderr)

    # ---------------------------------------------------------------- seeds
    info = identity.describe(trained, seq_length)
    start = training.Start(trained)
    # What starts from its weights needs the memory.
    del trained
    print(
        f"{FLAGS.model}: {steps:,} steps of {settings.batch_size}, AdamW "
        f"{settings.learning_rate:g}, head {start.head}, "
        f"seeds {', '.join(map(str, seeds))}",
        file=sys.stderr,
    )
    gold = {name: part.labels for name, part in data.items()}
    scores, answers = {}, {}
    for seed in seeds:
        classifier = training.SentenceClassifier(start, task, settings, seed)
        line = ProgressLine(steps, 0)

        def tell(step, loss, rate, line=line):
            line.update(step, {"loss": loss, "lr": rate}, settings.batch_size)

        loss = classifier.train(train, tell)
        predicted = {
            name: classifier.predict(part)
            for name, part in data.items()
            if part is not train
        }
        scores[seed] = {**tasks.score(task, predicted, gold), "train_loss": loss}
        print(f"seed {seed}: {scores[seed]['score']:.2f} on dev", file=sys.stderr)
        if seed == best(scores):
            answers = {name: predicted[name] for name in tests}
        # Layers refer to each other: left to itself, Python would hold two models.
        del classifier
        gc.collect()

    # ------------------------------------------- the table, and where it is
    guess = tasks.constant(task, train.labels)
    guesses = {name: np.full(len(part), guess) for name, part in data.items()}
    summary = {"mean": over(statistics.fmean, scores)}
    if len(seeds) > 1:
        summary["std"] = over(statistics.stdev, scores)
    summary["constant"] = tasks.score(task, guesses, gold)
    print_table({**{f"seed {seed}": scores[seed] for seed in seeds}, **summary})
    if not output:
        return
    results = {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "task": task.name,
        "model": {"path": FLAGS.model, **info},
        "settings": {**vars(settings), "seq_length": seq_length, "head": start.head},
        "data": {
            name: {
                "path": path,
                "sha256": tasks.checksum(path),
                "examples": len(data[name]),
                "truncated": data[name].truncated,
            }
            for name, path in paths.items()
        },
        "seeds": {str(seed): figures for seed, figures in scores.items()},
        **summary,
        "best_seed": best(scores),
        "versions": versions.installed(),
    }
    with files.atomic_directory(output, FLAGS.overwrite) as directory:
        with files.atomic_text(os.path.join(directory, "results.json")) as file:
            json.dump(results, file, indent=2)
            file.write("\n")
        for name, answer in tests.items():
            with files.atomic_text(os.path.join(directory, answer)) as file:
                indices = data[name].indices
                glue.write_predictions(file, task, indices, answers[name])
    print(f"results      {os.path.join(output, 'results.json')}")
    for answer in tests.values():
        print(f"predictions  {os.path.join(output, answer)}  of seed {best(scores)}")


def parse_seeds(texts: list[str]) -> list[int]:
    """The seeds, each once.

    Raises:
        UserError: one is no number from 0 on, or there is none.
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


def best(scores: dict[int, dict[str, float]]) -> int:
    """The seed with the highest score; the first of equals."""
    return max(scores, key=lambda seed: scores[seed]["score"])


def over(statistic, scores: dict[int, dict[str, float]]) -> dict[str, float]:
    """A statistic over the seeds, of every figure."""
    rows = list(scores.values())
    return {name: statistic([row[name] for row in rows]) for name in rows[0]}


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Prints a line a row, a column a figure."""
    names = list(next(iter(rows.values())))
    print(" " * 10 + "".join(f"{name:>{len(name) + 3}}" for name in names))
    for title, row in rows.items():
        cells = [
            (f"{row[name]:.2f}" if name in row else "").rjust(len(name) + 3)
            for name in names
        ]
        print(f"{title:10}{''.join(cells)}".rstrip())


if __name__ == "__main__":
    cli.run(main)
