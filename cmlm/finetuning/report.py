"""A table of several fine-tuned tasks beside published rows, with GLUE's average."""

from __future__ import annotations

import html
from collections.abc import Mapping

from cmlm.evaluation import averages, layout, published, report, tables
from cmlm.evaluation.published import ulr

# MNLI counts twice in the average, WNLI not at all.
COLUMNS = tuple(ulr.GLUE)
GLUE = averages.Group(
    "glue",
    "glue",
    "the nine numbers of ULR's tables 3, 5 and 7, MNLI counted twice",
    {f"{task} {metric}": ((task, metric),) for task, metric in COLUMNS},
)


def coverage(scores: averages.Scores) -> averages.Coverage:
    """The parts of GLUE that were scored."""
    return averages.cover(GLUE, scores)


def average(scores: averages.Scores) -> float | None:
    """GLUE's average over the scored parts; None if there are no scores."""
    found = coverage(scores)
    return found.mean(averages.flat(scores)) if found.keys else None


def table(model: str, scores: Mapping[str, Mapping[str, float]]) -> tables.Table:
    """The table of tasks, with the fine-tuned model above the published rows.

    Args:
        model: the name of the fine-tuned model's row.
        scores: metrics and their values (means over seeds), by task.
    """
    found = coverage(scores)
    columns = [key for keys in found.keys.values() for key in keys]
    columns += [
        (task, metric)
        for task, metrics in scores.items()
        for metric in metrics
        if metric.partition("/")[0] == "accuracy"
        and task not in {name for name, _ in COLUMNS}
    ]
    groups = {"glue": found} if len(found.keys) > 1 else {}
    return tables.build(
        "finetuning", columns, groups, {model: scores}, published.FINETUNED
    )


def markdown(made: tables.Table) -> str:
    """The table as a Markdown report."""
    lines = [f"- {line}" for line in _notes(made)]
    return "\n\n".join(["# Fine-tuning", layout.markdown(made), *lines]) + "\n"


def page(made: tables.Table) -> str:
    """The table as an HTML report."""
    notes = "<br>".join(map(html.escape, _notes(made)))
    body = ["<h1>Fine-tuning</h1>", layout.html_table(made), f"<p class=note>{notes}"]
    return report.document("Fine-tuning", body)


def _notes(made: tables.Table) -> list[str]:
    notes = ["Ours: mean over the seeds, development sets; x 100."]
    for name, item in made.averages.items():
        missing = f"; missing: {', '.join(item.missing)}" if item.missing else ""
        notes.append(f"{name}: mean, {item.group.about}{missing}.")
        if item.missing:
            notes.append("A published row's average is over the same parts as ours.")
    return notes
