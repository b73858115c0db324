"""Records each start of a run: its text and its settings may change in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cmlm.common import versions
from cmlm.config import run_records
from cmlm.data import corpus
from cmlm.training.start import Start
from cmlm.training.trainer import Trainer

logger = logging.getLogger(__name__)


def record(start: Start, trainer: Trainer, changed: Mapping[str, Any]) -> None:
    """Adds a start that trains to `starts.jsonl`.

    It tells of another text, another batch size and other packages. Call it on worker 0
    only.

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
    packages = versions.installed()
    if start.begun is not None:
        rows = run_records.read_starts(start.directory)
        # A start that has left no checkpoint does not count.
        rows = [row for row in rows if row["step"] < trainer.step]
        _warn_of_other_text(start, trainer, text, rows)
        _warn_of_other_batch(start, trainer, rows)
        _log_other_packages(packages, rows)
    row = {
        "step": trainer.step,
        "time": round(time.time(), 3),
        "changed": changed,
        "global_batch_size": {
            name: objective.global_batch_size for name, objective in objectives.items()
        },
        "text": text,
        "versions": packages,
    }
    run_records.add_start(start.directory, row)


def _warn_of_other_text(
    start: Start, trainer: Trainer, text: Mapping[str, Any], rows: Sequence[Mapping]
) -> None:
    """Warns if a resumed run skips batches of a text that it has not trained on.

    Args:
        start, trainer: as for `record`.
        text: the text of each objective.
        rows: the starts that have led to the last checkpoint.
    """
    before = start.begun.task.enabled()

    def is_other(name: str) -> bool:
        if rows:
            return rows[-1]["text"].get(name) != text[name]
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


def _warn_of_other_batch(
    start: Start, trainer: Trainer, rows: Sequence[Mapping]
) -> None:
    """Warns if a resumed run skips batches of another size than it has trained on.

    The arguments are those of `_warn_of_other_text`.
    """
    begun = start.begun.task.enabled()
    for name, variable in trainer.batches_seen.items():
        before = begun[name].train_data.global_batch_size
        if rows:
            before = rows[-1]["global_batch_size"].get(name, before)
        now, seen = trainer.objectives[name].global_batch_size, int(variable.numpy())
        if seen and before != now:
            logger.warning(
                "task.%s.train_data.global_batch_size has changed from %d to %d, and "
                "the run skips as many batches of the new size as it has read (%s): %s",
                *(name, before, now, f"{seen:,}"),
                "it leaves out examples that it has not read"
                if now > before
                else "it reads examples again",
            )


def _log_other_packages(packages: Mapping[str, str], rows: Sequence[Mapping]) -> None:
    """Logs the packages in which a resumed run differs from its last start.

    Args:
        packages: the installed versions by name.
        rows: as for `_warn_of_other_text`.
    """
    # Starts of earlier versions recorded none.
    before = rows[-1].get("versions") if rows else None
    if not isinstance(before, dict):
        return
    told = [
        f"{name} {before[name]} -> {version}"
        for name, version in packages.items()
        if before.get(name, version) != version
    ]
    if told:
        logger.info("resuming with other packages: %s", ", ".join(told))
