"""A trained encoder: its weights, its tokenizer and the configuration of its run."""

from __future__ import annotations

import dataclasses
import re

from cmlm.common import choices, fields
from cmlm.config import experiment
from cmlm.errors import UserError
from cmlm.modeling import pooling
from cmlm.modeling.encoder import SENTENCE_VECTORS, EncoderNetwork
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization.base import Tokenizer


@dataclasses.dataclass(frozen=True)
class Reading:
    """The reading of sentence vectors from trained weights; None keeps the run's value.

    CMLM's ablation `proj` (section 5.1) and, most likely, its ablations of pooling
    (appendix A) are readings of one trained encoder.

    Attributes:
        pooling: a key of `pooling.POOLINGS`.
        sentence_vector: `pooled` or `projected`.
        seq_length: the longest sentence in tokens, [CLS] and [SEP] included.
        precision: the precision of the layers, one of `choices.PRECISIONS`. Trained
            weights themselves are float32.
    """

    pooling: str | None = None
    sentence_vector: str | None = None
    seq_length: int | None = None
    precision: str | None = None

    def validate(self) -> None:
        """Checks the values.

        Raises:
            UserError: a value is not allowed.
        """
        for name, allowed in (
            ("pooling", pooling.POOLINGS),
            ("sentence_vector", SENTENCE_VECTORS),
            ("precision", choices.PRECISIONS),
        ):
            value = getattr(self, name)
            if value not in (None, *allowed):
                raise fields.refused(f"--{name}", value, ", ".join(allowed))

    def given(self) -> str:
        """The flags of the values that are set, such as `--pooling=max`, or ""."""
        return " ".join(
            f"--{name}={value}"
            for name, value in vars(self).items()
            if value is not None
        )

    def apply(self, model: SentenceModel, path: str) -> None:
        """Sets the reading of a model with trained weights and of its configuration.

        Args:
            model: the model with its trained weights.
            path: the origin of the weights, for messages.

        Raises:
            UserError: the weights lack the chosen layer.
        """
        mode = self.pooling or model.config.pooling
        if self.pooling and pooling.POOLINGS[mode].through_pooler:
            # A bias starts at 0 and changes in training only.
            if not model.encoder.bert.pooler_layer.get_weights()[1].any():
                raise UserError(
                    f"--pooling={mode}: nothing has trained the pooler of {path}"
                )
        model.read_by(mode, self.sentence_vector or model.config.sentence_vector)


# The default of every function that opens an encoder.
AS_TRAINED = Reading()


@dataclasses.dataclass
class TrainedEncoder:
    """A trained encoder with its tokenizer and configuration.

    Attributes:
        encoder: the network, with the weights of the checkpoint.
        tokenizer: the tokenizer of the encoder's vocabulary.
        config: the configuration of the run; `config.model` holds the pooling and the
            kind of sentence vector.
        checkpoint: the path of the checkpoint.
        vocab_file: the path of the vocabulary.
        seq_length: the length limit in tokens, [CLS] and [SEP] included. Of a run:
            `ExperimentConfig.longest_sentence`. For weights of another program, the
            limit that their source states, or 128.
        run: the model_dir of the run that trained the weights; None for weights of
            another program.
    """

    encoder: EncoderNetwork
    tokenizer: Tokenizer
    config: experiment.ExperimentConfig
    checkpoint: str
    vocab_file: str
    seq_length: int
    run: str | None = None

    @property
    def step(self) -> int:
        """The step in the name of the checkpoint; 0 without one."""
        found = re.search(r"-(\d+)$", self.checkpoint)
        return int(found.group(1)) if found else 0


def describe_limit(trained: TrainedEncoder, seq_length: int) -> str:
    """A length and its reason: "123 tokens (128 positions less num_views, 5)"."""
    model = trained.config.model
    text = f"{seq_length} tokens"
    if seq_length != model.token_positions:
        return text
    less = f" less num_views, {model.num_views}" if model.num_views else ""
    return f"{text} ({model.max_position_embeddings} positions{less})"


def describe_cut(trained: TrainedEncoder, seq_length: int) -> str:
    """Describes where sentences are cut, and the length limit of the training.

    "sentences are cut at 123 tokens (128 positions less num_views, 5); trained with
    128". A run that starts from weights with a limit of their own keeps that one:
    "trained with 50, its start with 256". Weights of another program do not state the
    length of their training: "sentences are cut at 50 tokens; by default at 256".
    """
    text = f"sentences are cut at {describe_limit(trained, seq_length)}"
    if trained.run is None:
        default = trained.seq_length
        return text if seq_length == default else f"{text}; by default at {default}"
    longest = trained.config.task.longest_sequence()
    if longest in (0, trained.seq_length):
        return f"{text}; trained with {trained.seq_length}"
    return f"{text}; trained with {longest}, its start with {trained.seq_length}"


def resolve_seq_length(
    trained: TrainedEncoder,
    seq_length: int | None = None,
    default: int | None = None,
) -> int:
    """Resolves the length limit of sentences in tokens, [CLS] and [SEP] included.

    Args:
        trained: the encoder; its number of positions is the maximum.
        seq_length: the requested limit; None takes `default`, at most the maximum.
        default: the default limit; None takes `trained.seq_length`.

    Raises:
        UserError: the encoder has fewer positions.
    """
    limit = trained.config.model.token_positions
    if seq_length is None:
        return min(default or trained.seq_length, limit)
    if not 3 <= seq_length <= limit:
        allowed = f"3 to {describe_limit(trained, limit)}"
        raise fields.refused("--seq_length", seq_length, allowed)
    return seq_length
