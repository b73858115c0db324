"""What an objective is: data, a head, a loss that sums, and validation metrics."""

from __future__ import annotations

import abc
import dataclasses
from typing import Optional

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.errors import UserError
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
    """

    weight: float = 0.0
    start_step: int = 0
    end_step: Optional[int] = None

    def validate(self, name: str) -> None:
        """Raises UserError for a value outside its range.

        Args:
            name: of the objective, for the message: `task.<name>`.
        """
        if self.weight < 0:
            raise UserError(f"task.{name}.weight is {self.weight}; at least 0")
        if self.start_step < 0:
            raise UserError(f"task.{name}.start_step is {self.start_step}; at least 0")
        if self.end_step is not None and self.end_step <= self.start_step:
            raise UserError(
                f"task.{name}.end_step is {self.end_step}; it must be above "
                f"start_step, {self.start_step}"
            )

    def is_active(self, step: int) -> bool:
        """Whether the objective takes part in the step with this number (from 0)."""
        return (
            self.weight > 0
            and step >= self.start_step
            and (self.end_step is None or step < self.end_step)
        )


class Objective(tf.Module, abc.ABC):
    """One training signal. The engine knows objectives only through this class.

    Args:
        name: its field in `task`, the prefix of its metrics.
        config: its configuration.
        model: shared with the other objectives; the objective asks it for heads.
    """

    def __init__(self, name: str, config: ObjectiveConfig, model: SentenceModel):
        super().__init__(name=name)
        self.config = config
        self.model = model

    # Names of the metrics that `loss` returns; the loss itself comes first.
    train_metrics: tuple[str, ...] = ("loss",)

    @property
    @abc.abstractmethod
    def trained_parts(self) -> list[str]:
        """Names of the model's parts that this objective moves."""

    @property
    @abc.abstractmethod
    def global_batch_size(self) -> int:
        """Examples a step, over all replicas."""

    @abc.abstractmethod
    def train_dataset(
        self, input_context: tf.distribute.InputContext, skip_batches: int
    ) -> tf.data.Dataset:
        """Endless per-replica batches, `skip_batches` of them already consumed."""

    @abc.abstractmethod
    def validation_dataset(
        self, input_context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """One finite pass over the held-out text, the same at every call."""

    @abc.abstractmethod
    def normalizer(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """What the summed loss of a batch is divided by, a float32 scalar.

        It is taken from the inputs alone, before any forward pass: the engine
        adds it over replicas and then knows the scale of every micro-batch.
        """

    def trim(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Drops what is padding in every row of a micro-batch; by default nothing."""
        return batch

    @abc.abstractmethod
    def loss(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Sums the loss of a (micro-)batch in training mode.

        Returns:
            The summed loss, a float32 scalar, and `train_metrics` by name.
        """

    @abc.abstractmethod
    def evaluate(self, batch: dict[str, tf.Tensor]) -> dict[str, Metric]:
        """Metrics of a validation batch by name; it may be empty."""
