"""Results as tables: scored models above published rows.

`tables` gives a table for each family, and one for each task that has several languages
or pairs. `details` gives every metric. `layout` writes tables for readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cmlm.evaluation import averages, metrics, published

Results = Mapping[str, Any]
# The first item of an average's column; the second item is the name of the group, and
# `GROUP_std` for the deviation over runs.
AVERAGE = "average"
# The end of the name of a model whose components --pcr removed.
WITH_PCR = " + PCR"
# A note names so many languages at most.
_NAMED_LANGUAGES = 16


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        name: the name of the model or part.
        source: the source of published numbers; "" for a model that was scored here.
        numbers: a number or None for each column.
    """

    name: str
    source: str
    numbers: list[float | None]


@dataclasses.dataclass
class Table:
    """The table of a family, or of one task by language.

    Attributes:
        family: the name of the family or task.
        columns: (task, metric) of each column, or (`AVERAGE`, group).
        rows: the rows, models above published rows.
        averages: the averages among the columns, by group name.
        compares: whether the rows are models, of which a column has a best one.
        directions: of each column -1 if its best number is the smallest, and 0 for a
            column without a best number; of columns that are missing here, the largest
            number is the best.
    """

    family: str
    columns: list[tuple[str, str]]
    rows: list[TableRow]
    averages: Mapping[str, averages.Coverage] = dataclasses.field(default_factory=dict)
    compares: bool = True
    directions: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """The distinct sources of published rows, in the order of the rows."""
        return list(dict.fromkeys(row.source for row in self.rows if row.source))

    @property
    def title(self) -> str:
        """The family, and the metric if it is the only one."""
        own = {
            metric.partition("/")[0] for task, metric in self.columns if task != AVERAGE
        }
        return f"{self.family}: {own.pop()}" if len(own) == 1 else self.family

    @property
    def is_by_part(self) -> bool:
        """Whether the columns are the languages or pairs of one task."""
        return all("/" in metric and task != AVERAGE for task, metric in self.columns)

    @property
    def scores(self) -> Table:
        """The table without its averages and deviations."""
        places = [
            place
            for place, (task, metric) in enumerate(self.columns)
            if task != AVERAGE and not metrics.is_deviation(metric)
        ]
        rows = [
            row._replace(numbers=[row.numbers[place] for place in places])
            for row in self.rows
        ]
        columns = [self.columns[place] for place in places]
        return Table(self.family, columns, rows, directions=self.directions)

    def is_best(self, place: int, number: float | None) -> bool:
        """Whether no model has a better number in a column, and one has a worse."""
        direction = self.directions.get(self.columns[place], 1)
        found = {row.numbers[place] for row in self.rows if not row.source} - {None}
        if not self.compares or not direction or len(found) < 2:
            return False
        return number == (max(found) if direction > 0 else min(found))

    @property
    def heads(self) -> list[str]:
        """The column titles: the task, and the metric if metrics differ.

        An arrow down says that the smallest number is the best.
        """
        own = [metric for task, metric in self.columns if task != AVERAGE]
        is_single = len({metric.partition("/")[0] for metric in own}) == 1
        titles = []
        for task, metric in self.columns:
            if task == AVERAGE:
                is_mean = metric in self.averages
                titles.append(self.averages[metric].title if is_mean else metric)
            elif task == self.family.partition(", ")[0] and "/" not in metric:
                titles.append(metric)
            elif is_single:
                # One metric of several tasks, or of the parts of one task.
                titles.append(metric.partition("/")[2] or task)
            else:
                titles.append(f"{task} {metric}")
        return [
            f"{title} ↓" if self.directions.get(column, 1) < 0 else title
            for title, column in zip(titles, self.columns, strict=True)
        ]


def tables(results: Results, ablations: bool = False) -> list[Table]:
    """The tables of a run: families in the order of the catalogue, then languages.

    Args:
        results: the content of results.json.
        ablations: include the published rows of a paper's ablations.
    """
    families: dict[str, list[tuple[str, str]]] = {}
    for task, about in results["tasks"].items():
        columns = families.setdefault(about["family"], [])
        wanted = [about["main_metric"], *about["shown_metrics"]]
        wanted += [
            metric
            for row in published.ROWS
            for name, metric in row.numbers
            if name == task and "/" not in metric
        ]
        columns += [
            (task, metric)
            for metric in dict.fromkeys(wanted)
            if metric == about["main_metric"] or _has(results, task, metric)
        ]
    return [
        _table(results, name, columns, ablations)
        for name, columns in [*families.items(), *_by_part(results)]
    ]


