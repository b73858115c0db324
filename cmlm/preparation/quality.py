"""A linear classifier of documents, trained on good and bad examples.

GPT-3 and CCNet select web text by its similarity to good text. Here the user gives good
and bad examples. The features are hashed words and word pairs, the model is a logistic
regression, and an .npz file holds its weights.
"""

from __future__ import annotations

import collections
import functools
import io
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from cmlm.common import arrays, beam_files, files
from cmlm.data import line_files
from cmlm.data.sentences import UNSPACED
from cmlm.errors import UserError, needing, one_line
from cmlm.preparation import raw_lines, sources

FEATURES = 1 << 18
_FORMAT = "cmlm quality 1"
_MOST_BYTES = 16 * FEATURES
# Text from which the examples are drawn; it takes about half a minute to read.
_READ_BYTES = 1 << 30


@functools.cache
def _vectorizer():
    with needing("corpus"):
        from sklearn.feature_extraction.text import HashingVectorizer
    # Words, punctuation marks, and single characters of scripts without spaces.
    return HashingVectorizer(
        n_features=FEATURES,
        ngram_range=(1, 2),
        token_pattern=rf"[^\W{UNSPACED}]+|[^\w\s]|[{UNSPACED}]",
        alternate_sign=False,
    )


class QualityModel:
    """Scores documents from 0 (like the bad examples) to 1 (like the good ones).

    Args:
        weights: float32 [FEATURES].
        bias: the bias of the logistic regression.
    """

    def __init__(self, weights: np.ndarray, bias: float):
        self._weights, self._bias = weights.astype(np.float64), bias

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """The probability that each document is good, float64 [len(texts)]."""
        logits = _vectorizer().transform(texts) @ self._weights + self._bias
        return 1 / (1 + np.exp(-logits))

    def save(self, path: str) -> None:
        """Writes the .npz file."""
        content = io.BytesIO()
        np.savez_compressed(
            content,
            format=_FORMAT,
            weights=self._weights.astype(np.float32),
            bias=np.float64(self._bias),
        )
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(content.getvalue())

    @classmethod
    def load(cls, path: str) -> QualityModel:
        """Reads a file of `save` from any of Beam's filesystems.

        Raises:
            UserError: the file is missing, a pipe or a device, or not a quality model.
        """
        files.refuse_streams(path)
        try:
            with beam_files.open_bytes(path) as raw:
                arrays.check_archive(raw, path, _MOST_BYTES)
                with np.load(raw, allow_pickle=False) as found:
                    if str(found["format"]) != _FORMAT:
                        raise ValueError(str(found["format"]))
                    weights, bias = found["weights"], float(found["bias"])
            if weights.shape != (FEATURES,) or weights.dtype.kind != "f":
                raise ValueError(f"weights are {weights.dtype} {list(weights.shape)}")
            if not (np.isfinite(weights).all() and np.isfinite(bias)):
                raise ValueError("weights are not finite")
        except FileNotFoundError as error:
            raise UserError(
                f"--quality_model is {path}, which does not exist; allowed: a file of "
                "cmlm.quality"
            ) from error
        except UserError:
            raise
        # zipfile and numpy raise errors of a dozen kinds for damaged archives.
        except Exception as error:
            raise UserError(
                f"{path} is not a file of python -m cmlm.quality: {one_line(error)}"
            ) from error
        return cls(weights, bias)


class Examples(NamedTuple):
    """Documents that were drawn at random.

    Attributes:
        texts: the documents.
        n_read: the number of documents from which they were drawn.
        share: the share of each file that was read, by its estimated size.
    """

    texts: list[str]
    n_read: int
    share: float


def read_examples(paths: Sequence[str], maximum: int, seed: int) -> Examples:
    """Draws documents from all files; a blank line separates documents.

    Each document read has the same chance. From more than a gigabyte of text, the
    function reads the beginning of each file, in proportion to its size.

    Args:
        paths: the files.
        maximum: the number of documents to draw, if there are as many.
        seed: decides which documents are drawn.

    Raises:
        UserError: a file cannot be read or is not UTF-8 text, see `files.open_text`.
    """
    sizes = line_files.estimated_sizes(paths)
    share = min(1.0, _READ_BYTES / max(1.0, sum(sizes)))
    generator = random.Random(seed)
    counts: collections.Counter = collections.Counter()
    texts: list[str] = []
    n_read = 0
    for path, size in zip(paths, sizes, strict=True):
        left = share * size if share < 1 else math.inf
        with files.open_text(path, raw_lines.MAX_BYTES) as lines:
            for document in sources.LAYOUTS["lines"](lines, counts):
                text = "\n".join(document(counts))
                n_read += 1
                # Reservoir sampling.
                place = generator.randrange(n_read)
                if len(texts) < maximum:
                    texts.append(text)
                elif place < maximum:
                    texts[place] = text
                left -= len(text.encode())
                if left <= 0:
                    lines.check_encoding()
                    break
    return Examples(texts, n_read, share)


def held_out_scores(
    good: Sequence[str], bad: Sequence[str], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores a fifth of the examples with a model trained on the others.

    Args:
        good, bad: documents.
        seed: decides which documents are held out.

    Returns:
        The scores of the good and of the bad held-out documents, float64 [n].
    """
    generator = np.random.default_rng(seed)
    train, held_out = [], []
    for examples in (good, bad):
        order = generator.permutation(len(examples))
        parts = np.split(order, [len(order) // 5])
        held_out.append([examples[i] for i in parts[0]])
        train.append([examples[i] for i in parts[1]])
    model = fit(*train, seed=seed)
    return model.score(held_out[0]), model.score(held_out[1])


def fit(good: Sequence[str], bad: Sequence[str], seed: int) -> QualityModel:
    """Fits a model; good and bad examples have the same total weight."""
    from sklearn.linear_model import LogisticRegression

    labels = np.repeat([1, 0], [len(good), len(bad)])
    model = LogisticRegression(
        C=10.0, class_weight="balanced", max_iter=1000, random_state=seed
    )
    model.fit(_vectorizer().transform([*good, *bad]), labels)
    return QualityModel(model.coef_[0], float(model.intercept_[0]))
