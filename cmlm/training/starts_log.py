"""Records each start of a run: its text and its settings may change in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from cmlm.common import versions
from cmlm.data import corpus
from cmlm.encoders import model_dir
from cmlm.training.start import Start
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)


def record(start: Start, trainer: Trainer, changed: Mapping[str, Any]) -> None:
    """Adds a start that trains to `starts.jsonl`, and warns if its text is another one.

    Call it on worker 0 only.

    Args:
        start: the start.
        trainer: the trainer, already restored.
        changed: the settings that differ from the last start, see
            `agreement.changed_settings`.
    """
    objectives = trainer.objectives
    text = {
        name: corpus.listing(objective.data.train.files)
        for name, objective in objectives.items()
    }
    if start.begun is not None:
        _warn_of_other_text(start, trainer, text)
    row = {
        "step": trainer.step,
        "time": round(time.time(), 3),
        "changed": changed,
        "global_batch_size": {
            name: objective.global_batch_size for name, objective in objectives.items()
        },
        "text": text,
        "versions": versions.installed(),
    }
    model_dir.add_start(start.directory, row)


def _warn_of_other_text(
    start: Start, trainer: Trainer, text: Mapping[str, Any]
) -> None:
    """Warns if a resumed run skips batches of a text that it has not trained on."""
    rows = model_dir.read_starts(start.directory)
    # A start that has left no checkpoint does not count.
    texts = [row["text"] for row in rows if row["step"] < trainer.step]
    before = start.begun.task.enabled()

    def is_other(name: str) -> bool:
        if texts:
            return texts[-1].get(name) != text[name]
        # Earlier versions recorded only the names.
        now = trainer.objectives[name].config.train_data
        return before[name].train_data.origin != now.origin

    skipped = [
        f"{seen:,} of {name}"
        for name, variable in trainer.batches_seen.items()
        if (seen := int(variable.numpy())) and is_other(name)
    ]
    if skipped:
        logger.warning(
            "the text has changed since the last start, and the run skips the first "
            "batches of the new text (%s); to train on them, name another --model_dir "
            "with --init_checkpoint=%s",
            ", ".join(skipped),
            start.directory,
        )
