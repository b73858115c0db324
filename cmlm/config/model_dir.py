"""A model_dir: the directory of a run, and its files that are not checkpoints.

docs/runs.md lists the files.
"""

from __future__ import annotations

import os
import re
import shlex

import tensorflow as tf

from cmlm.common import atomic, folders
from cmlm.config import experiment, overrides
from cmlm.errors import UserError
from cmlm.modeling import latest

PARAMS = "params.yaml"
BEST = latest.BEST
METRICS = "metrics.jsonl"
STARTS = "starts.jsonl"
TENSORBOARD = "tensorboard"
TEXT = "text"
TEACHER = "teacher"
BASES = "teacher_bases"
STAGES = "stages"
# The name of a stage in `STAGES`.
_STAGE = re.compile(r"(\d+)-layers")


def is_model_dir(path: str) -> bool:
    """Whether a run wrote its configuration to the path."""
    return tf.io.gfile.exists(os.path.join(path, PARAMS))


def export_command(model_dir: str) -> str:
    """The command that exports a run to a folder beside it, for messages."""
    export_dir = f"{model_dir.rstrip('/')}_export"
    return (
        f"python -m export.tfhub --model_dir={shlex.quote(model_dir)} "
        f"--export_dir={shlex.quote(export_dir)}"
    )


def write_config(model_dir: str, config: experiment.ExperimentConfig) -> None:
    """Writes `params.yaml`, whole or not at all."""
    with atomic.text(os.path.join(model_dir, PARAMS)) as file:
        file.write(overrides.to_yaml(config))


def read_config(model_dir: str) -> experiment.ExperimentConfig:
    """Reads `params.yaml`.

    In an earlier version, a later stage of stacking kept neither the stage before nor
    the start of the run; both come from the stages that are still there.

    Raises:
        UserError: the directory has no `params.yaml`.
    """
    if not is_model_dir(model_dir):
        raise UserError(
            f"{model_dir} has no {PARAMS}: no run has written there; allowed: the "
            "--model_dir of a run"
        )
    config = overrides.from_yaml(os.path.join(model_dir, PARAMS))
    stages = [] if config.stacked_on else stages_before(model_dir, config)
    if stages:
        config.stacked_on = stages[-1]
        first = read_config(stages[0])
        config.init_checkpoint = config.init_checkpoint or first.init_checkpoint
    return config


def stages_before(model_dir: str, config: experiment.ExperimentConfig) -> list[str]:
    """Returns the stages of progressive stacking before one of them, in order.

    Args:
        model_dir: the run, which is its last stage, or a stage in its `STAGES`.
        config: the configuration there.
    """
    folder, name = os.path.split(os.fspath(model_dir).rstrip("/"))
    if not (os.path.basename(folder) == STAGES and _STAGE.fullmatch(name)):
        folder = os.path.join(model_dir, STAGES)
    found: dict[int, str] = {}
    for name in folders.entries(folder) if tf.io.gfile.isdir(folder) else ():
        path, match = os.path.join(folder, name), _STAGE.fullmatch(name.rstrip("/"))
        if match and int(match[1]) < config.model.num_layers and is_model_dir(path):
            found[int(match[1])] = path.rstrip("/")
    return [found[layers] for layers in sorted(found)]


def begun_config(model_dir: str) -> experiment.ExperimentConfig | None:
    """Reads `params.yaml` of a run that has a checkpoint; None for any other."""
    return None if latest.find(model_dir) is None else read_config(model_dir)
