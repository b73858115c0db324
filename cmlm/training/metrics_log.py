"""The metrics of a run as JSON lines and TensorBoard summaries."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import atomic
from cmlm.config.model_dir import METRICS, TENSORBOARD
from cmlm.config.run_records import read_metrics


class MetricsLog:
    """Writes rows of metrics to `metrics.jsonl` and to TensorBoard.

    Args:
        directory: the model_dir.
        start_step: the step at which the run starts or resumes. The log drops later
            rows of the file, because the run repeats their steps.
    """

    def __init__(self, directory: str, start_step: int):
        self._path = path = os.path.join(directory, METRICS)
        rows = read_metrics(path) if tf.io.gfile.exists(path) else []
        # A new file in any case: a link would lead to a file that is not of the run.
        with atomic.text(path) as file:
            for row in rows:
                if row["step"] <= start_step:
                    file.write(json.dumps(row) + "\n")
        self._directory = os.path.join(directory, TENSORBOARD)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one row; it is on disk when this returns."""
        row = {"step": step, "time": round(time.time(), 3), **metrics}
        with tf.io.gfile.GFile(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        for name, value in metrics.items():
            # One folder a part and one tag for both: TensorBoard lays the curves of
            # training and validation over each other.
            part, _, tag = name.partition("/")
            with self._writer(part).as_default():
                tf.summary.scalar(tag, value, step=step)
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, part: str) -> tf.summary.SummaryWriter:
        if part not in self._writers:
            directory = os.path.join(self._directory, part)
            self._writers[part] = tf.summary.create_file_writer(directory)
        return self._writers[part]


def has_validation(directory: str, step: int, metric: str = "") -> bool:
    """Whether a model_dir has validation metrics of a step.

    Args:
        directory: the model_dir.
        step: the step.
        metric: the metric to look for, such as `cmlm/loss`; "": any of them.
    """
    path, wanted = os.path.join(directory, METRICS), f"validation/{metric}"
    return tf.io.gfile.exists(path) and any(
        wanted in row if metric else any(name.startswith(wanted) for name in row)
        for row in read_metrics(path)
        if row["step"] == step
    )
