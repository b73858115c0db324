"""What the masked-LM family shares: its data settings and its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from cmlm import losses
from cmlm.data import corpus, masking, tokenization
from cmlm.errors import UserError
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.base import Metric, Objective, ObjectiveConfig


@dataclasses.dataclass
class MaskedTextConfig(ObjectiveConfig):
    """Masked prediction on monolingual text.

    Attributes:
        train_data: the text, batch and length.
        validation_data: files or globs; empty: a held-out share of the training text,
            `train_data.hold_out_fraction`.
        masking: how many words are hidden and what replaces them.
    """

    train_data: corpus.TextDataConfig = dataclasses.field(
        default_factory=corpus.TextDataConfig
    )
    validation_data: str = ""
    masking: masking.MaskingConfig = dataclasses.field(
        default_factory=masking.MaskingConfig
    )

    def validate(self, name: str) -> None:
        super().validate(name)
        for field in (self.train_data, self.masking):
            try:
                field.validate()
            except UserError as error:
                raise UserError(f"task.{name}: {error}") from error


@dataclasses.dataclass
class TextFiles:
    """Where an objective's text lies, once resolved.

    Attributes:
        train: files in the training format.
        validation: files of their own, or None for a held-out share of `train`.
    """

    train: list[str]
    validation: list[str] | None = None


class MaskedTextObjective(Objective):
    """Base of the objectives that predict masked words of monolingual text.

    Args:
        name: see `Objective`.
        config: see `Objective`.
        model: see `Objective`.
        tokenizer: of the model's vocabulary.
        files: the resolved text.
        static_shapes: every batch is [batch, seq_length], as TPUs need.
    """

    train_metrics = ("loss", "accuracy")
    # The pipeline that feeds it, a function of `cmlm.data.pipelines`.
    make_dataset: Callable[..., tf.data.Dataset]

    def __init__(
        self,
        name: str,
        config: MaskedTextConfig,
        model: SentenceModel,
        tokenizer: tokenization.Tokenizer,
        files: TextFiles,
        static_shapes: bool = False,
    ):
        super().__init__(name, config, model)
        self.tokenizer = tokenizer
        self.files = files
        self.static_shapes = static_shapes

    @property
    def global_batch_size(self) -> int:
        return self.config.train_data.global_batch_size

    def _dataset(self, files, part, hold_out_fraction, input_context, skip_batches=0):
        return self.make_dataset(
            self.config.train_data.replace(hold_out_fraction=hold_out_fraction),
            self.config.masking,
            self.tokenizer,
            files,
            batch_size=input_context.get_per_replica_batch_size(self.global_batch_size),
            part=part,
            input_context=input_context,
            skip_batches=skip_batches,
            static_shapes=self.static_shapes,
        )

    def _held_out(self) -> float:
        has_own_text = self.files.validation is not None
        return 0.0 if has_own_text else self.config.train_data.hold_out_fraction

    def train_dataset(self, input_context, skip_batches=0):
        return self._dataset(
            self.files.train, "train", self._held_out(), input_context, skip_batches
        )

    def validation_dataset(self, input_context):
        if self.files.validation is not None:
            return self._dataset(self.files.validation, "all", 0.0, input_context)
        return self._dataset(
            self.files.train, "validation", self._held_out(), input_context
        )

    def normalizer(self, batch):
        return tf.reduce_sum(batch["masked_lm_weights"])

    def trim(self, batch):
        if self.static_shapes:
            return batch
        # The names of a batch begin with what they belong to.
        widths = {
            prefix: tf.reduce_max(tf.reduce_sum(tf.cast(batch[key], tf.int32), axis=1))
            for prefix, key in (
                ("context", "context_mask"),
                ("input", "input_mask"),
                ("masked", "masked_lm_weights"),
            )
            if key in batch
        }
        return {
            key: value[:, : widths[key.split("_")[0]]] for key, value in batch.items()
        }

    def masked_metrics(
        self, batch: dict[str, tf.Tensor], logits: tf.Tensor
    ) -> tuple[tf.Tensor, Metric, Metric]:
        """Summed loss, and loss and accuracy as metrics, of one prediction."""
        count = self.normalizer(batch)
        loss, right = losses.masked_lm(
            logits, batch["masked_lm_ids"], batch["masked_lm_weights"]
        )
        return loss, (loss, count), (right, count)
