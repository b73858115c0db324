"""A trained encoder: its weights, its tokenizer and the configuration of its run."""

from __future__ import annotations

import dataclasses

from cmlm.config import experiment
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.modeling.encoder import SentenceEncoder

# The published encoders of this kind cut at 128 tokens.
DEFAULT_SEQ_LENGTH = 128


@dataclasses.dataclass
class TrainedEncoder:
    """An encoder with what it takes to use it.

    Attributes:
        encoder: with the weights of the checkpoint.
        tokenizer: of its vocabulary.
        config: of the run.
        checkpoint: path of the checkpoint.
        vocab_file: path of the vocabulary.
        seq_length: tokens it was trained on, [CLS] and [SEP] included.
    """

    encoder: SentenceEncoder
    tokenizer: Tokenizer
    config: experiment.ExperimentConfig
    checkpoint: str
    vocab_file: str
    seq_length: int


def resolve_seq_length(trained: TrainedEncoder, seq_length: int | None = None) -> int:
    """Decides where sentences are cut, [CLS] and [SEP] included.

    Args:
        trained: its position table is the limit.
        seq_length: in tokens. None: for weights of another program, the length that
            their source names; else `DEFAULT_SEQ_LENGTH`, as far as positions allow.

    Raises:
        UserError: the encoder has fewer positions.
    """
    model = trained.config.model
    limit = model.max_position_embeddings - model.num_views
    if seq_length is None:
        if trained.checkpoint == trained.config.init_checkpoint:
            return trained.seq_length
        return min(DEFAULT_SEQ_LENGTH, limit)
    if not 3 <= seq_length <= limit:
        raise UserError(
            f"--seq_length is {seq_length}; allowed: 3 to {limit}, the encoder's "
            "positions less those of its conditions"
        )
    return seq_length
