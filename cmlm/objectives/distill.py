"""Distillation: the encoder learns the sentence vectors of a teacher."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from cmlm.common import distributed, fields
from cmlm.data import pair_pipelines, streams
from cmlm.errors import UserError
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import losses
from cmlm.objectives.base import ObjectiveConfig
from cmlm.objectives.embedding import EmbeddingObjective
from cmlm.tokenization.rules import JOINER

ALIGNED = "aligned"
PROJECTIONS = ("pca", ALIGNED, "linear")


@dataclasses.dataclass
class DistillConfig(ObjectiveConfig):
    """A text's vector points in the direction of the teacher's vector of the text.

    Attributes:
        teacher: anything that `cmlm.encode --model` opens: an export, a model_dir, a
            Hugging Face folder, the address of a server, or stored vectors
            (vectors:SENTENCES.txt:VECTORS.npy, with a line for every text and, for
            `init_words`, for every token, without its `##`).
        teacher_cache: a directory for the teacher's vectors, which several runs may
            share; empty: `teacher/` in the model_dir.
        projection: the map between the vectors of teacher and encoder. `pca`: if the
            widths differ, the teacher's vectors are projected on at most as many
            principal directions as the encoder is wide, rotated at random, and padded
            with zeros to its width. `aligned`: the teacher's vectors are rotated
            towards those of the encoder in `init_checkpoint`, even if the widths are
            equal. `linear`: the run learns a linear map from the encoder's vectors to
            the teacher's; exports leave it out.
        similarity_weight: the factor of a second term, the squared difference between
            the cosines of the encoder and of the teacher, over all pairs of texts in
            the global batch.
        init_words: whether the word embeddings of a new encoder begin as the teacher's
            vectors of the vocabulary's tokens.
    """

    teacher: str = ""
    teacher_cache: str = ""
    projection: str = fields.one_of("pca", PROJECTIONS)
    similarity_weight: float = fields.ranged(0.0, at_least=0)
    init_words: bool = False

    @property
    def is_aligned(self) -> bool:
        """Whether the run rotates the teacher's vectors before it learns them."""
        return self.projection == ALIGNED

    def named_by_flags(self):
        teacher = {name: (self, name) for name in ("teacher", "teacher_cache")}
        return super().named_by_flags() | teacher

    def require_input(self, prefix: str) -> None:
        super().require_input(prefix)
        if not self.teacher:
            raise UserError(
                f"--teacher is not given; allowed: an encoder ({prefix}teacher)"
            )

    def check_words(self, name: str, dim: int, encoder: EncoderConfig) -> None:
        """Refuses `init_words` if the word embeddings have another width.

        Args:
            name: the objective's name.
            dim: the width of the teacher's vectors.
            encoder: a new encoder.

        Raises:
            UserError: the widths differ.
        """
        width = dim if self.projection == "linear" else encoder.hidden_size
        if self.init_words and width != encoder.embedding_width:
            raise fields.refused(
                f"task.{name}.init_words",
                True,
                f"false, as the teacher's vectors have the width {width}, "
                f"the word embeddings {encoder.embedding_width}",
            )

    def weight_settings(self):
        return {"projection": self.projection == "linear"}

    def needs_this_machine(self):
        return "weight", self.weight, "0"

    def initial_weights_setting(self) -> str:
        return "init_words" if self.init_words else ""

    def taught_texts(self, files: list[str]) -> tf.data.Dataset:
        """Returns a dataset of the texts that the teacher reads in files: string []."""
        return streams.sentences(streams.Portion(files))


class DistillObjective(EmbeddingObjective):
    """Knowledge distillation on sentence vectors.

    With the unit vectors s of the encoder and t of the teacher,

        loss = mean_i (1 - <s_i, t_i>)
               + similarity_weight mean_ij (<s_i, s_j> - <t_i, t_j>)^2

    The first term is half of the squared distance, the loss of Reimers & Gurevych, 2020
    (https://arxiv.org/abs/2004.09813), on unit vectors. With `projection=linear`, the
    first term and `cosine` read the unit vector of W s for s, where W is the learnt
    map.

    Metrics: `loss`; `cosine`, the mean of <s_i, t_i>; `similarity_error`, the mean of
    the squared differences.
    """

    config_class = DistillConfig
    train_metrics = ("loss", "cosine", "similarity_error")

    def __init__(self, name: str, config: DistillConfig, model, **values):
        super().__init__(name, config, model, **values)
        self._vectors = self.data.teacher
        width = model.config.hidden_size
        self._basis = self._map = None
        if config.projection == "linear":
            self._map = model.teacher_map(self._vectors.dim)
        elif width != self._vectors.dim or config.is_aligned:
            self._basis = tf.constant(projected(self._vectors.directions(), width))

    @property
    def trained_parts(self) -> list[str]:
        return [*super().trained_parts, *(["teacher_map"] if self._map else [])]

    def set_initial_weights(self) -> None:
        """Gives the word embeddings of a new encoder the teacher's word vectors."""
        if not self.config.init_words:
            return
        table = self.model.encoder.embedding_table
        words = tf.constant([word_of(token) for token in self.tokenizer.vocab])
        table.assign(self._teach(self._vectors.lookup(words)))

    def make_dataset(self, feed):
        compared = bool(self.config.similarity_weight)
        return pair_pipelines.taught_texts(feed, self._vectors.lookup, compared)

    def divisor(self, batch):
        return super().divisor(batch) * len(self.sides_of(batch))

    def embedding_loss(self, embeddings, batch):
        own = tf.reshape(embeddings, [-1, self.model.config.hidden_size])
        taught = self._teach(batch["teacher_vectors"])
        taught = tf.repeat(taught, len(self.sides_of(batch)), axis=0)
        direction = own if self._map is None else self._map(own)
        distance = losses.cosine_distance(direction, taught)
        gather = distributed.gather_replicas
        error = losses.similarity_error(own, gather(own), taught, gather(taught))
        count = self.divisor(batch)
        loss = tf.reduce_sum(distance)
        if self.config.similarity_weight:
            loss += self.config.similarity_weight * tf.reduce_sum(error)
        return loss, {
            "loss": (loss, count),
            "cosine": (count - tf.reduce_sum(distance), count),
            "similarity_error": (tf.reduce_sum(error), count),
        }

    def _teach(self, vectors: tf.Tensor) -> tf.Tensor:
        """The teacher's vectors in the space of the student: float32 [n, width]."""
        return vectors if self._basis is None else tf.matmul(vectors, self._basis)


def word_of(token: str) -> str:
    """Returns the string of a token that a teacher reads: `##ing` as `ing`."""
    return token.removeprefix(JOINER) or token


def projected(directions: np.ndarray, width: int) -> np.ndarray:
    """Returns the map from the teacher's vectors to the student's.

    Args:
        directions: float32 [dim, n], the strongest first.
        width: the width of the student's vectors.

    Returns:
        float32 [dim, width]; columns beyond n are zero.
    """
    directions = directions[:, :width]
    return np.pad(directions, [(0, 0), (0, width - directions.shape[1])])
