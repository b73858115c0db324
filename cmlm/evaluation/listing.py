"""Lists the tasks in a language, for `cmlm.evaluate --list_tasks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cmlm.evaluation import catalogue, run
from cmlm.evaluation.tasks import base


def rows(language: str, data_dir: str | None) -> Iterator[str]:
    """Yields a line for each task: its name, its family, and its protocol or files.

    Args:
        language: a code such as `tr`, or `all`.
        data_dir: the folder of test sets; None: the protocols stand in place of the
            files.

    Raises:
        UserError: no task has the language.
    """
    tasks = catalogue.of_language(language)
    found, failed = run.read(tasks, data_dir) if data_dir else ([], {})
    read = {item.task.name: item.data for item in found}
    for task in tasks:
        cells = [task.name.ljust(20), catalogue.family(task).ljust(12)]
        if not data_dir:
            cells.append(task.protocol)
        elif task.name not in read:
            cells.append(failed[task.name])
        elif not _has(read[task.name], task, language):
            cells.append(f"there, without {language}")
        else:
            lost = [name for name in failed if name.startswith(f"{task.name}-")]
            cells.append(f"there, but not {', '.join(lost)}" if lost else "there")
        yield "  ".join(cells)


def _has(data: Any, task: base.Task, language: str) -> bool:
    """Whether the data of a task in several languages have a language."""
    if language in ("all", "en") or len(task.languages) < 2:
        return True
    if not isinstance(data, dict):
        return True
    return any(language in part.split("-") for part in data)
