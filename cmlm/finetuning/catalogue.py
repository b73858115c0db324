"""All tasks that an encoder can be fine-tuned for, by name."""

from __future__ import annotations

from cmlm.errors import UserError
from cmlm.finetuning import glue, reviews
from cmlm.finetuning.tasks import Task

TASKS = {**glue.TASKS, reviews.TASK.name: reviews.TASK}


def find_task(name: str | None) -> Task:
    """A task by its name.

    Raises:
        UserError: there is none of that name.
    """
    if name not in TASKS:
        raise UserError(f"--task is {name!r}; allowed: {', '.join(TASKS)}")
    return TASKS[name]
