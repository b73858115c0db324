"""What an objective is: data, a head, a loss that sums, and validation metrics."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Optional

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.data import batches, corpus, inspection, languages, pipelines
from cmlm.data.tokenization import Tokenizer
from cmlm.modeling.model import SentenceModel

# A metric is (sum, count): both add over replicas, micro-batches and steps, and
# the mean is taken once, at the end.
Metric = tuple[tf.Tensor, tf.Tensor]


@dataclasses.dataclass
class ObjectiveConfig(hyperparams.Config):
    """What every objective has.

    Attributes:
        weight: its factor in the summed loss; 0 switches the objective off.
        start_step: first step it takes part in.
        end_step: first step it no longer takes part in; None: to the end.
        train_data: what it reads, batch and length; of the class that the objective's
            data is of.
        validation_data: files as in `train_data.input_path`; empty: a held-out share of
            the training data, `train_data.hold_out_fraction`.
    """

    weight: float = fields.ranged(0.0, at_least=0)
    start_step: int = fields.ranged(0, at_least=0)
    end_step: Optional[int] = None
    train_data: corpus.DataConfig = dataclasses.field(
        default_factory=corpus.TextDataConfig
    )
    validation_data: str = ""

    @property
    def is_enabled(self) -> bool:
        """Whether the objective takes part in the run at all."""
        return self.weight != 0

    def check_together(self, prefix: str) -> None:
        """Raises UserError where values do not fit each other."""
        if self.end_step is not None and self.end_step <= self.start_step:
            raise fields.refused(
                f"{prefix}end_step",
                self.end_step,
                f"above {prefix}start_step, {self.start_step}",
            )

    def load_data(self, work_dir: str) -> Data:
        """Finds and checks the data, see `DataConfig.load`."""
        train = self.train_data.load(work_dir)
        if not self.validation_data:
            return Data(train, None)
        other = self.train_data.replace(input_path=self.validation_data)
        return Data(train, other.load(work_dir))

    def check_data(self, data: Data) -> None:
        """Raises UserError where what was found is too little for this objective."""

    def is_active(self, step: int) -> bool:
        """Whether the objective takes part in the step with this number (from 0)."""
        return (
            self.weight > 0
            and step >= self.start_step
            and (self.end_step is None or step < self.end_step)
        )


@dataclasses.dataclass(frozen=True)
class Data:
    """What an objective reads, once found.

    Attributes:
        train: the training data.
        validation: data of its own, or None for a held-out share of `train`.
    """

    train: languages.Corpus
    validation: Optional[languages.Corpus] = None


def require_neighbours(data: Data) -> None:
    """Raises UserError where a text has no two sentences in a row."""
    for text in filter(None, (data.train, data.validation)):
        for language, count in text.neighbours.items():
            if not count:
                what = "has no two sentences in a row"
                raise inspection.unusable(text.files[language], what)


class Objective(tf.Module, abc.ABC):
    """One training signal. The engine knows objectives only through this class.

    Args:
        name: its field in `task`, the prefix of its metrics.
        config: its configuration.
        model: shared with the other objectives; the objective asks it for heads.
        tokenizer: of the model's vocabulary.
        data: what `config.load_data` found.
        static_shapes: every batch is [batch, seq_length], as TPUs need.
    """

    # Its configuration, under `task.<name>`.
    config_class: type[ObjectiveConfig]

    def __init__(
        self,
        name: str,
        config: ObjectiveConfig,
        model: SentenceModel,
        tokenizer: Tokenizer,
        data: Data,
        static_shapes: bool = False,
    ):
        super().__init__(name=name)
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.data = data
        self.static_shapes = static_shapes

    # Names of the metrics that `loss` returns; the loss itself comes first.
    train_metrics: tuple[str, ...] = ("loss",)

    @property
    @abc.abstractmethod
    def trained_parts(self) -> list[str]:
        """Names of the model's parts that this objective moves."""

    @property
    def global_batch_size(self) -> int:
        """Examples a step, over all replicas."""
        return self.config.train_data.global_batch_size

    @abc.abstractmethod
    def make_dataset(self, feed: pipelines.Feed) -> tf.data.Dataset:
        """Batches of this objective: one of the pipelines."""

    def train_dataset(
        self, input_context: tf.distribute.InputContext, skip_batches: int = 0
    ) -> tf.data.Dataset:
        """Endless per-replica batches, `skip_batches` of them already consumed."""
        return self._dataset(self.data.train, "train", input_context, skip_batches)

    def validation_dataset(
        self, input_context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """One finite pass over the held-out text, the same at every call."""
        if self.data.validation is not None:
            return self._dataset(self.data.validation, "all", input_context)
        return self._dataset(self.data.train, "validation", input_context)

    def _dataset(self, found, part, input_context, skip_batches=0):
        config = self.config.train_data
        if self.data.validation is not None:
            config = config.replace(hold_out_fraction=0.0)
        return self.make_dataset(
            pipelines.Feed(
                config,
                self.tokenizer,
                found,
                input_context.get_per_replica_batch_size(self.global_batch_size),
                part,
                input_context,
                skip_batches,
                self.static_shapes,
            )
        )

    @abc.abstractmethod
    def normalizer(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """What the summed loss of a batch is divided by: float32 [] or [terms].

        It is taken from the inputs alone, before any forward pass: the engine
        adds it over replicas and then knows the scale of every micro-batch. A loss of
        several terms, each a mean of its own, has one number for each.
        """

    # What the last axis of each tensor of a batch counts, see `batches.COLUMNS`.
    columns: ClassVar[Mapping[str, str | None]] = batches.COLUMNS

    def trim(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Drops columns that are padding in every row of a micro-batch."""
        return batch if self.static_shapes else batches.trim(batch, self.columns)

    @abc.abstractmethod
    def loss(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Sums the loss of a (micro-)batch in training mode.

        Returns:
            The summed loss, float32 of the shape of `normalizer`, and `train_metrics`
            by name.
        """

    @abc.abstractmethod
    def evaluate(self, batch: dict[str, tf.Tensor]) -> dict[str, Metric]:
        """Metrics of a validation batch by name; it may be empty."""


class EmbeddingObjective(Objective):
    """An objective whose loss looks at the sentence vectors of the whole global batch.

    Its loss does not split into micro-batches: each text is a candidate for all others.
    The vectors do, and the engine makes use of it (gradient caching): it takes the
    vectors micro-batch by micro-batch without keeping anything else, then the loss and
    its gradient with respect to the vectors, and then each micro-batch a second time
    with the same dropout, to send that gradient on into the weights.
    """

    @abc.abstractmethod
    def embed(self, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        """Embeds a (micro-)batch: float32 [rows, texts of a row, dim]."""

    @abc.abstractmethod
    def embedding_loss(
        self, embeddings: tf.Tensor, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Sums this replica's part of the loss; it may gather from all replicas.

        Args:
            embeddings: of all of this replica's rows, as `embed` gives them.
            batch: those rows.

        Returns:
            As `loss`.
        """

    def loss(self, batch):
        return self.embedding_loss(self.embed(batch, training=True), batch)
