"""Computes the vectors of a teacher before a run that learns them."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import arrays, checksums, files, identity, path_names
from cmlm.common.progress import bar as progress_bar
from cmlm.common.protocols import DescribedEncoder
from cmlm.config import model_dir
from cmlm.data import streams, teacher_vectors
from cmlm.data.teacher_vectors import TeacherVectors
from cmlm.encoders import locating, opening
from cmlm.errors import UserError
from cmlm.objectives import Data
from cmlm.objectives.distill import DistillConfig, word_of
from cmlm.tokenization.base import Tokenizer
from cmlm.training import teacher_bases
from cmlm.training.start import Start

# Texts that the teacher encodes in one call: enough for batches of similar length.
_AT_ONCE = 4_096

logger = logging.getLogger(__name__)


def prepare(
    start: Start, data: Mapping[str, Data], tokenizer: Tokenizer
) -> dict[str, Data]:
    """Gives the data of every objective with a teacher the vectors of its texts.

    Vectors that an earlier run or a killed run has left are not computed again. If they
    are complete, the teacher is not opened.

    Args:
        start: the start of the run.
        data: the data of every enabled objective.
        tokenizer: its vocabulary is encoded too, for `init_words`.

    Raises:
        UserError: the teacher cannot be opened, its vectors are not finite or do not
            fit the new encoder, the cache belongs to another teacher, or two teachers
            do not fit one linear map.
    """
    objectives = _taught(start)
    teacher_bases.refuse_projections(start, objectives)
    found = {
        name: _vectors(start, name, objective, data[name], tokenizer)
        for name, objective in objectives.items()
    }
    mapped = [name for name in found if objectives[name].projection == "linear"]
    if len({found[name].dim for name in mapped}) > 1:
        widths = ", ".join(f"{name} {found[name].dim}" for name in mapped)
        raise UserError(
            f"projection=linear learns one map, and the teachers' widths are {widths}; "
            "allowed: teachers of one width, or projection=pca"
        )
    taught = {
        name: dataclasses.replace(data[name], teacher=vectors)
        for name, vectors in found.items()
    }
    projected = {name: taught[name] for name in taught if name not in mapped}
    taught |= teacher_bases.add(start, objectives, projected, tokenizer)
    return data | taught


def _taught(start: Start) -> dict[str, DistillConfig]:
    """The enabled objectives that learn a teacher's vectors."""
    return {
        name: objective
        for name, objective in start.config.task.enabled().items()
        if isinstance(objective, DistillConfig)
    }


def refuse_others(start: Start) -> None:
    """Refuses a cache of another teacher before the run computes anything.

    A teacher of the name in the cache may have changed all the same. `prepare` notices
    that if it needs the teacher.

    Raises:
        UserError: a cache is remote, is damaged or belongs to another teacher, or a
            teacher cannot be opened.
    """
    for objective in _taught(start).values():
        cache = _cache(start, objective)
        known = teacher_vectors.teacher_of(cache).get("model")
        if known not in (None, objective.teacher):
            teacher, about = _open(objective)
            teacher_vectors.refuse_other(cache, about, teacher.dim)


def _cache(start: Start, objective: DistillConfig) -> str:
    """Raises UserError for a remote path: TensorFlow maps the vectors to memory."""
    own = os.path.join(start.stage.shared_directory, model_dir.TEACHER)
    path = objective.teacher_cache or own
    if not path_names.is_local(path):
        raise UserError(
            f"--teacher_cache is {path}; allowed: a local directory that every worker "
            "mounts"
        )
    return path


def _open(objective: DistillConfig) -> tuple[DescribedEncoder, dict[str, Any]]:
    """Opens the teacher. Returns what its cache records, too."""
    teacher = opening.open_encoder(objective.teacher)
    return teacher, {
        "model": objective.teacher,
        "vectors": identity.of(teacher),
        "files": _files(objective.teacher),
    }


def _files(model: str) -> str:
    """A hash of the sizes and times of a teacher's files; "" without files."""
    try:
        states = files.states(locating.weight_files(model))
    except (UserError, tf.errors.OpError):
        # Complete vectors need no teacher.
        return ""
    return checksums.of_values(states) if states else ""


def _warn_of_other_files(cache: str, model: str) -> None:
    """Warns if a teacher's files changed since the cache began.

    The vectors in the cache are those of one teacher all the same.
    """
    before, now = teacher_vectors.teacher_of(cache).get("files"), _files(model)
    if before and now and before != now:
        logger.warning(
            "teacher: files of %s changed after the cache %s began, and the run learns "
            "the earlier vectors; for new vectors, name another --teacher_cache",
            model,
            cache,
        )


