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
flags.DEFINE_integer(
    "seeds", 1, "How many seeds for tasks that train a classifier.", lower_bound=1
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
            from cmlm.evaluation import base, catalogue, run
        except ModuleNotFoundError as error:
            raise UserError(
                f"{error.name} is not installed: pip install 'cmlm[evaluate]'"
            ) from error
        from cmlm import encoding, files

    # ---------------------------------------------------------------- tasks
    seeds = range(base.SEED, base.SEED + FLAGS.seeds)
    tasks, failed = run.read(catalogue.select(FLAGS.tasks, seeds), FLAGS.data_dir)
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)

    # -------------------------------------------------------------- scoring
    models = {}
    for name in dict.fromkeys(FLAGS.model) if tasks else ():
        encoder = encoding.load(name)

        def report(task, scores, name=name):
            score = scores[task.main_metric]
            print(f"{name}: {task.name} {score:.2f}", file=sys.stderr)

        result = run.score(encoder, tasks, progress=True, report=report)
        models[name] = {
            **encoder.info,
            "sentences": result.sentences,
            "encoded": result.encoded,
            "truncated_sentences": truncated(encoder, tasks),
            "encoding_seconds": round(result.encoding_seconds, 1),
            "scoring_seconds": round(result.scoring_seconds, 1),
            "scores": result.scores,
        }

    # --------------------------------------------- table, and where it all is
    if models:
        print(table([item.task for item in tasks], models))
    if FLAGS.output:
        results = {
            "data_dir": FLAGS.data_dir,
            "seeds": list(seeds),
            "versions": versions(),
            "tasks": {
                item.task.name: {
                    "main_metric": item.task.main_metric,
                    "protocol": item.task.protocol,
                    "sha256": item.checksums,
                }
                for item in tasks
            },
            "not_scored": failed,
            "models": models,
        }
        with files.atomic_text(FLAGS.output) as file:
            json.dump(results, file, indent=2)
            file.write("\n")
        print(f"results  {FLAGS.output}")
    if failed:
        print(f"not scored: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def truncated(encoder, tasks: list) -> int:
    """How many of the tasks' distinct sentences the encoder cuts."""
    texts = {text for item in tasks for text in item.task.sentences(item.data)}
    return int((encoder.lengths(list(texts)) > encoder.seq_length).sum())


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
