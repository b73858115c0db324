"""The records of a run: `starts.jsonl` and `metrics.jsonl` of its model_dir."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from cmlm.common import atomic
from cmlm.config.experiment import ExperimentConfig
from cmlm.config.model_dir import STARTS

logger = logging.getLogger(__name__)


def add_start(model_dir: str, row: Mapping[str, Any]) -> None:
    """Adds a row to `starts.jsonl`, whole or not at all."""
    path = os.path.join(model_dir, STARTS)
    with atomic.text(path) as file:
        file.writelines(json.dumps(each) + "\n" for each in [*_starts(path), row])


def read_starts(model_dir: str) -> list[dict]:
    """Reads the rows of `starts.jsonl` whose steps count.

    A start from an earlier checkpoint repeats the steps of the starts behind it. The
    `changed` of its row holds their changes, too.
    """
    kept: list[dict] = []
    for row in _starts(os.path.join(model_dir, STARTS)):
        repeated = [each for each in kept if each["step"] >= row["step"]]
        changed = _joined_changes([*repeated, row])
        kept = kept[: len(kept) - len(repeated)] + [{**row, "changed": changed}]
    return kept


def _joined_changes(rows: Sequence[Mapping]) -> dict[str, list]:
    found: dict[str, list] = {}
    for row in rows:
        for name, (before, now) in row.get("changed", {}).items():
            found[name] = [found.get(name, [before])[0], now]
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def settings_at(
    config: ExperimentConfig, starts: Sequence[Mapping], step: int
) -> ExperimentConfig:
    """Returns the settings with which a run trained a step.

    Args:
        config: the settings of the last start.
        starts: the result of `read_starts`.
        step: the step of a checkpoint.
    """
    config = config.replace()
    for row in reversed([row for row in starts if row["step"] >= step]):
        for name, (before, _) in row["changed"].items():
            *sections, field = name.split(".")
            # A later version may have dropped a setting. An export reads the encoder by
            # the last settings of the model.
            with contextlib.suppress(AttributeError, KeyError):
                if not name.startswith("model."):
                    setattr(functools.reduce(getattr, sections, config), field, before)
    return config


def _starts(path: str) -> list[dict]:
    """The rows of a `starts.jsonl`; [] for a run of a version that wrote none."""
    rows = _rows(path, "starts") if tf.io.gfile.exists(path) else []
    parts = ("global_batch_size", "text")
    return [row for row in rows if all(isinstance(row.get(p), dict) for p in parts)]


def read_metrics(path: str) -> list[dict]:
    """Reads the rows of a `metrics.jsonl`."""
    return _rows(path, "metrics")


def _rows(path: str, noun: str) -> list[dict]:
    """Reads rows with a step from JSON lines.

    An incomplete last line is skipped. A line that is not such a row, such as one of
    another program, is skipped too, and the log says so.
    """
    rows, skipped = [], []
    with tf.io.gfile.GFile(path, "rb") as file:
        for number, line in enumerate(file.read().split(b"\n")[:-1], 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and type(row.get("step")) is int:
                rows.append(row)
            else:
                skipped.append(number)
    if skipped:
        logger.warning(
            "%s: %d lines are not rows of %s and do not count; line %d is the first",
            path,
            len(skipped),
            noun,
            skipped[0],
        )
    return rows
