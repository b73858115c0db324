"""Fine-tunes an encoder for one task with several seeds, and scores each seed."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cmlm.common.counts import counted
from cmlm.common.progress import ProgressLine
from cmlm.encoders import fingerprints, opening
from cmlm.encoders.opened_weights import (
    OpenedWeights,
    describe_limit,
    resolve_seq_length,
)
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError, listed, shown
from cmlm.evaluation.data_dir import DataDir
from cmlm.finetuning import task_data, tasks, training
from cmlm.finetuning.finished import Finished, best
from cmlm.finetuning.task_data import TaskData

GLUE_LENGTH = 128


@dataclasses.dataclass
class Outcome:
    """The result of a task.

    Attributes:
        task: the task.
        results: the content of results.json.
        rows: the rows of the printed table: the seeds, mean, std, max and constant.
        predictions: for each file to submit, the indices and the outputs of the head
            of the best seed, float32 [n, outputs].
        kept: the folder in `work_dir` to which `keep` wrote the best seed's model.
    """

    task: tasks.Task
    results: dict[str, Any]
    rows: dict[str, dict[str, float]]
    predictions: dict[str, tuple[list[str], np.ndarray]]
    kept: str | None


def finetune(
    model: str,
    task: tasks.Task,
    source: DataDir,
    settings: training.Settings,
    seeds: Sequence[int],
    keep: Callable[..., None] | None = None,
    work_dir: str | None = None,
) -> Outcome:
    """Fine-tunes an encoder once for each seed.

    Args:
        model: a model that `opening.open_weights` opens.
        task: the task.
        source: the folder with the task's files.
        settings: the training settings.
        seeds: at least one seed.
        keep: called with the model of each seed that is the best so far, the tokenizer,
            the longest sequence, the outputs of the head by file, and a folder of
            `work_dir` to write to, or None.
        work_dir: the directory for the finished seeds of a stopped run, which this run
            continues; or None.

    Raises:
        UserError: the model or a file is missing or damaged, the model has too few
            segments for the task, or the loss is not finite.
    """
    # The texts of a task get no prompt: it is for single texts, not for pairs.
    opened = opening.open_weights(model, Reading(prompt="", prompts={}, dimensions=0))
    # Fine-tuning reads the vectors before these layers.
    opened.leave_out()
    _check_segments(model, opened, task)
    # GLUE's usual length, or the length of the encoder's training.
    default = None if task.head == "vectors" else GLUE_LENGTH
    seq_length = resolve_seq_length(opened, settings.seq_length, default=default)
    data = task_data.read(task, source, opened, seq_length)
    _tell_sizes(data, describe_limit(opened, seq_length))
    about = {"path": model, **fingerprints.describe(opened, seq_length)}
    settings = settings.with_epochs(task.least_steps, len(data.train))
    start, tokenizer = training.StartWeights(opened), opened.tokenizer
    # The fine-tuned models need the memory of the original.
    del opened
    used = {**vars(settings), "seq_length": seq_length, "head": start.head(task)}
    described = data.describe()
    _tell_plan(model, settings, len(data.train), used["head"], seeds)
    finished = Finished(work_dir, about, start.pooler or (), task.name, used, described)
    scores, answers, kept = {}, {}, None
    for seed in seeds:
        found = finished.read(seed, scores, with_model=keep is not None)
        if found:
            scores[seed], outputs = found
        else:
            classifier = training.SentenceClassifier(start, task, settings, seed)
            scores[seed], outputs = _one_seed(classifier, data, settings)
            if keep is not None and seed == best(scores):
                folder = finished.folder(seed)
                keep(classifier.model, tokenizer, seq_length, outputs, folder)
            outputs = {name: outputs[name] for name in data.tests}
            finished.write(seed, scores[seed], outputs)
            # Keras layers refer to each other in cycles; without a collection, two
            # models would be in memory.
            del classifier
            gc.collect()
        origin = ", kept by the stopped run" if found else ""
        score = f"{scores[seed]['score']:.2f} on dev"
        print(f"seed {seed}: {score}{origin}", file=sys.stderr)
        if seed == best(scores):
            answers, kept = outputs, finished.folder(seed) if keep else None
    results = {"task": task.name, "model": about, "settings": used, "data": described}
    return _outcome(data, results, scores, answers, kept)


def _check_segments(model: str, opened: OpenedWeights, task: tasks.Task) -> None:
    """Refuses a model with fewer segments than a sequence of the task has texts."""
    segments = opened.config.model.type_vocab_size
    if segments < task.segments:
        raise UserError(
            f"model.type_vocab_size of {model} is {segments}; allowed: at least "
            f"{task.segments} for --task={task.name}, whose texts share a sequence"
        )


def _tell_sizes(data: TaskData, limit: str) -> None:
    sizes = ", ".join(f"{len(part):,} in {name}" for name, part in data.parts.items())
    cut = sum(part.truncated for part in data.parts.values())
    print(
        f"{data.task.name}: examples: {sizes}; {cut:,} of them cut at {limit}",
        file=sys.stderr,
    )
    if data.task.labels:
        counts = data.task.counts(data.train.labels)
        told = [
            f"{shown(label)} {count:,}"
            for label, count in zip(data.task.labels, counts, strict=True)
        ]
        print(f"labels to train on: {listed(told)}", file=sys.stderr)


def _tell_plan(
    model: str, settings: training.Settings, count: int, head: str, seeds: Sequence[int]
) -> None:
    steps = counted(settings.steps(count), "step")
    print(
        f"{model}: {steps} of {settings.batch_size}, AdamW "
        f"{settings.learning_rate:g}, head {head}, seeds {', '.join(map(str, seeds))}",
        file=sys.stderr,
    )


def _outcome(
    data: TaskData,
    results: dict[str, Any],
    scores: dict[int, dict[str, float]],
    answers: dict[str, np.ndarray],
    kept: str | None,
) -> Outcome:
    """The outcome of all seeds.

    Args:
        data: the task and its files.
        results: the task, the model, the settings and the files, for results.json.
        scores: the metrics of each seed.
        answers: the outputs of the best seed's head for each test file.
        kept: see `Outcome`.
    """
    summary = _summarise(data, scores)
    results = {
        **results,
        "seeds": {str(seed): figures for seed, figures in scores.items()},
        **summary,
        "best_seed": best(scores),
    }
    rows = {f"seed {seed}": figures for seed, figures in scores.items()}
    predictions = {
        answer: (data.parts[name].indices, answers[name])
        for name, answer in data.tests.items()
    }
    return Outcome(data.task, results, {**rows, **summary}, predictions, kept)


def _one_seed(
    classifier: training.SentenceClassifier,
    data: TaskData,
    settings: training.Settings,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Trains a classifier, and reads every file but the training file with it.

    Returns:
        The scores with the training loss, and the outputs of the head by file.
    """
    line = ProgressLine(settings.steps(len(data.train)), 0)

    def tell(step, loss, rate):
        line.update(step, {"loss": loss, "lr": rate}, settings.batch_size)

    loss = classifier.train(data.train, tell)
    outputs = {
        name: classifier.outputs(part)
        for name, part in data.parts.items()
        if name != data.task.train
    }
    predicted = {name: data.task.decide(each) for name, each in outputs.items()}
    return {**data.score(predicted), "train_loss": loss}, outputs


def _summarise(
    data: TaskData, scores: dict[int, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """The metrics over the seeds, and those of a constant prediction."""

    def over(statistic: Callable[[list[float]], float]) -> dict[str, float]:
        rows = list(scores.values())
        return {name: statistic([row[name] for row in rows]) for name in rows[0]}

    summary = {"mean": over(statistics.fmean)}
    if len(scores) > 1:
        summary |= {"std": over(statistics.stdev), "max": over(max)}
    return {**summary, "constant": data.score_constant()}
