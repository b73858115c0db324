"""Scores encoders on public test sets.

    python -m cmlm.evaluate --model=OUT --data_dir=DIR --tasks=sts,senteval \\
        --output=results.json

DIR is SentEval's data folder, or one that has it as senteval/. A number means little
alone: at small budgets a trained encoder can lose to its own beginning. So score the
baselines beside it, --model=untrained:MODEL_DIR (the weights the run started from)
and --model=bow:MODEL_DIR (the mean of its word embeddings).

A data set that is missing is named, the rest is scored, and the exit code is 1.
"""

import json
import sys
import time

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_multi_string(
    "model",
    [],
    "An export or a model_dir; best:, untrained: or bow: may stand before a "
    "model_dir. Repeatable.",
)
flags.DEFINE_string("data_dir", None, "Where the test sets are.")
flags.DEFINE_list(
    "tasks", ["all"], "Names of families or tasks, comma-separated; or all."
)
flags.DEFINE_string("output", None, "The .json file to write.")

FLAGS = flags.FLAGS


def main(_) -> int:
    if not FLAGS.model:
        raise UserError("--model is not given; allowed: an export or a model_dir")
    if not FLAGS.data_dir:
        raise UserError("--data_dir is not given; allowed: a folder with test sets")
    if FLAGS.output and not FLAGS.output.endswith(".json"):
        raise UserError(f"--output={FLAGS.output} must end in .json")
    with cli.quiet_imports():
        try:
            from cmlm.evaluation import base, senteval, sts
        except ModuleNotFoundError as error:
            raise UserError(
                f"{error.name} is not installed: pip install 'cmlm[evaluate]'"
            ) from error
        from cmlm import encoding, files

    # ---------------------------------------------------------------- tasks
    families = {"sts": sts.TASKS, "senteval": senteval.TASKS}
    tasks = select(FLAGS.tasks, families)
    data, missing = {}, {}
    for task in tasks:
        try:
            data[task.name] = task.read(FLAGS.data_dir)
        except base.MissingData as error:
            missing[task.name] = str(error)
            print(f"{task.name}: {error}", file=sys.stderr)
    tasks = [task for task in tasks if task.name in data]

    # -------------------------------------------------------------- scoring
    models = {}
    for name in dict.fromkeys(FLAGS.model) if tasks else ():
        encoder = encoding.load(name)
        vectors = base.Vectors(encoder)
        start = time.monotonic()
        vectors.add(text for task in tasks for text in task.sentences(data[task.name]))
        encoding_seconds = time.monotonic() - start
        count = len(vectors.sentences)
        print(f"{name}: {count:,} sentences encoded", file=sys.stderr)
        scores = {}
        for task in tasks:
            scores[task.name] = task.score(data[task.name], vectors)
            main_score = scores[task.name][task.main_metric]
            print(f"{name}: {task.name} {main_score:.2f}", file=sys.stderr)
        lengths = encoder.lengths(vectors.sentences)
        models[name] = {
            **encoder.info,
            "sentences": count,
            "truncated_sentences": int((lengths > encoder.seq_length).sum()),
            "encoding_seconds": round(encoding_seconds, 1),
            "scoring_seconds": round(time.monotonic() - start - encoding_seconds, 1),
            "scores": scores,
        }

    # --------------------------------------------- table, and where it all is
    if models:
        print(table(tasks, models))
    if FLAGS.output:
        results = {
            "data_dir": FLAGS.data_dir,
            "seed": base.SEED,
            "versions": versions(),
            "tasks": {
                task.name: {"main_metric": task.main_metric, "protocol": task.protocol}
                for task in tasks
            },
            "missing": missing,
            "models": models,
        }
        with files.atomic_text(FLAGS.output) as file:
            json.dump(results, file, indent=2)
            file.write("\n")
        print(f"results  {FLAGS.output}")
    if missing:
        print(f"not scored: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def select(names: list[str], families: dict[str, list]) -> list:
    """The tasks that names stand for, in the order of the families, each once.

    Args:
        names: `all`, families or tasks.
        families: the tasks of each.

    Raises:
        UserError: an unknown name.
    """
    tasks = [task for family in families.values() for task in family]
    chosen = set()
    for name in names:
        if name == "all":
            chosen.update(task.name for task in tasks)
        elif name in families:
            chosen.update(task.name for task in families[name])
        elif name in [task.name for task in tasks]:
            chosen.add(name)
        else:
            allowed = ["all", *families, *(task.name for task in tasks)]
            raise UserError(f"--tasks has {name!r}; allowed: {', '.join(allowed)}")
    return [task for task in tasks if task.name in chosen]


def table(tasks: list, models: dict[str, dict]) -> str:
    """Main scores: a row for each task, a column for each model."""
    metrics = [f"{task.name} {task.main_metric}" for task in tasks]
    width = max(len(metric) for metric in metrics)
    # Models mostly differ at the end of their path.
    heads = [name if len(name) <= 24 else "…" + name[-23:] for name in models]
    lines = ["  ".join([" " * width, *(head.rjust(8) for head in heads)])]
    for metric, task in zip(metrics, tasks, strict=True):
        cells = [
            f"{model['scores'][task.name][task.main_metric]:.2f}".rjust(
                max(len(head), 8)
            )
            for head, model in zip(heads, models.values(), strict=True)
        ]
        lines.append("  ".join([metric.ljust(width), *cells]))
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    import importlib.metadata
    import platform

    from cmlm import __version__

    packages = ("tensorflow", "tensorflow-text", "numpy", "scipy", "scikit-learn")
    return {
        "cmlm": __version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


if __name__ == "__main__":
    cli.run(main)
