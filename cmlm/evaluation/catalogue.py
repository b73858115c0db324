"""All tasks by family, and what names in --tasks stand for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from cmlm.errors import UserError
from cmlm.evaluation import (
    agnosticity,
    analogy,
    base,
    bitext,
    bli,
    geometry,
    lexical,
    linking,
    mining,
    paraphrase,
    qa,
    run,
    senteval,
    sts,
    transfer,
)

FAMILIES: dict[str, list[base.Task]] = {
    "sts": sts.TASKS,
    "senteval": senteval.TASKS,
    "xeval": senteval.XEVAL_TASKS,
    "bitext": bitext.TASKS,
    "mining": mining.TASKS,
    "agnosticity": agnosticity.TASKS,
    "transfer": transfer.TASKS,
    "qa": qa.TASKS,
    "lexical": lexical.TASKS,
    "lexicon": bli.TASKS,
    "linking": linking.TASKS,
    "analogy": analogy.TASKS,
    "paraphrase": paraphrase.TASKS,
    "shape": geometry.TASKS,
}
# Tasks on files of the user's own: KIND:PATH[:PATH ...].
ON_FILES = {
    "bitext": bitext.BitextFiles,
    "sts": sts.StsFiles,
    "parallel": agnosticity.ParallelFiles,
}


def select(
    names: Sequence[str], seeds: Sequence[int] = (base.SEED,)
) -> list[base.Task]:
    """The tasks that names stand for, in the order of the families, each once.

    Args:
        names: `all`, families, tasks, one part of a task (`tatoeba-de`), or a kind of
            task with files of one's own (`bitext:FILE.tsv`, `bitext:FILE:FILE`).
        seeds: for tasks that train something.

    Raises:
        UserError: an unknown name.
    """
    catalogue = {task.name: task for tasks in FAMILIES.values() for task in tasks}
    chosen: dict[str, base.Task] = {}
    for name in names:
        if name == "all":
            chosen.update(catalogue)
        elif name in FAMILIES:
            chosen.update((task.name, task) for task in FAMILIES[name])
        else:
            task = catalogue.get(name) or _part(name, catalogue) or _on_files(name)
            if task is None:
                raise UserError(
                    f"--tasks has {name!r}; allowed: all, "
                    f"{', '.join([*FAMILIES, *catalogue])}; TASK-LANGUAGE of "
                    f"{', '.join(_parted(catalogue))}; and "
                    f"{', '.join(f'{kind}:FILE' for kind in ON_FILES)}"
                )
            chosen[task.name] = task
    order = {name: place for place, name in enumerate(catalogue)}
    ranked = sorted(chosen, key=lambda name: order.get(name, len(order)))
    tasks = [copy.copy(chosen[name]) for name in ranked]
    for task in tasks:
        task.seeds = tuple(seeds)
    return tasks


def _parted(catalogue: dict[str, base.Task]) -> dict[str, base.PartedTask]:
    return {
        name: task
        for name, task in catalogue.items()
        if isinstance(task, base.PartedTask)
    }


def _part(name: str, catalogue: dict[str, base.Task]) -> base.Task | None:
    # The longest name first: one may be the beginning of another.
    for task in sorted(_parted(catalogue).values(), key=lambda task: -len(task.name)):
        part = name.removeprefix(task.name + "-")
        if part != name and part:
            return task.part(part)
    return None


def _on_files(name: str) -> base.Task | None:
    kind, _, paths = name.partition(":")
    parts = paths.split(":")
    return ON_FILES[kind](parts) if kind in ON_FILES and all(parts) else None


def family(task: base.Task) -> str:
    """The family of a task; files of one's own are in that of their kind."""
    for name, tasks in FAMILIES.items():
        for member in tasks:
            is_part = isinstance(member, base.PartedTask) and task.name.startswith(
                f"{member.name}-"
            )
            if task.name == member.name or (is_part and type(task) is type(member)):
                return name
    return task.name.partition(":")[0]


def describe(item: run.TaskData) -> dict[str, Any]:
    """What results.json says of a task beside its scores."""
    return {
        "family": family(item.task),
        "main_metric": item.task.main_metric,
        "protocol": item.task.protocol,
        "sha256": item.checksums,
    }
