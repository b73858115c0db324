"""The reading of sentence vectors: pooling, dimensions, length, prompt, precision."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping

from cmlm.common import choices, fields
from cmlm.common import prompts as prompts_lib
from cmlm.errors import UserError
from cmlm.modeling import pooling
from cmlm.modeling.encoder_config import SENTENCE_VECTORS
from cmlm.modeling.model import SentenceModel


@dataclasses.dataclass(frozen=True)
class Reading:
    """The reading of sentence vectors from trained weights; None keeps the run's value.

    CMLM's ablation `proj` (section 5.1) and, most likely, its ablations of pooling
    (appendix A) are readings of one trained encoder.

    Attributes:
        pooling: a key of `pooling.POOLINGS`.
        sentence_vector: `pooled` or `projected`.
        seq_length: the longest sentence in tokens, [CLS] and [SEP] included.
        dimensions: the first components of a vector, this many; 0: all.
        prompt: a text that precedes every text, such as `query: ` for E5.
        prompt_name: the name of that prompt, in the place of its text.
        prompts: the prompts by name, such as `query` and `passage`.
        precision: the precision of the layers, one of `choices.PRECISIONS`. Trained
            weights themselves are float32.
    """

    pooling: str | None = None
    sentence_vector: str | None = None
    seq_length: int | None = None
    dimensions: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    prompts: Mapping[str, str] | None = None
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
        # Less than three tokens are refused with the encoder's own limit.
        for name, least in (("dimensions", 0), ("seq_length", None)):
            value = getattr(self, name)
            # A bool is an int.
            is_number = type(value) is int and (least is None or value >= least)
            if value is not None and not is_number:
                allowed = "an int" if least is None else f"an int from {least}"
                raise fields.refused(f"--{name}", value, allowed)
        self.check_prompts()

    def check_prompts(self) -> None:
        """Checks the values for prompts.

        Raises:
            UserError: a value is not allowed.
        """
        if not isinstance(self.prompt, (str, type(None))):
            raise fields.refused("--prompt", self.prompt, "a str")
        if self.prompts is not None:
            prompts_lib.check(self.prompts, "--prompts")
        if self.prompt_name is not None and self.prompt is not None:
            raise fields.refused(
                "--prompt_name", self.prompt_name, "one of --prompt and --prompt_name"
            )

    @property
    def sets_prompt(self) -> bool:
        """Whether the reading states the prompt, perhaps an empty one."""
        return self.prompt is not None or self.prompt_name is not None

    def given(self) -> str:
        """The flags of the values that are set, such as `--pooling=max`, or ""."""
        values = {**vars(self), "prompts": None}
        given = [(name, value) for name, value in values.items() if value is not None]
        if self.prompts is not None:
            texts = prompts_lib.as_settings(self.prompts) or ("",)
            given += [("prompts", text) for text in texts]
        return " ".join(f"--{name}={shlex.quote(str(value))}" for name, value in given)

    def apply(self, model: SentenceModel, path: str) -> None:
        """Sets the reading of a model with trained weights and of its configuration.

        Args:
            model: the model with its trained weights.
            path: the origin of the weights, for messages.

        Raises:
            UserError: the weights lack the chosen layer, or have fewer dimensions.
        """
        mode = self.pooling or model.config.pooling
        if self.pooling and pooling.POOLINGS[mode].through_pooler:
            # A bias starts at 0 and changes in training only.
            if not model.encoder.bert.pooler_layer.get_weights()[1].any():
                others = [
                    name
                    for name, each in pooling.POOLINGS.items()
                    if not each.through_pooler
                ]
                raise UserError(
                    f"--pooling is {mode!r}; allowed: {', '.join(others)}, as nothing "
                    f"has trained the pooler of {path}"
                )
        if self.prompts is not None:
            model.config.prompts = prompts_lib.as_settings(self.prompts)
        if self.prompt is not None:
            model.config.prompt = self.prompt
        if self.prompt_name is not None:
            known = model.config.named_prompts
            prompts_lib.check_name(self.prompt_name, known, path, "--prompt_name")
            model.config.prompt = known[self.prompt_name]
        if self.dimensions is not None:
            model.config.keep(self.dimensions, "--dimensions")
        model.read_by(
            mode,
            self.sentence_vector or model.config.sentence_vector,
            model.config.dimensions,
        )


# The default of every function that opens an encoder.
AS_TRAINED = Reading()
