"""Lists the tasks in a language, for `cmlm.evaluate --list_tasks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cmlm.evaluation import catalogue, run
from cmlm.evaluation.tasks import agnosticity, base, bitext


def rows(language: str, data_dir: str | None) -> Iterator[str]:
    """Yields a line for each task: its name, its family, and its protocol or files.

    Args:
        language: a code such as `tr`, or `all`.
        data_dir: the folder of test sets; None: the protocols stand in place of the
            files.

    Raises:
        UserError: no task has the language.
    """
    for task in catalogue.of_language(language):
        said = _availability(task, language, data_dir) if data_dir else task.protocol
        yield f"{task.name:20}  {catalogue.family(task):12}  {said}"


def _availability(task: base.Task, language: str, data_dir: str) -> str:
    """Whether the files of a task are there; the parts that are left out."""
    found, failed = run.read([task], data_dir)
    if not found:
        return failed[task.name]
    if not _has(found[0].data, task, language):
        return f"there, without {language}"
    return f"there, but not {', '.join(failed)}" if failed else "there"


def _has(data: Any, task: base.Task, language: str) -> bool:
    """Whether the data of a task in several languages have a language."""
    if language == "all" or len(task.languages) < 2:
        return True
    # Their parts have the names of the languages beside English.
    if language == "en" and isinstance(task, bitext.Tatoeba | bitext.UnCorpus):
        return True
    parts = data.texts if isinstance(data, agnosticity.Pool) else data
    return any(language in part.split("-") for part in parts)
