"""All tasks by family, and their selection by --tasks."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from cmlm.errors import UserError, did_you_mean
from cmlm.evaluation.tasks import (
    agnosticity,
    analogy,
    base,
    bitext,
    bli,
    geometry,
    inference,
    lexical,
    linking,
    mining,
    neighbours,
    paraphrase,
    qa,
    retrieval,
    senteval,
    sts,
    transfer,
    user_files,
    xeval,
)

# In --tasks, results and reports, a family has the name of its module.
_MODULES = (
    sts,
    senteval,
    xeval,
    bitext,
    mining,
    agnosticity,
    transfer,
    inference,
    qa,
    lexical,
    bli,
    linking,
    analogy,
    paraphrase,
    geometry,
)
FAMILIES: dict[str, list[base.Task]] = {
    module.__name__.rpartition(".")[2]: module.TASKS for module in _MODULES
}
TASKS: dict[str, base.Task] = {
    task.name: task for tasks in FAMILIES.values() for task in tasks
}
# Tasks on the user's own files: FAMILY:PATH[:PATH ...].
ON_FILES = {
    "bitext": bitext.BitextFiles,
    "sts": sts.StsFiles,
    "agnosticity": agnosticity.AgnosticityFiles,
    "geometry": geometry.GeometryFiles,
    "classification": user_files.ClassificationFiles,
    "pairs": user_files.PairFiles,
    "retrieval": retrieval.RetrievalFiles,
    "neighbours": neighbours.NeighboursFiles,
}
# Names that earlier versions used.
_ALIASES = {"lexicon": "bli", "shape": "geometry", "parallel": "agnosticity"}


def select(
    names: Sequence[str],
    seeds: Sequence[int] = (base.SEED,),
    classifier: str = "logistic",
    jobs: int = 0,
    flag: str = "--tasks",
) -> list[base.Task]:
    """Selects tasks by name, each once, in the order of the families.

    Args:
        names: `all`, families, tasks, one part of a task (`tatoeba-de`), or a family
            with the user's own files (`bitext:FILE.tsv`, `bitext:FILE:FILE`).
        seeds: the seeds of tasks that train a model.
        classifier, jobs: see `base.Task`.
        flag: the flag or setting that has the names, for the message.

    Raises:
        UserError: a name is unknown.
    """
    chosen: dict[str, base.Task] = {}
    for given in names:
        first, colon, paths = given.partition(":")
        name = _ALIASES.get(first, first) + colon + paths
        if name == "all":
            chosen.update(TASKS)
        elif name in FAMILIES:
            chosen.update((task.name, task) for task in FAMILIES[name])
        else:
            task = TASKS.get(name) or _part(name) or _on_files(name)
            if task is None:
                divisible = ", ".join(task.name for task in _divisible())
                raise UserError(
                    f"{flag} has {given!r}; {_meant(name)}allowed: all, "
                    f"{', '.join(dict.fromkeys([*FAMILIES, *TASKS]))}; "
                    f"TASK-LANGUAGE of {divisible}; and "
                    f"{', '.join(f'{family}:FILE' for family in ON_FILES)}"
                )
            chosen[task.name] = task
    order = {name: place for place, name in enumerate(TASKS)}
    ranked = sorted(chosen, key=lambda name: order.get(name, len(order)))
    tasks = [copy.copy(chosen[name]) for name in ranked]
    for task in tasks:
        task.seeds, task.classifier, task.jobs = tuple(seeds), classifier, jobs
    return tasks


def of_language(language: str) -> list[base.Task]:
    """The tasks whose public sets have a language.

    XNLI and the like learn from English and are tested on the language.

    Raises:
        UserError: no task has the language.
    """
    tasks = list(TASKS.values())
    if language != "all":
        tasks = [task for task in tasks if language in task.languages]
    if not tasks:
        known = {name for task in TASKS.values() for name in task.languages}
        raise UserError(
            f"--list_tasks={language}: no task has this language; allowed: all, "
            f"{', '.join(sorted(known))}"
        )
    return tasks


def _meant(name: str) -> str:
    """The names that resemble an unknown one, as "did you mean ...? ", or ""."""
    known = [*FAMILIES, *TASKS, *_ALIASES, *(f"{of}:FILE" for of in ON_FILES)]
    return did_you_mean(name.lower(), known, most=3)


def _divisible() -> list[base.DivisibleTask]:
    return [task for task in TASKS.values() if isinstance(task, base.DivisibleTask)]


def _part(name: str) -> base.Task | None:
    # The longest name first: one name may begin with another.
    for task in sorted(_divisible(), key=lambda task: -len(task.name)):
        part = name.removeprefix(task.name + "-")
        if part != name and part:
            return task.part(part)
    return None


def _on_files(name: str) -> base.Task | None:
    family, _, paths = name.partition(":")
    parts = paths.split(":")
    return ON_FILES[family](parts) if family in ON_FILES and all(parts) else None


def family(task: base.Task) -> str:
    """The family of a task; the name of a task on own files begins with the family."""
    whole = task.part_of or task.name
    for name, tasks in FAMILIES.items():
        if any(member.name == whole for member in tasks):
            return name
    return task.name.partition(":")[0]
