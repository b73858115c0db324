"""XEVAL: SentEval's tasks, machine-translated.

Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 4.5.1 and appendix D:
SentEval in English and 14 other languages. The folder `xeval/LANGUAGE/` holds each
language in SentEval's own layout; translations are UTF-8. Without `xeval/en/`, English
is SentEval in its own place.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable

from cmlm.evaluation import averages
from cmlm.evaluation.data_dir import UTF_8, DataDir, MissingData
from cmlm.evaluation.tasks import base, senteval
from cmlm.evaluation.tasks.senteval_files import Parts


class XevalTask(base.PartedTask[Parts]):
    """A task of SentEval in several languages.

    Args:
        task: a task of SentEval.
        folder: the folder of the task's files inside a language folder.
    """

    def __init__(self, task: senteval.ClassificationTask, folder: str):
        super().__init__(f"xeval-{task.name}")
        self._task = task
        self._folder = folder
        self.languages = averages.XEVAL_LANGUAGES
        self.main_metric = task.main_metric

    @property
    def protocol(self) -> str:
        return f"{self._of('').protocol}; mean over languages"

    def _of(self, language: str) -> senteval.ClassificationTask:
        """The task in a language: a copy, because the catalogue shares the task."""
        task = copy.copy(self._task)
        task.language, task.seeds = language, self.seeds
        task.classifier, task.jobs = self.classifier, self.jobs
        return task

    def find_parts(self, source: DataDir) -> dict[str, str]:
        paths = source.matching(os.path.join("xeval", "*", self._folder))
        folders = [path.removesuffix(self._folder).rstrip(os.sep) for path in paths]
        found = {os.path.basename(folder): folder for folder in folders}
        if "en" not in found:
            with contextlib.suppress(MissingData):
                path = source.matching(self._folder, within="senteval")[0]
                found["en"] = path.removesuffix(self._folder)
        return found

    def read_part(self, source: DataDir, part: str, where: str) -> Parts:
        source = source.inside(where)
        # English is SentEval itself. A bad byte would turn a translation into Latin-1.
        if part != "en":
            source.senteval_encodings = UTF_8
        return self._task.read(source)

    def part_sentences(self, data: Parts) -> Iterable[str]:
        return self._task.sentences(data)

    def outcome(self, data: dict[str, Parts], vectors: base.Vectors) -> base.Outcome:
        """Scores all languages with each seed: `METRIC_std` is that of their mean."""
        outcomes = []
        for seed in self.seeds:
            one = copy.copy(self)
            one.seeds = (seed,)
            outcomes.append(base.PartedTask.outcome(one, data, vectors))
        return senteval.over_seeds(outcomes)

    def part_outcome(
        self, part: str, data: Parts, vectors: base.Vectors
    ) -> base.Outcome:
        return self._of(part).outcome(data, vectors)


TASKS = [XevalTask(task, folder) for folder, task in senteval.ROWS]