def details(results: Results) -> list[Table]:
    """Every metric: a table for each task, then one for its parts and each model.

    Parts are languages, pairs of languages, subsets or kinds of questions.
    """
    made = []
    for task in results["tasks"]:
        scores = {
            name: model["scores"].get(task, {})
            for name, model in results["models"].items()
        }
        metrics = dict.fromkeys(metric for found in scores.values() for metric in found)
        whole = [(task, metric) for metric in metrics if "/" not in metric]
        rows = [
            TableRow(name, "", [found.get(metric) for _, metric in whole])
            for name, found in scores.items()
        ]
        directions = _directions(results, whole)
        made.append(Table(task, whole, rows, directions=directions))
        by_part = [metric.partition("/") for metric in metrics if "/" in metric]
        names = list(dict.fromkeys(name for name, _, _ in by_part))
        parts = list(dict.fromkeys(part for _, _, part in by_part))
        if not parts:
            continue
        columns = [(task, name) for name in names]
        directions = _directions(results, columns)
        for model, found in scores.items():
            rows = [
                TableRow(part, "", [found.get(f"{name}/{part}") for name in names])
                for part in parts
            ]
            made.append(
                Table(
                    f"{task}, {model}",
                    columns,
                    rows,
                    compares=False,
                    directions=directions,
                )
            )
    return made


