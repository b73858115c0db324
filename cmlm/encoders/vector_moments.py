"""Reads the moments of the vectors of text, in memory that does not grow."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cmlm.common import arrays, line_samples, progress
from cmlm.common.moments import Moments
from cmlm.encoders import vector_files
from cmlm.errors import UserError

_ROWS_AT_ONCE = 16_384
# Rounding, also to float16, moves a vector by a smaller share of its length.
_ROUNDING = 2e-3


def check(encoder, kind: str, paths: Sequence[str]) -> None:
    """Refuses files of vectors of another width, or normalized ones.

    Text takes long to encode, so the files of all languages are checked before it.

    Args:
        encoder, kind, paths: as for `read`.

    Raises:
        UserError: a file is damaged, or has vectors of another width, model or
            precision, or of length 1 although the model's own vectors have other
            lengths.
    """
    if kind == "text":
        return
    for path in paths:
        rows = vector_files.map_described(path)
        if rows.shape[1] != encoder.dim:
            raise UserError(
                f"vectors of width {rows.shape[1]}; allowed: {encoder.dim}, the width "
                "of the model"
            )
        vector_files.check_model(path, encoder)
        first = np.asarray(rows[:_ROWS_AT_ONCE], np.float32)
        _refuse_normalized(first, encoder, vector_files.is_normalized(path))


def read(encoder, kind: str, paths: Sequence[str], most: int = 0) -> Moments:
    """Reads the moments of the vectors of sentences. Blank lines are not sentences.

    Args:
        encoder: the model.
        kind: `text`, one sentence a line; or `vectors`, .npy files of this model.
        paths: the files, of one language.
        most: use the first sentences only; 0 uses all.

    Raises:
        UserError: a file is damaged.
    """
    limit = most or sys.maxsize
    if kind == "text":
        windows = _encoded(encoder, line_samples.first(paths, limit))
    else:
        windows = _stored(paths, limit, encoder)
    moments = Moments(encoder.dim)
    for vectors in windows:
        moments.add(vectors)
    return moments


def sample(encoder, paths: Sequence[str], most: int) -> Moments:
    """Reads the moments of about `most` sentences: the first ones of each file.

    Args:
        encoder: the model.
        paths: files of text, one sentence a line.
        most: the number of sentences; every file gives the same share of it.

    Raises:
        UserError: a file is damaged.
    """
    moments = Moments(encoder.dim)
    for vectors in _encoded(encoder, line_samples.of_each(paths, most)):
        moments.add(vectors)
    return moments


def _encoded(encoder, windows: Iterable[list[str]]) -> Iterator[np.ndarray]:
    """Yields the vectors of each window of lines."""
    with progress.bar(None) as bar:
        for lines in windows:
            yield encoder.encode(lines, progress=False)
            bar.update(len(lines))


def _stored(paths: Sequence[str], limit: int, encoder) -> Iterator[np.ndarray]:
    """Yields at most `limit` rows of .npy files, float32, a window at a time.

    `cmlm.encode` writes a vector for each line, and training text has a blank line
    after each document. The vectors of blank lines are left out, as by
    `line_samples.first`.
    """
    (blank,) = encoder.encode([""])
    near = _ROUNDING * np.linalg.norm(blank)
    for path in paths:
        rows = arrays.map_npy(path)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            window = np.asarray(rows[start : start + _ROWS_AT_ONCE], np.float32)
            is_blank = np.linalg.norm(window - blank, axis=1) <= near
            window = window[~is_blank][:limit]
            limit -= len(window)
            yield window
            if not limit:
                return


def _refuse_normalized(vectors: np.ndarray, encoder, described: bool) -> None:
    """Raises UserError if all vectors have length 1, and those of the model do not.

    The components of normalized vectors differ from those of the model's own vectors.

    Args:
        vectors: the first vectors of a file.
        encoder: the model.
        described: whether the description of the file says that they have length 1.
            A vector of zeros, such as a blank line's, stays zero.
    """
    are_unit = described or _are_unit(vectors)
    if len(vectors) and are_unit and not _are_unit(encoder.encode(["A sentence."])):
        raise UserError(
            "the vectors have length 1; allowed: vectors of cmlm.encode without "
            "--normalize"
        )


def _are_unit(vectors: np.ndarray) -> bool:
    return bool(np.all(np.abs(np.linalg.norm(vectors, axis=1) - 1) < 1e-3))
