"""The base of objectives: data, a head, a summed loss, and validation metrics."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Optional

import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.data import batches, inspection
from cmlm.data.corpus import Corpus
from cmlm.data.settings import DataConfig, TextDataConfig
from cmlm.data.teacher_vectors import TeacherVectors
from cmlm.errors import naming
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization.base import Tokenizer

# A metric is (sum, count). Both add up over replicas, micro-batches and steps; the
# quotient is taken once, at the end.
Metric = tuple[tf.Tensor, tf.Tensor]


@dataclasses.dataclass
class ObjectiveConfig(hyperparams.Config):
    """Settings that every objective has.

    Attributes:
        weight: the factor of the objective's loss in the total loss; 0 switches the
            objective off.
        start_step: the first step with this objective.
        end_step: the first step without this objective; null: it trains to the end.
        train_data: files, batch size and sequence length; each objective has its own
            class of data.
        validation_data: files as in `train_data.input_path`; "" holds out a share of
            the training data, `train_data.hold_out_fraction`.
    """

    weight: float = fields.ranged(0.0, at_least=0)
    start_step: int = fields.ranged(0, at_least=0)
    end_step: Optional[int] = None
    train_data: DataConfig = dataclasses.field(default_factory=TextDataConfig)
    validation_data: str = ""

    # Texts of one sequence; each has its own segment.
    segments: ClassVar[int] = 1

    @property
    def is_enabled(self) -> bool:
        """Whether the objective takes part in the run."""
        return self.weight != 0

    def check_together(self, prefix: str) -> None:
        """Raises UserError for values that contradict each other."""
        if self.end_step is not None and self.end_step <= self.start_step:
            raise fields.refused(
                f"{prefix}end_step",
                self.end_step,
                f"above {prefix}start_step, {self.start_step}",
            )

    def named_by_flags(self) -> dict[str, tuple[hyperparams.Config, str]]:
        """The settings that flags of `cmlm.train` name: part and field, by flag."""
        data = self.train_data
        found = {data.flag: (data, "input_path")}
        if data.validation_flag:
            found[data.validation_flag] = (self, "validation_data")
        return found

    def validation_setting(self, name: str) -> str:
        """The flag for `validation_data`, or else the objective's setting."""
        flag = self.train_data.validation_flag
        return f"--{flag}" if flag else f"task.{name}.validation_data"

    def require_input(self, prefix: str) -> None:
        """Raises UserError if an input of the objective is not named."""
        self.train_data.require_input(f"{prefix}train_data.")

    @property
    def reads_marks(self) -> bool:
        """Whether its text has marked n-grams, behind a tab on each line."""
        return False

    @property
    def reads_documents(self) -> bool:
        """Whether an example takes more than one line of a text."""
        return False

    @property
    def reads_single_texts(self) -> bool:
        """Whether each of its sequences holds one text: a line, or a cell of one."""
        return self.segments == 1

    def load_data(self, work_dir: str, reads_documents: bool, name: str) -> Data:
        """Finds and checks the data.

        Args:
            work_dir, reads_documents: as for `DataConfig.load`.
            name: the objective's name, for messages.

        Raises:
            UserError: see `DataConfig.load`; the message names the flag of the data.
        """
        data = self.train_data
        with naming(f"--{data.flag}"):
            train = data.load(work_dir, reads_documents)
        if not self.validation_data:
            return Data(train, None)
        other = data.replace(input_path=self.validation_data)
        with naming(self.validation_setting(name)):
            return Data(train, other.load(work_dir, reads_documents))

    def check_model(self, prefix: str, model: EncoderConfig) -> None:
        """Raises UserError if the encoder does not fit this objective.

        Args:
            prefix: prefix of the field names in the message.
            model: the shape of the encoder.
        """
        if model.type_vocab_size < self.segments:
            raise fields.refused(
                "model.type_vocab_size",
                model.type_vocab_size,
                f"at least {self.segments} for {prefix.rstrip('.')}",
            )
        seq_length, limit = self.train_data.seq_length, model.token_positions
        if seq_length > limit:
            raise fields.refused(
                f"{prefix}train_data.seq_length",
                seq_length,
                f"at most {limit}, model.max_position_embeddings minus model.num_views",
            )

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        """Raises UserError if this objective needs more or other data.

        Args:
            data: the data that `load_data` found.
            model: the shape of the encoder, and its prompts.
        """

    def weight_settings(self) -> dict[str, bool]:
        """The settings that add weights to the model: by name, whether they do so now.

        The names do not depend on the values.
        """
        return {}

    def needs_this_machine(self) -> tuple[str, Any, str] | None:
        """The setting that needs files or tables of this machine, if there is one.

        Returns:
            Name and value of the setting, and the allowed value; or None.
        """
        return None

    def initial_weights_setting(self) -> str:
        """The setting by which an objective sets initial weights, or ""."""
        return ""

    @property
    def has_validation(self) -> bool:
        """Whether it validates: on data of its own, or on a held-out share."""
        return bool(self.validation_data or self.train_data.hold_out_fraction)

    def is_active(self, step: int) -> bool:
        """Whether the objective takes part in the step with this number (from 0)."""
        return (
            self.is_enabled
            and step >= self.start_step
            and (self.end_step is None or step < self.end_step)
        )