def _by_part(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """Task and columns of each metric by language or pair.

    These are the main metric of each task with parts, and what papers publish by part.
    """
    metrics = dict.fromkeys(
        (task, about["main_metric"])
        for task, about in results["tasks"].items()
        if _has(results, task, "parts")
    )
    metrics |= dict.fromkeys(
        (task, metric.partition("/")[0])
        for row in published.ROWS
        for task, metric in row.scores
        if "/" in metric
    )
    found = []
    for task, metric in metrics:
        columns = dict.fromkeys(
            (task, name)
            for model in results["models"].values()
            for name in model["scores"].get(task, {})
            if name.startswith(f"{metric}/")
        )
        if len(columns) > 1:
            found.append((task, list(columns)))
    return found


def _directions(
    results: Results, columns: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """The columns whose best number is not the largest; see `Table.directions`."""
    found = {}
    for task, metric in columns:
        about = results["tasks"][task]
        name = metric.partition("/")[0]
        if name == "parts" or metrics.is_deviation(metric):
            found[task, metric] = 0
        elif name.startswith(tuple(about["not_ranked"])):
            found[task, metric] = 0
        elif name.startswith(tuple(about["smaller_is_better"])):
            found[task, metric] = -1
    return found


def _has(results: Results, task: str, metric: str) -> bool:
    models = results["models"].values()
    return any(metric in model["scores"].get(task, {}) for model in models)


def _table(
    results: Results, family: str, columns: list[tuple[str, str]], ablations: bool
) -> Table:
    groups = {}
    own = averages.own_groups(results["groups"], results["tasks"])
    for model in results["models"].values():
        for item in averages.coverage(model["scores"], own):
            if item.group.family == family:
                groups.setdefault(item.group.name, item)
    scores = {name: model["scores"] for name, model in results["models"].items()}
    rows = [row for row in published.ROWS if ablations or not row.is_ablation]
    deviations = {
        name: model.get("averages_std", {}) for name, model in results["models"].items()
    }
    made = build(family, columns, groups, scores, rows, deviations)
    directions = _directions(results, columns)
    for task, metric in made.columns:
        if task == AVERAGE and metric not in groups:
            directions[task, metric] = 0
    return dataclasses.replace(made, directions=directions)


def build(
    family: str,
    columns: Sequence[tuple[str, str]],
    groups: Mapping[str, averages.Coverage],
    models: Mapping[str, averages.Scores],
    others: Sequence[published.Row],
    deviations: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """Builds a table of models above published rows.

    Args:
        family: the name of the table.
        columns: (task, metric) of each column.
        groups: the averages that follow the columns, by group name.
        models: the scores of each model.
        others: published rows; a row without a number in any column is left out.
        deviations: of each model that is a mean over runs, the deviations of its
            averages by group name.
    """
    deviations = deviations or {}
    columns = [*columns]
    for name in groups:
        columns.append((AVERAGE, name))
        if any(name in found for found in deviations.values()):
            columns.append((AVERAGE, f"{name}_std"))
    rows = []
    for name, scores in models.items():
        found = averages.flat(scores)
        for group, value in deviations.get(name, {}).items():
            # Only beside the average over the same parts.
            covered = groups.get(group)
            if covered and averages.cover(covered.group, scores) == covered:
                found[AVERAGE, f"{group}_std"] = value
        rows.append(TableRow(name, "", _numbers(columns, groups, found, {})))
    for row in others:
        numbers = _numbers(columns, groups, row.numbers, row.averages)
        if any(number is not None for number in numbers):
            source = f"{row.source}; {row.note}" if row.note else row.source
            rows.append(TableRow(row.model, source, numbers))
    return Table(family, columns, rows, groups)


def _numbers(
    columns: list[tuple[str, str]],
    groups: Mapping[str, averages.Coverage],
    scores: Mapping[averages.Key, float],
    printed: Mapping[str, float],
) -> list[float | None]:
    """The numbers of a row; `printed` are averages that its paper prints."""
    numbers = []
    for task, metric in columns:
        if task == AVERAGE and metric in groups:
            mean = _printed_mean(groups[metric], printed)
            numbers.append(groups[metric].mean(scores) if mean is None else mean)
        else:
            numbers.append(scores.get((task, metric)))
    return numbers


def _printed_mean(
    covered: averages.Coverage, printed: Mapping[str, float]
) -> float | None:
    """The average that a paper prints over the parts that the results hold, or None."""
    name, parts = covered.group.name, covered.group.parts
    if not covered.missing and name in printed:
        return printed[name]
    if name != "xeval":
        return None
    # Papers publish XEVAL by language, not by task.
    languages = [printed.get(f"xeval/{language}") for language in covered.keys]
    are_whole = all(len(keys) == len(parts[p]) for p, keys in covered.keys.items())
    if not are_whole or None in languages:
        return None
    return sum(languages) / len(languages)


def notes(results: Results, table: Table) -> list[str]:
    """The lines below a table: protocols, remarks, and the parts of each average."""
    lines: dict[str, list[str]] = {}
    for task, _ in table.columns:
        if task != AVERAGE:
            lines.setdefault(results["tasks"][task]["protocol"], []).append(task)
    said = [
        f"{', '.join(dict.fromkeys(tasks))}: {text}" for text, tasks in lines.items()
    ]
    for task in dict.fromkeys(task for task, _ in table.columns if task != AVERAGE):
        said += [f"{task}: {remark}" for remark in results["tasks"][task]["remarks"]]
    if -1 in table.directions.values():
        said.append("↓: smaller is better.")
    return said + notes_of_averages(table)


def note_of_pcr(results: Results) -> str:
    """Names the metrics that remove a component after --pcr; "" without one."""
    said: dict[str, list[str]] = {}
    for name, model in results["models"].items():
        for task, languages in model.get("pcr", {}).get("removed", {}).items():
            own = {metric.partition("/")[0] for metric in model["scores"][task]}
            own = sorted(metric for metric in own if metric.endswith("_pcr"))
            if own:
                few = len(languages) <= _NAMED_LANGUAGES
                which = ", ".join(languages) if few else f"{len(languages)} languages"
                more = "remove" if len(own) > 1 else "removes"
                text = (
                    f"components of {which} in {task}; {', '.join(own)} {more} one more"
                )
                said.setdefault(text, []).append(name)
    return "; ".join(
        f"{', '.join(names)}: --pcr removed {text}" for text, names in said.items()
    )


def notes_of_means(results: Results) -> list[str]:
    """A line for each row that is a mean of models: their names."""
    return [
        f"{name}: mean of {', '.join(model['mean_of'])}"
        for name, model in results["models"].items()
        if "mean_of" in model
    ]


def notes_of_averages(table: Table) -> list[str]:
    """The lines below a table about its averages: the scores behind each of them."""
    said = []
    for name, item in table.averages.items():
        missing = f"; missing: {', '.join(item.missing)}" if item.missing else ""
        said.append(f"{name}: mean, {item.group.about}{missing}")
    if any(item.missing for item in table.averages.values()):
        said.append("A published row's average is over the same parts as ours.")
    return said
