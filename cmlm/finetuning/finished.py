"""The finished seeds of a run that was stopped; the next run goes on after them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.common import versions
from cmlm.evaluation.resuming import Kept


class Finished:
    """The finished seeds of a task in `work_dir`; nothing without a `work_dir`.

    Args:
        work_dir: the directory, or None.
        model: the description of the encoder.
        pooler: the weights of BERT's pooler from which the head starts, if any.
        task: the name of the task.
        settings: the settings, the longest sequence and the head.
        data: the descriptions of the task's files.
    """

    def __init__(
        self,
        work_dir: str | None,
        model: Mapping[str, Any],
        pooler: Sequence[np.ndarray],
        task: str,
        settings: Mapping[str, Any],
        data: Mapping[str, Mapping[str, Any]],
    ):
        # The fingerprint leaves out a pooler that vectors do not depend on.
        about = {
            "fingerprint": model["fingerprint"],
            "pooler": hashlib.sha256(b"".join(pooler)).hexdigest(),
            "versions": versions.installed(),
        }
        files = {name: [one["sha256"], one["examples"]] for name, one in data.items()}
        self._kept = Kept(work_dir, about) if work_dir else None
        self._task, self._about = task, [settings, files]

    def folder(self, seed: int) -> str | None:
        """The folder for the model of a seed."""
        return self._kept and self._kept.folder(self._task, [seed, *self._about])

    def read(
        self, seed: int, scores: Mapping[int, dict[str, float]], with_model: bool
    ) -> tuple[dict[str, float], dict[str, np.ndarray]] | None:
        """The scores of a finished seed, and the outputs for the files to submit.

        Args:
            seed: the seed.
            scores: the scores of the seeds before this one.
            with_model: whether the best seed needs its model. The folder of a
                seed lacks it if another seed was better.
        """
        found = self._kept and self._kept.read(self._task, [seed, *self._about])
        if not found:
            return None
        is_best = seed == best({**scores, seed: found["scores"]})
        if with_model and is_best and not os.path.isdir(self.folder(seed)):
            return None
        outputs = found["outputs"].items()
        return found["scores"], {
            name: np.array(rows, np.float32) for name, rows in outputs
        }

    def write(
        self, seed: int, scores: dict[str, float], outputs: Mapping[str, np.ndarray]
    ) -> None:
        """Keeps what `read` returns."""
        if self._kept:
            rows = {name: part.tolist() for name, part in outputs.items()}
            content = {"scores": scores, "outputs": rows}
            self._kept.write(self._task, [seed, *self._about], content)


def best(scores: dict[int, dict[str, float]]) -> int:
    """The seed with the highest score; on a tie, the first seed."""
    return max(scores, key=lambda seed: scores[seed]["score"])
