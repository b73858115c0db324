"""The encoder's configuration: its shape, and the pooling of its sentence vectors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any, Optional

from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.common import prompts as prompts_lib
from cmlm.errors import UserError
from cmlm.modeling import pooling

# num_layers, hidden_size, num_attention_heads, intermediate_size: BERT's shapes
# (Devlin et al., 2018) and its published miniatures (Turc et al., 2019).
PRESETS = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
SHAPE_FIELDS = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)
# The fields that must agree with trained weights, if the user sets them.
BINDING = (
    *SHAPE_FIELDS,
    "embedding_size",
    "max_position_embeddings",
    "relative_positions",
    "type_vocab_size",
    "vocab_size",
)
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
SENTENCE_VECTORS = ("pooled", "projected")
# The pooling of the weights that a run starts from.
SOURCE_POOLING = "source"
# Above any published encoder; Keras takes a second to build some tens of layers.
MOST_LAYERS = 1000


@dataclasses.dataclass
class EncoderConfig(hyperparams.Config):
    """The shape of the encoder, and the pooling of its sentence vectors.

    Attributes:
        preset: the size of a published encoder; fills every shape below that is not
            set.
        num_layers: number of Transformer layers.
        hidden_size: width of token and sentence vectors.
        embedding_size: width of the embeddings and their layer norm; 0: `hidden_size`.
            A dense layer brings another width to `hidden_size`, as in ALBERT and
            ELECTRA-small. CMLM's conditions are as wide as sentence vectors, so the
            objective `cmlm` cannot train such an encoder.
        num_attention_heads: number of attention heads; divides `hidden_size`.
        intermediate_size: width of the feed-forward layers.
        hidden_activation: activation of the feed-forward layers; `gelu` is exact.
        layer_norm_epsilon: added to the variance in layer norms; BERT's 1e-12.
        dropout_rate: dropout of embeddings and of the output of each sub-layer.
        attention_dropout_rate: dropout of attention probabilities.
        drophead_rate: share of the attention heads that each layer drops for a sentence
            in training, drawn anew at every step.
        max_position_embeddings: rows of the position table. The last `num_views` rows
            belong to CMLM's projected vectors.
        num_views: the number of projected vectors that CMLM makes of a sentence vector,
            N; the paper uses 15.
        type_vocab_size: rows of the segment table.
        relative_positions: add a learnt bias for the distance of two tokens to every
            attention score, as MPNet does. CMLM's conditions have no distance, so the
            objective `cmlm` cannot train such an encoder.
        initializer_range: standard deviation of the truncated normal distribution that
            weights are drawn from.
        vocab_size: rows of the embedding table; 0 takes the size of the vocabulary.
        pooling: how token vectors become a sentence vector; `source` takes the pooling
            of the weights that the run starts from, and mean if they state none.
        normalized: whether the Hugging Face folder that the weights come from scales
            vectors to length 1. `default` is not scaled; a folder that is written for
            Hugging Face keeps the module.
        prompts: texts that may precede a text to encode, each as NAME=TEXT, such as the
            prompts of the Hugging Face folder that the weights come from.
        prompt: a text that precedes every text to encode, such as a Hugging Face
            folder's default prompt. Training text gets none.
        seq_length: the encoder cuts sentences to this number of tokens. A run that
            starts from another program's weights, pruned or not, sets it to the limit
            that their folder states, or 0. A run that starts from a run sets it to that
            run's length, or to the longest sequence of its own objectives if that is
            longer. 0: the longest sequence of the objectives.
        sentence_vector: `pooled`, or `projected` for CMLM's ablation `proj` (section
            5.1): the mean of the N projected vectors.
        dimensions: the trained encoder keeps the first N dimensions of a sentence
            vector; 0: all, `hidden_size`. Training always uses all.
    """

    preset: str = fields.one_of("base", PRESETS)
    num_layers: Optional[int] = fields.ranged(None, at_least=1, at_most=MOST_LAYERS)
    hidden_size: Optional[int] = fields.ranged(None, at_least=1)
    embedding_size: int = fields.ranged(0, at_least=0)
    num_attention_heads: Optional[int] = fields.ranged(None, at_least=1)
    intermediate_size: Optional[int] = fields.ranged(None, at_least=1)
    hidden_activation: str = fields.one_of("gelu", ACTIVATIONS)
    layer_norm_epsilon: float = fields.ranged(1e-12, above=0, below=1)
    dropout_rate: float = fields.ranged(0.1, at_least=0, below=1)
    attention_dropout_rate: float = fields.ranged(0.1, at_least=0, below=1)
    drophead_rate: float = fields.ranged(0.0, at_least=0, below=1)
    max_position_embeddings: int = fields.ranged(512, at_least=2)
    num_views: int = fields.ranged(15, at_least=1)
    type_vocab_size: int = fields.ranged(2, at_least=1)
    relative_positions: bool = False
    initializer_range: float = fields.ranged(0.02, above=0)
    vocab_size: int = fields.ranged(0, at_least=0)
    pooling: str = fields.one_of("mean", (*pooling.POOLINGS, SOURCE_POOLING))
    normalized: bool = False
    prompts: tuple[str, ...] = ()
    prompt: str = ""
    seq_length: int = fields.ranged(0, at_least=0)
    sentence_vector: str = fields.one_of("pooled", SENTENCE_VECTORS)
    dimensions: int = fields.ranged(0, at_least=0)

    @property
    def vector_width(self) -> int:
        """The width of a sentence vector as it is read."""
        return self.dimensions or self.hidden_size

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings, whether or not it is `hidden_size`."""
        return self.embedding_size or self.hidden_size

    @property
    def named_prompts(self) -> dict[str, str]:
        """The texts of `prompts` by name."""
        return prompts_lib.parse(self.prompts, "model.prompts")

    @property
    def token_positions(self) -> int:
        """The longest sequence of tokens: the positions but those of conditions."""
        return self.max_position_embeddings - self.num_views

    def refuse_other_preset(
        self, given: Collection[str], shape: Mapping[str, Any], path: str
    ) -> None:
        """Raises UserError if a preset that the user has set contradicts the weights.

        Args:
            given: names of the settings that the user has set, such as `model.preset`.
                They win over the preset.
            shape: the weights' values of `SHAPE_FIELDS`.
            path: the weights, for the message.
        """
        if "model.preset" not in given or self.preset not in PRESETS:
            return
        for name, value in zip(SHAPE_FIELDS, PRESETS[self.preset], strict=True):
            if f"model.{name}" not in given and value != shape[name]:
                raise UserError(
                    f"model.preset is {self.preset!r}, which has {name}={value}; "
                    f"allowed: a preset with {name}={shape[name]} or none, as {path} "
                    "says"
                )

    def adopt(
        self,
        given: Collection[str],
        values: Mapping[str, Any],
        path: str,
        remarks: Mapping[str, str],
        binding: Collection[str] = BINDING,
    ) -> None:
        """Takes over the settings of trained weights that the user has not set.

        Args:
            given: names of the settings that the user has set.
            values: the settings of the weights.
            path: the weights, for the message.
            remarks: what follows the value of a setting in the message.
            binding: the settings of the user that must agree with the weights.

        Raises:
            UserError: a setting of the user contradicts the weights.
        """
        for name, theirs in values.items():
            own = getattr(self, name)
            # `fill_in` makes this width 0.
            is_zero = name == "embedding_size" and own == values["hidden_size"]
            if f"model.{name}" not in given:
                setattr(self, name, theirs)
            elif name in binding and (0 if is_zero else own) != theirs:
                raise UserError(
                    f"model.{name} is {own}; allowed: {theirs}{remarks.get(name, '')}, "
                    f"as {path} says"
                )

    def fill_in(self) -> None:
        """Sets what the given values leave open: the shape of the preset, a pooling."""
        if self.pooling == SOURCE_POOLING:
            self.pooling = "mean"
        for name, value in zip(SHAPE_FIELDS, PRESETS[self.preset], strict=True):
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.embedding_size == self.hidden_size:
            self.embedding_size = 0

    def check_together(self, prefix: str) -> None:
        """Raises UserError if values do not fit each other, or this machine."""
        prompts_lib.parse(map(str, self.prompts), f"{prefix}prompts")
        if self.hidden_size % self.num_attention_heads:
            raise fields.refused(
                f"{prefix}num_attention_heads",
                self.num_attention_heads,
                f"a divisor of {prefix}hidden_size, {self.hidden_size}",
            )
        self.keep(self.dimensions, f"{prefix}dimensions")
        if self.num_views >= self.max_position_embeddings:
            raise fields.refused(
                f"{prefix}num_views",
                self.num_views,
                f"below {prefix}max_position_embeddings, "
                f"{self.max_position_embeddings}",
            )
        _check_memory(self, prefix)

    def keep(self, dimensions: int, name: str) -> None:
        """Sets `dimensions`; the whole width becomes 0.

        Args:
            dimensions: the value.
            name: the setting or flag that has it, for the message.

        Raises:
            UserError: a vector has fewer components.
        """
        if dimensions > self.hidden_size:
            allowed = f"1 to {self.hidden_size}, the width of the encoder, or 0 for all"
            raise fields.refused(name, dimensions, allowed)
        self.dimensions = 0 if dimensions == self.hidden_size else dimensions


def _check_memory(config: EncoderConfig, prefix: str) -> None:
    """Raises UserError if the weights alone exceed the memory of this machine."""
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    # Kernels of attention and of the feed-forward layers, without heads and P(v).
    numbers = rows * config.embedding_width + config.num_layers * hidden * (
        4 * hidden + 2 * inner
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > memory:
        shape = ", ".join(
            f"{prefix}{name} {getattr(config, name)}"
            for name in (*SHAPE_FIELDS, "max_position_embeddings", "vocab_size")
        )
        raise UserError(
            f"the encoder has {4 * numbers / 2**30:,.0f} GB of weights ({shape}); "
            f"allowed: the memory of this machine, {memory / 2**30:,.0f} GB"
        )
