"""Unites the tasks and the models of reports of cmlm.evaluate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.common import json_files
from cmlm.errors import UserError, advised, shown
from cmlm.evaluation import catalogue

# The entries of a task that name some of its metrics.
_METRICS = ("shown_metrics", "smaller_is_better", "not_ranked")
# The kind of the values of each entry that has names.
_ENTRIES = {
    "tasks": dict,
    "models": dict,
    "versions": str,
    "groups": list,
    "not_scored": str,
}
# The entries on a report as a whole.
_SETTINGS = ("date", "data_dir", "seeds", "classifier", "versions")
# The entries of a model that describe an evaluation and not the model.
_MEASURED = (
    *("scores", "figures", "averages", "checkpoint", "sentences", "encoded"),
    *("encoding_seconds", "scoring_seconds", "truncated_sentences"),
)


def unite(
    reports: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Unites the tasks and the models of reports.

    A model in several reports is one model if its fingerprint and its settings agree
    and no task has scores in two of them.

    Args:
        reports: the folder or the .json file of each report; NAME=REPORT puts `NAME:`
            before the names of its models.
        groups: the languages of further groups, by name.

    Returns:
        The entries of results.json without averages, for `results.completed`, and the
        models of each row that is a mean: the means are computed anew.

    Raises:
        UserError: a report cannot be read; two reports have other test sets, protocols,
            seeds or classifiers for one task, or other models or groups of one name.
    """
    tasks: dict[str, dict] = {}
    models: dict[str, dict] = {}
    means: dict[str, list[str]] = {}
    groups, versions = dict(groups), {}
    merged, failed = [], {}
    # The report that each task and each row of a table comes from.
    sources: dict[tuple[str, str], str] = {}
    for value in reports:
        prefix, path = _named(value)
        report = _read(path)
        merged += report["merged"]
        for name, version in report["versions"].items():
            versions.setdefault(name, {})[version] = None
        for name, reason in report["not_scored"].items():
            failed[f"{name} in {path}"] = reason
        for name, languages in report["groups"].items():
            if groups.setdefault(name, languages) != languages:
                raise UserError(
                    f"the group {name} is {shown(languages)} in {path}, and elsewhere "
                    f"{shown(groups[name])}; allowed: one list for a name"
                )
        for name, about in report["tasks"].items():
            where = sources.setdefault(("task", name), path), path
            _check_task(name, tasks.setdefault(name, about), about, *where)
        for name, entry in report["models"].items():
            row = prefix + name
            where = sources.setdefault(("row", row), path), path
            if "mean_of" in entry:
                members = [prefix + member for member in entry["mean_of"]]
                if means.setdefault(row, members) != members:
                    raise _two(row, *where, "are means, of different models")
            elif row in models:
                models[row] = _joined(row, models[row], entry, *where)
            else:
                models[row] = entry
            if row in means and row in models:
                raise _two(row, *where, "differ: a model and a mean")
    order = {name: place for place, name in enumerate(catalogue.TASKS)}
    content = {
        "merged": merged,
        "versions": {name: " / ".join(found) for name, found in versions.items()},
        "tasks": {
            name: tasks[name]
            for name in sorted(tasks, key=lambda name: order.get(name, len(order)))
        },
        "groups": groups,
        "not_scored": failed,
        "models": models,
    }
    return content, means


def paths(reports: Sequence[str]) -> list[str]:
    """The paths of reports without the names before them."""
    return [_named(value)[1] for value in reports]


def _named(value: str) -> tuple[str, str]:
    """The start of the names of models, and the path of the report."""
    name, equals, path = value.partition("=")
    return (f"{name}:", path) if equals and not os.path.exists(value) else ("", value)


def _read(path: str) -> dict[str, Any]:
    """Reads results.json, and gives each task its seeds and its classifier."""
    file = path if path.endswith(".json") else os.path.join(path, "results.json")
    with advised("allowed: reports of cmlm.evaluate from 0.2.0"):
        report = json_files.read(file)
        settings = {key: report[key] for key in _SETTINGS if key in report}
        report = {"merged": [{"report": path, **settings}], **report}
        _check(report, file)
    report["tasks"] = {
        name: {**_of_tasks(report), **about} for name, about in report["tasks"].items()
    }
    return report


