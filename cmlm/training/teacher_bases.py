"""The bases that a run projects the vectors of its teachers on.

A student whose width is not that of its teacher learns projections of the teacher's
vectors. The basis of a teacher is its principal directions, rotated at random, or, with
`projection=aligned`, towards the encoder that the run starts from. Other texts would
rotate a basis that the student has learnt, so a run keeps the bases of its first start:

    teacher_bases/    in the model_dir, a file for each teacher

A run that starts from another run takes over its bases.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cmlm.common import atomic, fields
from cmlm.config import model_dir
from cmlm.data import teacher_vectors
from cmlm.objectives import Data
from cmlm.objectives.distill import ALIGNED, DistillConfig
from cmlm.tokenization.base import Tokenizer
from cmlm.training import alignment, warm_start
from cmlm.training.start import Start

# The least mean cosine between a trained encoder and its teacher without a warning. In
# hundreds of dimensions, vectors of unrelated directions have cosines near 0.
_RELATED = 0.2

logger = logging.getLogger(__name__)


def refuse_projections(start: Start, objectives: Mapping[str, DistillConfig]) -> None:
    """Refuses `projection=aligned` where no encoder can decide it, or it is too late.

    Args:
        start: the start of the run.
        objectives: the objectives with a teacher.

    Raises:
        UserError: the run starts from random weights, has begun with another
            projection, or rotates a teacher's vectors for only some of the objectives.
    """
    by_name: dict[str, list[str]] = {}
    for name, objective in objectives.items():
        by_name.setdefault(objective.teacher, []).append(name)
    for names in by_name.values():
        _refuse_two_projections(objectives, names)
    for name, objective in objectives.items():
        setting = f"task.{name}.projection"
        if objective.is_aligned and start.is_untrained:
            raise fields.refused(
                setting,
                objective.projection,
                "pca or linear, or an encoder as --init_checkpoint",
            )
        before = start.begun and start.begun.task.enabled().get(name)
        former = getattr(before, "projection", objective.projection)
        if objective.is_aligned != (former == ALIGNED):
            raise fields.refused(
                setting,
                objective.projection,
                f"{former}, as the run in {start.directory} has, or another "
                "--model_dir",
            )


def add(
    start: Start,
    objectives: Mapping[str, DistillConfig],
    data: Mapping[str, Data],
    tokenizer: Tokenizer,
) -> dict[str, Data]:
    """Gives the vectors of a teacher the basis that the run projects them on.

    Args:
        start: the start of the run; one that only validates keeps no basis.
        objectives: the objectives that project their teacher's vectors.
        data: their data, with these vectors.
        tokenizer: the tokenizer of the run.

    Raises:
        UserError: the projection is `pca`, and other directions of the same teacher
            were learnt before, or are learnt by another objective.
    """
    folder = os.path.join(start.stage.shared_directory, model_dir.BASES)
    known = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    result: dict[str, Data] = {}
    for teacher, names in _by_teacher(data).items():
        _refuse_two_projections(objectives, names)
        # As many digits as tell teachers apart.
        basis = os.path.join(folder, teacher[:16])
        is_known = os.path.basename(basis) in known
        if known and not is_known and not start.is_first:
            _warn_of_another_teacher(start, folder)
        if not is_known or (start.is_first and start.writes):
            name = names[0]
            basis = _new(start, basis, name, objectives[name], data[name], tokenizer)
        for name in names:
            vectors = dataclasses.replace(data[name].teacher, basis=basis)
            result[name] = dataclasses.replace(data[name], teacher=vectors)
    return result


def _by_teacher(data: Mapping[str, Data]) -> dict[str, list[str]]:
    """The objectives of each teacher, those with the most vectors first.

    Their directory has the vectors of the other objectives, too.
    """
    found: dict[str, list[str]] = {}
    for name, own in sorted(data.items(), key=lambda item: -item[1].teacher.rows):
        teacher = teacher_vectors.fingerprint(own.teacher.directory)
        found.setdefault(teacher, []).append(name)
    return found


def _refuse_two_projections(
    objectives: Mapping[str, DistillConfig], names: Sequence[str]
) -> None:
    """Refuses objectives of which only some rotate the vectors of one teacher.

    Args:
        objectives: the objectives of a run.
        names: those with one teacher.

    Raises:
        UserError: one has `pca`, another one `aligned`.
    """
    aligned = [name for name in names if objectives[name].is_aligned]
    for name in names:
        if aligned and objectives[name].projection == "pca":
            raise fields.refused(
                f"task.{name}.projection",
                "pca",
                f"aligned, as task.{aligned[0]} has with this teacher",
            )


def _new(
    start: Start,
    kept: str,
    name: str,
    objective: DistillConfig,
    data: Data,
    tokenizer: Tokenizer,
) -> str:
    """Returns the file of a basis that the run has not kept; keeps it as `kept`."""
    basis = _learnt(start, name, objective, os.path.basename(kept))
    if not start.writes:
        return basis or data.teacher.basis
    if objective.is_aligned:
        logger.info("teacher: its vectors are rotated towards those of the encoder")
        turned = alignment.directions(start.config, objective, data, tokenizer)
        _write(kept, turned)
    elif basis or not start.is_first:
        with atomic.file(kept) as temporary:
            tf.io.gfile.copy(basis or data.teacher.basis, temporary, overwrite=True)
    else:
        if start.config.init_checkpoint:
            _warn_of_directions(start, name, objective, data, tokenizer)
        width = start.config.model.hidden_size
        _write(kept, alignment.mixed(data.teacher.directions(), width))
    return kept


def _write(path: str, directions: np.ndarray) -> None:
    """Writes a basis that is rotated."""
    with atomic.file(path) as temporary:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(directions.astype("<f4").tobytes())


def _learnt(start: Start, name: str, objective: DistillConfig, file: str) -> str:
    """The basis that the encoder of `init_checkpoint` has learnt, or "".

    Raises:
        UserError: this basis is rotated, and the run would not use it.
    """
    source = start.config.init_checkpoint if start.is_first else ""
    run = warm_start.own_run(source) if source else None
    if objective.is_aligned or not run:
        return ""
    path = os.path.join(run, model_dir.BASES, file)
    if not tf.io.gfile.exists(path):
        return ""
    before = model_dir.read_config(run).task.enabled().values()
    if any(getattr(each, "projection", "") == ALIGNED for each in before):
        raise fields.refused(
            f"task.{name}.projection",
            objective.projection,
            f"aligned, as the run in {run} has with this teacher",
        )
    logger.info("teacher: the run keeps the principal directions of %s", run)
    return path


def _warn_of_another_teacher(start: Start, folder: str) -> None:
    """Warns if a begun run gets another teacher."""
    logger.warning(
        "teacher: the encoder has learnt another teacher's vectors (%s); %s with new "
        "principal directions, which the encoder has not learnt. If the teacher is the "
        "same, name its former path or address",
        folder,
        "the run goes on" if start.writes else "this command validates",
    )


def _warn_of_directions(
    start: Start,
    name: str,
    objective: DistillConfig,
    data: Data,
    tokenizer: Tokenizer,
) -> None:
    """Warns if a trained encoder would unlearn its directions."""
    cosine = alignment.cosine(start.config, objective, data, tokenizer)
    if cosine < _RELATED:
        logger.warning(
            "teacher: the vectors of %s point in other directions than those of %s "
            "(mean cosine %.2f), so the encoder first unlearns its own; "
            "task.%s.projection=aligned rotates the teacher's vectors",
            *(objective.teacher, start.config.init_checkpoint, cosine, name),
        )
