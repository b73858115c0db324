"""The inputs of a run: the data of every objective, the vocabulary, the tokenizer."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import checksums, workers
from cmlm.config import experiment, model_dir
from cmlm.data.corpus import Corpus, merge
from cmlm.data.teacher_vectors import TeacherVectors
from cmlm.errors import UserError
from cmlm.objectives import Data, ObjectiveConfig
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.training import teachers, warm_start
from cmlm.training.start import Start
from cmlm.vocabulary import of_run

# The longest wait until shared storage shows a file of worker 0 to another worker.
_SHARED_STORAGE_SECONDS = 120


def prepare_data(
    config: experiment.ExperimentConfig, directory: str
) -> dict[str, Data]:
    """Finds the data of every enabled objective, checks it, and logs a summary.

    Args:
        config: the run's configuration.
        directory: the model_dir, of the whole run if this one is a stage.

    Raises:
        UserError: data is missing, empty, or in another format.
    """
    work_dir = os.path.join(directory, model_dir.TEXT)
    enabled = config.task.enabled().values()
    in_documents = {_origin(each) for each in enabled if each.reads_documents}
    found: dict[tuple, Data] = {}
    by_objective = {}
    for name, objective in config.task.enabled().items():
        key = _origin(objective)
        if key not in found:
            found[key] = objective.load_data(work_dir, key in in_documents, name)
        objective.check_data(found[key], config.model)
        by_objective[name] = found[key]
    return by_objective


def _origin(objective: ObjectiveConfig) -> tuple:
    """Identifies the data of an objective; equal data is loaded once."""
    return objective.train_data.origin, objective.validation_data


def prepare_vocabulary(start: Start, data: Mapping[str, Data]) -> str:
    """Writes the vocabulary into the model_dir, and its rules into the configuration.

    A warm start takes the vocabulary of its source, unless the user names a file.

    Returns:
        The path of the vocabulary.

    Raises:
        UserError: the vocabulary cannot be used.
    """
    config, directory = start.config, start.directory
    settings = warm_start.vocabulary_settings(config, start.is_first)
    target = vocabulary_file.find(directory)
    has_weights = start.begun is not None
    if has_weights and not settings.file and not tf.io.gfile.exists(target):
        raise UserError(
            f"{target} is missing, and the checkpoints in {directory} need it: put it "
            "back, name it with --vocab_file, or use another --model_dir"
        )
    path = of_run.prepare(
        settings,
        merge(entry.train for entry in data.values()),
        directory,
        config.model.vocab_size,
        has_weights=has_weights,
        is_new=not has_weights and not model_dir.is_model_dir(directory),
    )
    config.vocabulary.adopt_rules(settings.rules().as_dict())
    return path


def prepare(start: Start) -> tuple[dict[str, Data], Tokenizer]:
    """Prepares data and vocabulary on worker 0; the other workers read its files.

    Args:
        start: size and rules of the vocabulary are filled into its configuration.

    Returns:
        The data of every enabled objective, and the tokenizer of the vocabulary.

    Raises:
        UserError: data or vocabulary cannot be used, the vocabulary does not fit, or
            a worker does not see the files of worker 0.
    """
    config, strategy = start.config, start.strategy
    found = workers.on_chief(strategy, lambda: _prepare_files(start))
    data = {name: _data_of(values) for name, values in found["data"].items()}
    path = found["vocabulary"]
    if not workers.is_chief(strategy):
        _await_file(path, found["digest"])
        await_data(data)
    config.vocabulary.adopt_rules(found["rules"])
    tokenizer = config.vocabulary.tokenizer(path)
    config.model.vocab_size = tokenizer.vocab_size

    def check_coverage():
        # A resumed run may have new text.
        if start.writes:
            text = merge(entry.train for entry in data.values())
            of_run.check_coverage(
                config.vocabulary,
                tokenizer,
                text,
                _remedy(start),
                _limits(config, data),
            )

    workers.on_chief(strategy, check_coverage)
    return data, tokenizer


def _limits(
    config: experiment.ExperimentConfig, data: Mapping[str, Data]
) -> dict[str, int]:
    """The length in tokens at which the run cuts the texts of a file, by path."""
    limits: dict[str, int] = {}
    for name, objective in config.task.enabled().items():
        if objective.reads_single_texts:
            for path in itertools.chain(*data[name].train.files.values()):
                length = objective.train_data.seq_length
                limits[path] = max(length, limits.get(path, 0))
    return limits


def _remedy(start: Start) -> str:
    """The way out of a text that the vocabulary does not know, for messages."""
    if start.begun is not None:
        return "the text of the run so far, another --model_dir"
    if start.config.init_checkpoint:
        return "weights with a vocabulary of this text, a run without --init_checkpoint"
    return "a vocabulary of this text and case"


def _prepare_files(start: Start) -> dict[str, Any]:
    """Prepares data and vocabulary, and describes them in values that JSON can hold."""
    config = start.config
    tf.io.gfile.makedirs(start.directory)
    data = prepare_data(config, start.stage.shared_directory)
    teachers.refuse_others(start)
    path = prepare_vocabulary(start, data)
    data = teachers.prepare(start, data, config.vocabulary.tokenizer(path))
    return {
        "data": {name: dataclasses.asdict(entry) for name, entry in data.items()},
        "vocabulary": path,
        "digest": checksums.sha256(path),
        "rules": config.vocabulary.rules().as_dict(),
    }


def _data_of(values: Mapping[str, Any]) -> Data:
    """Makes the data of an objective from the plain values of `dataclasses.asdict`."""
    validation, teacher = values["validation"], values["teacher"]
    return Data(
        Corpus(**values["train"]),
        validation and Corpus(**validation),
        teacher and TeacherVectors(**teacher),
    )


def await_data(data: Mapping[str, Data]) -> None:
    """Waits until this worker sees the texts and the teacher's vectors of worker 0.

    Args:
        data: the data of every enabled objective.

    Raises:
        UserError: a file does not appear, or is shorter than on worker 0.
    """
    corpora = [corpus for entry in data.values() for corpus in entry.corpora]
    for paths in merge(corpora).values():
        for path in paths:
            _await_file(path)
    for teacher in filter(None, (entry.teacher for entry in data.values())):
        for path, size in teacher.files().items():
            _await_file(path, size=size)


def _await_file(path: str, digest: str | None = None, size: int = 0) -> None:
    """Waits until this worker sees a file that worker 0 has written.

    Args:
        path: the path of the file.
        digest: the SHA-256 of its content, or None for any content.
        size: its least number of bytes.

    Raises:
        UserError: the file does not appear, or has other content.
    """
    deadline = time.monotonic() + _SHARED_STORAGE_SECONDS
    while True:
        there = tf.io.gfile.exists(path)
        is_whole = there and tf.io.gfile.stat(path).length >= size
        if is_whole and (digest is None or checksums.sha256(path) == digest):
            return
        if time.monotonic() > deadline:
            raise UserError(
                f"{path} of worker 0 {'differs' if there else 'is missing'} on this "
                "worker; --model_dir, --teacher_cache and the text must be on storage "
                "that every worker sees under the same path"
            )
        time.sleep(0.5)
