"""Masked language modelling: the baseline of CMLM, and a warm start for it."""

from __future__ import annotations

import dataclasses

from cmlm.data import masked_pipelines
from cmlm.modeling import masked_tokens
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.masked_text import MaskedTextConfig, MaskedTextObjective


@dataclasses.dataclass
class MlmConfig(MaskedTextConfig):
    """Predicts masked words of a text.

    Attributes:
        passages: whether a text is a passage of a document, filled with sentences up to
            `seq_length`, instead of one sentence.
    """

    passages: bool = False

    @property
    def reads_single_texts(self) -> bool:
        return not self.passages

    @property
    def reads_documents(self) -> bool:
        return self.passages


class MlmObjective(MaskedTextObjective):
    """Masked LM on single texts: Devlin et al., https://arxiv.org/abs/1810.04805.

    Metrics: `loss` (nats per masked word) and `accuracy`.
    """

    config_class = MlmConfig

    reads_vectors = False

    def __init__(self, name: str, config: MlmConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.masked_lm = model.masked_lm()

    @property
    def trained_parts(self) -> list[str]:
        return ["encoder", "masked_lm"]

    def make_dataset(self, feed):
        return masked_pipelines.masked_texts(
            feed, self.config.masking, self.config.passages
        )

    def compute(self, batch, training):
        masked = masked_tokens.of_batch(batch)
        outputs = self.model.encoder.read(batch, masked.tokens, training=training)
        metrics = self.masked_metrics(masked, self.masked_lm(outputs))
        return metrics["loss"][0], metrics
