"""Refuses what the host of a remote TPU (`--tpu=NAME`) cannot reach or run.

This host reads the text and writes the checkpoints. It sees neither the files of this
machine nor the tables and operations of this process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf
from official.core import config_definitions

from cmlm.common import fields, path_names
from cmlm.config.experiment import ExperimentConfig
from cmlm.data import builtin
from cmlm.errors import UserError
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.unigrams import Unigrams
from cmlm.training import warm_start


def is_remote(runtime: config_definitions.RuntimeConfig) -> bool:
    """Tells whether a run uses a TPU that has a host of its own."""
    return runtime.distribution_strategy == "tpu" and runtime.tpu not in (None, "local")


def refuse(config: ExperimentConfig, directory: str) -> None:
    """Checks a run before it writes anything.

    Args:
        config: the run's configuration.
        directory: the model_dir.

    Raises:
        UserError: the run uses a remote TPU, and its model_dir or its text is local, or
            an objective needs files or tables of this machine.
    """
    if not is_remote(config.runtime):
        return
    tpu = f"--tpu={config.runtime.tpu}, a remote TPU"
    paths = [("--model_dir", directory)]
    for name, objective in config.task.enabled().items():
        if needs := objective.needs_this_machine():
            setting, value, allowed = needs
            raise fields.refused(
                f"task.{name}.{setting}", value, f"{allowed} with {tpu}"
            )
        for flag, place in objective.named_by_flags().items():
            paths += [(f"--{flag}", path) for path in getattr(*place).split(",")]
        setting = objective.validation_setting(name)
        validation = objective.validation_data.split(",")
        paths += [(setting, path) for path in validation]
    # This process reads the weights of another program; TensorFlow restores a run.
    if config.init_checkpoint and warm_start.own_run(config.init_checkpoint):
        paths.append(("--init_checkpoint", config.init_checkpoint))
    for flag, path in paths:
        # The run writes the builtin text into its model_dir.
        if path and path_names.is_local(path) and builtin.PYTHON_DOCS not in path:
            raise UserError(
                f"{flag} is {path}; allowed with {tpu}: a path that its host can open, "
                "such as gs://BUCKET/..."
            )


def refuse_tokenizer(config: ExperimentConfig, tokenizer: Tokenizer) -> None:
    """Raises UserError if a remote TPU's host could not run the tokenizer."""
    if is_remote(config.runtime) and isinstance(tokenizer, Unigrams):
        raise UserError(
            f"the tokenizer is {tokenizer.title}; allowed with "
            f"--tpu={config.runtime.tpu}, a remote TPU: WordPiece or byte-level BPE"
        )


@contextlib.contextmanager
def naming_operations(runtime: config_definitions.RuntimeConfig) -> Iterator[None]:
    """Names an operation of the body that the host of a remote TPU does not know.

    Raises:
        UserError: the host lacks the operation.
    """
    try:
        yield
    except tf.errors.NotFoundError as error:
        found = re.search(r"Op type not registered '([^']*)'", error.message)
        if not found or not is_remote(runtime):
            raise
        raise UserError(
            f"the host of --tpu={runtime.tpu} does not know the operation {found[1]}; "
            "allowed: a host whose TensorFlow server has imported tensorflow_text (see "
            "docs/runs.md), or --tpu=local on a TPU VM"
        ) from error
