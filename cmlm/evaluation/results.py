"""The content of results.json: a run, its tasks, and the scores of its models."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.common import versions
from cmlm.common.protocols import SentenceEncoder
from cmlm.errors import UserError, shown
from cmlm.evaluation import averages, catalogue, classifier, differences
from cmlm.evaluation.means import mean_of
from cmlm.evaluation.run import ModelScores, TaskData
from cmlm.evaluation.tasks import base


def settings(data_dir: str, repeats: int, kind: str) -> dict[str, Any]:
    """The entries on a run.

    Args:
        data_dir: the folder of test sets.
        repeats: the number of seeds of each classifier.
        kind: the classifier.

    Raises:
        UserError: the number or the classifier is not allowed.
    """
    is_integer = isinstance(repeats, numbers.Integral) and repeats is not True
    if not is_integer or repeats < 1:
        raise UserError(f"--repeats is {shown(repeats)}; allowed: a number from 1")
    if kind not in classifier.ABOUT:
        raise UserError(
            f"--classifier is {shown(kind)}; allowed: {', '.join(classifier.ABOUT)}"
        )
    return {
        "data_dir": data_dir,
        "seeds": list(range(base.SEED, base.SEED + repeats)),
        "classifier": kind,
        "versions": versions.installed(),
    }


def entry_of(
    encoder: SentenceEncoder,
    scored: ModelScores,
    sentences: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The entry on a model, without averages.

    Args:
        encoder: the model; `info`, `seq_length` and `lengths` may be missing.
        scored: its scores.
        sentences: the sentences of the tasks by their role, see `run.by_role`.
    """
    seq_length = getattr(encoder, "seq_length", None)
    cut = None
    if seq_length is not None and hasattr(encoder, "lengths"):
        cut = 0
        for role, texts in sentences.items():
            has_role = role and hasattr(encoder, "for_role")
            view = encoder.for_role(role) if has_role else encoder
            cut += int((view.lengths(texts) > seq_length).sum())
    about = dict(getattr(encoder, "info", {}))
    if "pcr" in about:
        # An export's signature, which no task reads: `pcr` is what --pcr removed.
        about["components"] = about.pop("pcr")
    return {
        **about,
        "seq_length": seq_length,
        **scored.as_dict(),
        "truncated_sentences": cut,
    }


def collect(
    run_settings: Mapping[str, Any],
    tasks: Sequence[TaskData],
    models: Mapping[str, dict[str, Any]],
    groups: Mapping[str, Sequence[str]],
    failed: Mapping[str, str],
    means: Mapping[str, Sequence[str]] | None = None,
    predictions: Mapping[str, differences.ByTask] | None = None,
) -> dict[str, Any]:
    """The content of results.json, with the averages of each model.

    Args:
        run_settings: the entries on the run, see `settings`.
        tasks: the tasks with their data.
        models: the entries of the models with scores; at least one.
        groups: the languages of each --group, by its name.
        failed: a message for each task without scores.
        means: the models of each further entry, a mean of several, by its name.
        predictions: the predictions of each model, for the differences between them.
    """
    content = {
        **run_settings,
        "tasks": {item.task.name: describe(item) for item in tasks},
        "groups": groups,
        "not_scored": failed,
    }
    if predictions and len(predictions) > 1:
        content["differences"] = differences.from_first(predictions)
    return completed({**content, "models": models}, means or {})


def completed(
    content: Mapping[str, Any], means: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Adds the date, the averages and the means of models.

    Args:
        content: the entries of results.json without averages.
        means: the models of each further entry, a mean of several, by its name.
    """
    own = averages.own_groups(content["groups"], content["tasks"])
    entries = {
        name: {**entry, "averages": averages.of(entry["scores"], own)}
        for name, entry in content["models"].items()
    }
    for name, members in means.items():
        mean = mean_of([entries[member] for member in members], own)
        entries[name] = {"mean_of": [*members], **mean}
    scores = {name: entry["scores"] for name, entry in entries.items()}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **{key: value for key, value in content.items() if key != "models"},
        "averages": averages.describe(scores, own),
        "models": entries,
    }


def describe(item: TaskData) -> dict[str, Any]:
    """The entry of results.json on a task, apart from its scores."""
    task = item.task
    return {
        "family": catalogue.family(task),
        "part_of": task.part_of,
        "main_metric": task.main_metric,
        "shown_metrics": list(task.shown_metrics),
        "smaller_is_better": list(task.smaller_is_better),
        "not_ranked": list(task.not_ranked),
        "protocol": task.protocol,
        "remarks": task.remarks(item.data),
        "sha256": item.checksums,
    }
