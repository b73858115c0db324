"""The tasks that an encoder can be fine-tuned for, by name."""

from __future__ import annotations

from collections.abc import Sequence

from cmlm.errors import UserError
from cmlm.finetuning import glue, reviews
from cmlm.finetuning.tasks import Task

TASKS = {**glue.TASKS, reviews.TASK.name: reviews.TASK}


def find_task(name: str | None) -> Task:
    """Finds a task by name.

    Raises:
        UserError: there is no task of that name.
    """
    if name not in TASKS:
        raise UserError(f"--task is {name!r}; allowed: {', '.join(TASKS)}, glue")
    return TASKS[name]


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Finds tasks by name, each once; `glue` stands for GLUE's tasks without WNLI.

    Raises:
        UserError: a name is unknown.
    """
    wanted: dict[str, Task] = {}
    for name in names:
        if name == "glue":
            wanted |= {key: task for key, task in glue.TASKS.items() if key != "wnli"}
        else:
            wanted[name] = find_task(name)
    return list(wanted.values())
