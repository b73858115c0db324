"""Writes results of tasks, and a report: the fine-tuned model above published rows.

Several tasks also have GLUE's average.
"""

from __future__ import annotations

import datetime
import html
import os
from collections.abc import Mapping
from typing import Any

from cmlm.common import atomic, json_files, versions
from cmlm.evaluation import averages, layout, metrics, published, report, tables
from cmlm.evaluation.published import ulr
from cmlm.finetuning import catalogue
from cmlm.finetuning.run import Outcome

# The entries of results.json, beside the mean, if there are several seeds.
SPREAD = ("std", "max")
# MNLI counts twice in the average, WNLI not at all.
COLUMNS = tuple(ulr.GLUE)
GLUE = averages.Group(
    "glue",
    "glue",
    "the nine numbers of ULR's tables 3, 5 and 7, MNLI counted twice",
    {f"{task} {metric}": ((task, metric),) for task, metric in COLUMNS},
)


def write(directory: str, outcome: Outcome) -> None:
    """Writes a task's results.json and its files of predictions."""
    _write_json(directory, outcome.results)
    for answer, (indices, logits) in outcome.predictions.items():
        with atomic.text(os.path.join(directory, answer)) as file:
            outcome.task.write_predictions(file, indices, logits)


def scores_of(results: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a task, as ULR's table 6 prints them.

    Args:
        results: the content of the task's results.json.

    Returns:
        The means over the seeds; of several seeds also `METRIC_std` and `METRIC_max`,
        for a part `METRIC_std/PART`.
    """
    scores = dict(results["mean"])
    for end in SPREAD:
        for metric, value in results.get(end, {}).items():
            scores[metrics.statistic(metric, end)] = value
    return scores


def write_summary(directory: str, scores: averages.Scores) -> None:
    """Writes results.json of several tasks.

    Args:
        directory: an existing directory.
        scores: the `scores_of` each task.
    """
    found = averages.cover(GLUE, scores)
    glue = {
        "mean": found.mean(averages.flat(scores)) if found.keys else None,
        "scored": list(found.keys),
        "missing": list(found.missing),
    }
    _write_json(directory, {"scores": scores, "averages": {"glue": glue}})


def write_table(directory: str, made: tables.Table) -> None:
    """Writes a `table` as report.md and report.html."""
    for name, text in (("md", _markdown(made)), ("html", _page(made))):
        with atomic.text(os.path.join(directory, f"report.{name}")) as file:
            file.write(text)


def _write_json(directory: str, results: Mapping[str, Any]) -> None:
    """Writes a results.json with the date and the versions of the libraries."""
    now = datetime.datetime.now(datetime.UTC).isoformat("T", "seconds")
    content = {"date": now, **results, "versions": versions.installed()}
    json_files.write(os.path.join(directory, "results.json"), content, indent=2)


def table(model: str, scores: Mapping[str, Mapping[str, float]]) -> tables.Table:
    """The table of tasks, with the fine-tuned model above the published rows.

    Args:
        model: the name of the fine-tuned model's row.
        scores: the `scores_of` each task. Several tasks have an average.
    """
    found = averages.cover(GLUE, scores)
    columns = [key for keys in found.keys.values() for key in keys]
    columns += [
        (task, metric)
        for task, metrics in scores.items()
        for metric in metrics
        if metric.partition("/")[0] == "accuracy"
        and task not in {name for name, _ in COLUMNS}
    ]
    columns = [
        (task, shown)
        for task, metric in columns
        for shown in (metric, *(metrics.statistic(metric, end) for end in SPREAD))
        if shown in scores[task]
    ]
    groups = {"glue": found} if len(found.keys) > 1 and len(scores) > 1 else {}
    return tables.build(
        "finetuning", columns, groups, {model: scores}, published.FINETUNED
    )


def _markdown(made: tables.Table) -> str:
    """The table as a Markdown report."""
    lines = [f"- {line}" for line in _notes(made)]
    return "\n\n".join(["# Fine-tuning", layout.markdown(made), *lines]) + "\n"


def _page(made: tables.Table) -> str:
    """The table as an HTML report."""
    notes = "<br>".join(map(html.escape, _notes(made)))
    body = ["<h1>Fine-tuning</h1>", layout.html_table(made), f"<p class=note>{notes}"]
    return report.document("Fine-tuning", body)


def _notes(made: tables.Table) -> list[str]:
    heldout = {
        (task.name, f"{figure}/{part}")
        for task in catalogue.TASKS.values()
        for figure in task.figures
        for part, _ in task.heldout
    }
    ours = "Ours: mean over the seeds, development sets; x 100."
    tests = [" ".join(column) for column in made.columns if column in heldout]
    if tests:
        ours += f" Test sets: {', '.join(tests)}."
    if any(metrics.is_deviation(metric) for _, metric in made.columns):
        ours += " METRIC_std and METRIC_max: deviation and maximum over the seeds."
    return [ours, *tables.notes_of_averages(made)]