@dataclasses.dataclass(frozen=True)
class Data:
    """The data of an objective.

    Attributes:
        train: the training data.
        validation: separate validation data, or None for a held-out share of `train`.
        teacher: the vectors of all texts, for objectives with a teacher.
    """

    train: Corpus
    validation: Corpus | None = None
    teacher: TeacherVectors | None = None

    @property
    def corpora(self) -> list[Corpus]:
        """The training data, and separate validation data if there is any."""
        return (
            [self.train] if self.validation is None else [self.train, self.validation]
        )


def require_neighbours(data: Data) -> None:
    """Raises UserError if a text has no document with two sentences or more."""
    for text in data.corpora:
        for language, count in text.neighbours.items():
            if not count:
                what = "has no two sentences in a row"
                raise inspection.unusable(text.files[language], what)


class Objective(tf.Module, abc.ABC):
    """One training signal.

    The step knows objectives only through this class; `teachers` also knows
    `DistillConfig`.

    Args:
        name: the field in `task`, and the prefix of the metrics.
        config: the configuration.
        model: shared with the other objectives; the objective asks it for heads.
        tokenizer: the tokenizer of the model's vocabulary.
        data: the data that `config.load_data` found.
        static_shapes: every batch is [batch, seq_length], as TPUs need.
    """

    # The class of the configuration, `task.<name>`.
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
        # `training.building` sets it for runs in epochs, see `Feed.epoch_examples`.
        self.epoch_examples = 0

    # Names of the metrics that `compute` returns; the loss itself comes first.
    train_metrics: tuple[str, ...] = ("loss",)
    # Whether the loss depends on sentence vectors. If not, a step of this objective
    # leaves `EncoderNetwork.reading_variables` as they are.
    reads_vectors: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def trained_parts(self) -> list[str]:
        """The names of the model's parts that this objective trains."""

    @property
    def unpads(self) -> bool:
        """Whether a training step leaves out padding, about half of a random batch."""
        return not self.static_shapes

    @property
    def global_batch_size(self) -> int:
        """Examples of one step over all replicas."""
        return self.config.train_data.global_batch_size

    def check_start(self, source: str, parts: Collection[str]) -> None:
        """Raises UserError if a warm start lacks a part that this objective needs.

        Args:
            source: the path of the weights.
            parts: names of the model's parts in these weights.
        """

    def set_initial_weights(self) -> None:
        """Sets weights of a run that starts from the initial weights of its seed.

        The configuration's `initial_weights_setting` names the setting that asks for
        it.
        """

    @abc.abstractmethod
    def make_dataset(self, feed: batches.Feed) -> tf.data.Dataset:
        """Returns batches of this objective, from one of the pipelines."""

    def train_dataset(
        self, input_context: tf.distribute.InputContext, skip_batches: int = 0
    ) -> tf.data.Dataset:
        """Returns endless per-replica batches, after the first `skip_batches`."""
        return self._dataset(
            self.data.train,
            "train",
            input_context,
            skip_batches=skip_batches,
            epoch_examples=self.epoch_examples,
        )

    def training_examples(self, language: str | None = None) -> tf.data.Dataset:
        """Returns one pass over the training examples, one by one.

        Args:
            language: a language of the data; None: all of them.
        """
        return self._examples("train", language)

    def held_out_examples(self) -> tf.data.Dataset:
        """Returns one pass over the held-out part of the training text, one by one."""
        return self._examples("validation")

    def can_validate(self, examples: Iterable[tuple]) -> bool:
        """Whether held-out examples are enough to validate by.

        One example is enough, unless the objective compares examples.

        Args:
            examples: as `held_out_examples` has them, read at most once.
        """
        return any(True for _ in examples)

    def _examples(self, part: str, language: str | None = None) -> tf.data.Dataset:
        whole, corpus = tf.distribute.InputContext(), self.data.train
        if language is not None:
            files = {language: corpus.files[language]}
            corpus = dataclasses.replace(corpus, files=files)
        return self._dataset(corpus, part, whole, unbatched=True)

    def count_examples(self) -> int:
        """Counts the training examples by reading them once."""
        examples = self.training_examples()
        return int(examples.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1))

    def validation_dataset(
        self, input_context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Returns one pass over the validation data, the same at every call."""
        if self.data.validation is not None:
            return self._dataset(self.data.validation, "all", input_context)
        return self._dataset(self.data.train, "validation", input_context)

    # The pipelines have no Python control flow to convert, and AutoGraph's search for
    # it takes seconds.
    @tf.autograph.experimental.do_not_convert
    def _dataset(self, corpus, part, input_context, **values):
        config = self.config.train_data
        if self.data.validation is not None:
            config = config.replace(hold_out_fraction=0.0)
        return self.make_dataset(
            batches.Feed(
                config,
                self.tokenizer,
                corpus,
                input_context.get_per_replica_batch_size(self.global_batch_size),
                part,
                input_context,
                static_shapes=self.static_shapes,
                **values,
            )
        )

    @abc.abstractmethod
    def divisor(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the divisor of a batch's summed loss: float32 [] or [terms].

        The divisor depends on the inputs alone. The trainer sums it over the replicas
        before any forward pass, so it knows the scale of every micro-batch. A loss of
        several terms, each with its own mean, has one divisor for each term.
        """

    def trim(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Drops columns that are padding in every row of a micro-batch."""
        return batch if self.static_shapes else batches.trim(batch)

    def at_least_one_column(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Gives a column of padding to the batch of a replica without rows."""
        return batch if self.static_shapes else batches.at_least_one_column(batch)

    @abc.abstractmethod
    def compute(
        self, batch: dict[str, tf.Tensor], training: bool
    ) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Sums the loss of a batch or micro-batch; a validation batch may be empty.

        Args:
            batch: the rows.
            training: whether dropout is on.

        Returns:
            The summed loss, float32 with the shape of `divisor`, and the metrics by
            name, at least `train_metrics`.
        """

    def warning(self, means: Mapping[str, float]) -> str:
        """Returns a warning that training metrics give reason for, or "".

        Args:
            means: the means of `train_metrics` over some steps, by name.
        """
        return ""

    def evaluate(self, batch: dict[str, tf.Tensor]) -> dict[str, Metric]:
        """Returns the metrics of a validation batch by name; the batch may be empty."""
        return self.compute(batch, training=False)[1]
