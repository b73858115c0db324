"""The opened weights of an encoder, and the length limit of its sentences."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from cmlm.common import fields
from cmlm.config import experiment
from cmlm.errors import UserError, shown
from cmlm.modeling import foreign, layers
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.tokenization.base import Tokenizer

# The length limit in tokens if the source of the weights states no limit: most
# published sentence encoders cut at 128 tokens.
DEFAULT_SEQ_LENGTH = 128


@dataclasses.dataclass
class OpenedWeights:
    """The weights of an encoder in its network, with tokenizer and configuration.

    `opening.open_weights` creates it; it has no `encode`.

    Attributes:
        encoder: the network, with the weights.
        tokenizer: the tokenizer of the encoder's vocabulary.
        config: the configuration of the run; `config.model` holds the pooling and the
            kind of sentence vector.
        checkpoint: the path of the checkpoint.
        vocab_file: the path of the vocabulary.
        seq_length: the length limit in tokens, [CLS] and [SEP] included. Of a run:
            `ExperimentConfig.longest_sentence`. For weights of another program, the
            limit that their source states, or `DEFAULT_SEQ_LENGTH`.
        run: the model_dir of the run that trained the weights; None for weights of
            another program, also if they are pruned.
        trained_seq_length: the length limit of that run, which an export of it states,
            too; None for weights of another program.
    """

    encoder: EncoderNetwork
    tokenizer: Tokenizer
    config: experiment.ExperimentConfig
    checkpoint: str
    vocab_file: str
    seq_length: int
    run: str | None = None
    trained_seq_length: int | None = None

    @property
    def prompts(self) -> dict[str, str]:
        """Texts that may precede a text, by name."""
        return self.config.model.named_prompts

    def leave_out(self, names: Iterable[str] = tuple(layers.FITTED)) -> None:
        """Leaves out layers that text determined, with a warning for each of them.

        Args:
            names: names in `layers.FITTED`.
        """
        there = [name for name in names if name in self.encoder.fitted]
        foreign.warn_left_out(self.checkpoint, there)
        for name in there:
            setattr(self.encoder, name, None)

    @property
    def step(self) -> int:
        """The step in the name of the checkpoint; 0 for weights without one."""
        found = re.search(r"ckpt-(\d+)$", self.checkpoint)
        return int(found.group(1)) if found else 0


def describe_limit(opened: OpenedWeights, seq_length: int) -> str:
    """A length, and its reason if it is the encoder's limit, see `describe_cut`.

    The positions of CMLM's vectors that weights of another program get are no reason.
    """
    model = opened.config.model
    text = f"{seq_length} tokens"
    if seq_length != model.token_positions or opened.trained_seq_length is None:
        return text
    less = f" minus {model.num_views}, model.num_views" if model.num_views else ""
    return f"{text} ({model.max_position_embeddings} positions{less})"


def describe_cut(opened: OpenedWeights, seq_length: int) -> str:
    """Describes where sentences are cut, and the length limit of the training.

    "sentences are cut at 123 tokens (128 positions minus 5, model.num_views); trained
    at 128 tokens". A run that starts from weights with a limit of their own keeps that
    one: "trained at 50 tokens, from weights with a limit of 256". Weights of another
    program do not state the length of their training: "sentences are cut at 50 tokens;
    by default at 256".
    """
    text = f"sentences are cut at {describe_limit(opened, seq_length)}"
    if opened.run is None:
        default = opened.seq_length
        return text if seq_length == default else f"{text}; by default at {default}"
    longest = opened.config.task.longest_sequence()
    if longest in (0, opened.seq_length):
        return f"{text}; trained at {opened.seq_length} tokens"
    limit = opened.seq_length
    return f"{text}; trained at {longest} tokens, from weights with a limit of {limit}"


def resolve_seq_length(
    opened: OpenedWeights,
    seq_length: int | None = None,
    default: int | None = None,
) -> int:
    """Resolves the length limit of sentences in tokens, [CLS] and [SEP] included.

    A prompt counts, too, and each prompt leaves place for a token of the text.

    Args:
        opened: the weights; their number of positions is the maximum.
        seq_length: the requested limit; None takes `default`, at most the maximum.
        default: the default limit; None takes `opened.seq_length`.

    Raises:
        UserError: the encoder has fewer positions, or a prompt fills the sentence.
    """
    limit = opened.config.model.token_positions
    least, prompt = 3, ""
    texts = [opened.config.model.prompt, *opened.prompts.values()]
    if any(texts):
        counts = opened.tokenizer.prompted("").count(texts).numpy()
        least += int(counts.max())
        prompt = texts[counts.argmax()]
    if seq_length is None:
        seq_length = min(default or opened.seq_length, limit)
    if not least <= seq_length <= limit:
        default_prompt = opened.config.model.prompt
        remedy = "" if prompt == default_prompt else " (--prompts= leaves it out)"
        most = describe_limit(opened, limit)
        if least > limit:
            raise UserError(
                f"the prompt {shown(prompt)} has {least - 3} tokens; allowed: at most "
                f"{limit - 3}, because a sentence is cut at {most}{remedy}"
            )
        allowed = f"{least} to {most}"
        if prompt:
            allowed += f", with the prompt {shown(prompt)}{remedy}"
        raise fields.refused("--seq_length", seq_length, allowed)
    return seq_length
