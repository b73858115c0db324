"""Tasks that are scored again and again while a model trains."""

from __future__ import annotations

from collections.abc import Sequence

from cmlm.errors import UserError
from cmlm.evaluation import catalogue, run
from cmlm.evaluation.store import SentenceEncoder


class Scorer:
    """Reads its data once, before the first step; nothing is found out too late.

    Args:
        names: as in `cmlm.evaluate --tasks`.
        data_dir: the folder with test sets.

    Attributes:
        metrics: names of what it returns, `stsb-dev/spearman` and the like; each may
            choose the best checkpoint, higher being better.

    Raises:
        UserError: a name is unknown, a data set is missing or damaged.
    """

    def __init__(self, names: Sequence[str], data_dir: str):
        self._tasks, failed = run.read(catalogue.select(names), data_dir)
        if failed:
            name, reason = next(iter(failed.items()))
            raise UserError(f"{name}: {reason}")
        self.metrics = [
            f"{item.task.name}/{item.task.main_metric}" for item in self._tasks
        ]

    def __call__(self, encoder: SentenceEncoder) -> dict[str, float]:
        """Main metrics by name.

        Args:
            encoder: the model as it is now.
        """
        scores = run.score(encoder, self._tasks).scores
        found = (scores[item.task.name][item.task.main_metric] for item in self._tasks)
        return dict(zip(self.metrics, found, strict=True))