def _of_tasks(report: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all tasks; a merged report has them for each task alone."""
    return {key: report[key] for key in ("seeds", "classifier") if key in report}


def _check(report: Mapping[str, Any], file: str) -> None:
    """Raises UserError if an entry has another shape than in results.json."""
    field = json_files.field
    for name, kind in _ENTRIES.items():
        entries = field(report, name, dict, file)
        for key in entries:
            field(entries, key, kind, f"{file}, {name}:")
    field(report, "merged", list, file)
    for name in report["groups"]:
        _texts(report["groups"], name, f"{file}, groups:")
    for name, about in report["tasks"].items():
        where = f"{file}, task {name}:"
        for key in ("family", "part_of", "main_metric", "protocol"):
            field(about, key, str, where)
        for key in ("remarks", *_METRICS):
            _texts(about, key, where)
        about_all = {**_of_tasks(report), **about}
        field(about_all, "seeds", list, where)
        field(about_all, "classifier", str, where)
        checksums = field(about, "sha256", dict, where)
        for key in checksums:
            field(checksums, key, str, where)
    for name, entry in report["models"].items():
        where = f"{file}, model {name}:"
        scores = field(entry, "scores", dict, where)
        for task in scores:
            values = field(scores, task, dict, where)
            for metric in values:
                field(values, metric, float, f"{where} {task}")
        field(entry, "figures", dict, where)
        if pcr := field(entry, "pcr", dict, where, {}):
            _texts(pcr, "languages", where)
            _texts(pcr, "unchanged", where)
            removed = field(pcr, "removed", dict, where)
            for task in removed:
                _texts(removed, task, f"{where} pcr, removed:")
                field(scores, task, dict, where)
        if "mean_of" in entry:
            members = _texts(entry, "mean_of", where)
            if not members or not report["models"].keys() >= {*members}:
                raise UserError(
                    f"{where} mean_of is {shown(members)}; allowed: models of the file"
                )


def _texts(values: Mapping[str, Any], name: str, where: str) -> list[str]:
    """Returns a list of texts; raises UserError if it is anything else."""
    found = json_files.field(values, name, list, where)
    if not all(isinstance(each, str) for each in found):
        raise UserError(f"{where} has {name}={shown(found)}; allowed: list of str")
    return found


def _check_task(
    task: str, first: Mapping, second: Mapping, source: str, path: str
) -> None:
    """Refuses a task that two reports score in different ways."""
    for key in ("protocol", "seeds", "classifier", "sha256"):
        one, two = first[key], second[key]
        if key == "sha256":
            # The sets may lie in different folders.
            one, two = _other_file(one, two), _other_file(two, one)
        if one != two:
            raise UserError(
                f"{task} has {key} {one!r} in {source} and {two!r} in {path}; allowed: "
                "one test set, protocol, list of seeds and classifier"
            )


def _other_file(own: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The first file whose contents the other test set lacks, with its checksum."""
    for file, digest in own.items():
        if digest not in other.values():
            return {os.path.basename(file): digest[:12]}
    return {}


def _joined(row: str, first: Mapping, second: Mapping, source: str, path: str) -> dict:
    """The entry of a model that two reports score on different tasks."""
    about, other = _of_model(first), _of_model(second)
    for key in dict.fromkeys([*about, *other]):
        one, two = about.get(key), other.get(key)
        if one != two:
            raise _two(row, source, path, f"have {key} {shown(one)} and {shown(two)}")
    if not about.get("fingerprint"):
        raise _two(row, source, path, "have no fingerprint")
    for task in second["scores"]:
        if task in first["scores"]:
            raise _two(row, source, path, f"have scores of {task}")
    both = {key: {**first[key], **second[key]} for key in ("scores", "figures")}
    if pcr := first.get("pcr"):
        unchanged = sorted({*pcr["unchanged"], *second["pcr"]["unchanged"]})
        removed = pcr["removed"] | second["pcr"]["removed"]
        both["pcr"] = {**pcr, "unchanged": unchanged, "removed": removed}
    return {**about, **both}


def _of_model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a model that do not depend on the tasks."""
    about = {key: value for key, value in entry.items() if key not in _MEASURED}
    if pcr := about.get("pcr"):
        # Two entries name languages of the tasks, and the file may have moved.
        names = pcr.keys() - {"path", "unchanged", "removed"}
        about["pcr"] = {name: pcr[name] for name in sorted(names)}
    return about


def _two(row: str, source: str, path: str, why: str) -> UserError:
    """The error about one name in two reports."""
    return UserError(
        f"{row} is in {source} and in {path}, and both {why}; allowed: NAME=REPORT, "
        "which puts NAME: before the names of the models"
    )
