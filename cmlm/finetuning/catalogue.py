"""The tasks that an encoder can be fine-tuned for, by name."""

from __future__ import annotations

from collections.abc import Sequence

from cmlm.errors import UserError
from cmlm.finetuning import glue, labelled, reviews
from cmlm.finetuning.tasks import Task

TASKS = {**glue.TASKS, reviews.TASK.name: reviews.TASK}


def find_tasks(
    names: Sequence[str], dev: str | None = None, predict: Sequence[str] = ()
) -> list[Task]:
    """Finds tasks by name, each once; `glue` stands for GLUE's tasks without WNLI.

    Args:
        names: the names; `file:FILE` is a task of one's own.
        dev, predict: files for a task of one's own, see `labelled.find_task`.

    Raises:
        UserError: a name is unknown.
    """
    wanted: dict[str, Task] = {}
    for name in names:
        if name == "glue":
            wanted |= {key: task for key, task in glue.TASKS.items() if key != "wnli"}
        elif name.startswith(labelled.PREFIX):
            path = name.removeprefix(labelled.PREFIX)
            wanted[name] = labelled.find_task(path, dev, predict)
        elif name in TASKS:
            wanted[name] = TASKS[name]
        else:
            raise UserError(
                f"--task is {name!r}; allowed: {', '.join(TASKS)}, glue, file:FILE"
            )
    own = [name for name in wanted if name.startswith(labelled.PREFIX)]
    if own and len(wanted) > 1:
        raise UserError(f"--task is {','.join(names)}; allowed: file:FILE alone")
    for flag, value in (("--dev", dev), ("--predict", ",".join(predict))):
        if value and not own:
            raise UserError(
                f"{flag} is {value!r} with --task={','.join(names)}; allowed: with a "
                "task of your own, file:FILE"
            )
    return list(wanted.values())