def _vectors(
    start: Start,
    name: str,
    objective: DistillConfig,
    data: Data,
    tokenizer: Tokenizer,
) -> TeacherVectors:
    """Finds the vectors of one objective, or computes them."""
    cache = _cache(start, objective)
    words = [word_of(t) for t in tokenizer.vocab] if objective.init_words else []
    # On a miss, the hashes of the text are kept.
    texts, asked = itertools.tee(_identities(objective, data, words))
    found = teacher_vectors.find(cache, objective.teacher, asked)
    if found:
        _warn_of_other_files(cache, objective.teacher)
        _check_words(start, name, objective, found.dim)
    else:
        # Before the teacher reads: text that changes meanwhile is another one.
        texts = list(texts)
        teacher, about = _open(objective)
        # A wrong width is refused before the teacher reads the texts.
        _check_words(start, name, objective, teacher.dim)
        with teacher_vectors.opened(cache, about, teacher.dim) as writer:
            texts_of_data = sum(sum(part.sizes.values()) for part in data.corpora)
            logger.info(
                "the teacher encodes about %s texts%s; the vectors go to %s, where a "
                "stopped run resumes",
                f"{texts_of_data:,}",
                f" and {len(words):,} tokens of the vocabulary" if words else "",
                cache,
            )
            _warn_of_unlearnt(start, objective, data)
            batches = _batches(objective, data, words)
            size = texts_of_data + len(words)
            _write(teacher, objective.teacher, batches, size, writer)
            found = writer.finish(texts)
    logger.info("teacher: %s vectors in %s", f"{found.rows:,}", cache)
    return found


def _check_words(start: Start, name: str, objective: DistillConfig, dim: int) -> None:
    """Refuses word embeddings of another width than the teacher's, in a new encoder."""
    if start.is_untrained:
        objective.check_words(name, dim, start.config.model)


def _warn_of_unlearnt(start: Start, objective: DistillConfig, data: Data) -> None:
    """Warns if the run ends before it has learnt half of the teacher's vectors."""
    trainer, texts = start.config.trainer, sum(data.train.sizes.values())
    learnt = trainer.train_steps * objective.train_data.global_batch_size
    if not trainer.epochs and 2 * learnt < texts:
        logger.warning(
            "the teacher encodes all %s training texts, but the run learns at most %s "
            "(trainer.train_steps times the batch size): less text saves time and disk "
            "space",
            f"{texts:,}",
            f"{learnt:,}",
        )


def _write(
    teacher: DescribedEncoder,
    model: str,
    batches: Iterator[tuple[list[int], list[str]]],
    size: int,
    writer: teacher_vectors.Writer,
) -> None:
    """Encodes the texts whose vectors are missing.

    Args:
        teacher, model: the teacher and its name.
        batches: keys and texts.
        size: about how many texts there are.
        writer: gets the vectors.
    """
    with progress_bar(size, "teacher", unit="texts") as bar:
        for keys, texts in batches:
            missing = {
                key: text
                for key, text in zip(keys, texts, strict=True)
                if key not in writer
            }
            if missing:
                left = list(missing.values())
                rows = teacher.encode(left, normalize=True, progress=False)
                rows = arrays.checked(rows, left, model, teacher.dim)
                writer.append(list(missing), arrays.unit_length(rows))
            bar.update(len(keys))


def _batches(
    objective: DistillConfig, data: Data, words: list[str]
) -> Iterator[tuple[list[int], list[str]]]:
    """Yields keys and texts: the words, then the texts of all files."""
    datasets = [
        objective.taught_texts(paths)
        for corpus in data.corpora
        for paths in corpus.files.values()
    ]
    if words:
        datasets.insert(0, tf.data.Dataset.from_tensor_slices(words))
    for dataset in datasets:
        batches = dataset.batch(_AT_ONCE).map(
            lambda text: (streams.hash_of(text), text)
        )
        for keys, texts in batches.as_numpy_iterator():
            yield keys.tolist(), [text.decode("utf-8", "replace") for text in texts]


def _identities(
    objective: DistillConfig, data: Data, words: list[str]
) -> Iterator[str]:
    """Yields hashes of everything that decides which texts the teacher reads.

    The first one reads no file, and belongs to one machine. The second one reads all
    files, and finds the vectors where text or model_dir were copied.
    """
    paths = [
        path
        for corpus in data.corpora
        for files_of_language in corpus.files.values()
        for path in files_of_language
    ]
    rest = [getattr(objective, "teacher_side", ""), words]
    yield checksums.of_values([files.states(paths), *rest])
    yield checksums.of_values([[checksums.sha256(path) for path in paths], *rest])
