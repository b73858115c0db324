"""Rotates the directions on which a run projects a teacher's vectors.

A teacher and a trained encoder may place the same texts in the same way, and yet in
different directions of the space: their cosines agree, their coordinates do not. A run
that learns the teacher's coordinates would first unlearn its own. So `directions`
rotates them towards the encoder that the run starts from. Where no encoder decides,
`mixed` rotates them at random.
"""

from __future__ import annotations

import copy
import functools
import itertools

import numpy as np
import scipy.linalg
import tensorflow as tf

from cmlm.common import arrays
from cmlm.config.experiment import ExperimentConfig
from cmlm.encoders import opening
from cmlm.encoders.encoder import Encoder
from cmlm.modeling import restoring
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import Data
from cmlm.objectives.distill import DistillConfig, projected
from cmlm.tokenization.base import Tokenizer

# Texts that decide the rotation: ten or more for each dimension of most encoders.
_TEXTS = 8_192
# Texts that tell whether directions agree at all.
_TEXTS_OF_COSINE = 512


def directions(
    config: ExperimentConfig, objective: DistillConfig, data: Data, tokenizer: Tokenizer
) -> np.ndarray:
    """Returns principal directions that are rotated towards an encoder.

    Args:
        config: the run; `init_checkpoint` is the encoder, of the width `hidden_size`.
        objective, data: the objective, and its texts with their teacher's vectors.
        tokenizer: the tokenizer of the run.

    Returns:
        float32 [dim, max(dim, width)]. A column behind the first `width` is that of
        `TeacherVectors.directions()`.
    """
    taught, own = _vectors(config, objective, data, tokenizer, _TEXTS)
    return turned(data.teacher.directions(), taught, own)


def cosine(
    config: ExperimentConfig, objective: DistillConfig, data: Data, tokenizer: Tokenizer
) -> float:
    """Returns the mean cosine between an encoder and its teacher, not rotated.

    Args:
        config, objective, data, tokenizer: as for `directions`.
    """
    taught, own = _vectors(config, objective, data, tokenizer, _TEXTS_OF_COSINE)
    if taught.shape[1] != own.shape[1]:
        taught = taught @ projected(data.teacher.directions(), own.shape[1])
    return float(np.mean(np.sum(arrays.unit_length(taught) * own, axis=1)))


def mixed(directions: np.ndarray, width: int) -> np.ndarray:
    """Rotates principal directions at random, in the same way at every call.

    On principal directions, few dimensions of a vector have most of the variance. After
    a random rotation, all have about the same share, and so the first dimensions alone
    keep the cosines better (`model.dimensions`). The cosines of whole vectors do not
    change.

    Args:
        directions: float32 [dim, dim], orthonormal columns, the strongest first.
        width: the width of the projected vectors.

    Returns:
        float32 [dim, dim]. A column behind the first `width` is that of `directions`.
    """
    count = min(width, len(directions))
    normal = np.random.default_rng(0).normal(size=[count, count])
    rotation = scipy.linalg.qr(normal)[0].astype(np.float32)
    turned = directions[:, :count] @ rotation
    return np.concatenate([turned, directions[:, count:]], axis=1)


def turned(directions: np.ndarray, taught: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Rotates directions so that projections on them are near other vectors.

    With T = taught @ directions[:, :width] and S = own, the rotation is that of the
    orthogonal Procrustes problem (Schönemann, 1966):

        R = argmin ||T R - S||  over R R^T = 1

    Cosines of T R are those of T.

    Args:
        directions: float32 [dim, dim], orthonormal columns.
        taught: float32 [n, dim], unit vectors.
        own: float32 [n, width], unit vectors of the same texts.

    Returns:
        float32 [dim, max(dim, width)], see `directions`.
    """
    width = own.shape[1]
    basis = projected(directions, width)
    rotation, _ = scipy.linalg.orthogonal_procrustes(taught @ basis, own)
    return np.concatenate([basis @ rotation, directions[:, width:]], axis=1)


def _vectors(
    config: ExperimentConfig,
    objective: DistillConfig,
    data: Data,
    tokenizer: Tokenizer,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of texts by the teacher and by the encoder, before training.

    Returns:
        float32 [n, dim] and float32 [n, width], n at most `count`.
    """
    texts = _sample(objective, data, count)
    own = _initial(config, tokenizer).encode(
        [text.decode("utf-8", "replace") for text in texts],
        normalize=True,
        progress=False,
    )
    return data.teacher.lookup(tf.constant(texts)).numpy(), own


def _sample(objective: DistillConfig, data: Data, count: int) -> list[bytes]:
    """Takes texts from the whole of the training text, in equal distances."""
    distance = max(1, sum(data.train.sizes.values()) // count)
    # The files of a pair of languages have columns of their own.
    parts = map(objective.taught_texts, data.train.files.values())
    texts = functools.reduce(tf.data.Dataset.concatenate, parts)
    return list(itertools.islice(texts.shard(distance, 0).as_numpy_iterator(), count))


def _initial(config: ExperimentConfig, tokenizer: Tokenizer) -> Encoder:
    """Opens the encoder that the run starts from, with the vectors that it trains."""
    shape = copy.deepcopy(config.model)
    shape.prompt, shape.dimensions, shape.sentence_vector = "", 0, "pooled"
    shape.vocab_size = tokenizer.vocab_size
    model = SentenceModel(shape)
    restoring.initialize(model, config.init_checkpoint, config.init_layers)
    return opening.live(model, tokenizer, config.longest_sentence)
